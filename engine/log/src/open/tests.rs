use dengine_types::sync::Mutex;
use dengine_types::{HardState, Index, MemberId, Term};

use super::*;
use crate::Log;
use crate::conformance::{batch, small_options};
use crate::disk::DiskError;
use crate::format::{encode_batch, seal};
use crate::memory::MemoryDisk;
use crate::state::Position;

const BASE: Position = Position {
    index: Index(5),
    term: Term(2),
};
const HARD_STATE: HardState = HardState {
    term: Term(3),
    vote: MemberId(1),
    commit: Index(5),
};

fn header() -> SegmentHeader {
    let options = small_options();
    SegmentHeader {
        number: 9,
        epoch: 1,
        cluster: options.cluster,
        member: options.member,
        base: BASE,
        hard_state: HARD_STATE,
        previous_crc: 0,
        capacity: options.segment_bytes,
        recycled: false,
    }
}

/// A batch after `previous`, with matching checksums.
fn sealed(previous: Position, hard_state: Option<HardState>, term: u64, resets: bool) -> Vec<u8> {
    let entries = batch(term, 1..=1, 10).entries;
    let mut bytes = Vec::new();
    encode_batch(&mut bytes, previous, hard_state.as_ref(), &entries, resets);
    seal(&mut bytes, header().epoch, 0, SEGMENT_HEADER_BYTES);
    bytes
}

/// A segment whose header is followed by `bytes`, and its name.
fn segment(header: &SegmentHeader, bytes: &[u8]) -> (MemoryDisk, String) {
    let disk = MemoryDisk::new();
    let name = Name::Segment(header.number).to_string();
    let file = disk.create(&name).unwrap();
    file.reserve(u64::from(header.capacity), 0).unwrap();
    file.write_at(0, &header.encode()).unwrap();
    file.write_at(u64::from(SEGMENT_HEADER_BYTES), bytes)
        .unwrap();
    file.sync_data().unwrap();
    (disk, name)
}

/// Opens and uses a log of one segment; returns why it was refused, or an empty text.
fn open(header: &SegmentHeader, batch: &[u8]) -> String {
    let (disk, name) = segment(header, batch);
    let before = disk.contents(&name);
    match Log::open(disk.clone(), small_options()) {
        Ok((mut log, recovered)) => {
            assert_eq!(recovered.torn, None);
            log.prepare().unwrap();
            String::new()
        }
        Err(LogError::Corrupt { file, what, .. }) => {
            assert_eq!(file, disk.path(&name));
            assert_eq!(disk.contents(&name), before, "nothing was changed");
            what
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn an_impossible_header_is_refused_despite_a_matching_checksum() {
    let huge = NUMBER_MAX + 1;
    let refused = |base: (u64, u64), term: u64, commit: u64| {
        let header = SegmentHeader {
            base: Position {
                index: Index(base.0),
                term: Term(base.1),
            },
            hard_state: HardState {
                term: Term(term),
                commit: Index(commit),
                ..HARD_STATE
            },
            ..header()
        };
        let what = open(&header, &[]);
        what.strip_prefix("the segment's header has a matching checksum and yet breaks a rule: ")
            .map_or(what.clone(), str::to_owned)
    };
    assert_eq!(refused((5, 2), 3, 5), "");
    assert_eq!(
        refused((5, 2), 3, 6),
        "commit index 6 is past the last entry, 5"
    );
    assert_eq!(
        refused((0, 2), 3, 0),
        "the log begins behind entry 0 of term 2"
    );
    assert_eq!(
        refused((5, 0), 3, 5),
        "the log begins behind entry 5 of term 0"
    );
    for number in [huge, u64::MAX] {
        let above = |what: &str| format!("{what} {number} is above {NUMBER_MAX}");
        assert_eq!(refused((number, 2), 3, 5), above("index"));
        assert_eq!(refused((5, number), 3, 5), above("term"));
        assert_eq!(refused((5, 2), number, 5), above("term"));
    }
}

#[test]
fn an_impossible_batch_is_refused_despite_a_matching_checksum() {
    let refused = |previous: (u64, u64), hard_state: Option<HardState>, term: u64, resets: bool| {
        let previous = Position {
            index: Index(previous.0),
            term: Term(previous.1),
        };
        let what = open(&header(), &sealed(previous, hard_state, term, resets));
        what.strip_prefix("the batch has a matching checksum and yet breaks a rule: ")
            .map_or(what.clone(), str::to_owned)
    };
    assert_eq!(refused((5, 2), None, 3, false), "");
    assert_eq!(refused((9, 2), None, 3, true), "");
    assert_eq!(
        refused((9, 0), None, 3, true),
        "the log begins behind entry 9 of term 0"
    );
    assert_eq!(
        refused((0, 2), None, 3, true),
        "the log begins behind entry 0 of term 2"
    );
    let voted = |term: u64| {
        Some(HardState {
            term: Term(term),
            ..HARD_STATE
        })
    };
    for number in [NUMBER_MAX + 1, u64::MAX] {
        let above = |what: &str| format!("{what} {number} is above {NUMBER_MAX}");
        assert_eq!(refused((5, 2), None, number, false), above("term"));
        assert_eq!(refused((5, 2), voted(number), 3, false), above("term"));
    }
    // The last one ends with the largest index that can be encoded.
    for before in [NUMBER_MAX, NUMBER_MAX + 1, u64::MAX - 1] {
        let found = before.max(NUMBER_MAX + 1);
        let above = format!("index {found} is above {NUMBER_MAX}");
        assert_eq!(refused((before, 2), None, 3, true), above);
    }
}

/// A large rest is zeroed in pieces.
#[test]
fn everything_after_the_last_batch_is_zeroed() {
    let capacity = 3 * WINDOW_BYTES;
    let header = SegmentHeader {
        capacity,
        ..header()
    };
    let mut bytes = sealed(BASE, None, 3, false);
    let end = SEGMENT_HEADER_BYTES as usize + bytes.len();
    bytes.resize((capacity - SEGMENT_HEADER_BYTES) as usize, 1);
    let (disk, name) = segment(&header, &bytes);
    let before = disk.contents(&name);
    let (_, recovered) = Log::open(disk.clone(), small_options()).unwrap();
    let torn = recovered.torn.expect("something follows the last batch");
    assert_eq!(
        (torn.offset, torn.bytes),
        (end as u64, u64::from(capacity) - end as u64)
    );
    let after = disk.contents(&name);
    assert!(after[..end] == before[..end], "the batch is still there");
    assert!(after[end..].iter().all(|byte| *byte == 0));
    assert_eq!(after.len(), before.len());
}

/// The next segment and the next spare get the number after it.
#[test]
fn a_segment_with_an_impossible_number_is_refused() {
    for (number, expected) in [
        (NUMBER_MAX, ""),
        (NUMBER_MAX + 1, "no log has that many segments"),
        (u64::MAX, "no log has that many segments"),
    ] {
        let header = SegmentHeader { number, ..header() };
        let batch = sealed(BASE, None, 3, false);
        assert_eq!(open(&header, &batch), expected);
    }
}

/// Counts the reads and writes of a segment's file: offsets and lengths.
#[derive(Debug)]
struct CountingFile {
    bytes: Vec<u8>,
    reads: Mutex<Vec<(u64, usize)>>,
    writes: Mutex<Vec<(u64, usize)>>,
}

impl DiskFile for CountingFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        self.reads.lock().unwrap().push((offset, buffer.len()));
        let bytes = &self.bytes[usize::try_from(offset).unwrap()..];
        let read = bytes.len().min(buffer.len());
        buffer[..read].copy_from_slice(&bytes[..read]);
        Ok(read)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.writes.lock().unwrap().push((offset, bytes.len()));
        let offset = usize::try_from(offset).unwrap();
        assert_eq!(self.bytes[offset..offset + bytes.len()], *bytes);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn reserve(&self, _bytes: u64, _leave: u64) -> Result<(), DiskError> {
        Ok(())
    }

    fn len(&self) -> Result<u64, DiskError> {
        Ok(self.bytes.len() as u64)
    }

    fn truncate(&self, _bytes: u64) -> Result<(), DiskError> {
        Ok(())
    }
}

/// A segment of two and a half windows, of which `bytes` exist.
fn counting(bytes: u32) -> SegmentFile<CountingFile> {
    // No two windows have the same content.
    let bytes = (0..bytes).map(|at| (at % 251) as u8).collect();
    SegmentFile {
        file: CountingFile {
            bytes,
            reads: Mutex::default(),
            writes: Mutex::default(),
        },
        path: "counting".into(),
        number: 1,
        epoch: 1,
        capacity: WATCHED_BYTES,
    }
}

const WATCHED_BYTES: u32 = 2 * WINDOW_BYTES + WINDOW_BYTES / 2;
const WINDOW: usize = WINDOW_BYTES as usize;

/// Small and overlapping requests do not cause further reads.
#[test]
fn a_segment_is_read_once_in_large_pieces() {
    let file = counting(WATCHED_BYTES);
    let mut window = Window::new(&file);
    for at in (0..WATCHED_BYTES).step_by(64) {
        let from = at as usize;
        assert_eq!(
            window.get(at, 64).unwrap(),
            &file.file.bytes[from..from + 64]
        );
        assert_eq!(
            window.get(at + 8, 16).unwrap(),
            &file.file.bytes[from + 8..from + 24]
        );
    }
    assert_eq!(
        *file.file.reads.lock().unwrap(),
        [
            (0, WINDOW),
            (WINDOW as u64, WINDOW),
            (2 * WINDOW as u64, WINDOW / 2)
        ]
    );
}

/// The largest batches are larger than a window.
#[test]
fn requests_larger_than_a_window_are_read_whole_up_to_the_segments_end() {
    let file = counting(WATCHED_BYTES);
    let mut window = Window::new(&file);
    for at in [0, 4096] {
        let from = at as usize;
        assert_eq!(window.get(at, 48).unwrap().len(), 48);
        let large = window.get(at, 2 * WINDOW_BYTES).unwrap();
        assert!(*large == file.file.bytes[from..from + 2 * WINDOW]);
        let all = window.get(at, u32::MAX).unwrap();
        assert!(*all == file.file.bytes[from..]);
    }
}

#[test]
fn a_segment_that_is_truncated_during_the_read_is_refused() {
    let file = counting(WATCHED_BYTES - 1);
    let mut window = Window::new(&file);
    assert!(window.get(WINDOW_BYTES, 48).is_ok());
    let error = window.get(2 * WINDOW_BYTES, 48).unwrap_err();
    assert!(
        error.to_string().contains("was cut while it was read"),
        "{error}"
    );
}

/// A batch never reaches past its segment's end, so such a header is not the trace of a torn
/// append.
#[test]
fn a_header_past_the_segments_end_is_not_a_batch() {
    let batch = sealed(BASE, None, 3, false);
    let bytes = to_u32(batch.len());
    for (left, fits) in [
        (bytes + ALIGNMENT, true),
        (bytes, true),
        (bytes - ALIGNMENT, false),
    ] {
        let at = WATCHED_BYTES - left;
        let mut file = counting(WATCHED_BYTES);
        let there = batch.len().min(left as usize);
        file.file.bytes[at as usize..][..there].copy_from_slice(&batch[..there]);
        let header = Window::new(&file).header(at).unwrap();
        assert_eq!(header.is_some(), fits, "{left} bytes are left");
    }
}

/// Rewrites everything that may not be durable, in large pieces, and nothing after the last batch.
#[test]
fn bytes_that_no_batch_proves_durable_are_rewritten() {
    for (durable, offset, expected) in [
        (4096, 4096, &[][..]),
        (4096, 5000, &[(4096, 904)]),
        (
            4096,
            4096 + WINDOW_BYTES + 96,
            &[(4096, WINDOW), (4096 + WINDOW as u64, 96)],
        ),
    ] {
        let file = counting(WATCHED_BYTES);
        let tail = Tail {
            offset,
            previous_crc: 0,
            durable,
        };
        rewrite(&file, tail).unwrap();
        assert_eq!(*file.file.writes.lock().unwrap(), expected);
    }
}

/// The checksums match in both cases.
#[test]
fn a_segment_that_does_not_continue_its_predecessor_is_refused() {
    let full = MemoryDisk::new();
    let (mut log, _) = Log::open(full.clone(), small_options()).unwrap();
    for index in 1..=20 {
        log.append(&batch(1, index..=index, 400)).unwrap();
    }
    drop(log);
    let names = full.list().unwrap();
    let last = names.iter().filter(|name| name.ends_with(".segment")).max();
    let last = last.unwrap();
    let bytes = full.contents(last);
    let header = SegmentHeader::decode(&bytes[..SEGMENT_HEADER_BYTES as usize]).unwrap();
    let refused = |changed: SegmentHeader| {
        let file = full.open(last).unwrap();
        file.write_at(0, &changed.encode()).unwrap();
        match Log::open(full.clone(), small_options()) {
            Err(LogError::Corrupt { what, .. }) => what,
            Err(error) => panic!("{error}"),
            Ok(_) => String::new(),
        }
    };
    let mut base = header.clone();
    base.base.term = Term(2);
    base.hard_state.term = header.hard_state.term.max(Term(2));
    let mut hard_state = header.clone();
    hard_state.hard_state.vote = MemberId(9);
    let mut only_base = header.clone();
    only_base.base.index = only_base.base.index.next();
    for changed in [base, hard_state, only_base] {
        assert_eq!(
            refused(changed),
            "the next segment does not continue this one"
        );
    }
    assert_eq!(refused(header), "");
}
