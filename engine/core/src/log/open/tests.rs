use super::*;
use crate::log::Log;
use crate::log::conformance::{batch, small_options};
use crate::log::format::{encode_batch, seal};
use crate::log::memory::MemoryDisk;
use crate::log::state::Position;
use crate::types::{HardState, Index, MemberId, Term};

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

/// A batch behind `previous`, with checksums that match.
fn sealed(previous: Position, hard_state: Option<HardState>, term: u64, resets: bool) -> Vec<u8> {
    let entries = batch(term, 1..=1, 10).entries;
    let mut bytes = Vec::new();
    encode_batch(&mut bytes, previous, hard_state.as_ref(), &entries, resets);
    seal(&mut bytes, header().epoch, 0, SEGMENT_HEADER_BYTES);
    bytes
}

/// A segment alone, of which `bytes` follow the header; and its name.
fn segment(header: &SegmentHeader, bytes: &[u8]) -> (MemoryDisk, String) {
    let disk = MemoryDisk::new();
    let name = Name::Segment(header.number).to_string();
    let file = disk.create(&name).unwrap();
    file.reserve(u64::from(header.capacity)).unwrap();
    file.write_at(0, &header.encode()).unwrap();
    file.write_at(u64::from(SEGMENT_HEADER_BYTES), bytes)
        .unwrap();
    file.sync_data().unwrap();
    (disk, name)
}

/// Opens a log of one segment, and uses it; why it is refused, or nothing.
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
fn a_header_that_no_log_has_is_refused_though_its_checksum_matches() {
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
fn a_batch_that_no_log_has_is_refused_though_its_checksum_matches() {
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
    // The last of them ends with the largest index that its bytes can say.
    for before in [NUMBER_MAX, NUMBER_MAX + 1, u64::MAX - 1] {
        let found = before.max(NUMBER_MAX + 1);
        let above = format!("index {found} is above {NUMBER_MAX}");
        assert_eq!(refused((before, 2), None, 3, true), above);
    }
}

/// However much it is: it is written in pieces.
#[test]
fn what_follows_the_last_batch_is_zero_afterwards() {
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

/// The next segment, and the next spare, get the number after it.
#[test]
fn a_segment_of_a_number_that_nobody_gave_is_refused() {
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
