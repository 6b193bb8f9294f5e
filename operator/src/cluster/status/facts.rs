//! Conditions and phase of a cluster that was observed.

use dengine_crds::cluster::ClusterPhase;
use dengine_crds::conditions as types;
use dengine_crds::reasons::cluster as reasons;

use super::{Notice, ready_members};
use crate::cluster::messages;
use crate::cluster::model::{Member, Membership, Observed, Report, Wanted, quorum};
use crate::cluster::plan::{Step, is_outdated};
use crate::conditions::{ConditionState, Conditions};

/// What the conditions of an observed cluster are made from.
pub(super) struct Facts<'a> {
    pub(super) observed: &'a Observed,
    pub(super) wanted: &'a Wanted,
    pub(super) step: &'a Step,
    pub(super) paused: bool,
    pub(super) error: Option<&'a (&'static str, String)>,
    pub(super) notice: Option<&'a Notice>,
    pub(super) before: Option<ClusterPhase>,
}

impl Facts<'_> {
    pub(super) fn set(&self, conditions: &mut Conditions) {
        conditions.set(types::QUORUM_AVAILABLE, self.quorum_available());
        conditions.set(types::MEMBERS_UPDATED, self.members_updated());
        conditions.set(types::PROGRESSING, self.progressing());
        conditions.set(types::READY, self.ready());
        conditions.set(types::DEGRADED, self.degraded());
        conditions.set(types::LOW_ON_SPACE, self.low_on_space());
        conditions.set(types::RECONCILIATION_PAUSED, self.reconciliation_paused());
    }

    fn quorum_available(&self) -> ConditionState {
        match &self.observed.membership {
            Some(membership) => {
                let voters = membership.voters().count();
                let healthy = membership.voters().filter(|m| self.observed.is_healthy(m));
                let (healthy, needed) = (healthy.count(), quorum(voters));
                let stalled = self.stalled(membership);
                if voters - stalled.len() < needed {
                    let message = format!(
                        "the disks of {} hang or are full, so that nothing can be written; \
                         {needed} of {voters} voters are needed",
                        stalled.join(", ")
                    );
                    return ConditionState::no(reasons::DISKS_HANG, &message);
                }
                let message = format!("{healthy} of {voters} voters answer; {needed} are needed");
                ConditionState::yes(reasons::MAJORITY_ANSWERS, &message)
            }
            None if self.is_new() => ConditionState::unknown(
                reasons::NOT_BOOTSTRAPPED,
                "the cluster is not bootstrapped yet",
            ),
            None => ConditionState::no(reasons::QUORUM_LOST, &self.no_quorum()),
        }
    }

    fn no_quorum(&self) -> String {
        let message = "no quorum of the voters answers".to_owned();
        messages::with_troubles(message, self.observed)
    }

    /// Voters that answer, and report that their disks accept nothing.
    fn stalled<'m>(&self, membership: &'m Membership) -> Vec<&'m str> {
        let is_stalled = |member: &&Member| {
            let report = self.observed.report_of(member);
            report.is_some_and(|report| report.stalled)
        };
        let stalled = membership.voters().filter(is_stalled);
        stalled.map(|member| member.name.as_str()).collect()
    }

    fn members_updated(&self) -> ConditionState {
        if let Some(refused) = self.refused() {
            return ConditionState::no(refused.reason, &refused.message);
        }
        let outdated: Vec<u32> = self
            .observed
            .pods
            .iter()
            .filter(|(_, pod)| is_outdated(pod, self.wanted))
            .map(|(ordinal, _)| *ordinal)
            .collect();
        if outdated.is_empty() {
            ConditionState::yes(
                reasons::AS_SPECIFIED,
                "every member runs the current template",
            )
        } else {
            let message = format!("not updated yet: {}", messages::members(&outdated));
            ConditionState::no(reasons::OUTDATED, &message)
        }
    }

    fn progressing(&self) -> ConditionState {
        if self.paused {
            return ConditionState::no(reasons::PAUSED, "spec.paused is set");
        }
        if let Some((reason, message)) = self.error {
            return ConditionState::yes(reason, message);
        }
        let (working, reason, message) = messages::progress(self.step, self.observed);
        match self.notice {
            _ if working => ConditionState::yes(reason, &message),
            Some(notice) if notice.works => ConditionState::yes(notice.reason, &notice.message),
            Some(notice) if matches!(self.step, Step::Done) => {
                ConditionState::no(notice.reason, &notice.message)
            }
            _ => ConditionState::no(reason, &message),
        }
    }

    fn ready(&self) -> ConditionState {
        let ready = ready_members(self.observed, self.wanted);
        let voters = self
            .observed
            .membership
            .iter()
            .flat_map(Membership::voters)
            .count();
        let wanted = self.wanted.replicas;
        if ready == wanted && voters == wanted as usize {
            return ConditionState::yes(
                reasons::AS_SPECIFIED,
                &format!("{ready} of {wanted} members serve"),
            );
        }
        let reason = match &self.observed.membership {
            Some(_) => reasons::MEMBER_UNAVAILABLE,
            None if self.is_new() => reasons::BOOTSTRAPPING,
            None => reasons::QUORUM_LOST,
        };
        let message = format!("{ready} of {wanted} members serve");
        ConditionState::no(reason, &messages::with_troubles(message, self.observed))
    }

    fn degraded(&self) -> ConditionState {
        if let Step::Blocked(blocked) = self.step {
            let (reason, message) = messages::blocked(blocked);
            return ConditionState::yes(reason, &messages::with_troubles(message, self.observed));
        }
        if self.observed.membership.is_none() && !self.is_new() {
            return ConditionState::yes(reasons::QUORUM_LOST, &self.no_quorum());
        }
        let unhealthy: Vec<&str> = self
            .observed
            .membership
            .iter()
            .flat_map(Membership::voters)
            .filter(|member| !self.observed.is_healthy(member))
            .map(|member| member.name.as_str())
            .collect();
        let message = if !unhealthy.is_empty() {
            format!("unavailable: {}", unhealthy.join(", "))
        } else if let Some(kept_out) = self.kept_out() {
            format!("{} cannot join yet", messages::members(&kept_out))
        } else {
            return ConditionState::no(reasons::AS_SPECIFIED, "every voter is available");
        };
        let message = messages::with_troubles(message, self.observed);
        ConditionState::yes(reasons::MEMBER_UNAVAILABLE, &message)
    }

    /// Members that do not vote because something keeps their pods from running, as after the loss
    /// of a node with a volume. New members take a moment, and a cluster that is being created has
    /// never been ready: neither counts.
    fn kept_out(&self) -> Option<Vec<u32>> {
        if never_ready(self.before) {
            return None;
        }
        let missing = self.observed.membership.as_ref()?;
        let missing = missing.not_voting(self.wanted.replicas);
        let is_kept_out = |ordinal: &u32| match self.observed.pods.get(ordinal) {
            Some(pod) => pod.report.is_none() && (pod.trouble.is_some() || pod.silent.is_some()),
            None => self.observed.refused.is_some(),
        };
        let kept_out: Vec<u32> = missing.into_iter().filter(is_kept_out).collect();
        (!kept_out.is_empty()).then_some(kept_out)
    }

    fn low_on_space(&self) -> ConditionState {
        let pods = self.observed.pods.iter();
        let reports: Vec<_> = pods
            .filter_map(|(ordinal, pod)| Some((*ordinal, pod.report.as_ref()?)))
            .collect();
        if reports.is_empty() {
            return ConditionState::unknown(reasons::NOT_KNOWN, "no member answers");
        }
        let those = |are: fn(&Report) -> bool| -> Vec<u32> {
            let those = reports.iter().filter(|(_, report)| are(report));
            those.map(|(ordinal, _)| *ordinal).collect()
        };
        let low = those(|report| report.low_on_space);
        let wait = those(|report| report.snapshot_lacks_bytes > 0);
        let mut what = Vec::new();
        if !low.is_empty() {
            what.push(format!(
                "the disk of {} is nearly full, so writes that need space are refused",
                messages::members(&low)
            ));
        }
        if !wait.is_empty() {
            what.push(format!(
                "{} cannot catch up: the disk has no space for a snapshot",
                messages::members(&wait)
            ));
        }
        if what.is_empty() {
            return ConditionState::no(
                reasons::ENOUGH_SPACE,
                "every member that answers has space",
            );
        }
        let message = format!(
            "{}; raise spec.storage.size, if its storage class allows expansion, or delete keys \
             and lower spec.engine.retention",
            what.join("; ")
        );
        ConditionState::yes(reasons::DISK_NEARLY_FULL, &message)
    }

    fn reconciliation_paused(&self) -> ConditionState {
        if self.paused {
            ConditionState::yes(reasons::PAUSED, "spec.paused is set; nothing is changed")
        } else {
            ConditionState::no(reasons::NOT_PAUSED, "spec.paused is not set")
        }
    }

    /// The image that the spec asks for may not follow the running one.
    fn refused(&self) -> Option<&Notice> {
        self.notice
            .filter(|notice| notice.reason == reasons::VERSION_REFUSED)
    }

    /// Whether the status never listed a member, so that there is no quorum to miss yet. An adopted
    /// cluster had members before.
    fn is_new(&self) -> bool {
        let adopted = self.observed.cluster_id.is_some() && self.observed.seed_folder_id.is_none();
        !self.observed.had_members && !adopted
    }

    pub(super) fn phase(&self, conditions: &Conditions) -> ClusterPhase {
        let is = |condition| conditions.is_true(condition);
        let rejected = self
            .error
            .is_some_and(|(reason, _)| *reason == reasons::INVALID_SPEC)
            || self.refused().is_some();
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
        } else if !is(types::READY) && never_ready(self.before) {
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
