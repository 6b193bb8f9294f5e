//! Reading entries while the log is written.

use std::sync::Arc;

use bytes::Bytes;
use dengine_types::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use dengine_types::{Entry, Index, Term};

use super::disk::{Disk, DiskFile};
use super::error::LogError;
use super::format::{BatchHeader, Frame, entry_bytes};
use super::segments::{Piece, Segments};
use super::state::Position;

/// The state that the log and its readers share.
pub(super) struct SharedSegments<F>(RwLock<Segments<F>>);

impl<F> SharedSegments<F> {
    pub(super) fn new(segments: Segments<F>) -> Self {
        Self(RwLock::new(segments))
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Segments<F>> {
        self.0
            .read()
            .expect("nothing panics while it holds this lock")
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Segments<F>> {
        self.0
            .write()
            .expect("nothing panics while it holds this lock")
    }
}

/// Reads a log that another thread writes. It sees everything appended so far, also what is not yet
/// durable; the result of one call is consistent.
///
/// Cloning is cheap, and no call holds up the writer while it waits for the disk.
pub struct LogReader<D: Disk> {
    shared: Arc<SharedSegments<D::File>>,
}

impl<D: Disk> Clone for LogReader<D> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<D: Disk> std::fmt::Debug for LogReader<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogReader")
            .field("base", &self.base())
            .field("last", &self.last())
            .finish_non_exhaustive()
    }
}

impl<D: Disk> LogReader<D> {
    pub(super) fn new(shared: Arc<SharedSegments<D::File>>) -> Self {
        Self { shared }
    }

    /// The first entry that can be read; the next one to be appended if there is none.
    #[must_use]
    pub fn first_index(&self) -> Index {
        self.shared.read().state.first_index()
    }

    /// The last entry; `first_index` - 1 if there is none.
    #[must_use]
    pub fn last_index(&self) -> Index {
        self.last().index
    }

    /// The last entry and its term; [`LogReader::base`] if there is none.
    #[must_use]
    pub fn last(&self) -> Position {
        self.shared.read().state.last()
    }

    /// The entry before the first: the only one of the truncated part whose term is known.
    #[must_use]
    pub fn base(&self) -> Position {
        self.shared.read().state.base()
    }

    /// Size of the log's files, preallocated space included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.read().bytes()
    }

    /// The first entry of the newest part of the log that takes at least `bytes` on disk; the log's
    /// first entry if all of it takes less.
    #[must_use]
    pub fn keep_from(&self, bytes: u64) -> Index {
        self.shared.read().keep_from(bytes)
    }

    /// The first entry of the segment that is being written, which takes its space whatever is
    /// dropped; the one after the last if it has no entries.
    #[must_use]
    pub fn current_first(&self) -> Index {
        self.shared.read().current_first()
    }

    /// The term of any entry from [`LogReader::base`] to [`LogReader::last`]; `None` elsewhere.
    #[must_use]
    pub fn term(&self, index: Index) -> Option<Term> {
        self.shared.read().state.term(index)
    }

    /// The entries from `from` up to `to_exclusive`, about `max_bytes` of them and at least one
    /// (none if the range is empty). Every batch that is read is verified again.
    ///
    /// # Errors
    /// [`LogError::OutOfRange`] if part of the range was truncated or is not yet appended;
    /// [`LogError::Disk`] or [`LogError::Corrupt`] if the disk does not return what was written.
    pub fn entries(
        &self,
        from: Index,
        to_exclusive: Index,
        max_bytes: u64,
    ) -> Result<Vec<Entry>, LogError> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        for piece in self.pieces(from, to_exclusive, max_bytes)? {
            for entry in read_piece(&piece)? {
                bytes += entry_bytes(&entry) as u64;
                if bytes > max_bytes && !entries.is_empty() {
                    return Ok(entries);
                }
                entries.push(entry);
            }
        }
        Ok(entries)
    }

    fn pieces(
        &self,
        from: Index,
        to: Index,
        max_bytes: u64,
    ) -> Result<Vec<Piece<D::File>>, LogError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let segments = self.shared.read();
        let (first, last) = (segments.state.first_index(), segments.state.last().index);
        if from < first || to > last.next() {
            let asked = if from < first {
                from
            } else {
                from.max(last.next())
            };
            return Err(LogError::OutOfRange { asked, first, last });
        }
        Ok(segments.pieces(from, to, max_bytes))
    }
}

/// The requested entries of one batch, all sharing its bytes.
fn read_piece<F: DiskFile>(piece: &Piece<F>) -> Result<Vec<Entry>, LogError> {
    let Piece {
        file,
        batch,
        from,
        to,
    } = piece;
    let mut bytes = vec![0; batch.bytes as usize];
    let read = file.file.read_at(u64::from(batch.offset), &mut bytes)?;
    bytes.truncate(read);
    let header = BatchHeader::read(&bytes, file.epoch, batch.bytes)
        .ok_or_else(|| file.corrupt(batch.offset, "the batch that was here has changed"))?;
    let bytes = Bytes::from(bytes);
    let frame = Frame::verify(header, &bytes).map_err(|what| file.corrupt(batch.offset, what))?;
    let wanted = frame
        .entries()
        .filter(|entry| (*from..*to).contains(&entry.index));
    let entries: Vec<Entry> = wanted.map(|entry| entry.entry(&bytes)).collect();
    if entries.len() as u64 == to.0 - from.0 {
        Ok(entries)
    } else {
        Err(file.corrupt(batch.offset, "this batch is not the one that was here"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance::{batch, small_options};
    use super::super::format::BATCH_HEADER_BYTES;
    use super::super::memory::MemoryDisk;
    use super::super::{Batch, Log};
    use super::*;

    #[test]
    fn the_size_of_a_log_is_that_of_all_segments() {
        let disk = MemoryDisk::new();
        let (mut log, _) = Log::open(disk.clone(), small_options()).unwrap();
        let segment_bytes = u64::from(small_options().segment_bytes);
        assert_eq!(log.reader().bytes(), segment_bytes);
        for index in 1..=20 {
            log.append(&batch(1, index..=index, 400)).unwrap();
        }
        log.sync().unwrap();
        let names = disk.list().unwrap();
        let segments = names.iter().filter(|name| name.ends_with(".segment"));
        let segments = segments.count() as u64;
        assert!(segments > 1);
        assert_eq!(log.reader().bytes(), segments * segment_bytes);
    }

    /// Each takes 1 KiB.
    fn append_batches(log: &mut Log<MemoryDisk>, indexes: std::ops::RangeInclusive<u64>) {
        for index in indexes {
            let mut entries = batch(1, index..=index, 0).entries;
            entries[0].context = Bytes::new();
            let data_bytes = 1024 - BATCH_HEADER_BYTES - entry_bytes(&entries[0]);
            entries[0].data = Bytes::from(vec![1; data_bytes]);
            let batch = Batch {
                hard_state: None,
                entries,
            };
            log.append(&batch).unwrap();
        }
    }

    #[test]
    fn a_segment_is_filled_to_its_last_byte() {
        let (mut log, _) = Log::open(MemoryDisk::new(), small_options()).unwrap();
        let segment_bytes = u64::from(small_options().segment_bytes);
        append_batches(&mut log, 1..=4);
        assert_eq!(log.reader().bytes(), segment_bytes);
        append_batches(&mut log, 5..=5);
        assert_eq!(log.reader().bytes(), 2 * segment_bytes);
        let entries = log.reader().entries(Index(1), Index(6), u64::MAX);
        assert_eq!(entries.unwrap().len(), 5);
    }

    /// The first batch is always read, and does not count.
    #[test]
    fn reads_are_bounded_in_bytes_of_batches() {
        let (mut log, _) = Log::open(MemoryDisk::new(), small_options()).unwrap();
        append_batches(&mut log, 1..=10);
        let batches = |max_bytes| {
            let pieces = log.reader().pieces(Index(2), Index(10), max_bytes);
            pieces.unwrap().len()
        };
        let found = [0, 1, 1024, 1025, 2048, u64::MAX].map(batches);
        assert_eq!(found, [1, 2, 2, 3, 3, 8]);
    }

    #[test]
    fn one_append_is_one_batch_up_to_batch_bytes() {
        let (mut log, _) = Log::open(MemoryDisk::new(), small_options()).unwrap();
        log.append(&batch(1, 1..=4, 100)).unwrap();
        log.append(&batch(1, 5..=12, 200)).unwrap();
        let pieces = log.reader().pieces(Index(1), Index(13), u64::MAX).unwrap();
        let held: Vec<_> = pieces.iter().map(|it| (it.from.0, it.to.0)).collect();
        assert_eq!(held, [(1, 5), (5, 9), (9, 13)]);
    }

    #[test]
    fn replaced_batches_are_not_read() {
        let (mut log, _) = Log::open(MemoryDisk::new(), small_options()).unwrap();
        append_batches(&mut log, 1..=4);
        append_batches(&mut log, 3..=3);
        let pieces = log.reader().pieces(Index(1), Index(4), u64::MAX).unwrap();
        let held: Vec<_> = pieces.iter().map(|it| (it.from.0, it.to.0)).collect();
        assert_eq!(held, [(1, 2), (2, 3), (3, 4)]);
    }

    /// Between the lookup of entries and the read, their segment may be dropped.
    #[test]
    fn a_file_that_is_being_read_is_not_recycled() {
        let disk = MemoryDisk::new();
        let (mut log, _) = Log::open(disk.clone(), small_options()).unwrap();
        let append = |log: &mut Log<MemoryDisk>, indexes: std::ops::RangeInclusive<u64>| {
            for index in indexes {
                log.append(&batch(1, index..=index, 400)).unwrap();
            }
        };
        append(&mut log, 1..=10);
        let pieces = log.reader().pieces(Index(1), Index(2), 1).unwrap();
        log.truncate_prefix(Index(10)).unwrap();
        assert!(log.reader().first_index() > Index(1));
        append(&mut log, 11..=40);
        assert_eq!(
            read_piece(&pieces[0]).unwrap(),
            batch(1, 1..=1, 400).entries
        );
    }
}
