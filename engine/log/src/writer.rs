//! Appending, syncing, rotating and truncating.

use std::sync::Arc;

use dengine_planted::planted;
use dengine_types::{Entry, HardState, Index};

use super::disk::{Disk, DiskError, DiskFile as _};
use super::error::LogError;
use super::files::{Filling, Spare, begin_segment, clear_spares, create_log, epoch};
use super::format::{
    CONTEXT_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENT_HEADER_BYTES, SegmentHeader, batch_bytes,
    encode_batch, entry_bytes, seal,
};
use super::names::Name;
use super::open::{Found, recover};
use super::pieces::Next;
use super::reader::{LogReader, SharedSegments};
use super::segments::{BatchRef, SegmentFile};
use super::state::{Change, Position};
use super::{Batch, LogOptions, Recovered};

/// The capacity that the buffer keeps between appends.
const BUFFER_BYTES_KEPT: usize = 8 << 20;

/// A write-ahead log; see [the crate](crate).
pub struct Log<D: Disk> {
    pub(super) disk: Arc<D>,
    pub(super) options: LogOptions,
    shared: Arc<SharedSegments<D::File>>,
    pub(super) current: Arc<SegmentFile<D::File>>,
    /// The offset of the next batch.
    pub(super) offset: u32,
    /// Everything in the current segment before this is durable.
    durable: u32,
    previous_crc: u32,
    pub(super) spares: Vec<Spare>,
    pub(super) next: Next<D::File>,
    leaves_space: bool,
    buffer: Vec<u8>,
    pending: Vec<Pending>,
    /// The first failure after which the state on disk is unknown.
    poison: Option<LogError>,
}

/// A batch in the buffer.
#[derive(Clone, Copy, Debug)]
struct Pending {
    first: Index,
    has_entries: bool,
    start: usize,
    end: usize,
}

impl<D: Disk> std::fmt::Debug for Log<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("segment", &self.current.path)
            .field("offset", &self.offset)
            .field("durable", &self.durable)
            .field("poison", &self.poison)
            .finish_non_exhaustive()
    }
}

impl<D: Disk> Log<D> {
    /// Opens the log in `disk`, or creates an empty one: for a process that becomes a member. An
    /// existing member uses [`Log::open_existing`]. Everything in the opened log is durable.
    ///
    /// # Errors
    ///
    /// If the log is damaged, of a newer format or of another member, or the disk fails. The
    /// directory is unchanged then, except that unfinished files are removed.
    pub fn open(disk: D, options: LogOptions) -> Result<(Self, Recovered), LogError> {
        Self::open_or(disk, options, create_log)
    }

    /// Opens the log in `disk`, which must contain one.
    ///
    /// # Errors
    ///
    /// As [`Log::open`], and [`LogError::Missing`] if there is none. It is not created then: the
    /// next start would accept the empty log, and the member would vote again in terms in which it
    /// has voted.
    pub fn open_existing(disk: D, options: LogOptions) -> Result<(Self, Recovered), LogError> {
        Self::open_or(disk, options, |disk, options, spares| {
            if planted!(MissingLogRecreated) {
                create_log(disk, options, spares)?;
            }
            let dir = disk.path("");
            Err(LogError::Missing { dir })
        })
    }

    fn open_or(
        disk: D,
        options: LogOptions,
        missing: impl FnOnce(&D, &LogOptions, &mut Vec<Spare>) -> Result<Found<D::File>, LogError>,
    ) -> Result<(Self, Recovered), LogError> {
        options.validate()?;
        let mut segments = Vec::new();
        let mut others = Vec::new();
        for name in disk.list()? {
            match Name::parse(&name) {
                Some(Name::Segment(number)) => segments.push(number),
                Some(other) => others.push(other),
                None => {}
            }
        }
        let found = recover(&disk, &options, segments)?;
        let mut spares = clear_spares(&disk, &options, others)?;
        let created = found.is_none();
        let found = match found {
            Some(found) => found,
            None => missing(&disk, &options, &mut spares)?,
        };
        // Names that a crash left in the page cache only.
        disk.sync_dir()?;
        let recovered = recovered(&found, created);
        let log = Self {
            current: Arc::clone(found.segments.current()),
            shared: Arc::new(SharedSegments::new(found.segments)),
            offset: found.tail.offset,
            durable: found.tail.offset,
            previous_crc: found.tail.previous_crc,
            disk: Arc::new(disk),
            options,
            spares,
            next: Next::None,
            leaves_space: true,
            buffer: Vec::new(),
            pending: Vec::new(),
            poison: None,
        };
        Ok((log, recovered))
    }

    /// Appends a batch with one write; it is durable after the next [`Log::sync`]. If it needs a
    /// new segment, earlier appends are synced first.
    ///
    /// # Errors
    /// [`LogError::InvalidBatch`] and [`LogError::NoSpace`] leave the log unchanged. After any
    /// other error it is unusable.
    pub fn append(&mut self, batch: &Batch) -> Result<(), LogError> {
        self.check_poison()?;
        if batch.hard_state.is_none() && batch.entries.is_empty() {
            return Ok(());
        }
        let previous = self.previous_of(&batch.entries)?;
        let change = Change {
            previous,
            terms: batch.entries.iter().map(|entry| entry.term),
            hard_state: batch.hard_state,
            resets: false,
        };
        self.shared
            .read()
            .state
            .check(&change)
            .map_err(LogError::InvalidBatch)?;
        self.encode(previous, batch);
        self.write(change)
    }

    /// Drops every entry; the log then begins after `base`, as the installation of a snapshot up to
    /// `base` requires. Durable after the next [`Log::sync`]; the old segments are removed by the
    /// next [`Log::truncate_prefix`].
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn reset(&mut self, base: Position, hard_state: HardState) -> Result<(), LogError> {
        self.check_poison()?;
        let change = Change {
            previous: base,
            terms: std::iter::empty(),
            hard_state: Some(hard_state),
            resets: true,
        };
        self.shared
            .read()
            .state
            .check(&change)
            .map_err(LogError::InvalidBatch)?;
        self.clear_buffer();
        self.push_pending(base, Some(&hard_state), &[], true);
        self.write(change)
    }

    /// Makes everything appended durable.
    ///
    /// # Errors
    ///
    /// If the disk cannot guarantee that. The log is unusable then, and the process has to end: the
    /// result of a second attempt means nothing.
    pub fn sync(&mut self) -> Result<(), LogError> {
        self.check_poison()?;
        if self.durable == self.offset {
            return Ok(());
        }
        if !planted!(AckBeforeSync) {
            let mut synced = self.current.file.sync_data();
            if synced.is_err() && planted!(SyncTriedAgain) {
                synced = self.current.file.sync_data();
            }
            self.fatal(synced)?;
        }
        self.durable = self.offset;
        Ok(())
    }

    /// The name of the current segment's file, and up to where it is durable.
    #[must_use]
    pub fn durable_to(&self) -> (String, u32) {
        (Name::Segment(self.current.number).to_string(), self.durable)
    }

    /// Whether an append is not yet durable.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.durable < self.offset
    }

    /// Drops the segments all of whose entries are at most `upto`, except the current one. Entries
    /// up to `upto` that share a segment with later ones stay readable.
    ///
    /// # Errors
    /// If the disk fails; the log is unusable then.
    pub fn truncate_prefix(&mut self, upto: Index) -> Result<(), LogError> {
        // The batches that replaced entries of a dropped segment have to be durable first.
        self.sync()?;
        loop {
            let popped = self.shared.write().pop_segment(upto);
            let Some(file) = popped else { return Ok(()) };
            let dropped = self.drop_segment(file);
            self.fatal(dropped)?;
        }
    }

    /// A reader of this log, for any thread.
    #[must_use]
    pub fn reader(&self) -> LogReader<D> {
        LogReader::new(Arc::clone(&self.shared))
    }

    /// The last hard state that was appended.
    #[must_use]
    pub fn hard_state(&self) -> HardState {
        self.shared.read().state.hard_state()
    }

    /// Checks what [`LogState::check`](super::state::LogState::check) does not, and finds the entry
    /// before the first.
    fn previous_of(&self, entries: &[Entry]) -> Result<Position, LogError> {
        let shared = self.shared.read();
        let Some(first) = entries.first() else {
            return Ok(shared.state.last());
        };
        let mut index = first.index;
        for entry in entries {
            if entry.index != index {
                let rule = format!("entry {} is in the place of entry {index}", entry.index);
                return Err(LogError::InvalidBatch(rule));
            }
            if entry.context.len() > CONTEXT_BYTES_MAX {
                let rule =
                    format!("the context of entry {index} is over {CONTEXT_BYTES_MAX} bytes");
                return Err(LogError::InvalidBatch(rule));
            }
            index = index.next();
        }
        if batch_bytes(entries) > (SEGMENT_BYTES_MAX / 2) as usize {
            let rule = format!("it is over {} bytes", SEGMENT_BYTES_MAX / 2);
            return Err(LogError::InvalidBatch(rule));
        }
        let previous = first.index.0.checked_sub(1).map(Index);
        match previous.and_then(|index| {
            Some(Position {
                index,
                term: shared.state.term(index)?,
            })
        }) {
            Some(position) => Ok(position),
            None => Err(LogError::InvalidBatch(format!(
                "entry {} does not follow the log's entries, {} to {}",
                first.index,
                shared.state.first_index(),
                shared.state.last().index
            ))),
        }
    }

    /// Encodes `batch` into the buffer, as several batches if it is large. The commit index of each
    /// is at most the last entry before or in it.
    fn encode(&mut self, mut previous: Position, batch: &Batch) {
        self.clear_buffer();
        let mut hard_state = batch.hard_state;
        let mut rest = &batch.entries[..];
        loop {
            let (entries, later) = rest.split_at(fitting(rest, self.options.batch_bytes as usize));
            let end = entries.last().map_or(previous, |entry| Position {
                index: entry.index,
                term: entry.term,
            });
            let possible = hard_state.map(|state| HardState {
                commit: state.commit.min(end.index),
                ..state
            });
            self.push_pending(previous, possible.as_ref(), entries, false);
            if possible == hard_state {
                hard_state = None;
            }
            if later.is_empty() {
                return;
            }
            (previous, rest) = (end, later);
        }
    }

    fn clear_buffer(&mut self) {
        self.pending.clear();
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_BYTES_KEPT);
    }

    fn push_pending(
        &mut self,
        previous: Position,
        hard_state: Option<&HardState>,
        entries: &[Entry],
        resets: bool,
    ) {
        let start = self.buffer.len();
        encode_batch(&mut self.buffer, previous, hard_state, entries, resets);
        self.pending.push(Pending {
            first: previous.index.next(),
            has_entries: !entries.is_empty(),
            start,
            end: self.buffer.len(),
        });
    }

    /// Writes the buffer, which holds `change`, and applies it.
    fn write<T>(&mut self, change: Change<T>) -> Result<(), LogError>
    where
        T: Iterator<Item = dengine_types::Term>,
    {
        let bytes = to_u32(self.buffer.len());
        if bytes > self.current.capacity - self.offset {
            self.rotate(bytes)?;
        }
        for batch in &self.pending {
            let batch = &mut self.buffer[batch.start..batch.end];
            self.previous_crc = seal(batch, self.current.epoch, self.previous_crc, self.durable);
        }
        let written = self
            .current
            .file
            .write_at(u64::from(self.offset), &self.buffer);
        self.fatal(written)?;
        let with_entries = self.pending.iter().filter(|batch| batch.has_entries);
        let batches = with_entries.map(|batch| BatchRef {
            first: batch.first,
            offset: self.offset + to_u32(batch.start),
            bytes: to_u32(batch.end - batch.start),
        });
        self.shared.write().apply(change, batches);
        self.offset += bytes;
        Ok(())
    }

    /// Begins the next segment, with room for `bytes`. The current one is made durable before the
    /// next is named.
    fn rotate(&mut self, bytes: u32) -> Result<(), LogError> {
        let number = self.current.number + 1;
        let capacity = (SEGMENT_HEADER_BYTES + bytes)
            .next_multiple_of(SEGMENT_HEADER_BYTES)
            .max(self.options.segment_bytes);
        let taken = self.take_spare(capacity);
        let spare = self.usable_or_fatal(taken)?;
        self.sync()?;
        let header = {
            let shared = self.shared.read();
            SegmentHeader {
                number,
                epoch: epoch(self.options.epoch_seed, number),
                cluster: self.options.cluster,
                member: self.options.member,
                base: shared.state.last(),
                hard_state: shared.state.hard_state(),
                previous_crc: self.previous_crc,
                capacity,
                recycled: spare.recycled,
            }
        };
        let begun = begin_segment(&*self.disk, spare, &header);
        self.current = self.fatal(begun)?;
        self.shared.write().push_segment(Arc::clone(&self.current));
        self.offset = SEGMENT_HEADER_BYTES;
        self.durable = SEGMENT_HEADER_BYTES;
        Ok(())
    }

    /// An unused file of `capacity` bytes.
    fn take_spare(&mut self, capacity: u32) -> Result<Spare, LogError> {
        if capacity == self.options.segment_bytes {
            if let Some(spare) = self.spares.pop() {
                return Ok(spare);
            }
            if let Some(filling) = self.next.take() {
                return filling.finish(&*self.disk);
            }
        }
        self.begin_filling(capacity)?.finish(&*self.disk)
    }

    /// Whether new segments leave [`LogOptions::leave_bytes`] free; they do by default.
    pub fn leave_space(&mut self, leaves_space: bool) {
        self.leaves_space = leaves_space;
    }

    /// Begins a spare under an unused number.
    pub(super) fn begin_filling(&self, capacity: u32) -> Result<Filling<D::File>, LogError> {
        let leave = match self.leaves_space && self.shared.read().count() > 1 {
            true => self.options.leave_bytes,
            false => 0,
        };
        let spares = self.spares.iter().map(|spare| spare.number);
        let numbers = spares.chain(self.next.number());
        let number = numbers.fold(self.current.number, u64::max) + 1;
        Filling::begin(&*self.disk, number, capacity, leave)
    }

    /// Keeps a dropped segment's file for reuse, or removes it. Recovery depends on the order in
    /// which names disappear, so each change is synced.
    fn drop_segment(&mut self, file: Arc<SegmentFile<D::File>>) -> Result<(), DiskError> {
        let spare = Spare {
            number: file.number,
            recycled: true,
        };
        let name = Name::Segment(file.number).to_string();
        let wanted = self.spares.len() < self.options.spares_max
            && file.capacity == self.options.segment_bytes
            && self.spares.iter().all(|other| other.number != spare.number)
            && self.next.number() != Some(spare.number);
        // A file that a reader has open must not be overwritten.
        if wanted && (Arc::into_inner(file).is_some() || planted!(FileReusedWhileRead)) {
            self.disk
                .rename(&name, &Name::Spare(spare.number).to_string())?;
            self.spares.push(spare);
        } else {
            self.disk.remove(&name)?;
        }
        self.disk.sync_dir()
    }

    pub(super) fn check_poison(&self) -> Result<(), LogError> {
        match &self.poison {
            Some(first) => Err(LogError::Poisoned(Box::new(first.clone()))),
            None => Ok(()),
        }
    }

    /// Records a failure after which the state on disk is unknown.
    fn fatal<T>(&mut self, result: Result<T, DiskError>) -> Result<T, LogError> {
        self.usable_or_fatal(result.map_err(LogError::Disk))
    }

    pub(super) fn usable_or_fatal<T>(
        &mut self,
        result: Result<T, LogError>,
    ) -> Result<T, LogError> {
        if let Err(error) = &result
            && !error.is_usable()
        {
            self.poison = Some(error.clone());
        }
        result
    }
}

/// How many of `entries` fit into a batch of `bytes_max` bytes; at least one.
fn fitting(entries: &[Entry], bytes_max: usize) -> usize {
    let mut bytes = 0;
    let fits = |entry: &&Entry| {
        bytes += entry_bytes(entry);
        bytes <= bytes_max
    };
    entries
        .iter()
        .take_while(fits)
        .count()
        .max(1)
        .min(entries.len())
}

fn to_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("batches are bounded by SEGMENT_BYTES_MAX")
}

fn recovered<F: super::DiskFile>(found: &Found<F>, created: bool) -> Recovered {
    let state = &found.segments.state;
    let last = state.last();
    Recovered {
        created,
        hard_state: state.hard_state(),
        base: state.base(),
        first_index: state.first_index(),
        last_index: last.index,
        last_term: last.term,
        segments: found.segments.count(),
        torn: found.torn.clone(),
    }
}
