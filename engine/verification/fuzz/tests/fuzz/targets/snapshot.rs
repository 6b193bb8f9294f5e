//! What a peer sends of a snapshot: its manifest, and chunks of its files.

use super::{joined, part, parts, words};
use crate::driver::Target;
use bytes::Bytes;
use dengine_log::Position;
use dengine_log::memory::MemoryDisk;
use dengine_snapshot::{Chunk, FileEntry, Manifest, SnapshotId, Staging};
use dengine_types::{ClusterId, Index, Term};

const CLUSTER: ClusterId = ClusterId(7);
/// What a receiver would take at most.
const BYTES_MAX: u64 = 1 << 20;
const CHECKSUM_AT: std::ops::Range<usize> = 12..16;

/// The first byte says whether the manifest's checksum is mended; then its length, itself, and chunks.
pub(crate) const SNAPSHOT: Target = Target {
    name: "",
    run,
    seeds: || vec![input(0), input(1)],
    memory: (4 << 20, 64),
};

fn run(input: &[u8]) -> String {
    let Some((mode, rest)) = input.split_first() else {
        return "nothing".to_owned();
    };
    let Some((manifest, chunks)) = part(rest) else {
        return "no manifest".to_owned();
    };
    let mut manifest = manifest.to_vec();
    if mode % 2 == 1 {
        mend(&mut manifest);
    }
    let decoded = match Manifest::decode(&manifest) {
        Ok(decoded) => decoded,
        Err(error) => return words(&error),
    };
    assert_eq!(Manifest::decode(&decoded.encode()).unwrap(), decoded);
    let disk = MemoryDisk::new();
    let mut staging = Staging::open(disk.clone(), CLUSTER, BYTES_MAX).unwrap();
    let mut place = match staging.begin(decoded) {
        Ok(place) => place,
        Err(error) => return words(&error),
    };
    let mut became = String::new();
    for bytes in parts(chunks) {
        match staging.receive(&Chunk::new(place, Bytes::copy_from_slice(bytes))) {
            Ok(next) => place = next,
            Err(error) => became = words(&error),
        }
    }
    let again = Staging::open(disk, CLUSTER, BYTES_MAX);
    let again = again.map_or_else(|error| words(&error), |_| "opens again".to_owned());
    format!("file {} {became} {again}", place.file)
}

/// Makes the checksum match what it is of.
pub(super) fn mend(manifest: &mut [u8]) {
    if manifest.len() >= CHECKSUM_AT.end {
        let head = crc32c::crc32c(&manifest[8..CHECKSUM_AT.start]);
        let crc = crc32c::crc32c_append(head, &manifest[CHECKSUM_AT.end..]);
        manifest[CHECKSUM_AT].copy_from_slice(&crc.to_le_bytes());
    }
}

/// A snapshot of two files, in chunks.
fn input(mode: u8) -> Vec<u8> {
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
    let mut input = vec![mode];
    input.extend(joined([&manifest[..]].into_iter().chain(chunks)));
    input
}
