//! The planner against a model of Kubernetes and of a cluster: whatever crashes, is wiped, scaled
//! or changed in between, no step of the operator costs the quorum or deletes a member's data, and
//! once the faults end the cluster becomes what its spec asks for.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cases;
mod world;

use dengine_operator::cluster::plan::Step;
use proptest::prelude::*;
use proptest::sample::select;

use world::World;

/// Changes of a cluster that the operator did not make.
#[derive(Clone, Debug)]
enum Fault {
    /// A pod stops answering.
    Down(u32),
    /// It answers again.
    Up(u32),
    /// Kubernetes evicts a pod; the StatefulSet recreates it.
    Evict(u32),
    /// A volume's content is lost; the claim stays.
    Wipe(u32),
    /// A volume's content is damaged: the server refuses it whenever it starts.
    Damage(u32),
    /// A server crashes again and again, for a reason that is not in its data directory.
    Crash(u32),
    /// A claim is deleted with its pod.
    LoseClaim(u32),
    /// A claim is deleted while its pod still runs.
    DeleteClaim(u32),
    /// The StatefulSet is scaled by hand.
    StrayScale(u32),
    /// The spec asks for another number of members.
    Replicas(u32),
    /// The spec asks for another pod template.
    Template,
    /// The replacements in the status are lost.
    ForgetReplacements,
    /// The status is lost, once it listed members.
    ForgetStatus,
    /// The resource is deleted with its claims, and recreated while its pods still run.
    MakeAnew,
    /// The operator takes a step.
    Step,
    /// The operator takes a step and crashes before it writes the status.
    StepAndCrash,
}

fn fault() -> impl Strategy<Value = Fault> {
    let pod = 0..7_u32;
    prop_oneof![
        2 => pod.clone().prop_map(Fault::Down),
        4 => pod.clone().prop_map(Fault::Up),
        1 => pod.clone().prop_map(Fault::Evict),
        1 => pod.clone().prop_map(Fault::Wipe),
        1 => pod.clone().prop_map(Fault::Damage),
        1 => pod.clone().prop_map(Fault::Crash),
        1 => pod.clone().prop_map(Fault::LoseClaim),
        1 => pod.prop_map(Fault::DeleteClaim),
        1 => (0..8_u32).prop_map(Fault::StrayScale),
        1 => select(vec![1, 3, 5, 7]).prop_map(Fault::Replicas),
        1 => Just(Fault::Template),
        1 => Just(Fault::ForgetReplacements),
        1 => Just(Fault::ForgetStatus),
        1 => Just(Fault::MakeAnew),
        24 => Just(Fault::Step),
        4 => Just(Fault::StepAndCrash),
    ]
}

/// Long enough for the largest change: seven members replaced, one step at a time.
const STEPS_TO_SETTLE: usize = 300;

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn no_step_costs_quorum_and_the_spec_is_reached_without_faults(
        replicas in select(vec![1_u32, 3, 5]),
        faults in prop::collection::vec(fault(), 0..120),
    ) {
        let mut world = World::new(replicas);
        for fault in faults {
            match fault {
                Fault::Down(pod) => world.set_up(pod, false),
                Fault::Up(pod) => world.set_up(pod, true),
                Fault::Evict(pod) => world.evict(pod),
                Fault::Wipe(pod) => world.wipe(pod),
                Fault::Damage(pod) => world.damage(pod),
                Fault::Crash(pod) => world.crash(pod),
                Fault::LoseClaim(pod) => world.lose_claim(pod),
                Fault::DeleteClaim(pod) => world.delete_claim(pod),
                Fault::StrayScale(size) => world.scale_by_hand(size),
                Fault::Replicas(replicas) => world.wanted_replicas = replicas,
                Fault::Template => world.template += 1,
                Fault::ForgetReplacements => world.forget_replacements(),
                Fault::ForgetStatus => world.forget_status(),
                Fault::MakeAnew => world.make_anew(),
                Fault::Step => { world.step(false); }
                Fault::StepAndCrash => { world.step(true); }
            }
        }
        world.end_faults();
        // Data that was lost with a majority of the volumes cannot be restored.
        if world.data_is_lost() {
            return Ok(());
        }
        for _ in 0..STEPS_TO_SETTLE {
            if world.step(false) == Step::Done && world.is_as_wanted() {
                return Ok(());
            }
        }
        prop_assert!(false, "never settled: {:?} next, {world:#?}", world.plan());
    }
}
