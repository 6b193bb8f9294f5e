//! Group commit: what queued while the log was synced becomes one write and one sync.

use dengine_log::{Batch, Disk, Log, LogError, entry_bytes};
use dengine_planted::planted;
use dengine_types::{Entry, EntryKind, HardState, Index};

use super::log_writer::unless_usable;
use crate::input::{AppendId, settles};
use crate::output::LogJob;

/// Entries that become one batch of the log, in bytes. The log refuses 512 MiB, and what one job
/// brings comes on top.
const BATCH_BYTES_MAX: usize = 64 << 20;

/// What the log writer has to write, and to drop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LogWork {
    /// More than one only if entries are overwritten, or there are many, or some were written
    /// before others queued.
    batches: Vec<Batch>,
    /// So many of them are in the log: they must not be written again, and nothing can be added to
    /// them.
    written: usize,
    /// The size of the last of them.
    last_bytes: usize,
    /// The newest append among them.
    newest: Option<AppendId>,
    truncate: Option<Index>,
}

impl LogWork {
    /// Adds what queued.
    pub(super) fn add(&mut self, job: LogJob) {
        match job {
            LogJob::Append {
                id,
                hard_state,
                entries,
            } => self.append(id, hard_state, entries),
            LogJob::TruncatePrefix(index) => self.truncate = self.truncate.max(Some(index)),
        }
    }

    fn append(&mut self, id: AppendId, hard_state: Option<HardState>, entries: Vec<Entry>) {
        self.newest = Some(id);
        let bytes = entries.iter().map(entry_bytes).sum::<usize>();
        let fits = self.last_bytes + bytes <= BATCH_BYTES_MAX;
        let last = self.batches[self.written..].last_mut();
        match last.filter(|last| fits && follows(last, &entries)) {
            Some(last) => {
                last.hard_state = hard_state.or(last.hard_state);
                last.entries.extend(entries);
                self.last_bytes += bytes;
            }
            None => {
                self.batches.push(Batch {
                    hard_state,
                    entries,
                });
                self.last_bytes = bytes;
            }
        }
    }

    /// How many entries it writes.
    pub(super) fn entries(&self) -> usize {
        self.batches.iter().map(|batch| batch.entries.len()).sum()
    }

    /// How many bytes of entries it writes.
    pub(super) fn bytes(&self) -> u64 {
        let entries = self.batches.iter().flat_map(|batch| &batch.entries);
        entries.map(|entry| entry_bytes(entry) as u64).sum()
    }

    /// Whether it must be on disk before anybody hears of it even where writes need not be: it
    /// changes the term or the vote, as `known` says it is on disk, or settles a change of the
    /// members.
    pub(super) fn must_sync(&self, known: HardState) -> bool {
        self.batches.iter().any(|batch| {
            let votes = batch
                .hard_state
                .is_some_and(|new| (new.term, new.vote) != (known.term, known.vote));
            let mut entries = batch.entries.iter();
            votes || entries.any(|it| settles(it) && !planted!(SettlingNotSynced))
        })
    }

    /// The last change of the members in it.
    pub(super) fn last_change(&self) -> Option<Index> {
        let mut entries = self
            .batches
            .iter()
            .rev()
            .flat_map(|it| it.entries.iter().rev());
        let change = entries.find(|entry| entry.kind == EntryKind::Membership);
        change.map(|entry| entry.index)
    }

    /// Appends to the log, which must be synced after this. What an earlier call has appended is
    /// passed over. Where there is no space, the segments that are not needed any more go first.
    ///
    /// # Errors
    /// [`LogError::NoSpace`]: nothing may be acknowledged until this was tried again and succeeded.
    /// Any other: the log could not be written, and nothing may be acknowledged any more.
    pub(super) fn write<D: Disk>(&mut self, log: &mut Log<D>) -> Result<(), LogError> {
        match self.append_rest(log) {
            Err(error)
                if error.is_no_space()
                    && self.truncate.is_some()
                    && !planted!(TruncationWaitsBehindWrite) =>
            {
                self.truncate(log)?;
                self.append_rest(log)
            }
            result => result,
        }
    }

    /// Whether it would make room, or has.
    pub(super) fn drops_segments(&self) -> bool {
        self.truncate.is_some()
    }

    fn append_rest<D: Disk>(&mut self, log: &mut Log<D>) -> Result<(), LogError> {
        for batch in &self.batches[self.written..] {
            log.append(batch)?;
            self.written += 1;
        }
        Ok(())
    }

    /// Drops old segments, once. What is truncated is applied, so nothing that waits here replaces
    /// it.
    fn truncate<D: Disk>(&mut self, log: &mut Log<D>) -> Result<(), LogError> {
        let upto = self.truncate.take();
        upto.map_or(Ok(()), |upto| log.truncate_prefix(upto))
    }

    /// What is on disk once the log was synced.
    pub(super) fn newest(&self) -> Option<AppendId> {
        self.newest
    }

    /// Nothing is left to be written; what can be dropped still is.
    pub(super) fn forget_written(&mut self) {
        let truncate = self.truncate.take();
        *self = Self {
            truncate,
            ..Self::default()
        };
    }

    /// What can wait until the callers have their answers: drops old segments.
    ///
    /// # Errors
    /// The log can no longer be used.
    pub(super) fn tidy<D: Disk>(&mut self, log: &mut Log<D>) -> Result<(), LogError> {
        unless_usable(self.truncate(log))
    }
}

fn follows(batch: &Batch, entries: &[Entry]) -> bool {
    match (batch.entries.last(), entries.first()) {
        (Some(last), Some(next)) => next.index == last.index.next(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dengine_log::conformance::small_options;
    use dengine_log::memory::MemoryDisk;
    use dengine_types::{EntryKind, MemberId, Term};

    use super::*;

    fn collect(jobs: impl IntoIterator<Item = LogJob>) -> LogWork {
        let mut work = LogWork::default();
        jobs.into_iter().for_each(|job| work.add(job));
        work
    }

    fn with_data(id: u64, term: u64, indexes: std::ops::Range<u64>, bytes: usize) -> LogJob {
        let mut job = append(id, term, indexes);
        if let LogJob::Append { entries, .. } = &mut job {
            let data = Bytes::from(vec![7; bytes]);
            entries.iter_mut().for_each(|it| it.data = data.clone());
        }
        job
    }

    fn committed(mut job: LogJob, index: u64) -> LogJob {
        if let LogJob::Append { hard_state, .. } = &mut job {
            hard_state.as_mut().unwrap().commit = Index(index);
        }
        job
    }

    fn append(id: u64, term: u64, indexes: std::ops::Range<u64>) -> LogJob {
        let entry = |index| Entry {
            index: Index(index),
            term: Term(term),
            kind: EntryKind::Command,
            context: Bytes::new(),
            data: Bytes::new(),
        };
        LogJob::Append {
            id: AppendId(id),
            hard_state: Some(HardState {
                term: Term(term),
                vote: MemberId(1),
                commit: Index(0),
            }),
            entries: indexes.map(entry).collect(),
        }
    }

    #[test]
    fn what_follows_becomes_one_batch() {
        let work = collect([append(1, 1, 1..3), append(2, 1, 3..4), append(3, 2, 0..0)]);
        assert_eq!(work.batches.len(), 1);
        assert_eq!(work.entries(), 3);
        assert_eq!(work.newest(), Some(AppendId(3)));
        assert_eq!(work.batches[0].hard_state.unwrap().term, Term(2));
    }

    #[test]
    fn another_term_or_vote_and_the_last_change_of_the_members_are_found() {
        let known = HardState {
            term: Term(1),
            vote: MemberId(1),
            commit: Index(0),
        };
        let work = collect([committed(append(1, 1, 1..3), 2)]);
        assert!(!work.must_sync(known));
        assert!(collect([append(1, 2, 1..1)]).must_sync(known));
        let voted = HardState {
            vote: MemberId(2),
            ..known
        };
        assert!(work.must_sync(voted));
        assert_eq!(work.last_change(), None);
        let mut changes = append(2, 1, 3..6);
        if let LogJob::Append { entries, .. } = &mut changes {
            entries[0].kind = EntryKind::Membership;
            entries[1].kind = EntryKind::Membership;
        }
        let work = collect([append(1, 1, 1..3), changes]);
        assert_eq!(work.last_change(), Some(Index(4)));
    }

    #[test]
    fn what_was_written_before_the_disk_was_full_is_not_written_again() {
        let disk = MemoryDisk::new();
        let (mut log, _) = Log::open(disk.clone(), small_options()).unwrap();
        // To write the first batch again replaces entries that it commits itself.
        let mut work = collect([
            committed(append(1, 1, 1..5), 3),
            committed(with_data(2, 2, 4..5, 6000), 3),
        ]);
        assert_eq!(work.batches.len(), 2);
        disk.set_space_bytes(Some(2 * 4096));
        let error = work.write(&mut log).unwrap_err();
        assert!(error.is_no_space(), "{error}");
        assert_eq!(log.reader().last_index(), Index(4), "the first fits");
        work.add(committed(append(3, 2, 5..6), 4));
        assert_eq!(work.batches.len(), 2, "it goes with the one that waits");
        disk.set_space_bytes(None);
        work.write(&mut log).unwrap();
        work.write(&mut log).unwrap();
        log.sync().unwrap();
        assert_eq!(log.reader().last_index(), Index(5));
        assert_eq!(log.hard_state().commit, Index(4));
        assert_eq!(work.newest(), Some(AppendId(3)));
        work.add(append(4, 2, 6..7));
        assert_eq!(work.batches.len(), 3, "nothing is added to what is written");
    }

    #[test]
    fn a_full_disk_takes_what_a_truncation_makes_room_for() {
        let disk = MemoryDisk::new();
        let (mut log, _) = Log::open(disk.clone(), small_options()).unwrap();
        for index in 1..=3 {
            let one = with_data(index, 1, index..index + 1, 3000);
            collect([one]).write(&mut log).unwrap();
        }
        log.sync().unwrap();
        let names = disk.list().unwrap();
        let used: usize = names.iter().map(|name| disk.contents(name).len()).sum();
        disk.set_space_bytes(Some(used as u64));
        let mut work = collect([with_data(4, 1, 4..5, 3000)]);
        assert!(work.write(&mut log).unwrap_err().is_no_space());
        // A flush has made the first entries superfluous, while this member waits for space.
        work.add(LogJob::TruncatePrefix(Index(2)));
        work.write(&mut log).unwrap();
        log.sync().unwrap();
        assert_eq!(log.reader().last_index(), Index(4));
        assert_eq!(log.reader().first_index(), Index(3));
    }

    /// What is on disk is unknown then, and of the reasons why the member ended the first one
    /// is wanted.
    #[test]
    fn what_fails_for_another_reason_than_space_is_not_tried_again() {
        for truncate in [None, Some(LogJob::TruncatePrefix(Index(1)))] {
            let disk = MemoryDisk::new();
            let (mut log, _) = Log::open(disk.clone(), small_options()).unwrap();
            collect([append(1, 1, 1..3)]).write(&mut log).unwrap();
            let mut work = collect([append(2, 1, 3..4)].into_iter().chain(truncate));
            disk.fail_write_after(0);
            let error = work.write(&mut log).unwrap_err();
            assert!(matches!(error, LogError::Disk(_)), "{error}");
        }
    }

    #[test]
    fn a_batch_has_a_bound_whatever_queued() {
        let mut work = LogWork::default();
        for index in 1..=100 {
            work.add(with_data(index, 1, index..index + 1, 2 << 20));
        }
        assert!(work.batches.len() > 1);
        for batch in &work.batches {
            let bytes = batch.entries.iter().map(entry_bytes).sum::<usize>();
            assert!(bytes <= BATCH_BYTES_MAX, "{bytes}");
        }
        let indexes = work.batches.iter().flat_map(|batch| &batch.entries);
        let indexes: Vec<_> = indexes.map(|entry| entry.index.0).collect();
        assert_eq!(indexes, (1..=100).collect::<Vec<_>>());
        assert_eq!(work.newest(), Some(AppendId(100)));
    }

    #[test]
    fn what_overwrites_becomes_a_batch_of_its_own() {
        let work = collect([append(1, 1, 1..4), append(2, 2, 2..3)]);
        assert_eq!(work.batches.len(), 2);
        assert_eq!(work.batches[1].entries[0].term, Term(2));
    }
}
