//! What a log writer does, in which order: it writes what queued, syncs, says what is on disk, and has the next segment made.
//! Whoever has the thread does what [`LogWriter::step`] says, and asks again.

use super::input::LogJob;
use super::log_work::LogWork;
use crate::consensus::AppendId;
use crate::log::{Disk, Filled, Log, LogError, Piece};
use crate::planted::planted;
use crate::types::{HardState, Index, Moment};
use std::time::Duration;

/// How often a log writer tries a full disk again.
const SPACE_RETRY: Duration = Duration::from_millis(500);
/// And how often it tries to have the next segment made there. Where no space can be set aside, that fills the disk to the last
/// byte for a moment, and whoever else writes then finds it full.
const PIECE_RETRY: Duration = Duration::from_secs(10);

/// When what is written is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncRule {
    /// Before anybody hears of it.
    AtOnce,
    /// Once so many bytes wait for it, or the first of them have waited so long. Terms and votes at once, what settles a change of the
    /// members, and everything from such a change on until this disk knows that it is committed.
    Later {
        /// Of entries as they lie in the log.
        bytes: u64,
        /// How long that may take.
        interval: Duration,
    },
}

/// What is to be done next.
pub enum LogStep<D: Disk> {
    /// Sync the log ([`Log::sync`]).
    Sync,
    /// Tell the replica that this append is on disk, or as good as that.
    Persisted {
        /// The newest of what was written at once.
        id: AppendId,
        /// How many entries that were.
        entries: usize,
    },
    /// Give this to the thread that fills it.
    Fill(Piece<D>),
    /// Wait for the piece that is away, and [take it back](LogWriter::take_back). If that thread is gone, go on without it.
    AwaitPiece,
    /// Wait for more jobs.
    Wait {
        /// For so long at most, if that is said.
        longest: Option<Duration>,
        /// There is something to write, and no space for it: tell the replica ([`Input::LogFull`](super::Input::LogFull)). Nothing is
        /// lost, and nothing acknowledged, until there is.
        full: Option<LogError>,
    },
}

/// What others were told of although it was not synced.
#[derive(Clone, Copy, Debug)]
struct Owed {
    bytes: u64,
    due: Moment,
}

/// Decides what a log writer does. See [the module](self).
#[derive(Debug)]
pub struct LogWriter {
    rule: SyncRule,
    work: LogWork,
    /// The hard state before the first try to write that: only other terms and votes are new.
    known: Option<HardState>,
    owed: Option<Owed>,
    /// The last change of the members that the disk does not know to be committed, or what comes behind it. A member that restarts counts
    /// votes by the members before, and whoever is gone since must not be needed: not its vote, nor what it alone has kept.
    unsettled: Option<Index>,
    /// The last try that found no space, and when that was. Each takes all there is for a moment, while a flush may need it.
    full: Option<(LogError, Moment)>,
    /// The piece that is away was waited for.
    awaited: bool,
    /// When there was no space for the last piece.
    piece_lacked_space: Option<Moment>,
    /// The next segment's file waits until it is needed.
    saves_space: bool,
}

impl LogWriter {
    /// The writer of this log, all of which is synced.
    #[must_use]
    pub fn new<D: Disk>(rule: SyncRule, log: &Log<D>) -> Self {
        let last = log.reader().last_index();
        Self {
            rule,
            work: LogWork::default(),
            known: None,
            owed: None,
            // Among what is not known to be committed there may be such a change.
            unsettled: Some(last).filter(|last| log.hard_state().commit < *last),
            full: None,
            awaited: false,
            piece_lacked_space: None,
            saves_space: false,
        }
    }

    /// While this is so, the next segment is not made before it is needed, and what was made of it is given back: its space is for who
    /// has less of it, as the state that is flushed so that the log can be dropped, or merged so that it takes less.
    pub fn save_space(&mut self, saves_space: bool) {
        self.saves_space = saves_space;
    }

    /// Takes in what queued. What is added before [`LogStep::Persisted`] is written with the rest.
    pub fn add(&mut self, job: LogJob) {
        self.work.add(job);
    }

    /// Writes what there is to write, and says what is next.
    ///
    /// # Errors
    /// The log can no longer be used. Ask [`Self::may_have_lost`].
    pub fn step<D: Disk>(&mut self, log: &mut Log<D>, now: Moment) -> Result<LogStep<D>, LogError> {
        if !log.is_dirty() {
            self.owed = None;
            let commit = log.hard_state().commit;
            self.unsettled = self.unsettled.filter(|change| commit < *change);
        }
        match self.work.newest() {
            Some(id) => self.write(log, id, now),
            None => self.tidy(log, now),
        }
    }

    /// Takes a piece back that was filled, or could not be for want of space.
    ///
    /// # Errors
    /// The log can no longer be used.
    pub fn take_back<D: Disk>(
        &mut self,
        log: &mut Log<D>,
        filled: Filled<D>,
        now: Moment,
    ) -> Result<(), LogError> {
        let taken = log.take_back(filled);
        self.full = None;
        self.piece_lacked_space = taken.is_err().then_some(now);
        unless_usable(taken)
    }

    /// Whether acknowledged entries may be missing on the disk, now that the log has failed: the system may drop pages that it
    /// could not write, so that "same boot, so nothing is lost" holds no more.
    #[must_use]
    pub fn may_have_lost<D: Disk>(&self, log: &Log<D>) -> bool {
        self.owed.is_some() && log.is_dirty()
    }

    fn write<D: Disk>(
        &mut self,
        log: &mut Log<D>,
        id: AppendId,
        now: Moment,
    ) -> Result<LogStep<D>, LogError> {
        let known = *self.known.get_or_insert_with(|| log.hard_state());
        if let Some(full) = self.still_full(now) {
            return Ok(self.make_room(log, full, now));
        }
        match self.work.write(log) {
            Err(error) if error.is_no_space() => {
                self.full = Some((error.clone(), now));
                return Ok(self.make_room(log, error, now));
            }
            result => result?,
        }
        self.full = None;
        self.unsettled = self.work.last_change().or(self.unsettled);
        if log.is_dirty() && !self.may_be_owed(known, now) {
            return Ok(LogStep::Sync);
        }
        let (entries, bytes) = (self.work.entries(), self.work.bytes());
        self.owe(bytes, now);
        self.work.forget_written();
        self.known = None;
        Ok(LogStep::Persisted { id, entries })
    }

    /// Too soon to try again, unless something is to be dropped.
    fn still_full(&self, now: Moment) -> Option<LogError> {
        let (full, tried) = self.full.as_ref()?;
        let is_too_soon = now < tried.after(SPACE_RETRY) && !self.work.drops_segments();
        is_too_soon.then(|| full.clone())
    }

    /// The next segment's file has space that what waits may have.
    fn make_room<D: Disk>(&mut self, log: &Log<D>, full: LogError, now: Moment) -> LogStep<D> {
        if self.awaits(log) {
            return LogStep::AwaitPiece;
        }
        // What was written before needs no space.
        match self.until_due(log, now) {
            Some(Duration::ZERO) => LogStep::Sync,
            due => LogStep::Wait {
                longest: Some(due.unwrap_or(SPACE_RETRY).min(SPACE_RETRY)),
                full: Some(full),
            },
        }
    }

    /// Once for each piece: its thread may be gone.
    fn awaits<D: Disk>(&mut self, log: &Log<D>) -> bool {
        log.is_piece_away() && !std::mem::replace(&mut self.awaited, true)
    }

    /// Whether others may hear of what is written before it is synced.
    fn may_be_owed(&self, known: HardState, now: Moment) -> bool {
        match self.rule {
            SyncRule::AtOnce => false,
            SyncRule::Later { bytes, .. } => {
                let owed = self.owed.map_or(0, |owed| owed.bytes);
                let is_due = self.owed.is_some_and(|owed| owed.due <= now);
                let fits = owed + self.work.bytes() < bytes;
                let forgets = planted!(SettlingNotSynced) && self.work.last_change().is_none();
                let is_settled = self.unsettled.is_none() || forgets;
                fits && !is_due && is_settled && !self.work.must_sync(known)
            }
        }
    }

    /// For how long what is owed may wait, if anything is.
    fn until_due<D: Disk>(&self, log: &Log<D>, now: Moment) -> Option<Duration> {
        let owed = self.owed.filter(|_| log.is_dirty());
        owed.map(|owed| owed.due.since(now))
    }

    fn owe(&mut self, bytes: u64, now: Moment) {
        if let SyncRule::Later { interval, .. } = self.rule {
            let due = now.after(interval);
            let owed = self.owed.get_or_insert(Owed { bytes: 0, due });
            owed.bytes += bytes;
        }
    }

    /// What can wait until the callers have their answers.
    fn tidy<D: Disk>(&mut self, log: &mut Log<D>, now: Moment) -> Result<LogStep<D>, LogError> {
        self.work.tidy(log)?;
        if log.awaits_piece() && self.awaits(log) {
            return Ok(LogStep::AwaitPiece);
        }
        let is_too_soon = |lacked: Moment| now < lacked.after(PIECE_RETRY);
        if self.saves_space {
            log.give_back_next()?;
        } else if !self.piece_lacked_space.is_some_and(is_too_soon)
            && let Some(piece) = next_piece(log)?
        {
            self.awaited = false;
            return Ok(LogStep::Fill(piece));
        }
        Ok(match self.until_due(log, now) {
            Some(Duration::ZERO) => LogStep::Sync,
            longest => LogStep::Wait {
                longest,
                full: None,
            },
        })
    }
}

/// None where there is no space for it: the append that needs it finds out.
fn next_piece<D: Disk>(log: &mut Log<D>) -> Result<Option<Piece<D>>, LogError> {
    let mut next = None;
    unless_usable(log.next_piece().map(|piece| next = piece))?;
    Ok(next)
}

/// Passes over what leaves the log as it was: that there is no space for the next segment is not yet an error.
pub(super) fn unless_usable(result: Result<(), LogError>) -> Result<(), LogError> {
    result.or_else(|error| {
        if error.is_usable() {
            Ok(())
        } else {
            Err(error)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::conformance::small_options;
    use crate::log::memory::MemoryDisk;
    use crate::types::{Entry, EntryKind, Index, MemberId, Term};
    use bytes::Bytes;

    const LATER: SyncRule = SyncRule::Later {
        bytes: 1_000,
        interval: Duration::from_millis(100),
    };

    /// Who fills pieces.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Filler {
        AtOnce,
        /// No sooner than it is waited for.
        Slow,
        Gone,
    }

    /// A log and its writer, whose thread this is. One append was written already.
    struct Writer {
        disk: MemoryDisk,
        log: Log<MemoryDisk>,
        writer: LogWriter,
        filler: Filler,
        away: Option<Piece<MemoryDisk>>,
        now: Moment,
        term: Term,
        /// The last entry that was queued.
        last: Index,
        commit: Index,
        appends: u64,
    }

    impl Writer {
        fn new(rule: SyncRule, filler: Filler) -> Self {
            Self::on(MemoryDisk::new(), rule, filler)
        }

        fn on(disk: MemoryDisk, rule: SyncRule, filler: Filler) -> Self {
            let (log, _) = Log::open(disk.clone(), small_options()).unwrap();
            let mut this = Self {
                disk,
                writer: LogWriter::new(rule, &log),
                log,
                filler,
                away: None,
                now: Moment(1_000_000_000),
                term: Term(1),
                last: Index(0),
                commit: Index(0),
                appends: 0,
            };
            this.append(10);
            assert_eq!(this.work(), ["sync", "persisted 1", "fill", "wait"]);
            this
        }

        /// Queues an entry of so many bytes.
        fn append(&mut self, bytes: usize) {
            self.append_of(EntryKind::Command, "", bytes);
        }

        /// Queues a change of the members.
        fn append_change(&mut self) {
            self.append_of(EntryKind::Membership, "", 10);
        }

        /// Queues what settles a change of the members.
        fn append_settling(&mut self) {
            self.append_of(EntryKind::Command, "context", 0);
        }

        fn append_of(&mut self, kind: EntryKind, context: &'static str, bytes: usize) {
            self.last = self.last.next();
            let entry = Entry {
                index: self.last,
                term: self.term,
                kind,
                context: Bytes::from(context),
                data: Bytes::from(vec![7; bytes]),
            };
            self.queue(vec![entry]);
        }

        /// Queues that everything up to this entry is committed.
        fn commit(&mut self, upto: Index) {
            self.commit = upto;
            self.queue(Vec::new());
        }

        fn queue(&mut self, entries: Vec<Entry>) {
            self.appends += 1;
            self.writer.add(LogJob::Append {
                id: AppendId(self.appends),
                hard_state: Some(HardState {
                    term: self.term,
                    vote: MemberId(1),
                    commit: self.commit,
                }),
                entries,
            });
        }

        fn pass(&mut self, millis: u64) {
            self.now = self.now.after(Duration::from_millis(millis));
        }

        fn step(&mut self) -> LogStep<MemoryDisk> {
            self.writer.step(&mut self.log, self.now).unwrap()
        }

        fn take_back(&mut self) {
            if let Some(piece) = self.away.take_if(|_| self.filler != Filler::Gone) {
                let filled = piece.fill();
                let taken = self.writer.take_back(&mut self.log, filled, self.now);
                taken.unwrap();
            }
        }

        /// Does what is to be done until there is nothing but to wait.
        fn work(&mut self) -> Vec<String> {
            let mut done = Vec::new();
            loop {
                assert!(done.len() < 20, "it never waits: {done:?}");
                match self.step() {
                    LogStep::Sync => {
                        self.log.sync().unwrap();
                        done.push("sync".to_owned());
                    }
                    LogStep::Persisted { id, .. } => done.push(format!("persisted {}", id.0)),
                    LogStep::Fill(piece) => {
                        self.away = Some(piece);
                        if self.filler == Filler::AtOnce {
                            self.take_back();
                        }
                        done.push("fill".to_owned());
                    }
                    LogStep::AwaitPiece => {
                        self.take_back();
                        done.push("await".to_owned());
                    }
                    LogStep::Wait { longest, full } => {
                        let what = full.map_or("wait", |_| "full, wait");
                        let longest = longest.map(|it| format!(" {it:?}"));
                        done.push(what.to_owned() + &longest.unwrap_or_default());
                        return done;
                    }
                }
            }
        }
    }

    /// Such as that with which a leader begins its term.
    #[test]
    fn a_failed_sync_may_lose_an_acknowledged_entry_without_data() {
        let mut this = Writer::new(LATER, Filler::AtOnce);
        this.append(0);
        assert_eq!(this.work(), ["persisted 2", "wait 100ms"]);
        this.pass(100);
        this.disk.fail_sync_after(0);
        assert!(matches!(this.step(), LogStep::Sync));
        this.log.sync().unwrap_err();
        assert!(this.writer.may_have_lost(&this.log));
    }

    #[test]
    fn a_failed_sync_loses_nothing_that_nobody_was_told_of() {
        for rule in [SyncRule::AtOnce, LATER] {
            let mut this = Writer::new(rule, Filler::AtOnce);
            this.append(1_000);
            assert!(matches!(this.step(), LogStep::Sync));
            this.disk.fail_sync_after(0);
            this.log.sync().unwrap_err();
            assert!(!this.writer.may_have_lost(&this.log), "{rule:?}");
        }
    }

    #[test]
    fn what_is_synced_later_waits_for_so_long_or_so_many_bytes() {
        let mut this = Writer::new(LATER, Filler::AtOnce);
        this.append(300);
        assert_eq!(this.work(), ["persisted 2", "wait 100ms"]);
        this.pass(60);
        this.append(300);
        assert_eq!(this.work(), ["persisted 3", "wait 40ms"]);
        this.append(400);
        assert_eq!(this.work(), ["sync", "persisted 4", "wait"]);
        this.append(10);
        assert_eq!(this.work(), ["persisted 5", "wait 100ms"]);
        this.pass(100);
        assert_eq!(this.work(), ["sync", "wait"]);
        this.append(10);
        assert_eq!(this.work(), ["persisted 6", "wait 100ms"]);
        this.pass(100);
        this.append(10);
        assert_eq!(this.work(), ["sync", "persisted 7", "wait"]);
    }

    #[test]
    fn a_term_is_synced_before_anybody_hears_of_it_however_late_it_is_written() {
        let mut this = Writer::new(LATER, Filler::AtOnce);
        this.term = Term(2);
        this.append(10);
        assert_eq!(this.work(), ["sync", "persisted 2", "wait"]);
        this.disk.leave_space(0);
        this.term = Term(3);
        this.append(5_000);
        assert_eq!(this.work(), ["full, wait 500ms"]);
        this.append(10);
        this.disk.set_space_bytes(None);
        this.pass(500);
        assert_eq!(this.work()[..2], ["sync", "persisted 4"]);
    }

    /// Whoever hears that a member is gone switches it off: no loss of power may have the others wait for it again. They would if they
    /// had lost what it has, for it would not vote for them.
    #[test]
    fn from_a_change_of_the_members_on_all_is_synced_until_it_is_known_to_be_committed() {
        let mut this = Writer::new(LATER, Filler::AtOnce);
        this.append(10);
        assert_eq!(this.work(), ["persisted 2", "wait 100ms"]);
        this.append_change();
        assert_eq!(this.work(), ["sync", "persisted 3", "wait"]);
        this.append(10);
        assert_eq!(this.work(), ["sync", "persisted 4", "wait"]);
        this.commit(Index(2));
        assert_eq!(this.work(), ["sync", "persisted 5", "wait"]);
        this.commit(Index(3));
        assert_eq!(this.work(), ["sync", "persisted 6", "wait"]);
        this.append(10);
        assert_eq!(this.work(), ["persisted 7", "wait 100ms"]);
    }

    /// A member that knows of the change could otherwise have lost what one has kept that does not know of it: that one does not vote
    /// for it, and cannot be elected without whoever is gone.
    #[test]
    fn what_settles_a_change_is_synced_though_the_change_is_known_to_be_committed() {
        let mut this = Writer::new(LATER, Filler::AtOnce);
        this.append_change();
        this.commit(Index(2));
        assert_eq!(this.work(), ["sync", "persisted 3", "wait"]);
        this.append(10);
        assert_eq!(this.work(), ["persisted 4", "wait 100ms"]);
        this.append_settling();
        assert_eq!(this.work(), ["sync", "persisted 5", "wait"]);
        // Whatever it is written with.
        this.append(10);
        this.append_settling();
        this.append(10);
        assert_eq!(this.work(), ["sync", "persisted 8", "wait"]);
    }

    #[test]
    fn who_starts_with_what_may_be_a_change_of_the_members_syncs_all_behind_it() {
        let mut this = Writer::new(LATER, Filler::AtOnce);
        this.append_change();
        assert_eq!(this.work(), ["sync", "persisted 2", "wait"]);
        this.writer = LogWriter::new(LATER, &this.log);
        this.append(10);
        assert_eq!(this.work(), ["sync", "persisted 3", "wait"]);
        this.commit(Index(3));
        assert_eq!(this.work(), ["sync", "persisted 4", "wait"]);
        this.writer = LogWriter::new(LATER, &this.log);
        this.append(10);
        assert_eq!(this.work(), ["persisted 5", "wait 100ms"]);
    }

    /// A change, and what settles one.
    const OF_CHANGES: [fn(&mut Writer); 2] = [Writer::append_change, Writer::append_settling];

    #[test]
    fn what_goes_with_a_change_is_synced_whatever_it_is_written_with() {
        for append in OF_CHANGES {
            let mut this = Writer::new(LATER, Filler::AtOnce);
            this.append(10);
            append(&mut this);
            this.append(10);
            assert_eq!(this.work(), ["sync", "persisted 4", "wait"]);
        }
    }

    #[test]
    fn what_goes_with_a_change_is_synced_before_anybody_hears_of_it_however_late_it_is_written() {
        let much_later = SyncRule::Later {
            bytes: 1_000_000,
            interval: Duration::from_secs(10),
        };
        for append in OF_CHANGES {
            let mut this = Writer::new(much_later, Filler::AtOnce);
            append(&mut this);
            this.disk.leave_space(0);
            this.append(5_000);
            assert_eq!(this.work(), ["full, wait 500ms"]);
            this.disk.set_space_bytes(None);
            this.pass(500);
            assert_eq!(this.work()[..2], ["sync", "persisted 3"]);
        }
    }

    #[test]
    fn a_sync_that_fails_over_what_goes_with_a_change_has_told_nobody_of_it() {
        for append in OF_CHANGES {
            let mut this = Writer::new(LATER, Filler::AtOnce);
            append(&mut this);
            assert!(matches!(this.step(), LogStep::Sync));
            this.disk.fail_sync_after(0);
            this.log.sync().unwrap_err();
            assert!(!this.writer.may_have_lost(&this.log));
        }
    }

    #[test]
    fn what_queues_while_the_log_is_synced_is_not_told_before_it_is_synced_too() {
        let mut this = Writer::new(SyncRule::AtOnce, Filler::AtOnce);
        this.append(10);
        assert!(matches!(this.step(), LogStep::Sync));
        this.append(10);
        this.log.sync().unwrap();
        assert_eq!(this.work(), ["sync", "persisted 3", "wait"]);
    }

    #[test]
    fn a_full_disk_syncs_what_it_has() {
        let mut this = Writer::new(LATER, Filler::AtOnce);
        this.append(10);
        assert_eq!(this.work(), ["persisted 2", "wait 100ms"]);
        this.disk.leave_space(0);
        this.append(5_000);
        assert_eq!(this.work(), ["full, wait 100ms"]);
        this.pass(100);
        assert_eq!(this.work(), ["sync", "full, wait 500ms"]);
    }

    /// As a truncation does, or a new segment.
    #[test]
    fn what_was_synced_on_the_way_need_not_be_synced_again() {
        let mut this = Writer::new(LATER, Filler::AtOnce);
        this.append(10);
        assert_eq!(this.work(), ["persisted 2", "wait 100ms"]);
        this.writer.add(LogJob::TruncatePrefix(Index(1)));
        assert_eq!(this.work(), ["wait"]);
        this.append(10);
        assert_eq!(this.work(), ["persisted 3", "wait 100ms"]);
    }

    #[test]
    fn a_full_disk_has_the_space_of_the_next_segment_before_it_waits_for_more() {
        let mut this = Writer::new(SyncRule::AtOnce, Filler::Slow);
        this.disk.leave_space(0);
        this.append(4_000);
        assert_eq!(this.work(), ["await", "sync", "persisted 2", "wait"]);
        this.append(4_000);
        assert_eq!(this.work(), ["full, wait 500ms"]);
        this.append(10);
        this.writer.add(LogJob::TruncatePrefix(Index(1)));
        assert_eq!(this.work(), ["full, wait 500ms"], "both take a larger file");
        this.disk.set_space_bytes(None);
        this.pass(500);
        assert_eq!(this.work()[..2], ["sync", "persisted 4"]);
    }

    /// Its thread wrote zeros and removed them without end, and took no more jobs, where a file system sets no space aside. Later it
    /// did so with each write, and RocksDB found the disk full in the middle of it.
    #[test]
    fn a_piece_without_space_is_not_tried_again_soon() {
        for filler in [Filler::AtOnce, Filler::Slow] {
            let disk = MemoryDisk::new();
            disk.cannot_reserve();
            let mut this = Writer::on(disk, SyncRule::AtOnce, filler);
            this.disk.leave_space(0);
            this.append(2_200);
            let waited = match filler {
                Filler::Slow => "await",
                _ => "fill",
            };
            assert_eq!(this.work(), ["sync", "persisted 2", waited, "wait"]);
            this.append(10);
            assert_eq!(this.work(), ["sync", "persisted 3", "wait"]);
            this.disk.set_space_bytes(None);
            this.pass(10_000);
            this.append(10);
            assert!(this.work().contains(&"fill".to_owned()));
        }
    }

    /// One that found no space, and whose next segment nobody makes.
    fn full() -> Writer {
        let mut this = Writer::new(SyncRule::AtOnce, Filler::Gone);
        this.append(2_500);
        assert_eq!(this.work(), ["sync", "persisted 2", "await", "wait"]);
        this.disk.leave_space(0);
        this.append(4_000);
        assert_eq!(this.work(), ["full, wait 500ms"]);
        this
    }

    /// Each try took all that there was for a moment, while the state was being flushed to make room.
    #[test]
    fn a_segment_without_space_is_tried_again_after_a_while_or_once_something_is_dropped() {
        let mut this = full();
        this.disk.set_space_bytes(None);
        this.append(10);
        this.pass(499);
        assert_eq!(this.work(), ["full, wait 500ms"], "nothing is tried");
        this.writer.add(LogJob::TruncatePrefix(Index(1)));
        assert_eq!(this.work(), ["sync", "persisted 4", "wait"]);
        this.disk.leave_space(0);
        this.append(4_000);
        this.append(4_000);
        assert_eq!(this.work(), ["full, wait 500ms"]);
        this.disk.set_space_bytes(None);
        this.pass(500);
        assert_eq!(this.work(), ["sync", "persisted 6", "wait"]);
    }

    /// It took what a member had given up of its spare segments, so that the state could be flushed.
    #[test]
    fn no_piece_is_filled_while_space_is_saved() {
        let mut this = Writer::new(SyncRule::AtOnce, Filler::AtOnce);
        this.writer.save_space(true);
        this.append(2_200);
        assert_eq!(this.work(), ["sync", "persisted 2", "wait"]);
        this.append(4_000);
        assert_eq!(this.work(), ["sync", "persisted 3", "wait"], "it is needed");
        this.writer.save_space(false);
        this.append(2_200);
        assert!(this.work().contains(&"fill".to_owned()));
    }

    /// On a disk of 500 MB a member kept a quarter of it for segments that it did not need, while there was no space to merge in.
    #[test]
    fn what_was_made_ahead_is_given_back_while_space_is_saved() {
        let mut this = Writer::new(SyncRule::AtOnce, Filler::AtOnce);
        let ahead = |this: &Writer| {
            let names = this.disk.list().unwrap();
            names
                .iter()
                .filter(|name| !name.ends_with(".segment"))
                .count()
        };
        assert_eq!(ahead(&this), 1);
        this.writer.save_space(true);
        assert_eq!(this.work(), ["wait"]);
        assert_eq!(ahead(&this), 0);
        this.append(4_000);
        this.append(4_000);
        assert!(this.work().contains(&"persisted 3".to_owned()));
        this.writer.add(LogJob::TruncatePrefix(Index(2)));
        assert_eq!(this.work(), ["wait"]);
        assert_eq!(
            ahead(&this),
            0,
            "nor are the files of dropped segments kept"
        );
    }

    #[test]
    fn a_piece_whose_thread_is_gone_is_waited_for_once() {
        let mut this = full();
        this.disk.set_space_bytes(None);
        this.pass(500);
        assert_eq!(this.work(), ["sync", "persisted 3", "wait"]);
    }
}
