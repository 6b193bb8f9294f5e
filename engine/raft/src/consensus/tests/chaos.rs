//! Random schedules of everything that may happen, and the properties of figure 3.2 of the thesis.
//!
//! A failure prints the schedule that proptest shrank it to.

use std::collections::BTreeMap;

use dengine_types::Entry;
use proptest::prelude::*;

use super::cluster::Cluster;
use super::script::run;
use crate::consensus::Role;

#[derive(Clone, Debug)]
enum Step {
    Tick(u64, u64),
    Deliver(u64, u64, usize),
    Lose(u64, u64),
    Propose(u64),
    Change(u64, &'static str, u64),
    Read(u64),
    Transfer(u64, u64),
    Unreachable(u64, u64),
    HoldDisk(u64, bool),
    Sync(u64),
    HoldApply(u64, bool),
    Restart(u64),
    DeliverAll,
}

fn id() -> impl Strategy<Value = u64> {
    1..=4_u64
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop::sample::select(&["add-learner", "promote", "remove"][..]);
    prop_oneof![
        8 => (id(), prop_oneof![Just(1), 1..25_u64]).prop_map(|(id, n)| Step::Tick(id, n)),
        20 => (id(), id(), 1..6_usize).prop_map(|(from, to, n)| Step::Deliver(from, to, n)),
        2 => (id(), id()).prop_map(|(from, to)| Step::Lose(from, to)),
        6 => id().prop_map(Step::Propose),
        2 => (id(), kind, id()).prop_map(|(at, kind, about)| Step::Change(at, kind, about)),
        3 => id().prop_map(Step::Read),
        1 => (id(), id()).prop_map(|(from, to)| Step::Transfer(from, to)),
        1 => (id(), id()).prop_map(|(at, of)| Step::Unreachable(at, of)),
        4 => (id(), any::<bool>()).prop_map(|(id, held)| Step::HoldDisk(id, held)),
        6 => id().prop_map(Step::Sync),
        3 => (id(), any::<bool>()).prop_map(|(id, held)| Step::HoldApply(id, held)),
        2 => id().prop_map(Step::Restart),
        1 => Just(Step::DeliverAll),
    ]
}

/// What must hold over the whole history.
#[derive(Default)]
struct History {
    /// Election safety: who led each term.
    leaders: BTreeMap<u64, u64>,
    /// State machine safety: what was applied at each index, by anyone.
    applied: Vec<Entry>,
}

impl History {
    fn check(&mut self, cluster: &Cluster) {
        for (&id, member) in &cluster.members {
            let state = member.consensus.state();
            if state.role == Role::Leader {
                let leader = *self.leaders.entry(state.term.0).or_insert(id);
                assert_eq!(leader, id, "two leaders of term {}", state.term);
            }
            let applied = usize::try_from(member.host.machine.applied.0).unwrap();
            let log = member.host.disk.log.snapshot();
            assert!(applied <= log.len(), "{id} applied what is not on its disk");
            for (here, there) in log[..applied].iter().zip(&self.applied) {
                assert_eq!(here, there, "{id} applied another entry");
            }
            if applied > self.applied.len() {
                self.applied = log[..applied].to_vec();
            }
        }
    }
}

fn perform(cluster: &mut Cluster, step: &Step) {
    match *step {
        Step::Tick(id, ticks) => (0..ticks).for_each(|_| cluster.tick_without_clock(id)),
        Step::Deliver(from, to, count) => {
            let _ = (0..count).all(|_| cluster.deliver_one((from, to), false));
        }
        Step::Lose(from, to) => drop(cluster.links.remove(&(from, to))),
        Step::Propose(id) => cluster.propose(id, &["x", "y"]),
        Step::Change(at, kind, about) => cluster.propose_change(at, &format!("{kind} {about}")),
        Step::Read(id) => cluster.read(id),
        Step::Transfer(from, to) => cluster.transfer(from, to),
        Step::Unreachable(at, of) => cluster.unreachable(at, of),
        Step::HoldDisk(id, held) => cluster.hold_disk(id, held),
        Step::Sync(id) => {
            cluster.sync_one(id);
        }
        Step::HoldApply(id, held) => cluster.hold_apply(id, held),
        Step::Restart(id) => cluster.restart(id),
        Step::DeliverAll => cluster.deliver_all(),
    }
}

/// Lets everything run again; the members agree in the end, unless none can lead.
fn recover(cluster: &mut Cluster) {
    for id in 1..=4 {
        perform(cluster, &Step::HoldDisk(id, false));
        perform(cluster, &Step::HoldApply(id, false));
    }
    for _ in 0..80 {
        for id in 1..=4 {
            cluster.tick_without_clock(id);
        }
        cluster.deliver_all();
    }
}

proptest! {
    // An eighth of the usual number of cases, for each is a long story.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 8))]

    #[test]
    fn safety_holds_and_progress_returns(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let cluster = Cluster { seed, ..Cluster::default() };
        let mut cluster = run(cluster, "
            member 1 voters=1,2,3 learners=4
            member 2 voters=1,2,3 learners=4
            member 3 voters=1,2,3 learners=4
            member 4 voters=1,2,3 learners=4
        ");
        let mut history = History::default();
        for step in &steps {
            perform(&mut cluster, step);
            history.check(&cluster);
        }
        recover(&mut cluster);
        history.check(&cluster);
        let leader = cluster.members.values().find(|m| m.consensus.state().role == Role::Leader);
        let leader = leader.expect("with every disk and link working, somebody leads");
        let id = leader.consensus.state().leader.unwrap().0;
        cluster.propose(id, &["last"]);
        cluster.deliver_all();
        history.check(&cluster);
        let last = cluster.members[&id].host.machine.applied;
        assert_eq!(last, cluster.members[&id].consensus.last_index(), "all of it is applied");
    }
}
