//! The status of a cluster: pure, from what was observed and what was done about it. The only input
//! from the clock is the moment at which a condition changes.

use dengine_crds::cluster::{BenchmarkLine, ClusterPhase, Lag, MemberRole, MemberStatus};
use dengine_crds::conditions as types;
use dengine_crds::reasons::cluster as reasons;
use dengine_crds::{DEngineCluster, DEngineClusterStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::model::{LAG_CAUGHT_UP_ENTRIES_MAX, Member, Membership, Observed, Wanted, quorum};
use super::plan::{Step, is_outdated};
use super::resources::selector_text;
use super::words;
use crate::conditions::{Conditions, State};

/// Up to this many entries a member is merely behind.
const LAG_BEHIND_ENTRIES_MAX: u64 = 100_000;

/// What became of a reconciliation: the only thing a status can be made from.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The spec can not be carried out; nothing was looked at.
    Invalid(String),
    /// The cluster was observed.
    Observed {
        /// What was seen.
        observed: Box<Observed>,
        /// What the spec asks of the membership.
        wanted: Wanted,
        /// What members run without an image in the spec.
        default_image: String,
        /// What was decided.
        step: Step,
        /// `spec.paused`: the step was not taken.
        paused: bool,
        /// Reason and words of what went wrong while carrying it out.
        error: Option<(&'static str, String)>,
    },
}

/// The new status. Fields that the outcome says nothing about stay as they were.
pub fn derive(
    resource: &DEngineCluster,
    outcome: &Outcome,
    benchmarks: Vec<BenchmarkLine>,
    now: Time,
) -> DEngineClusterStatus {
    let previous = resource.status.clone().unwrap_or_default();
    let generation = resource.metadata.generation;
    let mut conditions = Conditions::new(&previous.conditions, generation, now);
    let mut status = DEngineClusterStatus {
        observed_generation: generation,
        selector: Some(selector_text(
            resource.metadata.name.as_deref().unwrap_or_default(),
        )),
        benchmarks,
        conditions: Vec::new(),
        ..previous
    };
    match outcome {
        Outcome::Invalid(message) => {
            let invalid = State::no(reasons::INVALID_SPEC, message);
            conditions.set(types::READY, invalid.clone());
            conditions.set(types::PROGRESSING, invalid);
            status.phase = Some(ClusterPhase::Invalid);
        }
        Outcome::Observed {
            observed,
            wanted,
            default_image,
            step,
            paused,
            error,
        } => {
            status.default_image = Some(default_image.clone());
            fill(&mut status, observed, wanted);
            let facts = Facts {
                observed,
                wanted,
                step,
                paused: *paused,
                error: error.as_ref(),
            };
            facts.set(&mut conditions);
            status.phase = Some(facts.phase(&conditions, status.phase));
        }
    }
    status.conditions = conditions.into_vec();
    status
}

fn fill(status: &mut DEngineClusterStatus, observed: &Observed, wanted: &Wanted) {
    let ready = ready_members(observed, wanted);
    status.replicas = u32::try_from(observed.pods.len()).unwrap_or(u32::MAX);
    status.ready_replicas = ready;
    status.ready = Some(format!("{ready}/{}", wanted.replicas));
    if let Some(cluster_id) = observed.cluster_id {
        status.cluster_id = Some(cluster_id.to_string());
        status.seed_folder_id.clone_from(&observed.seed_folder_id);
    }
    if let Some(version) = lowest_version(observed) {
        status.version = Some(version);
    }
    match &observed.membership {
        Some(membership) => {
            status.leader = membership.leader().map(|leader| leader.name.clone());
            status.term = Some(membership.term.to_string());
            status.members = membership
                .members
                .iter()
                .map(|m| member(observed, m))
                .collect();
        }
        // Nobody can say who the members are now; who they were stays, as not healthy.
        None => {
            status.leader = None;
            for member in &mut status.members {
                member.healthy = false;
                member.lag = Lag::Unknown;
                if member.role == MemberRole::Leader {
                    member.role = MemberRole::Follower;
                }
            }
        }
    }
}

fn member(observed: &Observed, member: &Member) -> MemberStatus {
    MemberStatus {
        id: member.id.to_string(),
        name: member.name.clone(),
        role: match (member.leader, member.voter) {
            (true, _) => MemberRole::Leader,
            (false, true) => MemberRole::Follower,
            (false, false) => MemberRole::Learner,
        },
        lag: match member.lag_entries {
            _ if !member.reachable && !member.leader => Lag::Unknown,
            entries if entries <= LAG_CAUGHT_UP_ENTRIES_MAX => Lag::CaughtUp,
            entries if entries <= LAG_BEHIND_ENTRIES_MAX => Lag::Behind,
            _ => Lag::FarBehind,
        },
        healthy: observed.is_healthy(member),
        version: observed
            .report_of(member)
            .map(|report| report.version.clone()),
    }
}

/// Wanted voters that are caught up and whose pods are ready.
fn ready_members(observed: &Observed, wanted: &Wanted) -> u32 {
    let ready = |member: &&Member| {
        member.voter
            && observed.is_current(member)
            && member.ordinal.is_some_and(|ordinal| {
                ordinal < wanted.replicas
                    && observed.pods.get(&ordinal).is_some_and(|pod| pod.ready)
            })
    };
    let count = observed
        .membership
        .iter()
        .flat_map(|m| &m.members)
        .filter(ready)
        .count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn lowest_version(observed: &Observed) -> Option<String> {
    let parts = |version: &str| -> Vec<u64> {
        version
            .split(['.', '-', '+'])
            .take(3)
            .map(|part| part.parse().unwrap_or(0))
            .collect()
    };
    observed
        .pods
        .values()
        .filter_map(|pod| Some(pod.report.as_ref()?.version.clone()))
        .filter(|version| !version.is_empty())
        .min_by_key(|version| parts(version))
}

/// What the conditions of an observed cluster are made from.
struct Facts<'a> {
    observed: &'a Observed,
    wanted: &'a Wanted,
    step: &'a Step,
    paused: bool,
    error: Option<&'a (&'static str, String)>,
}

impl Facts<'_> {
    fn set(&self, conditions: &mut Conditions) {
        conditions.set(types::QUORUM_AVAILABLE, self.quorum_available());
        conditions.set(types::MEMBERS_UPDATED, self.members_updated());
        conditions.set(types::PROGRESSING, self.progressing());
        conditions.set(types::READY, self.ready());
        conditions.set(types::DEGRADED, self.degraded());
        conditions.set(types::LOW_ON_SPACE, self.low_on_space());
        conditions.set(types::RECONCILIATION_PAUSED, self.reconciliation_paused());
    }

    fn quorum_available(&self) -> State {
        match &self.observed.membership {
            Some(membership) => {
                let voters = membership.voters().count();
                let healthy = membership
                    .voters()
                    .filter(|m| self.observed.is_healthy(m))
                    .count();
                let message = format!(
                    "{healthy} of {voters} voters answer; {} are needed",
                    quorum(voters)
                );
                State::yes(reasons::MAJORITY_ANSWERS, &message)
            }
            None if self.is_new() => {
                State::no(reasons::NOT_BOOTSTRAPPED, "no member has an identity yet")
            }
            None => State::no(reasons::QUORUM_LOST, "no quorum of the voters answers"),
        }
    }

    fn members_updated(&self) -> State {
        let outdated: Vec<u32> = self
            .observed
            .pods
            .iter()
            .filter(|(_, pod)| is_outdated(pod, self.wanted))
            .map(|(ordinal, _)| *ordinal)
            .collect();
        if outdated.is_empty() {
            State::yes(
                reasons::AS_SPECIFIED,
                "every member runs what the spec asks for",
            )
        } else {
            let message = format!("to be restarted: {}", words::members(&outdated));
            State::no(reasons::OUTDATED, &message)
        }
    }

    fn progressing(&self) -> State {
        if self.paused {
            return State::no(reasons::PAUSED, "spec.paused is set");
        }
        if let Some((reason, message)) = self.error {
            return State::yes(reason, message);
        }
        let (working, reason, message) = words::progress(self.step, self.observed);
        if working {
            State::yes(reason, &message)
        } else {
            State::no(reason, &message)
        }
    }

    fn ready(&self) -> State {
        let ready = ready_members(self.observed, self.wanted);
        let voters = self
            .observed
            .membership
            .iter()
            .flat_map(Membership::voters)
            .count();
        let wanted = self.wanted.replicas;
        if ready == wanted && voters == wanted as usize {
            return State::yes(
                reasons::AS_SPECIFIED,
                &format!("{ready} of {wanted} members serve"),
            );
        }
        let reason = match &self.observed.membership {
            Some(_) => reasons::MEMBER_UNAVAILABLE,
            None if self.is_new() => reasons::BOOTSTRAPPING,
            None => reasons::QUORUM_LOST,
        };
        let mut message = format!("{ready} of {wanted} members serve");
        if let Some(trouble) = words::troubles(self.observed) {
            message = format!("{message}; {trouble}");
        }
        State::no(reason, &message)
    }

    fn degraded(&self) -> State {
        let foreign = matches!(self.step, Step::Blocked(_));
        if foreign {
            let (_, reason, message) = words::progress(self.step, self.observed);
            return State::yes(reason, &message);
        }
        if self.observed.membership.is_none() && !self.is_new() {
            return State::yes(reasons::QUORUM_LOST, "no quorum of the voters answers");
        }
        let unhealthy: Vec<&str> = self
            .observed
            .membership
            .iter()
            .flat_map(Membership::voters)
            .filter(|member| !self.observed.is_healthy(member))
            .map(|member| member.name.as_str())
            .collect();
        if unhealthy.is_empty() {
            State::no(reasons::AS_SPECIFIED, "every voter takes part")
        } else {
            let message = format!("not taking part: {}", unhealthy.join(", "));
            State::yes(reasons::MEMBER_UNAVAILABLE, &message)
        }
    }

    fn low_on_space(&self) -> State {
        let low: Vec<u32> = self
            .observed
            .pods
            .iter()
            .filter(|(_, pod)| {
                pod.report
                    .as_ref()
                    .is_some_and(|report| report.low_on_space)
            })
            .map(|(ordinal, _)| *ordinal)
            .collect();
        if low.is_empty() {
            return State::no(reasons::ENOUGH_SPACE, "every member that answers has space");
        }
        let message = format!(
            "{} nearly filled the disk, so that writes that need space are refused; raise spec.storage.size, or \
             delete keys and lower spec.engine.retention",
            words::members(&low)
        );
        State::yes(reasons::DISK_NEARLY_FULL, &message)
    }

    fn reconciliation_paused(&self) -> State {
        if self.paused {
            State::yes(reasons::PAUSED, "spec.paused is set; nothing is changed")
        } else {
            State::no(reasons::NOT_PAUSED, "spec.paused is not set")
        }
    }

    /// The status never listed a member, so there is no quorum to miss yet.
    fn is_new(&self) -> bool {
        !self.observed.had_members
    }

    fn phase(&self, conditions: &Conditions, before: Option<ClusterPhase>) -> ClusterPhase {
        let is = |condition| conditions.is_true(condition);
        let rejected = self
            .error
            .is_some_and(|(reason, _)| *reason == reasons::INVALID_SPEC);
        let settled = is(types::MEMBERS_UPDATED) && !is(types::PROGRESSING);
        if self.paused {
            ClusterPhase::Paused
        } else if rejected {
            ClusterPhase::Invalid
        } else if self.observed.membership.is_none() {
            match (self.is_new(), self.observed.cluster_id) {
                (true, None) => ClusterPhase::Pending,
                (true, Some(_)) => ClusterPhase::Bootstrapping,
                (false, _) => ClusterPhase::Unavailable,
            }
        } else if is(types::DEGRADED) && (is(types::MEMBERS_UPDATED) || !is(types::PROGRESSING)) {
            ClusterPhase::Degraded
        } else if is(types::READY) && settled {
            ClusterPhase::Ready
        } else if !is(types::READY) && never_ready(before) {
            ClusterPhase::Bootstrapping
        } else {
            ClusterPhase::Updating
        }
    }
}

fn never_ready(before: Option<ClusterPhase>) -> bool {
    matches!(
        before,
        None | Some(ClusterPhase::Pending | ClusterPhase::Bootstrapping)
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::cluster::model::{Identity, Pod, Report};
    use crate::cluster::plan::{Blocked, Waiting};
    use crate::cluster::validate::tests::resource_with;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn pod(ordinal: u32) -> Pod {
        let identity = Identity {
            cluster_id: 7,
            member_id: u64::from(ordinal) + 1,
        };
        Pod {
            ready: true,
            template_hash: Some("t".to_owned()),
            report: Some(Report {
                folder_id: format!("f{ordinal}"),
                identity: Some(identity),
                version: format!("0.{}.0", 10 - ordinal),
                term: 2,
                ready: true,
                low_on_space: false,
            }),
            ..Pod::default()
        }
    }

    fn member(ordinal: u32) -> Member {
        Member {
            id: u64::from(ordinal) + 1,
            name: format!("demo-{ordinal}"),
            ordinal: Some(ordinal),
            folder_id: format!("f{ordinal}"),
            voter: true,
            leader: ordinal == 1,
            reachable: true,
            lag_entries: 0,
        }
    }

    fn healthy() -> Observed {
        Observed {
            cluster_id: Some(7),
            had_members: true,
            stateful_set_replicas: Some(3),
            pods: (0..3)
                .map(|ordinal| (ordinal, pod(ordinal)))
                .collect::<BTreeMap<_, _>>(),
            membership: Some(Membership {
                cluster_id: 7,
                term: 2,
                members: (0..3).map(member).collect(),
            }),
            ..Observed::default()
        }
    }

    fn outcome(observed: Observed, step: Step) -> Outcome {
        let wanted = Wanted {
            replicas: 3,
            template_hash: "t".to_owned(),
        };
        let observed = Box::new(observed);
        Outcome::Observed {
            observed,
            wanted,
            default_image: "older".to_owned(),
            step,
            paused: false,
            error: None,
        }
    }

    fn status_of(observed: Observed, step: Step) -> DEngineClusterStatus {
        derive(
            &resource_with("demo", "{}"),
            &outcome(observed, step),
            Vec::new(),
            at(1),
        )
    }

    #[test]
    fn a_full_disk_is_said_with_what_to_do() {
        let mut full = healthy();
        let fine = status_of(full.clone(), Step::Done);
        let report = full.pods.get_mut(&2).unwrap().report.as_mut();
        report.unwrap().low_on_space = true;
        let status = status_of(full, Step::Done);
        let of = |status: &DEngineClusterStatus| {
            let mut all = status.conditions.iter();
            all.find(|c| c.type_ == types::LOW_ON_SPACE)
                .cloned()
                .unwrap()
        };
        assert_eq!(of(&fine).status, "False");
        assert_eq!(of(&status).status, "True");
        assert!(
            of(&status).message.starts_with("member 2 nearly filled"),
            "{:?}",
            of(&status)
        );
    }

    #[test]
    fn a_healthy_cluster_is_ready() {
        let status = status_of(healthy(), Step::Done);
        assert_eq!(status.phase, Some(ClusterPhase::Ready));
        assert_eq!(status.ready.as_deref(), Some("3/3"));
        assert_eq!(status.leader.as_deref(), Some("demo-1"));
        assert_eq!(
            status.version.as_deref(),
            Some("0.8.0"),
            "the lowest, not the first in letters"
        );
    }

    #[test]
    fn what_did_not_change_is_not_written() {
        let mut resource = resource_with("demo", "{}");
        let outcome = outcome(healthy(), Step::Done);
        resource.status = Some(derive(&resource, &outcome, Vec::new(), at(1)));
        let later = derive(&resource, &outcome, Vec::new(), at(1_000));
        assert_eq!(resource.status, Some(later));
    }

    #[test]
    fn a_member_that_does_not_answer_degrades_the_cluster() {
        let mut observed = healthy();
        observed.pods.remove(&2);
        let status = status_of(observed, Step::Done);
        assert_eq!(status.phase, Some(ClusterPhase::Degraded));
        assert_eq!(status.ready.as_deref(), Some("2/3"));
        assert!(!status.members[2].healthy);
    }

    #[test]
    fn without_a_quorum_the_last_known_members_stay() {
        let mut resource = resource_with("demo", "{}");
        let before = derive(
            &resource,
            &outcome(healthy(), Step::Done),
            Vec::new(),
            at(1),
        );
        resource.status = Some(before);
        let lost = Observed {
            membership: None,
            ..healthy()
        };
        let step = Step::Wait(Waiting::Quorum);
        let status = derive(&resource, &outcome(lost, step), Vec::new(), at(2));
        assert_eq!(status.phase, Some(ClusterPhase::Unavailable));
        assert_eq!(status.leader, None);
        assert_eq!(status.members.len(), 3);
        assert!(
            status
                .members
                .iter()
                .all(|m| !m.healthy && m.lag == Lag::Unknown)
        );
    }

    #[test]
    fn an_unknown_member_shows_why_nothing_is_done() {
        let step = Step::Blocked(Blocked::UnknownMember {
            name: "stranger".to_owned(),
        });
        let status = status_of(healthy(), step);
        assert_eq!(status.phase, Some(ClusterPhase::Degraded));
        let degraded = status
            .conditions
            .iter()
            .find(|c| c.type_ == types::DEGRADED)
            .unwrap();
        assert!(
            degraded.message.contains("stranger"),
            "{}",
            degraded.message
        );
    }

    #[test]
    fn paused_and_invalid_say_so() {
        let Outcome::Observed {
            observed,
            wanted,
            default_image,
            step,
            ..
        } = outcome(healthy(), Step::Done)
        else {
            unreachable!("it was made so");
        };
        let paused = Outcome::Observed {
            observed,
            wanted,
            default_image,
            step,
            paused: true,
            error: None,
        };
        let resource = resource_with("demo", "{}");
        let status = derive(&resource, &paused, Vec::new(), at(1));
        assert_eq!(status.phase, Some(ClusterPhase::Paused));
        let invalid = Outcome::Invalid("even".to_owned());
        let status = derive(&resource, &invalid, Vec::new(), at(1));
        assert_eq!(status.phase, Some(ClusterPhase::Invalid));
    }
}
