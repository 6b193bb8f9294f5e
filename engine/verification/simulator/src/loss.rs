//! What a `memory-first` cluster may lose, and what not.
//!
//! A member whose machine lost power refuses to start, and is replaced. As long as a majority of
//! the voters is well, nothing that was acknowledged is lost, and nothing here forgives anything.
//! Once a majority has lost power, somebody does as `docs/runbooks/DEngineQuorumLost.md` says:
//! stops all members, accepts the loss for each that refused, and starts them. Then what was
//! committed and is on the disks of a majority is still not lost; behind the last such entry,
//! history may begin again, but for what was answered of who the members are. Clients and watchers
//! do so too: they are told of nothing, but what they know of later revisions may be of what is
//! lost, and ids of sessions that were opened there are given out again. A member that still has
//! what the others go on without must end; see [`restored`](super::restored).

use std::collections::BTreeMap;
use std::sync::Arc;

use dengine_kv::{Event as Change, Membership};
use dengine_types::{Entry, Index, MemberId, Revision, Term};

use super::forgiven::Changes;
use super::invariants::Seen;
use super::member::{Health, Member};
use super::plan::{Fault, Plan};
use super::queue::{MILLI, Nanos, SECOND};
use super::random::Random;
use super::surroundings::{Event, Surroundings};
use super::world::{Members, World};

/// For how long a cluster that cannot go on is left alone.
const PATIENCE: Nanos = 3 * SECOND;

/// How far the cluster has come.
#[derive(Default)]
pub(super) struct Progress {
    /// The term of each entry that is committed.
    terms: BTreeMap<Index, Term>,
    /// The revision at some of them.
    revisions: BTreeMap<Index, Revision>,
    /// What was changed, as far as it is committed.
    changes: Changes,
    /// The newest members that any member knows, and since which entry.
    membership: Option<(Index, Arc<Membership>)>,
}

impl Progress {
    pub(super) fn committed(&mut self, entries: &[Entry]) {
        self.terms
            .extend(entries.iter().map(|it| (it.index, it.term)));
    }

    pub(super) fn applied(&mut self, index: Index, revision: Revision) {
        self.revisions.insert(index, revision);
    }

    /// What the next revisions changed.
    pub(super) fn told(&mut self, changes: &[Change]) {
        for change in changes {
            let revision = change.kv.mod_revision;
            self.changes
                .entry(revision)
                .or_default()
                .push(change.clone());
        }
    }

    /// What each revision changed that is still there.
    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// A member has applied a change of the members.
    pub(super) fn changed(&mut self, index: Index, changed: &Arc<Membership>) {
        let known = self.membership.as_ref().map(|(since, _)| *since);
        if known < Some(index) {
            self.membership = Some((index, Arc::clone(changed)));
        }
    }

    fn voters(&self) -> Vec<MemberId> {
        let membership = self.membership.iter();
        membership
            .flat_map(|(_, it)| it.voters().map(|m| m.id))
            .collect()
    }

    /// The last entry that is committed and on the disks of a majority of the voters, as far as it
    /// was noted.
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

/// What takes from the disks of a `memory-first` cluster what it acknowledged: mostly power, and
/// sometimes the disks themselves.
pub(super) fn plan_losses(plan: &mut Plan, random: &mut Random) {
    if random.chance(700_000) {
        plan_site_losses(plan, random);
    } else if random.chance(500_000) {
        plan.faults.retain(|(it, _)| *it != Fault::FailedSync);
        let mean = random.between(2, 8) * SECOND;
        plan.faults.push((Fault::FailedSync, mean));
    }
}

/// The story of sites that lose power: a few members, and not much else that goes wrong.
fn plan_site_losses(plan: &mut Plan, random: &mut Random) {
    plan.members = *random.pick(&[3, 3, 5]).expect("not empty");
    plan.faults.retain(|_| random.chance(200_000));
    let mean = random.between(6, 12) * SECOND;
    plan.faults.push((Fault::SiteLoss, mean));
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
    /// A majority of the voters loses power at once. The others go on, and may have what all of
    /// those have lost.
    pub(super) fn site_loses_power(&mut self) -> bool {
        let mut ids = self.sim.progress.voters();
        let quorum = ids.len() / 2 + 1;
        if ids.len() < 3 || !self.may_lose(ids[0]) {
            return false;
        }
        self.sim.note(format_args!("FAULT: a site loses power"));
        let spared = self.sim.random.between(1, (ids.len() - quorum) as u64 + 1);
        for _ in 0..spared {
            let place = self.sim.random.below(ids.len() as u64) as usize;
            ids.swap_remove(place);
        }
        ids.into_iter().for_each(|id| self.lose_power(id));
        true
    }

    /// Whether, after an accepted loss, nobody who runs sees a majority of the voters that it knows
    /// of, because one of these refuses to start: of two, one has given its history up. The runbook
    /// goes on with a copy then. Whoever was switched off excuses nothing: it was answered that it
    /// is gone, which no loss may undo. Whoever is no member to the one with the longest log does
    /// not count: it was removed, still runs, and knows older voters.
    pub(super) fn loss_took_the_quorum(&self) -> bool {
        let up = |id: &MemberId| self.members.get(id).is_some_and(Member::is_up);
        let lacks_quorum = |known: &Arc<Membership>| {
            let voters: Vec<_> = known.voters().map(|m| m.id).collect();
            voters.iter().filter(|id| up(id)).count() <= voters.len() / 2
        };
        let newest = self.members.values().max_by_key(|it| it.log_end());
        let newest = newest.and_then(Member::membership);
        let belongs = |id| {
            newest
                .as_ref()
                .is_some_and(|it| it.members.contains_key(id))
        };
        let refuses = |id: MemberId| self.members.get(&id).is_some_and(|it| !it.is_up());
        let members = self.members.iter().filter(|(id, _)| belongs(*id));
        let known: Vec<_> = members.filter_map(|(_, it)| it.membership()).collect();
        let mut voters = known.iter().flat_map(|it| it.voters());
        let one_refuses = voters.any(|voter| refuses(voter.id));
        !self.losses.is_empty() && one_refuses && known.iter().all(lacks_quorum)
    }

    /// Goes on with what is there.
    fn recover(&mut self) {
        let (index, revision) = self.sim.progress.safe(&self.members);
        let Self { sim, members, .. } = self;
        sim.note(format_args!(
            "all are stopped; the loss of what stands behind {index}, revision {revision}, is \
             accepted"
        ));
        sim.count("losses accepted");
        let mut spared = Vec::new();
        for (id, member) in members.iter_mut() {
            member.kill(sim);
            match member.accept_lost_writes() {
                true => sim.count("memory-first members recovered"),
                false => spared.push(*id),
            }
            let delay = sim.random.between(MILLI, 2 * SECOND);
            sim.after(delay, Event::Restart(*id));
        }
        sim.restored.accepted(members.keys().copied());
        sim.progress.forget_behind(index);
        sim.history_to = sim.history_to.min(revision);
        sim.see(&Seen::LossAccepted { index, revision });
        let lost = sim.progress.changes.split_off(&revision.next());
        self.losses.add(sim.now, revision, lost);
        for client in self.clients.values_mut() {
            client.begin_anew(sim, revision);
        }
        for watcher in &mut self.watchers {
            watcher.begin_anew(members, revision);
        }
        // Who has what the others have lost would lead them, and nothing would be lost. Not so who
        // comes back late.
        if self.sim.random.chance(500_000) {
            for id in spared {
                let duration = self.sim.random.between(3 * SECOND, 8 * SECOND);
                self.isolate(id, duration);
            }
            // What is written again would soon hide what one of them still has.
            let quiet = self.sim.random.below(3) * 6 * SECOND;
            self.sim
                .load_wave
                .begin(self.sim.now + quiet, self.sim.now + quiet);
        }
    }
}
