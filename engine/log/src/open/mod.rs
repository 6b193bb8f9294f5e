//! Opening a log: reads every segment back, distinguishes a torn tail from damage, and prepares the
//! disk for further appends.

use std::sync::Arc;

use dengine_planted::planted;
use dengine_types::NUMBER_MAX;

use super::disk::{Disk, DiskFile};
use super::error::LogError;
use super::format::{
    ALIGNMENT, BATCH_HEADER_BYTES, BatchHeader, FORMAT_VERSION, Frame, HeaderFault,
    SEGMENT_HEADER_BYTES, SegmentHeader,
};
use super::names::Name;
use super::segments::{BatchRef, SegmentFile, Segments};
use super::state::{Change, LogState};
use super::{LogOptions, TornTail};

/// Files are read in windows of about this size.
const WINDOW_BYTES: u32 = 1 << 20;

/// A log as found on disk.
pub(super) struct Found<F> {
    pub(super) segments: Segments<F>,
    pub(super) tail: Tail,
    pub(super) torn: Option<TornTail>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    /// The offset after the last batch.
    pub(super) offset: u32,
    pub(super) previous_crc: u32,
    /// The offset from which no batch proves the bytes to be durable.
    durable: u32,
}

impl Tail {
    /// The tail of a segment without a batch that follows one that ended with `previous_crc`.
    pub(super) fn at_start(previous_crc: u32) -> Self {
        Self {
            offset: SEGMENT_HEADER_BYTES,
            previous_crc,
            durable: SEGMENT_HEADER_BYTES,
        }
    }
}

/// Reads the log back from the segments with these `numbers`. `None` if there are none.
pub(super) fn recover<D: Disk>(
    disk: &D,
    options: &LogOptions,
    mut numbers: Vec<u64>,
) -> Result<Option<Found<D::File>>, LogError> {
    numbers.sort_unstable();
    let mut found: Option<(Segments<D::File>, Tail)> = None;
    let mut recycled = false;
    for number in numbers {
        let (header, file) = open_segment(disk, options, number)?;
        let file = Arc::new(file);
        let mut segments = match found.take() {
            None => Segments::new(first_state(&file, &header)?),
            Some((segments, tail)) => {
                check_follows(disk, &segments, tail, &header)?;
                segments
            }
        };
        segments.push_segment(Arc::clone(&file));
        let tail = replay(&mut segments, &file, header.previous_crc)?;
        recycled = header.recycled;
        found = Some((segments, tail));
    }
    let Some((segments, tail)) = found else {
        return Ok(None);
    };
    let torn = finish(segments.current(), tail, recycled)?;
    Ok(Some(Found {
        segments,
        tail,
        torn,
    }))
}

fn open_segment<D: Disk>(
    disk: &D,
    options: &LogOptions,
    number: u64,
) -> Result<(SegmentHeader, SegmentFile<D::File>), LogError> {
    let name = Name::Segment(number).to_string();
    let path = disk.path(&name);
    let corrupt = |offset: u64, what: &str| LogError::Corrupt {
        file: path.clone(),
        offset,
        what: what.to_owned(),
    };
    let file = disk.open(&name)?;
    let mut block = vec![0; SEGMENT_HEADER_BYTES as usize];
    let read = file.read_at(0, &mut block)?;
    let header = match SegmentHeader::decode(&block[..read]) {
        Ok(header) => header,
        Err(HeaderFault::Damaged(what)) => return Err(corrupt(0, what)),
        Err(HeaderFault::Newer(found)) => {
            return Err(LogError::NewerFormat {
                file: path,
                found,
                supported: FORMAT_VERSION,
            });
        }
    };
    if (header.cluster, header.member) != (options.cluster, options.member) {
        return Err(LogError::WrongOwner {
            file: path,
            cluster: options.cluster,
            member: options.member,
            found_cluster: header.cluster,
            found_member: header.member,
        });
    }
    if header.number != number {
        return Err(corrupt(
            0,
            "the file was renamed: its header has another number",
        ));
    }
    if number > NUMBER_MAX {
        return Err(corrupt(0, "no log has that many segments"));
    }
    let bytes = file.len()?;
    if bytes < u64::from(header.capacity) {
        return Err(corrupt(
            bytes,
            "the file was cut: it is shorter than it was made",
        ));
    }
    let SegmentHeader {
        epoch, capacity, ..
    } = header;
    Ok((
        header,
        SegmentFile {
            file,
            path,
            number,
            epoch,
            capacity,
        },
    ))
}

/// The state of the log at the beginning of its first segment.
fn first_state<F: DiskFile>(
    file: &SegmentFile<F>,
    header: &SegmentHeader,
) -> Result<LogState, LogError> {
    LogState::restore(header.base, header.hard_state).map_err(|rule| {
        let what =
            format!("the segment's header has a matching checksum and yet breaks a rule: {rule}");
        file.corrupt(0, what)
    })
}

/// Checks that a segment begins with the state at the end of its predecessor, which was durable by
/// then.
fn check_follows<D: Disk>(
    disk: &D,
    segments: &Segments<D::File>,
    tail: Tail,
    header: &SegmentHeader,
) -> Result<(), LogError> {
    let before = segments.current();
    if header.number != before.number + 1 {
        return Err(LogError::Corrupt {
            file: disk.path(&Name::Segment(before.number + 1).to_string()),
            offset: 0,
            what: "this segment is missing".to_owned(),
        });
    }
    if header.previous_crc != tail.previous_crc {
        return Err(before.corrupt(
            tail.offset,
            "the batch that was here, the next segment follows it, is not readable",
        ));
    }
    if header.base != segments.state.last() || header.hard_state != segments.state.hard_state() {
        return Err(before.corrupt(tail.offset, "the next segment does not continue this one"));
    }
    Ok(())
}

/// Applies every batch up to the first that does not continue the chain.
fn replay<F: DiskFile>(
    segments: &mut Segments<F>,
    file: &SegmentFile<F>,
    previous_crc: u32,
) -> Result<Tail, LogError> {
    let mut window = Window::new(file);
    let mut tail = Tail::at_start(previous_crc);
    while let Some(frame) = window.batch(tail.offset)? {
        let header = frame.header;
        if header.previous_crc != tail.previous_crc {
            break;
        }
        let change = Change {
            previous: header.previous(),
            terms: frame.entries().map(|entry| entry.term),
            hard_state: frame.hard_state,
            resets: header.resets(),
        };
        segments.state.check(&change).map_err(|rule| {
            let what = format!("the batch has a matching checksum and yet breaks a rule: {rule}");
            file.corrupt(tail.offset, what)
        })?;
        let batch = header.has_entries().then(|| BatchRef {
            first: header.previous().index.next(),
            offset: tail.offset,
            bytes: header.bytes,
        });
        segments.apply(change, batch);
        tail = Tail {
            offset: tail.offset + header.bytes,
            previous_crc: header.crc,
            durable: header.durable,
        };
    }
    Ok(tail)
}

/// Examines the rest of the last segment, and leaves the segment durable up to the last batch and
/// zero after it.
fn finish<F: DiskFile>(
    file: &SegmentFile<F>,
    tail: Tail,
    recycled: bool,
) -> Result<Option<TornTail>, LogError> {
    let rest = examine(file, tail.offset)?;
    let traces = if recycled {
        rest.batches_began
    } else {
        rest.end > tail.offset
    };
    let torn = traces.then(|| TornTail {
        file: file.path.clone(),
        offset: u64::from(tail.offset),
        bytes: u64::from(rest.end - tail.offset),
    });
    // After a failed sync the page cache may still return data that is not on disk, and the next
    // sync would not write it. So everything that no batch proves to be durable is rewritten.
    if !planted!(TailNotRewritten) {
        rewrite(file, tail)?;
    }
    zero(file, tail.offset, rest.end)?;
    file.file.sync_data()?;
    Ok(torn)
}

/// What follows the last batch.
struct Rest {
    /// The offset after the last byte that is not zero.
    end: u32,
    /// Whether a header of a batch of this segment was found.
    batches_began: bool,
}

/// Examines everything from `offset` on. A whole batch there that was written when `offset` was
/// already durable proves damage: an acknowledged batch is lost. Without such a proof it is the
/// torn tail of appends that no sync completed.
fn examine<F: DiskFile>(file: &SegmentFile<F>, offset: u32) -> Result<Rest, LogError> {
    let mut window = Window::new(file);
    let mut rest = Rest {
        end: offset,
        batches_began: false,
    };
    let mut at = offset;
    while at < file.capacity {
        let piece = window.get(at, WINDOW_BYTES)?;
        let next = at + to_u32(piece.len());
        // The length of a batch is never 0, so one that begins in the last bytes of a window is
        // seen.
        let Some(last) = piece.iter().rposition(|byte| *byte != 0) else {
            at = next;
            continue;
        };
        rest.end = at + to_u32(last) + 1;
        for at in (at..next).step_by(ALIGNMENT as usize) {
            if window.header(at)?.is_none() {
                continue;
            }
            rest.batches_began = true;
            let Some(frame) = window.batch(at)? else {
                continue;
            };
            let proven = at == offset || frame.header.durable > offset;
            if proven && !planted!(CorruptMiddleTakenForTornTail) {
                return Err(file.corrupt(
                    offset,
                    format!(
                        "the batch that was here is not readable, and the one at byte {at} shows \
                         that it was durable"
                    ),
                ));
            }
        }
        at = next;
    }
    Ok(rest)
}

fn rewrite<F: DiskFile>(file: &SegmentFile<F>, tail: Tail) -> Result<(), LogError> {
    let mut window = Window::new(file);
    let mut offset = tail.durable;
    while offset < tail.offset {
        let bytes = window.get(offset, WINDOW_BYTES.min(tail.offset - offset))?;
        file.file.write_at(u64::from(offset), bytes)?;
        offset += to_u32(bytes.len());
    }
    Ok(())
}

fn zero<F: DiskFile>(file: &SegmentFile<F>, from: u32, to: u32) -> Result<(), LogError> {
    let zeros = vec![0; WINDOW_BYTES.min(to - from) as usize];
    let mut offset = from;
    while offset < to {
        let bytes = (to - offset).min(WINDOW_BYTES);
        file.file
            .write_at(u64::from(offset), &zeros[..bytes as usize])?;
        offset += bytes;
    }
    Ok(())
}

/// A part of a segment in memory.
struct Window<'a, F> {
    file: &'a SegmentFile<F>,
    start: u32,
    bytes: Vec<u8>,
}

impl<'a, F: DiskFile> Window<'a, F> {
    fn new(file: &'a SegmentFile<F>) -> Self {
        Self {
            file,
            start: 0,
            bytes: Vec::new(),
        }
    }

    /// The bytes from `offset` on; fewer than `bytes` at the segment's end, but at least one.
    fn get(&mut self, offset: u32, bytes: u32) -> Result<&[u8], LogError> {
        let left = self.file.capacity - offset;
        let wanted = bytes.min(left) as usize;
        let have =
            self.start <= offset && (offset - self.start) as usize + wanted <= self.bytes.len();
        if !have {
            self.bytes
                .resize(bytes.max(WINDOW_BYTES).min(left) as usize, 0);
            if self.file.file.read_at(u64::from(offset), &mut self.bytes)? < self.bytes.len() {
                return Err(self
                    .file
                    .corrupt(offset, "the file was cut while it was read"));
            }
            self.start = offset;
        }
        let from = (offset - self.start) as usize;
        Ok(&self.bytes[from..from + wanted])
    }

    fn header(&mut self, offset: u32) -> Result<Option<BatchHeader>, LogError> {
        let (epoch, room) = (self.file.epoch, self.file.capacity - offset);
        let bytes = self.get(offset, BATCH_HEADER_BYTES as u32)?;
        Ok(BatchHeader::read(bytes, epoch, room))
    }

    /// The batch at `offset`, if a whole one of this segment is there.
    fn batch(&mut self, offset: u32) -> Result<Option<Frame<'_>>, LogError> {
        let Some(header) = self.header(offset)? else {
            return Ok(None);
        };
        let bytes = self.get(offset, header.bytes)?;
        Ok(Frame::verify(header, bytes).ok())
    }
}

fn to_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("within a segment, which is bounded by SEGMENT_BYTES_MAX")
}

#[cfg(test)]
mod tests;
