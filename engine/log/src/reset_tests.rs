//! The reset of a log installs a snapshot: after a crash it has taken effect, or it has not.

use dengine_testkit::Random;
use dengine_types::{HardState, Index, MemberId, Term};

use super::conformance::{batch, small_options};
use super::memory::MemoryDisk;
use super::{Batch, Log, Position, Recovered};

const BASE: Position = Position {
    index: Index(500),
    term: Term(3),
};
const HARD_STATE: HardState = HardState {
    term: Term(4),
    vote: MemberId(2),
    commit: Index(500),
};

/// A log with entries, some of them unsynced.
fn before() -> MemoryDisk {
    let disk = MemoryDisk::new();
    let (mut log, _) = Log::open(disk.clone(), small_options()).unwrap();
    log.append(&batch(1, 1..=60, 200)).unwrap();
    log.append(&batch(4, 61..=62, 10)).unwrap();
    log.sync().unwrap();
    disk
}

fn open(disk: &MemoryDisk) -> (Log<MemoryDisk>, Recovered) {
    Log::open(disk.clone(), small_options()).unwrap()
}

/// Whether an opened log was reset; panics if it is neither unchanged nor reset.
fn is_reset(disk: &MemoryDisk) -> bool {
    let (mut log, recovered) = open(disk);
    let reader = log.reader();
    if recovered.base != BASE {
        assert_eq!(
            (recovered.base, recovered.last_index),
            (Position::default(), Index(62))
        );
        let all = reader.entries(Index(1), Index(63), u64::MAX).unwrap();
        assert_eq!(all.len(), 62);
        return false;
    }
    assert_eq!(
        (recovered.last_index, recovered.last_term),
        (BASE.index, BASE.term)
    );
    assert_eq!(
        (recovered.first_index, recovered.hard_state),
        (Index(501), HARD_STATE)
    );
    assert_eq!(
        (reader.term(Index(500)), reader.term(Index(499))),
        (Some(Term(3)), None)
    );
    // It continues after the base, whether or not the old segments were dropped.
    let entries = batch(4, 501..=503, 10).entries;
    log.append(&Batch {
        hard_state: None,
        entries: entries.clone(),
    })
    .unwrap();
    log.sync().unwrap();
    log.truncate_prefix(BASE.index).unwrap();
    drop(log);
    let (log, recovered) = open(disk);
    assert_eq!((recovered.base, recovered.last_index), (BASE, Index(503)));
    assert_eq!(
        log.reader()
            .entries(Index(501), Index(504), u64::MAX)
            .unwrap(),
        entries
    );
    true
}

#[test]
fn an_unsynced_reset_is_atomic() {
    let mut found = [false; 2];
    for seed in 0..32 {
        let disk = before();
        open(&disk).0.reset(BASE, HARD_STATE).unwrap();
        let mut random = Random::new(seed);
        disk.power_loss(|| random.chance(50));
        found[usize::from(is_reset(&disk))] = true;
    }
    assert_eq!(found, [true; 2]);
}

#[test]
fn a_synced_reset_is_durable() {
    for cut in [false, true] {
        let disk = before();
        let (mut log, _) = open(&disk);
        log.reset(BASE, HARD_STATE).unwrap();
        log.sync().unwrap();
        if cut {
            log.truncate_prefix(BASE.index).unwrap();
        }
        disk.power_loss(|| false);
        assert!(is_reset(&disk));
    }
}

/// The old segments are removed one after the other, and a crash may come between any two.
#[test]
fn a_crash_during_the_removal_of_old_segments_keeps_the_reset() {
    for syncs in 0..6 {
        let disk = before();
        let (mut log, _) = open(&disk);
        log.reset(BASE, HARD_STATE).unwrap();
        log.sync().unwrap();
        disk.fail_sync_after(syncs);
        let _ = log.truncate_prefix(BASE.index);
        drop(log);
        disk.power_loss(|| syncs % 2 == 0);
        // The copy fails no call.
        assert!(is_reset(&disk.duplicate()));
    }
}

#[test]
fn a_reset_may_go_back_behind_entries_that_were_never_committed() {
    let disk = before();
    let (mut log, _) = open(&disk);
    let base = Position {
        index: Index(30),
        term: Term(2),
    };
    let hard_state = HardState {
        commit: Index(30),
        ..HARD_STATE
    };
    log.reset(base, hard_state).unwrap();
    log.sync().unwrap();
    drop(log);
    let (log, recovered) = open(&disk);
    assert_eq!((recovered.base, recovered.last_index), (base, Index(30)));
    assert_eq!(log.reader().term(Index(31)), None);
}
