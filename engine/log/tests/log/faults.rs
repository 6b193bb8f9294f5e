//! Full disks, failing writes, and syncs that fail or lose data.

use dengine_log::conformance::{batch, small_options};
use dengine_log::memory::MemoryDisk;
use dengine_log::{Batch, Disk as _, Log, LogError, LogOptions};
use dengine_types::{HardState, Index, MemberId, Term};

const SEGMENT: u64 = 2 * 4096;

fn open(disk: &MemoryDisk) -> Log<MemoryDisk> {
    Log::open(disk.clone(), small_options()).unwrap().0
}

#[test]
fn one_append_is_one_write_and_one_sync() {
    let disk = MemoryDisk::new();
    let mut log = open(&disk);
    let before = disk.counts();
    // Several batches on disk, because the append is larger than `batch_bytes`.
    log.append(&batch(1, 1..=10, 300)).unwrap();
    assert!(log.is_dirty());
    let appended = disk.counts();
    assert_eq!(
        (appended.writes, appended.syncs),
        (before.writes + 1, before.syncs)
    );
    log.sync().unwrap();
    log.sync().unwrap();
    log.append(&Batch::default()).unwrap();
    log.sync().unwrap();
    let synced = disk.counts();
    assert_eq!(
        (synced.writes, synced.syncs),
        (appended.writes, appended.syncs + 1)
    );
    assert_eq!(synced.dir_syncs, before.dir_syncs);
}

#[test]
fn a_full_disk_leaves_the_log_usable() {
    let disk = MemoryDisk::new();
    let mut log = open(&disk);
    disk.set_space_bytes(Some(SEGMENT + 100));
    let mut index = 0;
    let error = loop {
        match log.append(&batch(1, index + 1..=index + 1, 500)) {
            Ok(()) => index += 1,
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, LogError::NoSpace(_)) && error.is_usable(),
        "{error}"
    );
    assert!(index > 5);
    assert_eq!(log.reader().last_index(), Index(index));
    assert!(matches!(log.prepare(), Err(LogError::NoSpace(_))));
    // Smaller appends still fit, and a vote must.
    let vote = HardState {
        term: Term(9),
        vote: MemberId(3),
        commit: Index(0),
    };
    log.append(&Batch {
        hard_state: Some(vote),
        entries: Vec::new(),
    })
    .unwrap();
    log.sync().unwrap();
    disk.set_space_bytes(None);
    log.append(&Batch {
        hard_state: None,
        ..batch(9, index + 1..=index + 1, 500)
    })
    .unwrap();
    log.sync().unwrap();
    drop(log);
    let (_, recovered) = Log::open(disk, small_options()).unwrap();
    assert_eq!(
        (recovered.last_index, recovered.segments),
        (Index(index + 1), 2)
    );
    assert_eq!(recovered.hard_state, vote);
}

#[test]
fn a_full_disk_at_first_open_is_a_clear_error_and_the_next_open_works() {
    let disk = MemoryDisk::new();
    disk.set_space_bytes(Some(SEGMENT - 1));
    let error = Log::open(disk.clone(), small_options()).unwrap_err();
    assert!(matches!(error, LogError::NoSpace(_)), "{error}");
    disk.set_space_bytes(None);
    assert!(Log::open(disk, small_options()).unwrap().1.created);
}

#[test]
fn prepared_space_is_available_on_a_full_disk() {
    let disk = MemoryDisk::new();
    let mut log = open(&disk);
    log.prepare().unwrap();
    assert_eq!(
        disk.list().unwrap().len(),
        1,
        "an empty segment needs no successor"
    );
    for index in 1..=3 {
        log.append(&batch(1, index..=index, 700)).unwrap();
        log.prepare().unwrap();
    }
    log.prepare().unwrap();
    disk.set_space_bytes(Some(2 * SEGMENT));
    for index in 4..=10 {
        log.append(&batch(1, index..=index, 500)).unwrap();
    }
    drop(log);
    let (_, recovered) = Log::open(disk, small_options()).unwrap();
    assert_eq!((recovered.last_index, recovered.segments), (Index(10), 2));
}

#[test]
fn a_large_batch_gets_a_segment_of_its_own() {
    let disk = MemoryDisk::new();
    let mut log = open(&disk);
    log.append(&batch(1, 1..=1, 2000)).unwrap();
    log.prepare().unwrap();
    let entries = [
        batch(1, 2..=3, 50_000).entries,
        batch(1, 4..=200, 300).entries,
    ]
    .concat();
    let large = Batch {
        hard_state: None,
        entries,
    };
    log.append(&large).unwrap();
    log.append(&batch(1, 201..=205, 300)).unwrap();
    log.sync().unwrap();
    drop(log);
    let (mut log, recovered) = Log::open(disk.clone(), small_options()).unwrap();
    assert_eq!((recovered.last_index, recovered.segments), (Index(205), 3));
    let reader = log.reader();
    assert_eq!(
        reader.entries(Index(2), Index(201), u64::MAX).unwrap(),
        large.entries
    );
    assert_eq!(
        reader.entries(Index(3), Index(5), 49_000).unwrap(),
        large.entries[1..2]
    );
    log.truncate_prefix(Index(200)).unwrap();
    assert_eq!(reader.first_index(), Index(201));
    // Only files of the usual size are kept for reuse.
    let lengths = disk.list().unwrap();
    assert!(
        lengths
            .iter()
            .all(|name| disk.contents(name).len() as u64 == SEGMENT),
        "{lengths:?}"
    );
}

/// Runs `call` on a log with entries 1 to 5, with a failure armed.
fn poisoned(
    arm: impl Fn(&MemoryDisk),
    call: impl Fn(&mut Log<MemoryDisk>) -> Result<(), LogError>,
) {
    let disk = MemoryDisk::new();
    let mut log = open(&disk);
    log.append(&batch(1, 1..=5, 100)).unwrap();
    log.sync().unwrap();
    arm(&disk);
    let first = call(&mut log).unwrap_err();
    assert!(!first.is_usable(), "{first}");
    let again = [
        log.append(&batch(1, 6..=6, 1)),
        log.sync(),
        log.truncate_prefix(Index(1)),
        log.prepare(),
        log.append(&Batch::default()),
    ];
    for error in again {
        let error = error.unwrap_err();
        assert!(matches!(&error, LogError::Poisoned(_)), "{error}");
        assert!(error.to_string().contains(&first.to_string()), "{error}");
    }
    assert_eq!(
        log.reader()
            .entries(Index(1), Index(6), u64::MAX)
            .unwrap()
            .len(),
        5
    );
    drop(log);
    let (_, recovered) = Log::open(disk, small_options()).unwrap();
    assert!(recovered.last_index >= Index(5));
}

#[test]
fn a_failed_write_or_sync_stops_the_log() {
    let small = |log: &mut Log<MemoryDisk>| {
        log.append(&batch(1, 6..=6, 10))?;
        log.sync()
    };
    let rotating = |log: &mut Log<MemoryDisk>| log.append(&batch(1, 6..=30, 200));
    poisoned(|disk| disk.fail_write_after(0), small);
    poisoned(|disk| disk.fail_sync_after(0), small);
    // A rotation: the spare's name, the header, the segment's name; then the batch.
    for step in 0..4 {
        poisoned(|disk| disk.fail_sync_after(step), rotating);
    }
    for step in 0..2 {
        poisoned(|disk| disk.fail_write_after(step), rotating);
    }
}

/// A disk with a log of five entries, of which three were synced.
fn disk_whose_sync_failed() -> MemoryDisk {
    let disk = MemoryDisk::new();
    let mut log = open(&disk);
    log.append(&batch(1, 1..=3, 100)).unwrap();
    log.sync().unwrap();
    log.append(&batch(1, 4..=5, 100)).unwrap();
    disk.fail_sync_after(0);
    log.sync().unwrap_err();
    disk
}

/// On Linux the pages of a failed sync count as clean: they are read back, but never written again.
#[test]
fn entries_of_a_failed_sync_are_rewritten_by_the_next_opening() {
    let disk = disk_whose_sync_failed();
    let (log, recovered) = Log::open(disk.clone(), small_options()).unwrap();
    drop(log);
    disk.power_loss(|| false);
    let (_, after) = Log::open(disk, small_options()).unwrap();
    assert_eq!(after.last_index, recovered.last_index);
    assert_eq!(after.last_index, Index(5));
}

/// They may also be gone.
#[test]
fn entries_of_a_failed_sync_may_be_gone_at_the_next_opening() {
    let disk = disk_whose_sync_failed();
    assert!(disk.has_unwritten());
    disk.evict();
    assert!(!disk.has_unwritten());
    let (_, recovered) = Log::open(disk, small_options()).unwrap();
    assert_eq!(recovered.last_index, Index(3));
}

#[test]
fn a_read_error_is_not_taken_for_a_torn_tail() {
    let disk = MemoryDisk::new();
    let mut log = open(&disk);
    log.append(&batch(1, 1..=3, 100)).unwrap();
    log.sync().unwrap();
    disk.fail_read_after(0);
    let error = log.reader().entries(Index(1), Index(2), 1).unwrap_err();
    assert!(matches!(error, LogError::Disk(_)), "{error}");
    drop(log);
    for call in 0..2 {
        disk.fail_read_after(call);
        let error = Log::open(disk.clone(), small_options()).unwrap_err();
        assert!(matches!(error, LogError::Disk(_)), "{error}");
    }
    assert_eq!(
        Log::open(disk, small_options()).unwrap().1.last_index,
        Index(3)
    );
}

#[test]
fn entries_that_a_reader_holds_are_not_overwritten() {
    let disk = MemoryDisk::new();
    let mut log = open(&disk);
    let reader = log.reader();
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let reader = reader.clone();
            std::thread::spawn(move || {
                while reader.last_index() < Index(400) {
                    let (first, last) = (reader.first_index(), reader.last_index());
                    match reader.entries(first, last.next(), u64::MAX) {
                        Ok(entries) => {
                            for entry in entries {
                                let index = entry.index.0;
                                assert_eq!(entry, batch(1, index..=index, 400).entries[0]);
                            }
                        }
                        Err(LogError::OutOfRange { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        })
        .collect();
    for index in 1..=400 {
        log.append(&batch(1, index..=index, 400)).unwrap();
        log.truncate_prefix(Index(index)).unwrap();
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn wrong_batches_and_options_change_nothing() {
    let disk = MemoryDisk::new();
    let mut log = open(&disk);
    log.append(&batch(2, 1..=5, 10)).unwrap();
    log.sync().unwrap();
    let before = disk.contents("00000000000000000001.segment");
    let mut gap = batch(2, 6..=7, 1);
    gap.entries[1].index = Index(9);
    let mut long = batch(2, 6..=6, 1);
    long.entries[0].context = vec![0; 65_536].into();
    let commit = HardState {
        term: Term(2),
        vote: MemberId(0),
        commit: Index(6),
    };
    let commit = Batch {
        hard_state: Some(commit),
        entries: Vec::new(),
    };
    for wrong in [
        batch(2, 7..=7, 1),
        batch(1, 6..=6, 1),
        batch(2, 0..=3, 1),
        gap,
        long,
        commit,
    ] {
        let error = log.append(&wrong).unwrap_err();
        assert!(
            matches!(&error, LogError::InvalidBatch(_)) && error.is_usable(),
            "{error}"
        );
    }
    assert_eq!(disk.contents("00000000000000000001.segment"), before);
    log.append(&batch(2, 6..=6, 1)).unwrap();

    for segment_bytes in [0, 4096, 10_000, u32::MAX] {
        let options = LogOptions {
            segment_bytes,
            ..small_options()
        };
        let error = Log::open(MemoryDisk::new(), options).unwrap_err();
        assert!(matches!(error, LogError::InvalidOptions(_)), "{error}");
    }
}
