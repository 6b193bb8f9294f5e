//! Steps on a pod or a claim that the API server refused (by a webhook, or for lack of a
//! permission). Each is retried after a growing pause. Meanwhile the planner goes on without it,
//! and the status shows it.

use super::model::Observed;
use super::plan::{ObjectStep, Step};
use crate::context::Context;

/// Records the API server's refusal.
pub(super) fn note(context: &Context, step: &Step, message: &str) {
    if let Some(attempt) = attempt(step) {
        context.retries.failed(&attempt, message);
    }
}

pub(super) fn succeeded(context: &Context, step: &Step) {
    if let Some(attempt) = attempt(step) {
        context.retries.succeeded(&attempt);
    }
}

/// Why the step on the pod or claim of this UID is not retried yet.
pub(super) fn of(context: &Context, uid: &str) -> Option<String> {
    context.retries.not_yet(&on(uid))
}

/// A refused step that is not retried yet, of any member.
pub(super) fn message(observed: &Observed) -> Option<String> {
    let of_pods = observed.pods.values().map(|pod| &pod.refused);
    let of_claims = observed.claims.values().map(|claim| &claim.refused);
    of_pods.chain(of_claims).flatten().next().cloned()
}

fn attempt(step: &Step) -> Option<String> {
    let Step::Object(step) = step else {
        return None;
    };
    Some(on(match step {
        ObjectStep::RestartPod { pod_uid, .. } => pod_uid,
        ObjectStep::MarkClaim { claim_uid, .. } | ObjectStep::DeleteClaim { claim_uid, .. } => {
            claim_uid
        }
    }))
}

fn on(uid: &str) -> String {
    format!("step on {uid}")
}
