//! What a peer sends of a snapshot: its manifest, and chunks of its files.

use bytes::Bytes;
use dengine_log::Position;
use dengine_log::memory::MemoryDisk;
use dengine_snapshot::{Chunk, FileEntry, Manifest, SnapshotId, Staging};
use dengine_types::{ClusterId, Index, Term};

use super::{both_modes, joined, part, parts, round_trip};
use crate::driver::Target;

const CLUSTER: ClusterId = ClusterId(7);
/// What a receiver would take at most.
const BYTES_MAX: u64 = 1 << 20;
const CHECKSUM_AT: std::ops::Range<usize> = 12..16;

/// The first byte says whether the manifest's checksum is repaired; then its length, itself, and
/// chunks.
pub(crate) const SNAPSHOT: Target = Target {
    run,
    seeds: || both_modes([input()]),
    memory: (4 << 20, 64),
};

fn run(input: &[u8]) {
    let Some((mode, rest)) = input.split_first() else {
        return;
    };
    let Some((manifest, chunks)) = part(rest) else {
        return;
    };
    let manifest = with_checksum(*mode, manifest);
    let Some(decoded) = round_trip(&manifest, Manifest::decode, Manifest::encode) else {
        return;
    };
    let disk = MemoryDisk::new();
    let mut staging = Staging::open(disk.clone(), CLUSTER, BYTES_MAX).unwrap();
    let Ok(mut place) = staging.begin(decoded) else {
        return;
    };
    for bytes in parts(chunks) {
        if let Ok(next) = staging.receive(&Chunk::new(place, Bytes::copy_from_slice(bytes))) {
            place = next;
        }
    }
    drop(Staging::open(disk, CLUSTER, BYTES_MAX));
}

/// The manifest, whose checksum an odd mode makes match.
pub(super) fn with_checksum(mode: u8, manifest: &[u8]) -> Vec<u8> {
    let mut manifest = manifest.to_vec();
    if mode % 2 == 1 && manifest.len() >= CHECKSUM_AT.end {
        let head = crc32c::crc32c(&manifest[8..CHECKSUM_AT.start]);
        let crc = crc32c::crc32c_append(head, &manifest[CHECKSUM_AT.end..]);
        manifest[CHECKSUM_AT].copy_from_slice(&crc.to_le_bytes());
    }
    manifest
}

/// A snapshot of two files, in chunks.
fn input() -> Vec<u8> {
    let files = [
        ("a.sst", &b"the first file"[..]),
        ("state", &b"the second"[..]),
    ];
    let entries = files.map(|(name, bytes)| FileEntry {
        name: name.to_owned(),
        bytes: bytes.len() as u64,
        crc: crc32c::crc32c(bytes),
    });
    let last = Position {
        index: Index(9),
        term: Term(2),
    };
    let manifest = Manifest::new(CLUSTER, SnapshotId(3), last, entries.to_vec()).unwrap();
    let manifest = manifest.encode();
    let chunks = files.iter().flat_map(|(_, bytes)| bytes.chunks(7));
    joined([&manifest[..]].into_iter().chain(chunks))
}
