//! The controller of `DEngineCluster`: observe (I/O) → validate (pure) → plan (pure) → carry out one
//! step (I/O) → status (pure, from what was observed and done).

pub mod benchmarks;
pub mod controller;
pub mod execute;
pub mod model;
pub mod objects;
pub mod observe;
pub mod plan;
pub mod resources;
pub mod status;
mod status_writer;
pub mod validate;
mod words;

use std::sync::Arc;
use std::time::Duration;

use dengine_crds::DEngineCluster;
use dengine_crds::reasons::{cluster as reasons, events};
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};

use crate::context::{Context, Happening, now};
use model::Wanted;
use observe::{Caches, Observation};
use plan::Step;
use status::Outcome;
use validate::Cluster;

/// After a step, the next one follows as soon as its effect can be seen.
const AFTER_STEP: Duration = Duration::from_millis(300);
/// While something is awaited.
const WHILE_WAITING: Duration = Duration::from_secs(1);

/// Why a reconciliation ended early: the Kubernetes API did not answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ReconcileError(#[from] kube::Error);

/// Brings one cluster one step nearer to its spec and reports how it stands.
///
/// # Errors
/// If the Kubernetes API does not let us read the resource or write its status.
pub async fn reconcile(
    resource: &DEngineCluster,
    context: &Context,
    caches: &Caches,
) -> Result<Action, ReconcileError> {
    let namespace = resource.namespace().unwrap_or_default();
    let api: Api<DEngineCluster> = Api::namespaced(context.client.clone(), &namespace);
    // The recorded identity decides what may be bootstrapped, so it is read from where it is true.
    let Some(mut resource) = api.get_opt(&resource.name_any()).await? else {
        return Ok(Action::await_change());
    };
    if resource.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let (outcome, again) = match validate::validate(&resource, &context.defaults) {
        Ok(cluster) => {
            let outcome = advance(context, caches, &cluster, &mut resource).await;
            let again = requeue(&outcome, context.poll_interval);
            (outcome, again)
        }
        Err(error) => (Outcome::Invalid(error.to_string()), context.poll_interval),
    };
    let benchmarks = benchmarks::lines(&caches.benchmarks, &resource);
    let status = status::derive(&resource, &outcome, benchmarks, now());
    if resource.status.as_ref() != Some(&status) {
        status_writer::write(&context.client, &resource, &status, None).await?;
    }
    Ok(Action::requeue(again))
}

async fn advance(
    context: &Context,
    caches: &Caches,
    cluster: &Cluster,
    resource: &mut DEngineCluster,
) -> Outcome {
    let status = resource.status.clone().unwrap_or_default();
    let mut observation = observe::observe(caches, &context.members, cluster, &status).await;
    let wanted = Wanted {
        replicas: cluster.spec.replicas,
        template_hash: resources::stateful_set::template_hash(cluster),
    };
    let step = plan::plan(&observation.observed, &wanted);
    let paused = cluster.spec.paused;
    let error = if paused {
        None
    } else {
        carry_out(
            context,
            caches,
            cluster,
            resource,
            &mut observation,
            &wanted,
            &step,
        )
        .await
    };
    Outcome::Observed {
        observed: Box::new(observation.observed),
        wanted,
        step,
        paused,
        error,
    }
}

/// Objects first: they carry no risk, and most steps need them. Answers what went wrong.
async fn carry_out(
    context: &Context,
    caches: &Caches,
    cluster: &Cluster,
    resource: &mut DEngineCluster,
    observation: &mut Observation,
    wanted: &Wanted,
    step: &Step,
) -> Option<(&'static str, String)> {
    let about = resource.object_ref(&());
    if let Err(error) = objects::ensure(context, caches, cluster, observation, wanted).await {
        tracing::warn!(cluster = cluster.name, %error, "objects could not be applied");
        context
            .tell(
                &about,
                &Happening::warning(events::STEP_FAILED, error.to_string()),
            )
            .await;
        return Some((error.reason(), error.to_string()));
    }
    match execute::execute(context, cluster, resource, observation, step).await {
        Ok(Some(happening)) => {
            tracing::info!(
                cluster = cluster.name,
                reason = happening.reason,
                note = happening.note,
                "step taken"
            );
            context.tell(&about, &happening).await;
            None
        }
        Ok(None) => None,
        Err(error) if error.is_not_yet() => {
            tracing::debug!(cluster = cluster.name, ?step, %error, "not yet");
            None
        }
        Err(error) => {
            tracing::warn!(cluster = cluster.name, ?step, %error, "step failed");
            let (_, _, words) = words::progress(step, &observation.observed);
            let message = format!("{words}: {error}");
            context
                .tell(
                    &about,
                    &Happening::warning(events::STEP_FAILED, message.clone()),
                )
                .await;
            Some((reasons::STEP_FAILED, message))
        }
    }
}

fn requeue(outcome: &Outcome, poll_interval: Duration) -> Duration {
    match outcome {
        Outcome::Observed { error: Some(_), .. } | Outcome::Invalid(_) => poll_interval,
        Outcome::Observed { paused: true, .. } => poll_interval,
        Outcome::Observed {
            step: Step::Done | Step::Blocked(_),
            ..
        } => poll_interval,
        Outcome::Observed {
            step: Step::Wait(_),
            ..
        } => WHILE_WAITING.min(poll_interval),
        Outcome::Observed { .. } => AFTER_STEP.min(poll_interval),
    }
}

/// What to do after a reconciliation that ended early.
pub fn on_error(_: Arc<DEngineCluster>, _: &ReconcileError, _: Arc<controller::Shared>) -> Action {
    Action::requeue(Duration::from_secs(5))
}
