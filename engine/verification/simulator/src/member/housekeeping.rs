//! What a process does besides: the keeper's proposals, and the collector's work.

use dengine_kv::{Command, ExpiredKey, Request};
use dengine_raft::Input;
use dengine_raft::consensus::Role;
use dengine_types::{Entry, EntryKind};

use super::process::Process;
use super::{Actor, End, Machine};
use crate::invariants::Seen;
use crate::queue::MILLI;
use crate::surroundings::Surroundings;

/// How often the keeper looks while nothing waits.
const KEEPER_EVERY: u64 = 250 * MILLI;
/// How often the collector does.
const COLLECTOR_EVERY: u64 = 100 * MILLI;

impl Process {
    /// Compactions and expiries that a leader proposes.
    pub(super) fn keep(&mut self, sim: &mut Surroundings, machine: Machine) -> Result<(), End> {
        let pause = match self.keeper.behind() {
            Some(_) => u64::try_from(self.keeper.pause().as_nanos()).unwrap_or(u64::MAX),
            None => KEEPER_EVERY,
        };
        machine.plan(sim, pause, Actor::Keep);
        let leads = (self.state.role == Role::Leader).then_some(self.state.term);
        let now = machine.clock.read(sim.now);
        let version = self.replica.command_gate().version();
        let commands = self
            .keeper
            .work(leads, version, || now)
            .map_err(|e| End::Failed(e.to_string()))?;
        if !commands.is_empty() {
            sim.note(format_args!(
                "{} proposes {} of its own",
                machine.id,
                commands.len()
            ));
            sim.count("expiries and compactions proposed");
            self.inbox.push_back(Input::Propose(commands));
            self.wake(sim, machine.id, machine.boot);
        }
        Ok(())
    }

    /// Shows the invariants which pairs are about to expire.
    pub(super) fn note_expiries(&self, sim: &mut Surroundings, entries: &[Entry]) {
        let commands = entries
            .iter()
            .filter(|entry| entry.kind == EntryKind::Command);
        for entry in commands {
            let Ok(Ok(logged)) = Request::decode(entry.data.clone()) else {
                continue;
            };
            if let Command::ExpireKeys { keys } = logged.request.command {
                keys.iter()
                    .for_each(|expired| self.note_expiry(sim, expired));
            }
        }
    }

    fn note_expiry(&self, sim: &mut Surroundings, expired: &ExpiredKey) {
        let reader = self.applier.machine().reader();
        // Nothing is known of what is compacted, or not yet applied here.
        let Ok((_, Some(put))) = reader.get(&expired.key, Some(expired.mod_revision)) else {
            return;
        };
        let key = String::from_utf8_lossy(&expired.key);
        let (key, put, now) = (&*key, &put, sim.now);
        sim.see(&Seen::Expires { key, put, now });
    }

    /// Removes what compaction has given up, a little at a time.
    pub(super) fn collect(&mut self, sim: &mut Surroundings, machine: Machine) -> Result<(), End> {
        let delay = sim.random.spread(COLLECTOR_EVERY);
        machine.plan(sim, delay, Actor::Collect);
        let changes_max = sim.random.between(1, 64) as usize;
        let step = self
            .collector
            .step(changes_max)
            .map_err(|e| End::Failed(e.to_string()))?;
        if step.removed > 0 {
            sim.count("collections");
        }
        Ok(())
    }
}
