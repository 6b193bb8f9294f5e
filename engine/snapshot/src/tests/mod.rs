//! Snapshots under malicious peers, damage and power losses.

mod crash;
mod damage;
mod manifest;
mod staging;

use bytes::Bytes;
use dengine_kv::store::{MemoryStore, Store as _, WriteBatch};
use dengine_kv::{StateMachine, StoreError};
use dengine_log::memory::MemoryDisk;
use dengine_log::{Disk, DiskFile as _, Position};
use dengine_types::{ClusterId, Entry, EntryKind, Index, Term};

use super::{
    Checkpoint as _, Chunk, FileEntry, Manifest, Outgoing, Place, SnapshotError, SnapshotId,
    Staging, conformance, describe,
};

const CLUSTER: ClusterId = ClusterId(7);
/// More than any snapshot here has.
const BYTES_MAX: u64 = 1 << 20;

fn position(index: u64, term: u64) -> Position {
    Position {
        index: Index(index),
        term: Term(term),
    }
}

/// The last entry of the snapshot of [`outgoing`].
const LAST: u64 = 20;

/// Files of all kinds: empty, of one byte, of several chunks.
const FILES: [(&str, usize); 4] = [
    ("000001.sst", 1300),
    ("CURRENT", 1),
    ("EMPTY", 0),
    ("last", 700),
];

/// Chunks of this size make several of the larger files.
const CHUNK: usize = 256;

/// A snapshot of [`FILES`], different for every `id`.
fn outgoing(id: u128) -> Outgoing<MemoryDisk> {
    let disk = MemoryDisk::new();
    for (name, bytes) in FILES {
        let file = disk.create(name).unwrap();
        let content: Vec<u8> = (0..bytes)
            .map(|at| (at as u128 * 7 + id) as u8 | 1)
            .collect();
        file.write_at(0, &content).unwrap();
    }
    Outgoing::new(disk, CLUSTER, SnapshotId(id), position(LAST, 3)).unwrap()
}

fn open<D: Disk>(disk: D) -> Staging<D> {
    Staging::open(disk, CLUSTER, BYTES_MAX).unwrap()
}

/// Accepts the state as the announced one.
fn looks_right<D>(_: &D) -> Result<Position, StoreError> {
    Ok(position(LAST, 3))
}

/// Sends everything that is missing and completes the snapshot.
fn send<D: Disk>(from: &Outgoing<MemoryDisk>, to: &mut Staging<D>) -> Result<(), SnapshotError> {
    let mut place = to.begin(from.manifest().clone())?;
    while let Some(chunk) = from.read(place, CHUNK)? {
        place = to.receive(&chunk)?;
    }
    to.finish(looks_right)
}

/// Whether a disk contains exactly the files of a snapshot, beside those of staging.
fn holds_files(disk: &MemoryDisk, from: &Outgoing<MemoryDisk>) -> bool {
    let mut names = disk.list().unwrap();
    names.retain(|name| !name.starts_with(super::RESERVED));
    let content = |name: &String| disk.contents(name);
    let files = from.manifest().files();
    let same = |file: &FileEntry| {
        names.contains(&file.name) && {
            let bytes = content(&file.name);
            bytes.len() as u64 == file.bytes && crc32c::crc32c(&bytes) == file.crc
        }
    };
    names.len() == files.len() && files.iter().all(same)
}

#[test]
fn the_in_memory_store_conforms() {
    conformance::test_all::<_, MemoryDisk, _>(MemoryStore::default, MemoryDisk::new);
}

#[test]
fn an_in_memory_checkpoint_with_a_flipped_bit_does_not_open() {
    let (store, disk) = (MemoryStore::default(), MemoryDisk::new());
    let mut batch = WriteBatch::default();
    batch.put(b"key", b"value");
    batch.put(b"", b"");
    store.write(&batch).unwrap();
    store.checkpoint(&disk).unwrap();
    let name = disk.list().unwrap().remove(0);
    for byte in 0..disk.contents(&name).len() {
        for bit in 0..8 {
            let damaged = disk.duplicate();
            damaged.flip_bit(&name, byte, bit);
            MemoryStore::open_checkpoint(&damaged).unwrap_err();
        }
    }
}

/// From the state machine of one member to that of another.
#[test]
fn a_state_is_transferred() {
    let mut machine = StateMachine::open(MemoryStore::default()).unwrap();
    let entries: Vec<_> = (1..=LAST)
        .map(|index| Entry {
            index: Index(index),
            term: Term(3),
            kind: EntryKind::Command,
            context: Bytes::new(),
            data: Bytes::new(),
        })
        .collect();
    machine.apply(&entries).unwrap();
    let checkpoint = MemoryDisk::new();
    machine
        .flusher()
        .with_store(|store| store.checkpoint(&checkpoint))
        .unwrap();
    let (last, _) = describe::<MemoryStore, _>(&checkpoint).unwrap();
    let from = Outgoing::new(checkpoint, CLUSTER, SnapshotId(1), last).unwrap();
    let mut to = open(MemoryDisk::new());
    let mut place = to.begin(from.manifest().clone()).unwrap();
    while let Some(chunk) = from.read(place, CHUNK).unwrap() {
        place = to.receive(&chunk).unwrap();
    }
    to.finish(|disk| Ok(describe::<MemoryStore, _>(disk)?.0))
        .unwrap();
    assert!(to.holds(last));
    let there = StateMachine::open(MemoryStore::open_checkpoint(to.disk()).unwrap()).unwrap();
    assert_eq!(there.applied(), (Index(LAST), Term(3)));
}
