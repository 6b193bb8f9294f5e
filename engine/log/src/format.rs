//! The bytes of a segment: its header and its batches. `docs/formats.md` has the same as tables.
//!
//! Nothing here does I/O, and nothing here trusts what it reads: every length is checked against
//! the bytes that are there before it is used. All numbers are little-endian.

use bytes::Bytes;
use dengine_types::{ClusterId, Entry, EntryKind, HardState, Index, MemberId, Term};

use super::state::Position;

/// The format that this program writes, and the newest one that it reads.
pub const FORMAT_VERSION: u32 = 1;

/// A segment's length is a multiple of this.
pub const SEGMENT_BYTES_UNIT: u32 = 4096;
/// A segment's header has a block of its own, so that no later write touches its sectors.
pub(super) const SEGMENT_HEADER_BYTES: u32 = SEGMENT_BYTES_UNIT;
pub(super) const BATCH_HEADER_BYTES: usize = 48;
/// Batches begin at multiples of this.
pub(super) const ALIGNMENT: u32 = 8;
/// The largest segment, and so the bound of every length read from disk.
pub const SEGMENT_BYTES_MAX: u32 = 1 << 30;
pub const CONTEXT_BYTES_MAX: usize = u16::MAX as usize;

const MAGIC: [u8; 8] = *b"DEngWAL\n";
const HARD_STATE_BYTES: usize = 24;
const ENTRY_HEADER_BYTES: usize = 16;
const SEGMENT_RECYCLED: u32 = 1;
const BATCH_HAS_HARD_STATE: u32 = 1;
const BATCH_RESETS: u32 = 2;

/// The header of every segment; durable before the segment gets its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// Counts the segments of a log from 1, as in the file's name.
    pub(super) number: u64,
    /// Different for every segment; marks its batches, so that old contents of a recycled file are
    /// never taken for one. Never 0, which unwritten batches have.
    pub(super) epoch: u64,
    pub(super) cluster: ClusterId,
    pub(super) member: MemberId,
    /// The log's last entry at the beginning of the segment.
    pub(super) base: Position,
    /// The hard state at the beginning of the segment.
    pub(super) hard_state: HardState,
    /// Checksum of the batch before the segment's first; 0 if there is none.
    pub(super) previous_crc: u32,
    pub(super) capacity: u32,
    /// Whether the file may contain bytes of an earlier use behind the last batch.
    pub(super) recycled: bool,
}

/// Why a block is not a usable segment header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HeaderFault {
    Damaged(&'static str),
    Newer(u32),
}

impl SegmentHeader {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; SEGMENT_HEADER_BYTES as usize];
        block[0..8].copy_from_slice(&MAGIC);
        put_u32(&mut block, 8, FORMAT_VERSION);
        put_u64(&mut block, 16, self.number);
        put_u64(&mut block, 24, self.epoch);
        put_u64(&mut block, 32, self.cluster.0);
        put_u64(&mut block, 40, self.member.0);
        put_u64(&mut block, 48, self.base.index.0);
        put_u64(&mut block, 56, self.base.term.0);
        put_hard_state(&mut block[64..88], &self.hard_state);
        put_u32(&mut block, 88, self.previous_crc);
        put_u32(&mut block, 92, self.capacity);
        put_u32(
            &mut block,
            96,
            if self.recycled { SEGMENT_RECYCLED } else { 0 },
        );
        let crc = segment_header_crc(&block);
        put_u32(&mut block, 12, crc);
        block
    }

    pub(super) fn decode(block: &[u8]) -> Result<Self, HeaderFault> {
        if block.len() < SEGMENT_HEADER_BYTES as usize {
            return Err(HeaderFault::Damaged(
                "the file ends within the segment's header",
            ));
        }
        let block = &block[..SEGMENT_HEADER_BYTES as usize];
        if block[0..8] != MAGIC {
            return Err(HeaderFault::Damaged(
                "this is not a segment of a DEngine log",
            ));
        }
        // Every version keeps magic, version and checksum at the same place in this block.
        if get_u32(block, 12) != segment_header_crc(block) {
            return Err(HeaderFault::Damaged(
                "the segment header's checksum does not match",
            ));
        }
        let version = get_u32(block, 8);
        if version > FORMAT_VERSION {
            return Err(HeaderFault::Newer(version));
        }
        let flags = get_u32(block, 96);
        let header = Self {
            number: get_u64(block, 16),
            epoch: get_u64(block, 24),
            cluster: ClusterId(get_u64(block, 32)),
            member: MemberId(get_u64(block, 40)),
            base: Position {
                index: Index(get_u64(block, 48)),
                term: Term(get_u64(block, 56)),
            },
            hard_state: get_hard_state(&block[64..88]),
            previous_crc: get_u32(block, 88),
            capacity: get_u32(block, 92),
            recycled: flags & SEGMENT_RECYCLED != 0,
        };
        let sound = version == FORMAT_VERSION
            && flags & !SEGMENT_RECYCLED == 0
            && header.epoch != 0
            && (SEGMENT_HEADER_BYTES..=SEGMENT_BYTES_MAX).contains(&header.capacity);
        if sound {
            Ok(header)
        } else {
            Err(HeaderFault::Damaged(
                "the segment's header has a value that is never written",
            ))
        }
    }
}

fn segment_header_crc(block: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&block[..12]), &block[16..])
}

/// A batch's header, not yet verified; see [`BatchHeader::read`] and [`Frame::verify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchHeader {
    pub(super) crc: u32,
    /// Length of the whole batch: header, body and padding.
    pub(super) bytes: u32,
    pub(super) previous_crc: u32,
    /// All bytes of this segment before this offset were durable when the batch was written.
    pub(super) durable: u32,
    entries: u32,
    flags: u32,
    first: Index,
    previous_term: Term,
}

impl BatchHeader {
    /// Parses a header of `epoch` that fits into `room` bytes; nothing else is checked yet.
    pub(super) fn read(bytes: &[u8], epoch: u64, room: u32) -> Option<Self> {
        if bytes.len() < BATCH_HEADER_BYTES || get_u64(bytes, 8) != epoch {
            return None;
        }
        let header = Self {
            crc: get_u32(bytes, 0),
            bytes: get_u32(bytes, 4),
            previous_crc: get_u32(bytes, 16),
            durable: get_u32(bytes, 20),
            entries: get_u32(bytes, 24),
            flags: get_u32(bytes, 28),
            first: Index(get_u64(bytes, 32)),
            previous_term: Term(get_u64(bytes, 40)),
        };
        let plausible = header.bytes as usize >= BATCH_HEADER_BYTES
            && header.bytes <= room
            && header.bytes.is_multiple_of(ALIGNMENT);
        plausible.then_some(header)
    }

    /// The position before the batch's first entry.
    pub(super) fn previous(&self) -> Position {
        Position {
            index: Index(self.first.0.saturating_sub(1)),
            term: self.previous_term,
        }
    }

    /// Whether the batch resets the log to [`BatchHeader::previous`].
    pub(super) fn resets(&self) -> bool {
        self.flags & BATCH_RESETS != 0
    }

    pub(super) fn has_entries(&self) -> bool {
        self.entries > 0
    }
}

/// A batch whose checksum and structure are valid.
#[derive(Clone, Debug)]
pub(super) struct Frame<'a> {
    pub(super) header: BatchHeader,
    pub(super) hard_state: Option<HardState>,
    bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Checks the `header.bytes` bytes of a batch, including its header.
    pub(super) fn verify(header: BatchHeader, bytes: &'a [u8]) -> Result<Self, &'static str> {
        if bytes.len() != header.bytes as usize || crc32c::crc32c(&bytes[4..]) != header.crc {
            return Err("the batch's checksum does not match");
        }
        // The checksum proves that these bytes were written; the checks below guard against a
        // faulty writer.
        const WRONG: Result<Frame<'_>, &str> =
            Err("the batch's checksum matches but its contents are not valid");
        let has_hard_state = header.flags & BATCH_HAS_HARD_STATE != 0;
        let body = BATCH_HEADER_BYTES + if has_hard_state { HARD_STATE_BYTES } else { 0 };
        let known = header.flags & !(BATCH_HAS_HARD_STATE | BATCH_RESETS) == 0;
        if bytes.len() < body || !known || header.first.0 == 0 {
            return WRONG;
        }
        let hard_state = has_hard_state.then(|| get_hard_state(&bytes[BATCH_HEADER_BYTES..body]));
        let frame = Self {
            header,
            hard_state,
            bytes,
        };
        let mut entries = frame.entries();
        let found = entries.by_ref().count();
        if found != header.entries as usize || bytes.len() - entries.offset >= ALIGNMENT as usize {
            return WRONG;
        }
        Ok(frame)
    }

    pub(super) fn entries(&self) -> Entries<'a> {
        let hard_state = if self.hard_state.is_some() {
            HARD_STATE_BYTES
        } else {
            0
        };
        Entries {
            bytes: self.bytes,
            offset: BATCH_HEADER_BYTES + hard_state,
            left: self.header.entries,
            index: self.header.first,
        }
    }
}

/// Iterates over the entries of a batch; ends early at the first invalid one.
#[derive(Clone, Debug)]
pub(super) struct Entries<'a> {
    bytes: &'a [u8],
    offset: usize,
    left: u32,
    index: Index,
}

/// The offsets of an entry's parts within its batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryAt {
    pub(super) index: Index,
    pub(super) term: Term,
    pub(super) kind: EntryKind,
    context: usize,
    data: usize,
    end: usize,
}

impl EntryAt {
    /// The entry, whose data shares the batch's bytes.
    pub(super) fn entry(&self, batch: &Bytes) -> Entry {
        Entry {
            index: self.index,
            term: self.term,
            kind: self.kind,
            context: batch.slice(self.context..self.data),
            data: batch.slice(self.data..self.end),
        }
    }
}

impl Iterator for Entries<'_> {
    type Item = EntryAt;

    fn next(&mut self) -> Option<EntryAt> {
        self.left = self.left.checked_sub(1)?;
        let header = self
            .bytes
            .get(self.offset..self.offset + ENTRY_HEADER_BYTES)?;
        let kind = match (header[14], header[15]) {
            (0, 0) => EntryKind::Command,
            (1, 0) => EntryKind::Membership,
            _ => return None,
        };
        let context = self.offset + ENTRY_HEADER_BYTES;
        let data = context + usize::from(u16::from_le_bytes([header[12], header[13]]));
        let end = data + get_u32(header, 8) as usize;
        if end > self.bytes.len() {
            return None;
        }
        let entry = EntryAt {
            index: self.index,
            term: Term(get_u64(header, 0)),
            kind,
            context,
            data,
            end,
        };
        self.offset = end;
        // Saturates without an error, because the log's state checks which indexes are valid.
        self.index = Index(self.index.0.saturating_add(1));
        Some(entry)
    }
}

/// How many bytes an entry takes in a batch.
pub fn entry_bytes(entry: &Entry) -> usize {
    ENTRY_HEADER_BYTES + entry.context.len() + entry.data.len()
}

/// The maximum length of a batch of these entries.
pub(super) fn batch_bytes(entries: &[Entry]) -> usize {
    let body: usize = entries.iter().map(entry_bytes).sum();
    (BATCH_HEADER_BYTES + HARD_STATE_BYTES + body).next_multiple_of(ALIGNMENT as usize)
}

/// Appends a batch to `buffer`; [`seal`] fills in what depends on its position.
pub(super) fn encode_batch(
    buffer: &mut Vec<u8>,
    previous: Position,
    hard_state: Option<&HardState>,
    entries: &[Entry],
    resets: bool,
) {
    let start = buffer.len();
    buffer.resize(start + BATCH_HEADER_BYTES, 0);
    if let Some(hard_state) = hard_state {
        buffer.resize(start + BATCH_HEADER_BYTES + HARD_STATE_BYTES, 0);
        put_hard_state(&mut buffer[start + BATCH_HEADER_BYTES..], hard_state);
    }
    for entry in entries {
        put_entry(buffer, entry);
    }
    let bytes = (buffer.len() - start).next_multiple_of(ALIGNMENT as usize);
    buffer.resize(start + bytes, 0);

    let flags = if hard_state.is_some() {
        BATCH_HAS_HARD_STATE
    } else {
        0
    } | if resets { BATCH_RESETS } else { 0 };
    let header = &mut buffer[start..start + BATCH_HEADER_BYTES];
    put_u32(
        header,
        4,
        u32::try_from(bytes).expect("the caller checked batch_bytes()"),
    );
    put_u32(
        header,
        24,
        u32::try_from(entries.len()).expect("an entry has at least 16 bytes"),
    );
    put_u32(header, 28, flags);
    put_u64(header, 32, previous.index.next().0);
    put_u64(header, 40, previous.term.0);
}

/// Completes an encoded batch; returns its checksum.
pub(super) fn seal(batch: &mut [u8], epoch: u64, previous_crc: u32, durable: u32) -> u32 {
    put_u64(batch, 8, epoch);
    put_u32(batch, 16, previous_crc);
    put_u32(batch, 20, durable);
    let crc = crc32c::crc32c(&batch[4..]);
    put_u32(batch, 0, crc);
    crc
}

fn put_entry(buffer: &mut Vec<u8>, entry: &Entry) {
    let data = u32::try_from(entry.data.len()).expect("the caller checked batch_bytes()");
    let context = u16::try_from(entry.context.len()).expect("the caller checked the context");
    buffer.extend_from_slice(&entry.term.0.to_le_bytes());
    buffer.extend_from_slice(&data.to_le_bytes());
    buffer.extend_from_slice(&context.to_le_bytes());
    buffer.extend_from_slice(&match entry.kind {
        EntryKind::Command => [0, 0],
        EntryKind::Membership => [1, 0],
    });
    buffer.extend_from_slice(&entry.context);
    buffer.extend_from_slice(&entry.data);
}

fn put_hard_state(bytes: &mut [u8], hard_state: &HardState) {
    put_u64(bytes, 0, hard_state.term.0);
    put_u64(bytes, 8, hard_state.vote.0);
    put_u64(bytes, 16, hard_state.commit.0);
}

fn get_hard_state(bytes: &[u8]) -> HardState {
    HardState {
        term: Term(get_u64(bytes, 0)),
        vote: MemberId(get_u64(bytes, 8)),
        commit: Index(get_u64(bytes, 16)),
    }
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        let byte = |byte: &u8| format!("{byte:02x}");
        let line = |line: &[u8]| line.iter().map(byte).collect::<Vec<_>>().join(" ") + "\n";
        bytes.chunks(8).map(line).collect()
    }

    fn header() -> SegmentHeader {
        SegmentHeader {
            number: 1,
            epoch: 2,
            cluster: ClusterId(3),
            member: MemberId(4),
            base: Position {
                index: Index(5),
                term: Term(6),
            },
            hard_state: HardState {
                term: Term(7),
                vote: MemberId(8),
                commit: Index(9),
            },
            previous_crc: 10,
            capacity: SEGMENT_BYTES_MAX,
            recycled: true,
        }
    }

    /// The bytes in `docs/formats.md`. If this test fails, the format changed and needs a new
    /// version.
    #[test]
    fn the_format_is_stable() {
        let block = header().encode();
        assert_eq!(SegmentHeader::decode(&block), Ok(header()));
        assert!(block[104..].iter().all(|byte| *byte == 0));
        expect![[r#"
            44 45 6e 67 57 41 4c 0a
            01 00 00 00 62 f2 20 8b
            01 00 00 00 00 00 00 00
            02 00 00 00 00 00 00 00
            03 00 00 00 00 00 00 00
            04 00 00 00 00 00 00 00
            05 00 00 00 00 00 00 00
            06 00 00 00 00 00 00 00
            07 00 00 00 00 00 00 00
            08 00 00 00 00 00 00 00
            09 00 00 00 00 00 00 00
            0a 00 00 00 00 00 00 40
            01 00 00 00 00 00 00 00
        "#]]
        .assert_eq(&hex(&block[..104]));

        let entry = Entry {
            index: Index(6),
            term: Term(7),
            kind: EntryKind::Membership,
            context: Bytes::from_static(b"ctx"),
            data: Bytes::from_static(b"data"),
        };
        let mut batch = Vec::new();
        let (previous, hard_state) = (header().base, header().hard_state);
        encode_batch(
            &mut batch,
            previous,
            Some(&hard_state),
            std::slice::from_ref(&entry),
            false,
        );
        let crc = seal(&mut batch, 2, 10, 4096);
        expect![[r#"
            3b 5c 2e a4 60 00 00 00
            02 00 00 00 00 00 00 00
            0a 00 00 00 00 10 00 00
            01 00 00 00 01 00 00 00
            06 00 00 00 00 00 00 00
            06 00 00 00 00 00 00 00
            07 00 00 00 00 00 00 00
            08 00 00 00 00 00 00 00
            09 00 00 00 00 00 00 00
            07 00 00 00 00 00 00 00
            04 00 00 00 03 00 01 00
            63 74 78 64 61 74 61 00
        "#]]
        .assert_eq(&hex(&batch));
        let read = BatchHeader::read(&batch, 2, 96).unwrap();
        assert_eq!((read.crc, read.previous()), (crc, previous));
        let frame = Frame::verify(read, &batch).unwrap();
        assert_eq!(frame.hard_state, Some(hard_state));
        let bytes = Bytes::from(batch.clone());
        let entries: Vec<Entry> = frame.entries().map(|entry| entry.entry(&bytes)).collect();
        assert_eq!(entries, [entry]);
    }

    /// The caller reserves this much room.
    #[test]
    fn a_batch_fits_into_batch_bytes() {
        let entry = |bytes: usize| Entry {
            index: Index(6),
            term: Term(7),
            kind: EntryKind::Command,
            context: Bytes::from_static(b"ctx"),
            data: Bytes::from(vec![1; bytes]),
        };
        for bytes in 0..20 {
            let entries: Vec<_> = (0..=bytes).map(entry).collect();
            let taken = |hard_state: Option<&HardState>| {
                let mut batch = Vec::new();
                encode_batch(&mut batch, header().base, hard_state, &entries, false);
                batch.len()
            };
            let reckoned = batch_bytes(&entries);
            assert_eq!(taken(Some(&header().hard_state)), reckoned);
            assert_eq!(taken(None), reckoned - HARD_STATE_BYTES);
        }
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused_before_they_are_used() {
        let mut batch = Vec::new();
        encode_batch(&mut batch, Position::default(), None, &[], false);
        seal(&mut batch, 2, 0, 0);
        assert!(BatchHeader::read(&batch, 2, 48).is_some());
        assert!(
            BatchHeader::read(&batch, 2, 40).is_none(),
            "more than there is room for"
        );
        assert!(BatchHeader::read(&batch, 3, 48).is_none(), "another epoch");
        assert!(BatchHeader::read(&batch[..47], 2, 48).is_none());
        for bytes in [0, 40, 47, 49, u32::MAX] {
            put_u32(&mut batch, 4, bytes);
            assert!(BatchHeader::read(&batch, 2, 1 << 20).is_none(), "{bytes}");
        }
    }

    /// Otherwise it would be indexed among the batches with entries.
    #[test]
    fn a_batch_of_a_hard_state_alone_has_no_entries() {
        let entry = Entry {
            index: Index(1),
            term: Term(1),
            kind: EntryKind::Command,
            context: Bytes::new(),
            data: Bytes::new(),
        };
        for entries in 0..3 {
            let mut batch = Vec::new();
            let (hard_state, all) = (header().hard_state, vec![entry.clone(); entries]);
            encode_batch(&mut batch, header().base, Some(&hard_state), &all, false);
            seal(&mut batch, 2, 0, 0);
            let read = BatchHeader::read(&batch, 2, 1 << 20).unwrap();
            assert_eq!(read.has_entries(), entries > 0, "{entries}");
        }
    }

    #[test]
    fn bytes_after_the_entries_are_refused_despite_a_matching_checksum() {
        let mut batch = Vec::new();
        encode_batch(&mut batch, Position::default(), None, &[], false);
        for (more, whole) in [(0, true), (8, false), (16, false), (400, false)] {
            let mut batch = batch.clone();
            batch.resize(batch.len() + more, 0);
            let bytes = u32::try_from(batch.len()).unwrap();
            put_u32(&mut batch, 4, bytes);
            seal(&mut batch, 2, 0, 0);
            let read = BatchHeader::read(&batch, 2, bytes).unwrap();
            assert_eq!(Frame::verify(read, &batch).is_ok(), whole, "{more}");
        }
    }

    proptest! {
        /// A matching checksum does not make the contents trusted.
        #[test]
        fn any_bytes_are_verified_without_a_panic(
            mut bytes in proptest::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 48..400),
        ) {
            bytes.truncate(bytes.len() / 8 * 8);
            let length = u32::try_from(bytes.len()).unwrap();
            put_u32(&mut bytes, 4, length);
            bytes[25..31].fill(0);
            seal(&mut bytes, 1, 0, 0);
            let header = BatchHeader::read(&bytes, 1, length).unwrap();
            if let Ok(frame) = Frame::verify(header, &bytes) {
                let shared = Bytes::from(bytes.clone());
                let entries = frame.entries().map(|entry| entry.entry(&shared));
                prop_assert_eq!(entries.count(), header.entries as usize);
            }
            bytes.resize(SEGMENT_HEADER_BYTES as usize, 0);
            bytes[..8].copy_from_slice(&MAGIC);
            let crc = segment_header_crc(&bytes);
            put_u32(&mut bytes, 12, crc);
            let _any_verdict = SegmentHeader::decode(&bytes);
        }
    }
}
