//! Whether what a run writes has room on the members' disks. Pure.

use anyhow::{Context, Result, bail};
use dengine_bench_model::results::{Shape, Workload};

use crate::cli::Task;
use crate::keys;
use crate::target::Room;

/// What a record takes beside its key and value: in the log, and as a version in the store.
const RECORD_BYTES: u64 = 64;
/// Versions that a cluster with default settings keeps readable, and for how long: of the two, what
/// is more.
const HISTORY: u64 = 100_000;
const HISTORY_SECONDS: f64 = 300.0;
/// But no more than were written with this part of the volume. That is not so where retention has
/// no bound at all, and all stays: no member says that of itself, so docs/benchmarks.md does.
const HISTORY_OF_VOLUME: u64 = 4;
/// A store that is compacted needs room for this part of itself once more.
const COMPACTION: u64 = 4;
/// What writes where time, not number, has requests go on: no more than this in a second, of all
/// clients and of each.
const FASTEST: u64 = 50_000;
const FASTEST_OF_ONE: u64 = 2_000;
/// Less is not worth a question.
const ALWAYS_FITS_BYTES: u64 = 16 << 20;

/// What workloads write to each member, roughly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    /// Bytes of every key once.
    keys: u64,
    /// Bytes of versions that stay readable.
    history: u64,
}

impl Need {
    pub(super) fn is_worth_a_question(self) -> bool {
        self.keys.saturating_add(self.history) > ALWAYS_FITS_BYTES
    }

    /// Bytes on the disk of this member. Its volume is taken for what it has written there and what
    /// is free.
    fn bytes(self, room: &Room) -> u64 {
        let volume = room.bytes.saturating_add(room.used_bytes);
        let history = self.history.min(volume / HISTORY_OF_VOLUME);
        let bytes = self.keys.saturating_add(history);
        bytes.saturating_add(bytes / COMPACTION)
    }
}

/// What the workloads of a run write.
pub(super) fn needed(tasks: &[Task], folder: usize, repeat: u32) -> Need {
    let entry = |shape: &Shape| {
        let bytes = folder as u64 + u64::from(shape.key_size) + u64::from(shape.value_size);
        bytes + RECORD_BYTES
    };
    // Workloads of one run use the same keys.
    let distinct = |shape: &Shape| {
        let last = u64::from(repeat.saturating_sub(1));
        let written = match shape.workload {
            Workload::Put => keys::space(shape).min(shape.total),
            Workload::Watch | Workload::Swap | Workload::Seen => u64::from(shape.clients),
            Workload::Range | Workload::Mixed | Workload::List | Workload::Scan => {
                keys::space(shape)
            }
        };
        written + keys::of_repetition(shape, last)
    };
    let shapes = || tasks.iter().map(|task| &task.shape);
    let keys = shapes().map(|shape| distinct(shape) * entry(shape));
    let history = shapes().map(|shape| kept(shape, repeat).saturating_mul(entry(shape)));
    Need {
        keys: keys.max().unwrap_or(0),
        history: history.fold(0, u64::saturating_add),
    }
}

/// Versions of a workload's writes that are kept at once, at most: how fast it writes without a
/// rate is not known before.
fn kept(shape: &Shape, repeat: u32) -> u64 {
    let in_time = shape
        .rate
        .map_or(u64::MAX, |rate| (rate * HISTORY_SECONDS) as u64);
    writes(shape, repeat).min(in_time.max(HISTORY))
}

fn writes(shape: &Shape, repeat: u32) -> u64 {
    let share = match shape.workload {
        Workload::Put | Workload::Watch | Workload::Swap | Workload::Seen | Workload::List => 100,
        Workload::Range | Workload::Scan => 0,
        Workload::Mixed => 100 - u64::from(shape.read_percent.unwrap_or(50).min(100)),
    };
    let fastest = FASTEST.min(FASTEST_OF_ONE.saturating_mul(shape.clients.into()));
    let in_time = shape.at_least_seconds.unwrap_or(0.0) * fastest as f64;
    let requests = shape.total.max(in_time as u64);
    (requests * share / 100).saturating_mul(repeat.into())
}

/// Refuses what would fill the disk of the member that has the least room, and what may.
pub(super) fn check(need: Need, room: Result<Option<Room>>) -> Result<()> {
    let room = room.context(
        "nothing was written: the free space is unknown because a member could not be asked \
         (--ignore-space starts anyway)",
    )?;
    let Some(room) = room else { return Ok(()) };
    let needed = need.bytes(&room);
    if needed <= room.bytes {
        return Ok(());
    }
    bail!(
        "nothing was written: this run needs about {} on each member, and {} has {} left before it \
         refuses writes; use fewer keys (--key-space, --total) or smaller values, another profile, \
         or larger volumes",
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
    use dengine_bench_model::profiles::profile;

    use super::*;

    fn tasks(name: &str) -> Vec<Task> {
        let workloads = profile(name).unwrap().workloads;
        let task = |workload: &dengine_bench_model::profiles::NamedWorkload| Task {
            name: workload.name.to_owned(),
            shape: workload.shape(),
        };
        workloads.iter().map(task).collect()
    }

    fn refused(name: &str, room: u64) -> Option<String> {
        let room = Room {
            member: "demo-1".to_owned(),
            bytes: room,
            used_bytes: 0,
        };
        let error = check(needed(&tasks(name), 28, 1), Ok(Some(room))).err()?;
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
        for profile in ["standard", "quick", "small", "dense", "basic", "t4"] {
            assert_eq!(refused(profile, 512 << 20), None, "{profile}");
        }
        assert_eq!(refused("extra", 896 << 20), None, "a million keys");
        assert_eq!(refused("etcd", 640 << 20), None, "100,000 of 4 KiB");
    }

    #[test]
    fn who_does_not_tell_its_room_is_not_refused_and_who_does_not_answer_is() {
        let need = needed(&tasks("growth"), 28, 1);
        assert!(need.is_worth_a_question());
        assert!(check(need, Ok(None)).is_ok());
        let error = check(need, Err(anyhow::anyhow!("demo-2 is silent"))).unwrap_err();
        let words = format!("{error:#}");
        assert!(words.starts_with("nothing was written"), "{words}");
        assert!(words.ends_with("demo-2 is silent"), "{words}");
    }

    /// Some 128 bytes each, for five minutes whatever their number, and then up to a quarter of the
    /// volume.
    #[test]
    fn overwriting_the_same_keys_needs_room_for_the_history_alone() {
        let mut task = tasks("quick").remove(1);
        let shape = &mut task.shape;
        (shape.total, shape.key_space, shape.rate) = (1_000_000_000, 10, None);
        let needed_of = |task: &Task, bytes| {
            let (member, used_bytes) = ("demo-0".to_owned(), 1 << 30);
            let room = Room {
                member,
                bytes,
                used_bytes,
            };
            needed(std::slice::from_ref(task), 0, 1).bytes(&room)
        };
        let free = 7 << 30;
        let quarter = (free + (1 << 30)) / 4;
        let all = needed_of(&task, free);
        assert!(all > quarter && all < 2 * quarter, "{all}");
        task.shape.rate = Some(10_000.0);
        let slow = needed_of(&task, free);
        assert!(slow < all, "{slow}");
        task.shape.rate = Some(1.0);
        let slowest = needed_of(&task, free);
        assert!(slowest > 10 << 20 && slowest < 100 << 20, "{slowest}");
    }
}
