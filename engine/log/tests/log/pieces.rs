//! The next segment is prepared piece by piece while the log goes on.

use dengine_log::conformance::{batch, small_options};
use dengine_log::memory::MemoryDisk;
use dengine_log::{Disk as _, Log, LogError, LogOptions, Piece};
use dengine_types::Index;

const SEGMENT: u32 = 16 * 4096;

fn options() -> LogOptions {
    LogOptions {
        segment_bytes: SEGMENT,
        spares_max: 3,
        ..small_options()
    }
}

fn open(disk: &MemoryDisk) -> Log<MemoryDisk> {
    Log::open(disk.clone(), options()).unwrap().0
}

/// An entry that takes about a sixteenth of a segment.
fn append(log: &mut Log<MemoryDisk>, index: u64) {
    log.append(&batch(1, index..=index, 3_900)).unwrap();
    log.sync().unwrap();
}

fn next(log: &mut Log<MemoryDisk>) -> Piece<MemoryDisk> {
    let piece = log.next_piece().unwrap();
    piece.expect("it lags behind")
}

fn count(disk: &MemoryDisk, kind: &str) -> usize {
    let names = disk.list().unwrap();
    names.iter().filter(|name| name.ends_with(kind)).count()
}

#[test]
fn the_next_segment_is_complete_when_the_present_one_is_half_full() {
    let disk = MemoryDisk::new();
    let mut log = open(&disk);
    assert!(
        log.next_piece().unwrap().is_none(),
        "nothing was written yet"
    );
    for index in 1..=9 {
        append(&mut log, index);
        let piece = next(&mut log);
        assert!(log.next_piece().unwrap().is_none(), "one piece at a time");
        assert_eq!(count(&disk, ".spare"), 0);
        log.take_back(piece.fill()).unwrap();
    }
    assert_eq!(count(&disk, ".spare"), 1);
    append(&mut log, 10);
    assert!(
        log.next_piece().unwrap().is_none(),
        "the next segment is complete"
    );
}

#[test]
fn a_large_append_makes_a_large_piece_due() {
    let disk = MemoryDisk::new();
    let mut log = open(&disk);
    log.append(&batch(1, 1..=9, 3_900)).unwrap();
    let piece = next(&mut log);
    log.take_back(piece.fill()).unwrap();
    assert_eq!(count(&disk, ".spare"), 1);
}

#[test]
fn a_piece_is_awaited_if_the_next_segment_depends_on_it() {
    let mut log = open(&MemoryDisk::new());
    append(&mut log, 1);
    let piece = next(&mut log);
    for index in 2..=11 {
        assert!(!log.awaits_piece(), "there is time before {index}");
        append(&mut log, index);
    }
    append(&mut log, 12);
    assert!(log.awaits_piece());
    log.take_back(piece.fill()).unwrap();
    assert!(!log.awaits_piece());
}

/// The log does not depend on the piece meanwhile, and it still becomes a spare.
#[test]
fn a_piece_may_be_out_while_segments_are_rotated_and_dropped() {
    let disk = MemoryDisk::new();
    let mut log = open(&disk);
    log.append(&batch(1, 1..=9, 3_900)).unwrap();
    let piece = next(&mut log);
    (10..=50).for_each(|index| append(&mut log, index));
    // Two segments are dropped, and one of them has the number of the spare that is being prepared.
    log.truncate_prefix(Index(40)).unwrap();
    log.take_back(piece.fill()).unwrap();
    assert_eq!(count(&disk, ".spare"), 2);
    (51..=120).for_each(|index| append(&mut log, index));
    let entries = log.reader().entries(Index(46), Index(121), u64::MAX);
    assert_eq!(entries.unwrap().len(), 75);
    drop(log);
    let (_, recovered) = Log::open(disk, options()).unwrap();
    assert_eq!(recovered.last_index, Index(120));
}

#[test]
fn a_piece_that_cannot_be_synced_ends_the_log() {
    let disk = MemoryDisk::new();
    let mut log = open(&disk);
    append(&mut log, 1);
    let piece = next(&mut log);
    disk.fail_sync_after(0);
    assert!(log.take_back(piece.fill()).is_err());
    let again = log.append(&batch(1, 2..=2, 1)).unwrap_err();
    assert!(matches!(again, LogError::Poisoned(_)), "{again}");
}

/// As after the end of a process.
#[test]
fn a_dropped_piece_is_removed_by_the_next_opening() {
    let disk = MemoryDisk::new();
    let mut log = open(&disk);
    append(&mut log, 1);
    drop(next(&mut log));
    assert_eq!(disk.list().unwrap().len(), 2);
    drop(log);
    let (_, recovered) = Log::open(disk.clone(), options()).unwrap();
    assert_eq!(recovered.last_index, Index(1));
    assert_eq!(disk.list().unwrap().len(), 1);
}

/// An append that does not fit into the current segment needs a file, and the disk has space for
/// one more: that of the piece.
#[test]
fn a_log_without_space_reuses_the_file_of_its_own_piece() {
    let disk = MemoryDisk::new();
    let mut log = open(&disk);
    disk.set_space_bytes(Some(2 * u64::from(SEGMENT)));
    log.append(&batch(1, 1..=9, 3_900)).unwrap();
    let piece = next(&mut log);
    let filled = piece.fill();
    let large = batch(1, 10..=18, 3_900);
    let full = log.append(&large).unwrap_err();
    assert!(matches!(full, LogError::NoSpace(_)), "{full}");
    assert!(log.is_piece_away() && !log.awaits_piece());
    log.take_back(filled).unwrap();
    assert!(!log.is_piece_away());
    log.append(&large).unwrap();
}
