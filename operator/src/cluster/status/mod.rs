//! The status of a cluster: pure, from what was observed and done. The only input from the clock is
//! the time at which a condition changes.

mod facts;

use dengine_crds::cluster::{BenchmarkLine, ClusterPhase, Lag, MemberRole, MemberStatus};
use dengine_crds::reasons::cluster as reasons;
use dengine_crds::{DEngineCluster, DEngineClusterStatus, conditions as types};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::model::{LAG_CAUGHT_UP_ENTRIES_MAX, Member, Observed, Wanted};
use super::plan::Step;
use super::resources::selector_text;
use super::versions::{self, Version};
use crate::conditions::{ConditionState, Conditions};
use crate::limits::within_limits;
use facts::Facts;

/// Up to this many entries a member is merely behind.
const LAG_BEHIND_ENTRIES_MAX: u64 = 100_000;

/// Outcome of a reconciliation: the only thing a status can be made from.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// The spec cannot be carried out; nothing was observed.
    Invalid(String),
    Observed {
        observed: Box<Observed>,
        /// The membership that the spec asks for.
        wanted: Wanted,
        /// Image of the members without one in the spec.
        default_image: String,
        step: Step,
        /// `spec.paused`: the step was not taken.
        paused: bool,
        /// Reason and message of a failure.
        error: Option<(&'static str, String)>,
        notice: Option<Notice>,
    },
}

/// Something that people should know, and that is no step and no failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    /// Reason of the condition `Progressing`.
    pub reason: &'static str,
    /// Message of the condition.
    pub message: String,
    /// Something is in progress that brings the cluster closer to its spec.
    pub works: bool,
}

impl Notice {
    /// Something is in progress.
    pub(super) fn works(reason: &'static str, message: String) -> Self {
        Self {
            reason,
            message,
            works: true,
        }
    }

    /// Nothing more will be done about it.
    pub(super) fn rests(reason: &'static str, message: String) -> Self {
        Self {
            reason,
            message,
            works: false,
        }
    }
}

/// The new status. Fields that the outcome does not cover stay as they were.
pub(super) fn derive(
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
            let invalid = ConditionState::no(reasons::INVALID_SPEC, message);
            for type_ in types::OF_CLUSTER {
                conditions.set(type_, not_looked_at());
            }
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
            notice,
        } => {
            status.default_image = Some(default_image.clone());
            fill(&mut status, observed, wanted);
            let facts = Facts {
                observed,
                wanted,
                step,
                paused: *paused,
                error: error.as_ref(),
                notice: notice.as_ref(),
                before: status.phase,
            };
            facts.set(&mut conditions);
            status.phase = Some(facts.phase(&conditions));
        }
    }
    conditions.keep_only(&types::OF_CLUSTER);
    status.conditions = conditions.into_vec();
    within_limits(status)
}

/// Rather than what was true at the last observation.
fn not_looked_at() -> ConditionState {
    let message = "the spec is invalid, so the cluster is not observed";
    ConditionState::unknown(reasons::NOT_KNOWN, message)
}

/// The version that every member has run, once all of them report theirs.
fn cluster_version(before: Option<&str>, observed: &Observed) -> Option<Version> {
    let members = observed.membership.iter().flat_map(|m| &m.members);
    let versions: Vec<Option<Version>> = members
        .map(|member| Version::parse(&observed.report_of(member)?.version))
        .collect();
    let before = before.and_then(Version::parse);
    versions::cluster_version(before.max(observed.cluster_version), &versions)
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
    let cluster_version = cluster_version(status.cluster_version.as_deref(), observed);
    if let Some(version) = cluster_version {
        status.cluster_version = Some(version.to_string());
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
        // The current members are unknown; the last known ones stay, as not healthy.
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

#[cfg(test)]
mod tests;
