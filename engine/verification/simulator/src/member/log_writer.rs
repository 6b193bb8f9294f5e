//! The log writer's thread.

use std::time::Duration;

use dengine_kv::CommandVersion;
use dengine_raft::replica::LogStep;
use dengine_raft::{Input, LogJob};
use dengine_types::{EntryKind, MemberId, Moment};

use super::process::Process;
use super::{Actor, End, Machine};
use crate::invariants::Seen;
use crate::queue::MILLI;
use crate::surroundings::Surroundings;
use crate::targeted_fault;

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
            targeted_fault::over_vote(sim, member, candidate);
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

    /// Takes what queued, and goes on with that.
    pub(super) fn write_log(
        &mut self,
        sim: &mut Surroundings,
        machine: Machine,
    ) -> Result<(), End> {
        for job in self.log_jobs.drain(..) {
            self.log_writer.add(job);
        }
        self.go_on_with_log(sim, machine)
    }

    /// It has waited for as long as it was to, unless it went on meanwhile.
    pub(super) fn wake_log(&mut self, sim: &mut Surroundings, machine: Machine) -> Result<(), End> {
        let waits = !self.log_busy && self.log_wakes_at <= sim.now;
        if waits {
            self.log_busy = true;
            self.write_log(sim, machine)?;
        }
        Ok(())
    }

    pub(super) fn sync_log(&mut self, sim: &mut Surroundings, machine: Machine) -> Result<(), End> {
        self.log.sync()?;
        self.proven = std::mem::replace(&mut self.durable, self.log.durable_to());
        self.go_on_with_log(sim, machine)
    }

    /// Does what the log writer says, until that takes time.
    fn go_on_with_log(&mut self, sim: &mut Surroundings, machine: Machine) -> Result<(), End> {
        loop {
            let now = machine.clock.read(sim.now);
            match self.log_writer.step(&mut self.log, now)? {
                LogStep::Sync => {
                    let delay = machine.sync_time(sim);
                    machine.plan(sim, delay, Actor::LogSync);
                    return Ok(());
                }
                LogStep::Persisted { id, .. } => {
                    sim.note(format_args!("{} has append {} on disk", machine.id, id.0));
                    self.inbox.push_back(Input::Persisted(id));
                    self.wake(sim, machine.id, machine.boot);
                }
                LogStep::Fill(piece) => {
                    self.piece = Some(piece);
                    let delay = machine.sync_time(sim);
                    machine.plan(sim, delay, Actor::LogFill);
                }
                LogStep::AwaitPiece => self.fill_piece(now)?,
                LogStep::Wait { longest, full } => {
                    if full.is_some() {
                        sim.count("writes that waited for space");
                        self.inbox.push_back(Input::LogFull);
                        self.wake(sim, machine.id, machine.boot);
                    }
                    self.wait_for_jobs(sim, machine, longest);
                    return Ok(());
                }
            }
        }
    }

    fn wait_for_jobs(
        &mut self,
        sim: &mut Surroundings,
        machine: Machine,
        longest: Option<Duration>,
    ) {
        self.log_busy = false;
        if let Some(longest) = longest {
            // Its clock has come so far then, however that is rounded.
            let delay = machine.clock.wait(longest) + 1;
            self.log_wakes_at = sim.now + delay;
            machine.plan(sim, delay, Actor::LogWake);
        }
        self.plan_log(sim, machine);
    }

    /// Whether the folder is suspect if the log fails now.
    pub(super) fn may_have_lost(&self) -> bool {
        self.log_writer.may_have_lost(&self.log)
    }

    /// The other thread is done with its piece.
    pub(super) fn fill_piece(&mut self, now: Moment) -> Result<(), End> {
        let Some(piece) = self.piece.take() else {
            return Ok(());
        };
        let taken = self.log_writer.take_back(&mut self.log, piece.fill(), now);
        Ok(taken?)
    }
}
