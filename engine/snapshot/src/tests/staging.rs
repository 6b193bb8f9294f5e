//! Assembling a snapshot: in order, resumable, and nothing that was not announced.

use super::*;
use crate::{CHUNK_BYTES_MAX, Decision};

#[test]
fn a_snapshot_is_assembled() {
    let (from, disk) = (outgoing(1), MemoryDisk::new());
    let mut to = open(disk.clone());
    assert!(to.manifest().is_none());
    send(&from, &mut to).unwrap();
    assert!(holds_files(&disk, &from));
    assert!(to.holds(position(LAST, 3)));
    assert!(!to.holds(position(LAST, 2)) && !to.holds(position(LAST - 1, 3)));
    // The second time nothing is sent or written.
    let writes = disk.counts();
    send(&from, &mut to).unwrap();
    assert_eq!(disk.counts(), writes);
}

#[test]
fn a_broken_stream_resumes_where_it_ended() {
    let from = outgoing(1);
    for received in 0..12 {
        let disk = MemoryDisk::new();
        let mut to = open(disk.clone());
        let mut place = to.begin(from.manifest().clone()).unwrap();
        for _ in 0..received {
            let Some(chunk) = from.read(place, CHUNK).unwrap() else {
                break;
            };
            place = to.receive(&chunk).unwrap();
        }
        assert_eq!(
            to.begin(from.manifest().clone()).unwrap(),
            place,
            "the same process"
        );
        let mut to = open(disk.clone());
        assert_eq!(
            to.begin(from.manifest().clone()).unwrap(),
            place,
            "another process"
        );
        send(&from, &mut to).unwrap();
        assert!(holds_files(&disk, &from));
    }
}

#[test]
fn another_snapshot_replaces_what_is_staged() {
    let disk = MemoryDisk::new();
    let mut to = open(disk.clone());
    send(&outgoing(1), &mut to).unwrap();
    let from = outgoing(2);
    assert_eq!(to.begin(from.manifest().clone()).unwrap(), Place::default());
    assert!(!to.holds(position(LAST, 3)));
    assert!(!open(disk.duplicate()).holds(position(LAST, 3)));
    send(&from, &mut to).unwrap();
    assert!(holds_files(&disk, &from));
    to.clear().unwrap();
    assert_eq!(disk.list().unwrap(), Vec::<String>::new());
}

/// The size is the space that the removal of the staged files would free.
#[test]
fn the_size_of_the_staged_files_is_reported() {
    let (from, disk) = (outgoing(1), MemoryDisk::new());
    let mut to = open(disk);
    assert_eq!(to.bytes().unwrap(), 0);
    let place = to.begin(from.manifest().clone()).unwrap();
    let announced = to.bytes().unwrap();
    let first = from.read(place, CHUNK).unwrap().unwrap();
    to.receive(&first).unwrap();
    assert_eq!(to.bytes().unwrap(), announced + first.bytes.len() as u64);
    to.clear().unwrap();
    assert_eq!(to.bytes().unwrap(), 0);
}

fn refused<T: std::fmt::Debug>(result: Result<T, SnapshotError>, expected: &str) {
    let error = result.unwrap_err();
    let of_this_member = matches!(
        error,
        SnapshotError::Disk(_) | SnapshotError::Missing { .. }
    );
    assert!(!of_this_member, "{error}");
    assert!(error.to_string().contains(expected), "{expected}: {error}");
}

#[test]
fn only_the_expected_chunk_is_accepted() {
    let (from, disk) = (outgoing(1), MemoryDisk::new());
    let mut to = open(disk.clone());
    let first = from.read(Place::default(), CHUNK).unwrap().unwrap();
    refused(to.receive(&first), "not complete");
    to.begin(from.manifest().clone()).unwrap();
    to.receive(&first).unwrap();
    let place = from.after(&first);
    let chunk = |place, bytes: &[u8]| Chunk::new(place, Bytes::copy_from_slice(bytes));
    let names = disk.list().unwrap();
    refused(to.receive(&first), "is expected");
    refused(
        to.receive(&chunk(Place { file: 1, offset: 0 }, b"x")),
        "is expected",
    );
    refused(
        to.receive(&chunk(
            Place {
                file: 99,
                offset: 0,
            },
            b"x",
        )),
        "is expected",
    );
    refused(
        to.receive(&chunk(
            Place {
                file: 0,
                offset: u64::MAX,
            },
            b"x",
        )),
        "is expected",
    );
    refused(to.receive(&chunk(place, b"")), "0 bytes");
    refused(
        to.receive(&chunk(place, &vec![1; CHUNK_BYTES_MAX + 1])),
        "bytes",
    );
    refused(
        to.receive(&chunk(place, &[1; 1300 - CHUNK + 1])),
        "past the end",
    );
    let wrong = Chunk {
        crc: 1,
        ..chunk(place, b"x")
    };
    refused(to.receive(&wrong), "checksum");
    refused(to.finish(looks_right), "not complete");
    assert_eq!(disk.list().unwrap(), names);
    // The refused chunks changed nothing.
    send(&from, &mut to).unwrap();
    assert!(holds_files(&disk, &from));
}

#[test]
fn a_file_with_a_wrong_checksum_is_sent_again() {
    let (from, disk) = (outgoing(1), MemoryDisk::new());
    let mut to = open(disk.clone());
    to.begin(from.manifest().clone()).unwrap();
    let lie = Chunk::new(Place::default(), Bytes::from(vec![9; 1300]));
    let error = to.receive(&lie).unwrap_err();
    assert!(
        matches!(&error, SnapshotError::Damaged { file, .. } if file == "000001.sst"),
        "{error}"
    );
    assert_eq!(to.begin(from.manifest().clone()).unwrap(), Place::default());
    send(&from, &mut to).unwrap();
    assert!(holds_files(&disk, &from));
}

#[test]
fn a_state_other_than_the_announced_one_is_removed() {
    let (from, disk) = (outgoing(1), MemoryDisk::new());
    type Look = fn(&MemoryDisk) -> Result<Position, StoreError>;
    let lies: [Look; 3] = [
        |_| Ok(position(LAST - 1, 3)),
        |_| Ok(position(LAST, 2)),
        |_| Err(StoreError::Corrupt("unreadable".to_owned())),
    ];
    for lie in lies {
        let mut to = open(disk.clone());
        let mut place = to.begin(from.manifest().clone()).unwrap();
        while let Some(chunk) = from.read(place, CHUNK).unwrap() {
            place = to.receive(&chunk).unwrap();
        }
        refused(to.finish(lie), "is not the one that was announced");
        assert_eq!(disk.list().unwrap(), Vec::<String>::new());
        refused(to.finish(looks_right), "not complete");
    }
}

#[test]
fn a_snapshot_too_large_or_of_another_cluster_changes_nothing() {
    let disk = MemoryDisk::new();
    send(&outgoing(1), &mut open(disk.clone())).unwrap();
    let other = outgoing(2).manifest().clone();
    let mut small = Staging::open(disk.clone(), CLUSTER, other.bytes() - 1).unwrap();
    refused(small.begin(other.clone()), "this member takes 2000");
    let mut stranger = Staging::open(disk.clone(), ClusterId(8), BYTES_MAX).unwrap();
    refused(stranger.begin(other), "of cluster 7, not of cluster 8");
    assert!(holds_files(&disk, &outgoing(1)));
    assert!(open(disk).holds(position(LAST, 3)));
}

/// The decision, by where the log begins, where the state ends, and what is staged.
#[test]
fn the_decision_when_a_member_is_opened() {
    let (nothing, partial, complete, litter) = (
        MemoryDisk::new(),
        MemoryDisk::new(),
        MemoryDisk::new(),
        MemoryDisk::new(),
    );
    open(partial.clone())
        .begin(outgoing(1).manifest().clone())
        .unwrap();
    send(&outgoing(1), &mut open(complete.clone())).unwrap();
    litter.create("litter").unwrap();
    let decide = |disk: &MemoryDisk, base: u64, applied: u64| {
        let decision = open(disk.clone()).decide(position(base, 3), Index(applied));
        decision.map_err(|error| error.to_string())
    };
    use Decision::{Discard, Install, Nothing};
    // The log still continues from the state.
    for base in [0, 5, 10] {
        assert_eq!(decide(&nothing, base, 10), Ok(Nothing));
        assert_eq!(
            decide(&partial, base, 10),
            Ok(Nothing),
            "it may still be completed"
        );
        assert_eq!(
            decide(&complete, base, 10),
            Ok(Nothing),
            "nothing is decided yet"
        );
        assert_eq!(decide(&litter, base, 10), Ok(Discard));
    }
    assert_eq!(decide(&nothing, 20, 20), Ok(Nothing));
    for disk in [&partial, &complete] {
        assert_eq!(decide(disk, 20, 20), Ok(Discard), "it was installed");
        assert_eq!(decide(disk, 5, 21), Ok(Discard), "it was overtaken");
    }
    // The log was reset.
    assert_eq!(decide(&complete, LAST, 10), Ok(Install));
    assert_eq!(
        decide(&complete, LAST, 0),
        Ok(Install),
        "the old state may be gone already"
    );
    let damaged = |disk: &MemoryDisk, base: u64, expected: &str| {
        let error = decide(disk, base, 10).unwrap_err();
        assert!(
            error.contains(expected) && error.contains("must not take part"),
            "{error}"
        );
    };
    damaged(&nothing, LAST, "there is none");
    damaged(&litter, LAST, "there is none");
    damaged(&partial, LAST, "not complete");
    damaged(&complete, LAST + 1, "is complete and ends at entry 20");
    damaged(&complete, LAST - 1, "is complete and ends at entry 20");
    let other_term = open(complete).decide(position(LAST, 4), Index(10));
    assert!(matches!(other_term, Err(SnapshotError::Missing { .. })));
}
