//! What a `memory-first` cluster may lose, and what not.
//!
//! A member whose machine lost power refuses to start, and is replaced. As long as a majority of the voters is well, nothing
//! that was acknowledged is lost, and nothing here forgives anything. Once a majority has lost power, somebody does as
//! `docs/runbooks/DEngineQuorumLost.md` says: stops all members, accepts the loss for each that refused, and starts them.
//! Then what was committed and is on the disks of a majority is still not lost; behind the last such entry, history may
//! begin anew. Clients and watchers do so too: they are told of nothing, but what they know of later revisions may be of what
//! is lost, and ids of sessions that were opened there are given out again.

use super::invariants::Seen;
use super::member::Health;
use super::queue::{MILLI, Nanos, SECOND};
use super::surroundings::{Event, Surroundings};
use super::world::{Members, World};
use crate::check::{Answer, Call, History};
use crate::kv::Membership;
use crate::types::{Entry, Index, MemberId, Revision, Term};
use std::collections::BTreeMap;
use std::sync::Arc;

/// For how long a cluster that cannot go on is left alone.
const PATIENCE: Nanos = 3 * SECOND;

/// How far the cluster has come.
#[derive(Default)]
pub(super) struct Progress {
    /// The term of each entry that is committed.
    terms: BTreeMap<Index, Term>,
    /// The revision at some of them.
    revisions: BTreeMap<Index, Revision>,
    /// The newest members that any member knows, and since which entry.
    membership: Option<(Index, Arc<Membership>)>,
}

impl Progress {
    pub(super) fn committed(&mut self, entries: &[Entry]) {
        self.terms
            .extend(entries.iter().map(|it| (it.index, it.term)));
    }

    pub(super) fn applied(
        &mut self,
        index: Index,
        revision: Revision,
        changed: Option<&Arc<Membership>>,
    ) {
        self.revisions.insert(index, revision);
        let known = self.membership.as_ref().map(|(since, _)| *since);
        if let Some(changed) = changed.filter(|_| known < Some(index)) {
            self.membership = Some((index, Arc::clone(changed)));
        }
    }

    fn voters(&self) -> Vec<MemberId> {
        let membership = self.membership.iter();
        membership
            .flat_map(|(_, it)| it.voters().map(|m| m.id))
            .collect()
    }

    /// The last entry that is committed and on the disks of a majority of the voters, as far as it was noted.
    fn safe(&self, members: &Members) -> (Index, Revision) {
        let voters = self.voters();
        let mut newest_first = self.revisions.iter().rev();
        let safe = newest_first.find(|(index, _)| {
            let term = self.terms.get(*index).copied().unwrap_or_default();
            let has = |id: &&MemberId| {
                members
                    .get(id)
                    .is_some_and(|it| it.has_synced(**index, term))
            };
            voters.iter().filter(has).count() > voters.len() / 2
        });
        safe.map_or((Index(0), Revision(1)), |(index, revision)| {
            (*index, *revision)
        })
    }

    fn forget_behind(&mut self, index: Index) {
        self.terms.split_off(&index.next());
        self.revisions.split_off(&index.next());
    }
}

/// When, and behind which revision, history may have begun anew.
#[derive(Default)]
pub(super) struct Losses(Vec<(Nanos, Revision)>);

impl Losses {
    /// A history of which nothing is asked that may be lost: a write that was acknowledged there may have taken effect or not,
    /// and what else was told does not count.
    pub(super) fn forgive(&self, history: &History) -> History {
        let mut forgiven = history.clone();
        for (at, safe) in &self.0 {
            let may_be_lost = |completed: Nanos, answer: &Answer| {
                completed <= *at && answer.revision().is_some_and(|it| it > safe.0)
            };
            forgiven.operations.retain_mut(|operation| {
                let completed = operation.completed.map(|it| it.nanos);
                let lost = completed.is_some_and(|it| may_be_lost(it, &operation.answer));
                if lost {
                    operation.completed = None;
                    operation.answer = Answer::Unknown;
                }
                !lost || !matches!(operation.call, Call::Read { .. })
            });
        }
        forgiven
    }
}

/// Whoever runs the cluster looks whether it can go on by itself.
pub(super) fn recover_if_needed(
    sim: &mut Surroundings,
    members: &Members,
    stuck_since: &mut Option<Nanos>,
) {
    let voters = sim.progress.voters();
    let of = |health| {
        let is = move |id: &&MemberId| members.get(id).is_some_and(|it| it.health == health);
        voters.iter().filter(is).count()
    };
    let suspects = of(Health::Suspect);
    let well = voters.len() - suspects - of(Health::Lost);
    if suspects == 0 || well > voters.len() / 2 {
        *stuck_since = None;
        return;
    }
    let since = *stuck_since.get_or_insert(sim.now);
    if sim.now >= since + PATIENCE {
        *stuck_since = None;
        sim.then(0, World::recover);
    }
}

impl World {
    /// Goes on with what is there.
    fn recover(&mut self) {
        let (index, revision) = self.sim.progress.safe(&self.members);
        let Self { sim, members, .. } = self;
        sim.note(format_args!(
            "all are stopped; the loss of what stands behind {index}, revision {revision}, is accepted"
        ));
        sim.count("losses accepted");
        for (id, member) in members.iter_mut() {
            member.kill(sim);
            if member.accept_lost_writes() {
                sim.count("memory-first members recovered");
            }
            let delay = sim.random.between(MILLI, 2 * SECOND);
            sim.after(delay, Event::Restart(*id));
        }
        sim.progress.forget_behind(index);
        sim.history_to = sim.history_to.min(revision);
        sim.see(&Seen::LossAccepted { index, revision });
        self.losses.0.push((sim.now, revision));
        for client in self.clients.values_mut() {
            client.begin_anew(sim, revision);
        }
        for watcher in &mut self.watchers {
            watcher.begin_anew(members, revision);
        }
    }
}
