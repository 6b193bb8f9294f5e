//! Whether what a run writes has room on the members' disks. Pure.

use anyhow::{Result, bail};
use dengine_crds::benchmark::{Shape, Workload};

use crate::{cli::Task, keys, target::Room};

/// What a record takes beside its key and value: in the log, and as a version in the store.
const RECORD_BYTES: u64 = 64;
/// Versions that a cluster with default settings keeps readable.
const HISTORY: u64 = 100_000;
/// A store that is compacted needs room for this part of itself once more.
const COMPACTION: u64 = 4;
/// Less is not worth a question.
const ALWAYS_FITS_BYTES: u64 = 16 << 20;

/// Bytes that the workloads write to each member, roughly: every key once, and the history of what is overwritten.
pub(super) fn needed(tasks: &[Task], folder: usize, repeat: u32) -> u64 {
    let entry = |shape: &Shape| {
        let bytes = folder as u64 + u64::from(shape.key_size) + u64::from(shape.value_size);
        bytes + RECORD_BYTES
    };
    // Workloads of one run use the same keys.
    let distinct = |shape: &Shape| {
        let last = u64::from(repeat.saturating_sub(1));
        let written = match shape.workload {
            Workload::Put => keys::space(shape).min(shape.total),
            Workload::Watch => u64::from(shape.clients),
            Workload::Range | Workload::Mixed => keys::space(shape),
        };
        written + keys::of_repetition(shape, last)
    };
    let kept = tasks
        .iter()
        .map(|task| distinct(&task.shape) * entry(&task.shape));
    let writes = tasks
        .iter()
        .map(|task| writes(&task.shape, repeat))
        .sum::<u64>();
    let largest = tasks
        .iter()
        .map(|task| entry(&task.shape))
        .max()
        .unwrap_or(0);
    let bytes = kept.max().unwrap_or(0) + writes.min(HISTORY) * largest;
    bytes + bytes / COMPACTION
}

fn writes(shape: &Shape, repeat: u32) -> u64 {
    let share = match shape.workload {
        Workload::Put | Workload::Watch => 100,
        Workload::Range => 0,
        Workload::Mixed => 100 - u64::from(shape.read_percent.unwrap_or(50).min(100)),
    };
    (shape.total * share / 100).saturating_mul(repeat.into())
}

/// Refuses what would fill the disk of the member that has the least room.
pub(super) fn check(needed: u64, room: Option<&Room>) -> Result<()> {
    let Some(room) = room.filter(|_| needed > ALWAYS_FITS_BYTES) else {
        return Ok(());
    };
    if needed <= room.bytes {
        return Ok(());
    }
    bail!(
        "nothing was written: this run needs about {} on each member, and {} has {} left before it refuses writes; use \
         fewer keys (--key-space, --total) or smaller values, another profile, or larger volumes",
        mebibytes(needed),
        room.member,
        mebibytes(room.bytes)
    )
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use dengine_crds::profiles::profile;

    use super::*;

    fn tasks(name: &str) -> Vec<Task> {
        let workloads = profile(name).unwrap().workloads;
        let task = |workload: &dengine_crds::profiles::NamedWorkload| Task {
            name: workload.name.to_owned(),
            shape: workload.shape(),
        };
        workloads.iter().map(task).collect()
    }

    fn refused(name: &str, room: u64) -> Option<String> {
        let room = Room {
            member: "demo-1".to_owned(),
            bytes: room,
        };
        let error = check(needed(&tasks(name), 28, 1), Some(&room)).err()?;
        Some(error.to_string())
    }

    #[test]
    fn ten_million_keys_do_not_fit_on_the_default_volume() {
        let error = refused("growth", 1 << 30).unwrap();
        assert!(error.contains("demo-1 has 1024 MiB"), "{error}");
        assert_eq!(refused("growth", 8 << 30), None);
    }

    #[test]
    fn every_other_profile_does() {
        for profile in ["standard", "quick", "small", "dense", "basic"] {
            assert_eq!(refused(profile, 512 << 20), None, "{profile}");
        }
    }

    #[test]
    fn who_does_not_know_its_room_is_not_refused() {
        assert!(check(u64::MAX, None).is_ok());
    }

    #[test]
    fn overwriting_the_same_keys_needs_room_for_the_history_alone() {
        let mut task = tasks("quick").remove(1);
        (task.shape.total, task.shape.key_space) = (1_000_000_000, 10);
        assert!(needed(&[task], 0, 1) < 100 << 20);
    }
}
