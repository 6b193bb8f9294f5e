//! What a log writer does, in which order: it writes what queued, syncs, says what is on disk, and
//! has the next segment made. The thread that runs it does what [`LogWriter::step`] says, and asks
//! again.

use std::time::Duration;

use dengine_log::{Disk, Filled, Log, LogError, Piece};
use dengine_planted::planted;
use dengine_types::{HardState, Index, Moment};

use super::log_work::LogWork;
use crate::input::AppendId;
use crate::output::LogJob;

/// How often a log writer tries a full disk again.
const SPACE_RETRY: Duration = Duration::from_millis(500);
/// For so long it leaves space for those who have to write before its segments can be dropped. If
/// that does not help, it takes what there is.
const LEAVES_SPACE: Duration = Duration::from_secs(15);
/// And how often it tries to have the next segment made there. Where no space can be set aside,
/// that fills the disk to the last byte for a moment, and other programs find it full.
const PIECE_RETRY: Duration = Duration::from_secs(10);

/// When what is written is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncRule {
    /// Before anybody hears of it.
    AtOnce,
    /// Once so many bytes wait for it, or the first of them have waited so long. Terms and votes at
    /// once, what settles a change of the members, and everything from such a change on until this
    /// disk knows that it is committed.
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
    /// Wait for the piece that is away, and [take it back](LogWriter::take_back). If that thread is
    /// gone, go on without it.
    AwaitPiece,
    /// Wait for more jobs.
    Wait {
        /// For so long at most, if that is said.
        longest: Option<Duration>,
        /// There is something to write, and no space for it: tell the replica
        /// ([`Input::LogFull`](crate::Input::LogFull)). Nothing is lost, and nothing acknowledged,
        /// until there is.
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
    /// The last change of the members that the disk does not know to be committed, or what comes
    /// behind it. A member that restarts counts votes by the members before, and a member
    /// that is gone since must not be needed: not its vote, nor what it alone has kept.
    unsettled: Option<Index>,
    /// The last try that found no space, and when that was. Each takes all there is for a moment,
    /// while a flush may need it.
    full: Option<(LogError, Moment)>,
    /// When the first of them was that found none.
    full_since: Option<Moment>,
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
            full_since: None,
            awaited: false,
            piece_lacked_space: None,
            saves_space: false,
        }
    }

    /// While this is so, the next segment is not made before it is needed, and what was made of it
    /// is given back: its space is for what needs it more, as the state that is flushed so that the
    /// log can be dropped, or merged so that it takes less.
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

    /// Whether acknowledged entries may be missing on the disk, now that the log has failed: the
    /// system may drop pages that it could not write, so that "same boot, so nothing is lost" holds
    /// no more.
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
        let waited = self.full_since.map(|since| now.since(since));
        log.leave_space(waited.is_none_or(|waited| waited < LEAVES_SPACE));
        let written = self.work.write(log);
        log.leave_space(true);
        match written {
            Err(error) if error.is_no_space() => {
                self.full = Some((error.clone(), now));
                self.full_since.get_or_insert(now);
                return Ok(self.make_room(log, error, now));
            }
            result => result?,
        }
        (self.full, self.full_since) = (None, None);
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

/// Passes over what leaves the log as it was: that there is no space for the next segment is not
/// yet an error.
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
mod tests;
