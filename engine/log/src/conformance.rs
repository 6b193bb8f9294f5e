//! The conformance suite of a [`Disk`], and of a [`Log`] on it. A new kind of disk runs
//! [`test_all`] in its tests.
//!
//! This is test code that ships as a library; it panics where the disk is wrong.

use bytes::Bytes;
use dengine_types::{ClusterId, Entry, EntryKind, HardState, Index, MemberId, Term};

use super::{Batch, Disk, DiskFile, Log, LogOptions, Position};

/// A directory that can be opened again and again.
pub trait Directory {
    type Disk: Disk;

    /// Opens the directory. The previous handle was dropped before.
    fn open(&self) -> Self::Disk;
}

impl<D: Disk, F: Fn() -> D> Directory for F {
    type Disk = D;

    fn open(&self) -> D {
        self()
    }
}

/// Runs every check, each in a new directory from `fresh`.
///
/// # Panics
///
/// If the disk fails a check.
pub fn test_all<F: Directory>(mut fresh: impl FnMut() -> F) {
    files_are_created_renamed_and_removed(&fresh().open());
    files_are_read_and_written_anywhere(&fresh().open());
    files_are_reserved_with_zeros(&fresh().open());
    removed_files_stay_readable_while_open(&fresh().open());
    a_log_is_read_back(&fresh());
    a_suffix_is_replaced(&fresh());
    segments_are_rotated_dropped_and_recycled(&fresh());
    a_log_is_reset(&fresh());
}

fn files_are_created_renamed_and_removed(disk: &impl Disk) {
    const WORKS: &str = "a name can be changed";
    assert_eq!(disk.list().expect(WORKS), Vec::<String>::new());
    disk.create("a").expect(WORKS);
    disk.create("b")
        .expect(WORKS)
        .write_at(0, b"b")
        .expect(WORKS);
    assert!(disk.create("a").is_err(), "create is exclusive");
    assert!(disk.open("c").is_err(), "open does not create");
    disk.rename("b", "a").expect(WORKS);
    assert_eq!(disk.list().expect(WORKS), ["a"]);
    assert_eq!(
        disk.open("a").expect(WORKS).len().expect(WORKS),
        1,
        "rename replaces"
    );
    disk.remove("a").expect(WORKS);
    let error = disk.remove("a").expect_err("a file is removed once");
    assert_eq!(error.path, disk.path("a"), "errors name the path");
    assert!(!error.is_no_space());
    disk.sync_dir().expect(WORKS);
}

fn files_are_read_and_written_anywhere(disk: &impl Disk) {
    const WORKS: &str = "a file can be read and written";
    let file = disk.create("a").expect(WORKS);
    assert!(file.is_empty().expect(WORKS));
    file.write_at(3, b"def").expect(WORKS);
    file.write_at(1, b"bcD").expect(WORKS);
    file.sync_data().expect(WORKS);
    let mut buffer = [9; 8];
    assert_eq!(file.read_at(0, &mut buffer).expect(WORKS), 6);
    assert_eq!(&buffer, b"\0bcDef\x09\x09");
    assert_eq!(file.read_at(5, &mut buffer[..1]).expect(WORKS), 1);
    assert_eq!(buffer[0], b'f');
    assert_eq!(file.read_at(6, &mut buffer).expect(WORKS), 0);
    assert_eq!(file.read_at(100, &mut buffer).expect(WORKS), 0);
    file.truncate(2).expect(WORKS);
    file.truncate(4).expect(WORKS);
    assert_eq!(file.len().expect(WORKS), 4);
    assert_eq!(
        disk.open("a")
            .expect(WORKS)
            .read_at(0, &mut buffer)
            .expect(WORKS),
        4
    );
    assert_eq!(&buffer[..4], b"\0b\0\0");
}

fn files_are_reserved_with_zeros(disk: &impl Disk) {
    const WORKS: &str = "space can be reserved";
    const BYTES: usize = (1 << 20) + 4096;
    let file = disk.create("a").expect(WORKS);
    file.reserve(BYTES as u64, 0).expect(WORKS);
    let mut buffer = vec![9; BYTES + 1];
    assert_eq!(file.read_at(0, &mut buffer).expect(WORKS), BYTES);
    assert!(buffer[..BYTES].iter().all(|byte| *byte == 0));
}

fn removed_files_stay_readable_while_open(disk: &impl Disk) {
    const WORKS: &str = "a removed file is there while it is open";
    let file = disk.create("a").expect(WORKS);
    file.write_at(0, b"abc").expect(WORKS);
    disk.remove("a").expect(WORKS);
    let mut buffer = [0; 3];
    assert_eq!(file.read_at(0, &mut buffer).expect(WORKS), 3);
    assert_eq!(&buffer, b"abc");
}

/// Options with small segments, so that a test fills several.
#[must_use]
pub fn small_options() -> LogOptions {
    LogOptions {
        segment_bytes: 2 * 4096,
        batch_bytes: 1024,
        ..LogOptions::new(ClusterId(1), MemberId(2), 3)
    }
}

/// A batch of entries of one term, each with `data_bytes` bytes that depend on its index.
#[must_use]
pub fn batch(term: u64, indexes: std::ops::RangeInclusive<u64>, data_bytes: usize) -> Batch {
    let entry = |index: u64| Entry {
        index: Index(index),
        term: Term(term),
        kind: if index.is_multiple_of(7) {
            EntryKind::Membership
        } else {
            EntryKind::Command
        },
        context: Bytes::from(vec![b'c'; (index % 5) as usize]),
        data: Bytes::from(vec![
            index.wrapping_mul(31).wrapping_add(term) as u8;
            data_bytes
        ]),
    };
    let hard_state = HardState {
        term: Term(term),
        ..HardState::default()
    };
    Batch {
        hard_state: Some(hard_state),
        entries: indexes.map(entry).collect(),
    }
}

fn a_log_is_read_back<F: Directory>(directory: &F) {
    const WORKS: &str = "a log can be written and read";
    let (mut log, recovered) = Log::open(directory.open(), small_options()).expect(WORKS);
    assert!(recovered.created);
    assert_eq!(
        (recovered.first_index, recovered.last_index),
        (Index(1), Index(0))
    );
    let reader = log.reader();
    let batches = [
        batch(1, 1..=1, 0),
        batch(1, 2..=9, 100),
        batch(4, 10..=60, 50),
    ];
    for batch in &batches {
        log.append(batch).expect(WORKS);
    }
    let all: Vec<Entry> = batches
        .iter()
        .flat_map(|batch| batch.entries.clone())
        .collect();
    let read = |from, to, max| reader.entries(Index(from), Index(to), max).expect(WORKS);
    assert_eq!(read(1, 61, u64::MAX), all);
    assert_eq!(read(4, 12, u64::MAX), all[3..11]);
    assert_eq!(read(4, 12, 0), all[3..4], "at least one");
    assert_eq!(read(4, 4, 0), []);
    assert!(reader.entries(Index(0), Index(2), 9).is_err());
    assert!(reader.entries(Index(60), Index(62), 9).is_err());
    assert_eq!(reader.term(Index(9)), Some(Term(1)));
    assert_eq!(reader.term(Index(10)), Some(Term(4)));
    assert_eq!(reader.term(Index(61)), None);
    log.sync().expect(WORKS);
    drop((log, reader));
    let (log, recovered) = Log::open(directory.open(), small_options()).expect(WORKS);
    assert!(!recovered.created);
    assert_eq!(recovered.torn, None);
    assert_eq!(
        (recovered.last_index, recovered.last_term),
        (Index(60), Term(4))
    );
    assert_eq!(recovered.hard_state.term, Term(4));
    assert_eq!(
        log.reader()
            .entries(Index(1), Index(61), u64::MAX)
            .expect(WORKS),
        all
    );
}

fn a_suffix_is_replaced<F: Directory>(directory: &F) {
    const WORKS: &str = "a suffix can be replaced";
    let (mut log, _) = Log::open(directory.open(), small_options()).expect(WORKS);
    let (old, new) = (batch(1, 1..=90, 100), batch(2, 11..=20, 100));
    log.append(&old).expect(WORKS);
    log.append(&new).expect(WORKS);
    let expected: Vec<Entry> = old.entries[..10]
        .iter()
        .chain(&new.entries)
        .cloned()
        .collect();
    assert_eq!(
        log.reader()
            .entries(Index(1), Index(21), u64::MAX)
            .expect(WORKS),
        expected
    );
    log.sync().expect(WORKS);
    drop(log);
    let (log, recovered) = Log::open(directory.open(), small_options()).expect(WORKS);
    assert_eq!(
        (recovered.last_index, recovered.last_term),
        (Index(20), Term(2))
    );
    assert_eq!(
        log.reader()
            .entries(Index(1), Index(21), u64::MAX)
            .expect(WORKS),
        expected
    );
}

fn segments_are_rotated_dropped_and_recycled<F: Directory>(directory: &F) {
    const WORKS: &str = "segments can be dropped";
    let (mut log, _) = Log::open(directory.open(), small_options()).expect(WORKS);
    let mut next = 1;
    for upto in [0, 30, 60, 90, 120] {
        for index in next..next + 40 {
            log.append(&batch(1 + index / 10, index..=index, 300))
                .expect(WORKS);
        }
        next += 40;
        log.truncate_prefix(Index(upto)).expect(WORKS);
        let reader = log.reader();
        let (first, last) = (reader.first_index(), reader.last_index());
        assert!(
            first.0 <= upto + 1 && first.0 + 12 > upto,
            "{first} after dropping {upto}"
        );
        assert_eq!(last, Index(next - 1));
        // The term of the last dropped entry must stay known for the entry that follows it.
        let base = Position {
            index: Index(first.0 - 1),
            term: Term(if first.0 == 1 {
                0
            } else {
                1 + (first.0 - 1) / 10
            }),
        };
        assert_eq!(
            (reader.base(), reader.term(base.index)),
            (base, Some(base.term))
        );
        assert_eq!(reader.term(first), Some(Term(1 + first.0 / 10)));
        assert_eq!(reader.keep_from(u64::MAX), first);
        assert!(reader.keep_from(0) > reader.keep_from(8193));
        drop((log, reader));
        let recovered;
        (log, recovered) = Log::open(directory.open(), small_options()).expect(WORKS);
        assert_eq!((recovered.first_index, recovered.last_index), (first, last));
        assert_eq!((recovered.base, recovered.torn), (base, None));
        assert_eq!(log.reader().term(base.index), Some(base.term));
        let entries = log
            .reader()
            .entries(first, last.next(), u64::MAX)
            .expect(WORKS);
        for entry in entries {
            assert_eq!(
                entry,
                batch(entry.term.0, entry.index.0..=entry.index.0, 300).entries[0]
            );
        }
    }
}

fn a_log_is_reset<F: Directory>(directory: &F) {
    const WORKS: &str = "a log can be reset";
    let (mut log, _) = Log::open(directory.open(), small_options()).expect(WORKS);
    log.append(&batch(1, 1..=90, 100)).expect(WORKS);
    let base = Position {
        index: Index(500),
        term: Term(3),
    };
    let hard_state = HardState {
        term: Term(3),
        vote: MemberId(0),
        commit: Index(500),
    };
    log.reset(base, hard_state).expect(WORKS);
    let reader = log.reader();
    assert_eq!((reader.base(), reader.last()), (base, base));
    assert_eq!(reader.term(Index(499)), None);
    assert_eq!(reader.term(base.index), Some(base.term));
    log.truncate_prefix(base.index).expect(WORKS);
    assert_eq!(
        (reader.base(), reader.term(base.index)),
        (base, Some(base.term))
    );
    let entries = batch(4, 501..=510, 10).entries;
    let append = Batch {
        hard_state: None,
        entries: entries.clone(),
    };
    log.append(&append).expect(WORKS);
    log.sync().expect(WORKS);
    drop((log, reader));
    let (log, recovered) = Log::open(directory.open(), small_options()).expect(WORKS);
    assert_eq!((recovered.base, recovered.last_index), (base, Index(510)));
    assert_eq!((recovered.hard_state, recovered.segments), (hard_state, 1));
    assert_eq!(log.reader().term(base.index), Some(base.term));
    assert_eq!(
        log.reader()
            .entries(Index(501), Index(511), u64::MAX)
            .expect(WORKS),
        entries
    );
}
