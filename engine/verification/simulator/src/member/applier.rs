//! The applier's thread and the flusher's.

use dengine_kv::{
    ChangesQuery, LogicalHash, Member as MemberRecord, Membership, RangeQuery, ReadError,
};
use dengine_raft::Input;
use dengine_raft::replica::{Done, LeaseChange};
use dengine_types::{Index, MemberId, Revision};

use super::process::Process;
use super::{Actor, End, Machine, all_keys};
use crate::invariants::Seen;
use crate::surroundings::Surroundings;

impl Process {
    pub(super) fn plan_apply(&mut self, sim: &mut Surroundings, machine: Machine) {
        let has_work = !self.apply_jobs.is_empty() || self.applier.has_more();
        if has_work && !std::mem::replace(&mut self.apply_busy, true) {
            let delay = match machine.slow {
                // A store that waits for its disk holds up whoever applies.
                true => sim.random.spread(sim.plan.apply * 200),
                false => sim.begins_after(sim.plan.apply),
            };
            machine.plan(sim, delay, Actor::Apply);
        }
    }

    pub(super) fn apply(&mut self, sim: &mut Surroundings, machine: Machine) -> Result<(), End> {
        let jobs = std::iter::from_fn(|| self.apply_jobs.pop_front());
        let now = || machine.clock.read(sim.now);
        let done = self.applier.work(jobs, now).map_err(|e| e.to_string())?;
        self.apply_busy = false;
        self.plan_apply(sim, machine);
        let Some(Done { range, answers }) = done else {
            return Ok(());
        };
        for (token, written) in answers {
            self.callers.written(token, written);
        }
        let (member, index) = (machine.id, range.index);
        sim.note(format_args!(
            "{member} has applied {index}, revision {}",
            range.revision
        ));
        if let Some(changed) = &range.membership {
            sim.progress.changed(index, changed);
        }
        if !sim.restored.holds(member) {
            self.show_applied(sim, member, index, range.revision);
            show_ends(sim, &range.leases);
        }
        self.wake_hub(sim, machine);
        if let Some(membership) = &range.membership {
            sim.note(format_args!("{member} knows {}", names(membership)));
            sim.see(&Seen::Members(membership));
        }
        self.unflushed_bytes += range.bytes;
        self.plan_flush(sim, machine);
        let late = !self.untold.is_empty() || sim.random.chance(50_000);
        self.untold.push(range);
        match late {
            // What the flusher says meanwhile comes first.
            true => {
                let delay = machine.sync_time(sim) * 10;
                machine.plan(sim, delay, Actor::TellApplied);
            }
            false => self.tell_applied(sim, machine),
        }
        Ok(())
    }

    fn show_applied(
        &self,
        sim: &mut Surroundings,
        member: MemberId,
        index: Index,
        revision: Revision,
    ) {
        sim.progress.applied(index, revision);
        let now = sim.now;
        sim.see(&Seen::Reaches { revision, now });
        self.show_history(sim);
        if is_hashed(index) {
            self.show_hash(sim, member);
            self.show_leases(sim, member);
        }
    }

    pub(super) fn tell_applied(&mut self, sim: &mut Surroundings, machine: Machine) {
        let members_changed = self.untold.iter().any(|it| it.membership.is_some());
        let told = self.untold.drain(..).map(Input::Applied);
        self.inbox.extend(told);
        if members_changed || self.replica.awaits_applied() {
            self.wake(sim, machine.id, machine.boot);
        }
    }

    /// What a revision changed is whatever the first member that came to it has stored.
    fn show_history(&self, sim: &mut Surroundings) {
        let reader = self.applier.machine().reader();
        let newest = reader.revision();
        while sim.history_to < newest {
            let query = ChangesQuery {
                prev_kv: true,
                ..ChangesQuery::new(Revision(sim.history_to.0 + 1), all_keys())
            };
            sim.history_to = match reader.changes(&query) {
                Ok(changes) => {
                    if sim.plan.memory_first {
                        sim.progress.told(&changes.events);
                    }
                    sim.see(&Seen::History(&changes.events));
                    newest
                }
                // Some of it was compacted in the same breath.
                Err(ReadError::Compacted { compacted, .. }) => Revision(compacted.0 - 1),
                Err(error) => panic!("memory can be read: {error}"),
            };
        }
    }

    /// Members at one index must come to one hash.
    fn show_hash(&self, sim: &mut Surroundings, member: MemberId) {
        let found = self.applier.machine().reader().logical_hash();
        let LogicalHash {
            applied_index: index,
            hash,
            ..
        } = found.expect("memory can be read");
        sim.see(&Seen::Applied {
            member,
            index,
            hash,
        });
    }

    /// What is attached to which lease, as three records tell it.
    fn show_leases(&self, sim: &mut Surroundings, member: MemberId) {
        let reader = self.applier.machine().reader();
        let found = reader.leases(None, usize::MAX);
        let leases: Vec<_> = found
            .expect("memory can be read")
            .into_iter()
            .map(|it| {
                let keys = reader.lease_with_keys(it.id, None, usize::MAX);
                let keys = keys.expect("memory can be read");
                (it.id, keys.expect("it was just there").1)
            })
            .collect();
        let pairs = reader.range(&RangeQuery::new(all_keys()));
        let pairs = &pairs.expect("memory can be read").kvs;
        sim.see(&Seen::Leases {
            member,
            leases: &leases,
            pairs,
        });
    }

    fn plan_flush(&mut self, sim: &mut Surroundings, machine: Machine) {
        if self.unflushed_bytes >= self.settings.flush_bytes {
            self.begin_flush(sim, machine);
        }
    }

    pub(super) fn begin_flush(&mut self, sim: &mut Surroundings, machine: Machine) {
        if !std::mem::replace(&mut self.flush_busy, true) {
            self.unflushed_bytes = 0;
            let delay = machine.sync_time(sim) * 10;
            machine.plan(sim, delay, Actor::Flush);
        }
    }

    pub(super) fn flush(&mut self, sim: &mut Surroundings, machine: Machine) -> Result<(), End> {
        let index = self.flusher.flush().map_err(|e| e.to_string())?;
        sim.note(format_args!(
            "{} has flushed what is applied up to {index}",
            machine.id
        ));
        sim.count("flushes");
        self.flush_busy = false;
        self.inbox.push_back(Input::Flushed(index));
        self.wake(sim, machine.id, machine.boot);
        Ok(())
    }
}

/// Shows which leases are over.
fn show_ends(sim: &mut Surroundings, changes: &[LeaseChange]) {
    let now = sim.now;
    for change in changes {
        match *change {
            LeaseChange::Gone { lease } | LeaseChange::Dying { lease, .. } => {
                sim.see(&Seen::LeaseOver { lease, now });
            }
            LeaseChange::Granted { .. } | LeaseChange::Checkpointed { .. } => {}
        }
    }
}

/// Members must come to one hash at the same entries. It is of all that they hold, which grows with
/// the entries, so there are fewer of them then.
fn is_hashed(index: Index) -> bool {
    let every = (index.0 / 16).next_power_of_two().clamp(8, 256);
    index.0.is_multiple_of(every)
}

fn names(membership: &Membership) -> String {
    let name = |m: &MemberRecord| match m.voter {
        true => m.id.to_string(),
        false => format!("learner {}", m.id),
    };
    let names: Vec<_> = membership.members.values().map(name).collect();
    names.join(", ")
}
