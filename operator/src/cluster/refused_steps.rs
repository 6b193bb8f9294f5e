//! Steps that change a pod or a claim of one member, and that the API server refused (a webhook, a permission that lacks). Each is
//! tried again after a pause that grows. Meanwhile the planner goes on without it, and the status says so.

use super::model::Observed;
use super::plan::{ObjectStep, Step};
use crate::context::Context;

/// What the API server answered, in words for people.
pub(super) fn note(context: &Context, step: &Step, words: &str) {
    if let Some(attempt) = attempt(step) {
        context.retries.failed(&attempt, words);
    }
}

pub(super) fn succeeded(context: &Context, step: &Step) {
    if let Some(attempt) = attempt(step) {
        context.retries.succeeded(&attempt);
    }
}

/// Why the pod or the claim of this UID stays as it is, if it is too early to try again.
pub(super) fn of(context: &Context, uid: &str) -> Option<String> {
    context.retries.not_yet(&on(uid))
}

/// What is not tried again yet, of any member.
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
