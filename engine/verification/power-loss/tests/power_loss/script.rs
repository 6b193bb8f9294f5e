//! What is done to the member, step by step, and the calls for it.

use std::ffi::OsStr;

use bytes::Bytes;
use dengine_client::{AdminClient, Batch, Client, Compare, Expected, Operation, Result};
use dengine_power_loss::{Disk, Inode};
use dengine_testkit::Random;

use crate::life::DATA_FOLDER;
use crate::state::{State, Write};

/// Enough that the member's small log rotates and drops segments, and that its state is flushed,
/// also without a call for it, and compacted.
pub(crate) const STEPS: u64 = 200;
const FLUSH_EVERY: u64 = 20;
/// Of a large value; the largest that the server accepts.
pub(crate) const LARGE_BYTES: usize = 16 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Write(Write),
    /// Compacts: drops history before this revision.
    Compact(u64),
    /// Makes the state durable, so that log segments can be dropped.
    Flush,
}

/// The step of this number, from 1 on.
pub(crate) fn step(number: u64, state: &State) -> Step {
    match number {
        _ if number % 50 == 25 => Step::Compact(state.revision - 10),
        _ if number % FLUSH_EVERY == 10 => Step::Flush,
        _ => Step::Write(write(number, state)),
    }
}

fn write(number: u64, state: &State) -> Write {
    let key = |number: u64| Bytes::from(format!("key {}", number % 7));
    let value = Bytes::from(format!("value {number}"));
    let (one, two, three) = (key(number), key(number * 3 + 1), key(number * 5 + 3));
    match number % 9 {
        0 => Write::Delete(one),
        1 => Write::Swap(one.clone(), state.value(&one).cloned(), value),
        2 => Write::Swap(one, Some(Bytes::from_static(b"what no key holds")), value),
        3 => {
            let mut changes = vec![
                (one, Some(value.clone())),
                (two.clone(), None),
                (three, Some(value.clone())),
            ];
            changes.sort();
            changes.dedup_by(|a, b| a.0 == b.0);
            Write::Batch(two, changes, ("otherwise".into(), value))
        }
        4 | 6 | 8 => Write::Put(format!("large {}", number % 4).into(), large(number)),
        _ => Write::Put(one, value),
    }
}

/// Bytes that RocksDB cannot compress.
fn large(number: u64) -> Bytes {
    Random::new(number).bytes(LARGE_BYTES).into()
}

/// Does a step; returns the revision after it, if the answer has it.
pub(crate) async fn perform(client: Client, admin: AdminClient, step: Step) -> Result<Option<u64>> {
    match step {
        Step::Write(write) => send(&client, write).await.map(Some),
        Step::Compact(revision) => {
            client.compact(revision).await?;
            Ok(None)
        }
        Step::Flush => {
            admin.snapshot().await?;
            Ok(None)
        }
    }
}

async fn send(client: &Client, write: Write) -> Result<u64> {
    let header = match write {
        Write::Put(key, value) => client.put(key, value).await?.header,
        Write::Delete(key) => client.delete(key).await?.header,
        Write::Swap(key, expected, value) => {
            let expected = expected.map_or(Expected::Absent, Expected::Value);
            client.compare_and_swap(key, expected, value).await?.header
        }
        Write::Batch(key, then, (other_key, other_value)) => {
            let batch = Batch::new()
                .when(Compare::exists(key))
                .otherwise(Operation::put(other_key, other_value));
            let batch = then.into_iter().fold(batch, |batch, (key, value)| {
                batch.then(match value {
                    Some(value) => Operation::put(key, value),
                    None => Operation::delete(key),
                })
            });
            client.batch(batch).await?.header
        }
    };
    Ok(header.revision)
}

/// Whether the log rotated and was dropped in part, and files of the state were merged.
///
/// # Panics
/// The script is too short for that.
pub(crate) fn check_length(disk: &Disk) {
    let inside = |folder, name: &str| disk.lookup(folder, OsStr::new(name)).unwrap().inode;
    let data = inside(Inode::ROOT, DATA_FOLDER);
    let names = |folder: &str| -> Vec<String> {
        let list = disk.list(inside(data, folder)).unwrap();
        list.into_iter()
            .map(|(name, _)| name.into_string().unwrap())
            .collect()
    };
    let first = "00000000000000000001.segment".to_owned();
    assert!(!names("log").contains(&first), "no log was dropped");
    let tables = names("state")
        .into_iter()
        .filter(|name| name.ends_with(".sst"));
    // Each flush made one, at the least.
    assert!(
        (tables.count() as u64) < STEPS / FLUSH_EVERY,
        "no files of the state were merged"
    );
}
