//! The log writer's thread.

use super::process::Process;
use super::{Actor, End, Machine};
use crate::kv::CommandVersion;
use crate::replica::{Input, LogJob, SPACE_RETRY, unless_usable};
use crate::sim::ambush;
use crate::sim::invariants::Seen;
use crate::sim::queue::{MILLI, Nanos};
use crate::sim::surroundings::Surroundings;
use crate::types::{EntryKind, MemberId};

impl Process {
    pub(super) fn note_append(&mut self, sim: &mut Surroundings, member: MemberId, job: &LogJob) {
        let LogJob::Append {
            entries,
            hard_state,
            ..
        } = job
        else {
            return;
        };
        if let Some(hard) = hard_state {
            let (term, vote, commit) = (hard.term, hard.vote, hard.commit);
            sim.note(format_args!(
                "{member} notes term {term}, vote {vote}, commit {commit}"
            ));
        }
        let oldest = CommandVersion::OLDEST.number();
        let mut commands = entries.iter().filter(|it| it.kind == EntryKind::Command);
        if sim.programs.rolling && commands.any(|it| it.data.first().is_some_and(|it| *it > oldest))
        {
            sim.count("appends of newer commands in a roll");
        }
        let vote = hard_state.map(|hard| hard.vote);
        if let Some(candidate) = vote.filter(|it| *it != MemberId(0) && *it != member) {
            ambush::over_vote(sim, member, candidate);
        }
        if let (Some(first), Some(last)) = (entries.first(), entries.last()) {
            let (from, to, term) = (first.index, last.index, last.term);
            sim.note(format_args!(
                "{member} appends {from} to {to} of term {term}"
            ));
        }
        // As of this action: the state that was reported may be older.
        let (state, log) = (self.replica.consensus().state(), &self.shadow);
        sim.see(&Seen::Appends {
            member,
            state,
            log,
            entries,
        });
        self.shadow.append(entries);
    }

    pub(super) fn plan_log(&mut self, sim: &mut Surroundings, machine: Machine) {
        if !self.log_jobs.is_empty() && !std::mem::replace(&mut self.log_busy, true) {
            let delay = sim.random.spread(MILLI / 50);
            machine.plan(sim, delay, Actor::LogWrite);
        }
        // The reset is the last thing that the log writer does.
        if self.snapshots.is_installing() && !std::mem::replace(&mut self.log_busy, true) {
            machine.plan(sim, MILLI, Actor::Install);
        }
    }

    pub(super) fn write_log(
        &mut self,
        sim: &mut Surroundings,
        machine: Machine,
    ) -> Result<(), End> {
        let known = self.log.hard_state();
        self.log_jobs
            .drain(..)
            .for_each(|job| self.writing.add(job));
        // What waited for space may have been written in part: it still has to be synced.
        self.must_sync |= self.writing.must_sync(known);
        match self.writing.write(&mut self.log) {
            Err(error) if error.is_no_space() => {
                sim.count("writes that waited for space");
                machine.plan(sim, SPACE_RETRY.as_nanos() as Nanos, Actor::LogWrite);
                return Ok(());
            }
            result => result.map_err(|error| error.to_string())?,
        }
        // Without need, it syncs now and then.
        let must_sync = std::mem::take(&mut self.must_sync);
        self.syncing = must_sync || !sim.plan.memory_first || sim.random.chance(50_000);
        let delay = if self.syncing {
            machine.sync_time(sim)
        } else {
            MILLI / 100
        };
        machine.plan(sim, delay, Actor::LogSync);
        Ok(())
    }

    pub(super) fn sync_log(&mut self, sim: &mut Surroundings, machine: Machine) -> Result<(), End> {
        if self.syncing {
            self.log.sync().map_err(|e| e.to_string())?;
            self.unsynced = false;
            self.proven = std::mem::replace(&mut self.durable, self.log.durable_to());
        }
        self.unsynced |= !self.syncing;
        let mut written = std::mem::take(&mut self.writing);
        if let Some(id) = written.persisted() {
            sim.note(format_args!("{} has append {} on disk", machine.id, id.0));
            self.inbox.push_back(Input::Persisted(id));
            self.wake(sim, machine.id, machine.boot);
        }
        written.tidy(&mut self.log).map_err(|e| e.to_string())?;
        self.prepare_log(sim, machine)?;
        self.log_busy = false;
        self.plan_log(sim, machine);
        Ok(())
    }

    /// Has another thread make the next segment's file, piece by piece.
    fn prepare_log(&mut self, sim: &mut Surroundings, machine: Machine) -> Result<(), End> {
        if self.log.awaits_piece() {
            self.fill_piece()?;
        }
        let mut next = None;
        unless_usable(self.log.next_piece().map(|piece| next = piece))
            .map_err(|error| error.to_string())?;
        if next.is_some() {
            self.piece = next;
            let delay = machine.sync_time(sim);
            machine.plan(sim, delay, Actor::LogFill);
        }
        Ok(())
    }

    /// The other thread is done with its piece.
    pub(super) fn fill_piece(&mut self) -> Result<(), End> {
        let Some(piece) = self.piece.take() else {
            return Ok(());
        };
        unless_usable(self.log.take_back(piece.fill())).map_err(|error| error.to_string().into())
    }
}
