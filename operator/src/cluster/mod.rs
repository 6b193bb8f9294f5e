//! The controller of `DEngineCluster`: observe (I/O) → validate (pure) → plan (pure) → carry out one
//! step (I/O) → status (pure, from what was observed and done).

pub mod benchmarks;
pub mod controller;
pub mod execute;
pub mod model;
pub mod objects;
pub mod observe;
pub mod plan;
mod pod_trouble;
pub mod refusals;
mod replacements;
pub mod resources;
pub mod status;
mod status_writer;
mod trigger;
pub mod validate;
pub mod versions;
mod volumes;
mod words;

use std::sync::Arc;
use std::time::Duration;

use dengine_crds::reasons::{cluster as reasons, events};
use dengine_crds::{DEngineCluster, DEngineClusterStatus, conditions as types};
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};

use crate::context::{Context, Happening, now};
use crate::guard::Guarded;
use crate::telemetry;
use model::Wanted;
use observe::{Caches, Observation};
use plan::Step;
use status::{Notice, Outcome};
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
    let running = observe::running_image(caches, &resource);
    let validated = validate::validate(&resource, &context.defaults, running.as_deref());
    let (outcome, again) = match validated {
        Ok(cluster) => {
            let outcome = advance(context, caches, &cluster, &mut resource).await;
            let again = requeue(&outcome, context.poll_interval);
            (outcome, again)
        }
        Err(error) => (Outcome::Invalid(error.to_string()), context.poll_interval),
    };
    let benchmarks = benchmarks::lines(&caches.benchmarks, &resource);
    let status = status::derive(&resource, &outcome, benchmarks, now());
    telemetry::stands(&resource, &status);
    tell_of_space(context, &resource, &status).await;
    if resource.status.as_ref() != Some(&status) {
        status_writer::write(&context.client, &resource, &status, None).await?;
    }
    trigger::pull(context, &resource, &caches.benchmarks).await?;
    Ok(Action::requeue(again))
}

async fn advance(
    context: &Context,
    caches: &Caches,
    cluster: &Cluster,
    resource: &mut DEngineCluster,
) -> Outcome {
    let status = resource.status.clone().unwrap_or_default();
    let mut observation = observe::observe(context, caches, cluster, &status).await;
    let wanted = Wanted {
        replicas: cluster.spec.replicas,
        template_hash: resources::stateful_set::template_hash(cluster),
    };
    let step = plan::plan(&observation.observed, &wanted);
    let notice = version_notice(cluster)
        .or_else(|| volumes::notice(&observation.claims, &cluster.spec.storage.size));
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
        default_image: cluster.default_image.clone(),
        step,
        paused,
        error,
        notice,
    }
}

/// The image is held back: members go on with the one that they run.
fn version_notice(cluster: &Cluster) -> Option<Notice> {
    let words = cluster.refused_image.as_ref()?;
    let words = format!("the image is not rolled out: {words}");
    Some(Notice::rests(reasons::VERSION_REFUSED, words))
}

/// Objects first: they carry no risk, and most steps need them. Volumes last. Answers what went wrong.
async fn carry_out(
    context: &Context,
    caches: &Caches,
    cluster: &Cluster,
    resource: &mut DEngineCluster,
    observation: &mut Observation,
    wanted: &Wanted,
    step: &Step,
) -> Option<(&'static str, String)> {
    if let Err(error) = objects::ensure(context, caches, cluster, observation, wanted).await {
        let failure = (error.reason(), error.to_string());
        tell_failure(context, resource, &failure.1).await;
        return Some(failure);
    }
    let failure = take(context, cluster, resource, observation, step).await;
    // Whatever becomes of the step: a full disk may be what it fails for. And after it: volumes that can not grow keep
    // nobody from being repaired, scaled or restarted.
    match volumes::expand(context, cluster, observation).await {
        Err(error) if failure.is_none() => {
            let failure = (reasons::EXPANDING_VOLUMES, error.to_string());
            tell_failure(context, resource, &failure.1).await;
            Some(failure)
        }
        _ => failure,
    }
}

/// Takes the step, and tells of it. Answers what went wrong.
async fn take(
    context: &Context,
    cluster: &Cluster,
    resource: &mut DEngineCluster,
    observation: &mut Observation,
    step: &Step,
) -> Option<(&'static str, String)> {
    let executed = execute::execute(context, cluster, resource, observation, step).await;
    if executed.is_ok() && step.acts() {
        context.wrote();
    }
    match executed {
        Ok(Some(happening)) => {
            tracing::info!(
                cluster = cluster.name,
                reason = happening.reason,
                note = happening.note,
                "step taken"
            );
            telemetry::stepped(happening.reason);
            context.tell(&resource.object_ref(&()), &happening).await;
            None
        }
        Ok(None) => None,
        Err(error) if error.is_not_yet() => {
            tracing::debug!(cluster = cluster.name, ?step, %error, "not yet");
            None
        }
        Err(error) => {
            let (_, _, words) = words::progress(step, &observation.observed);
            let failure = (reasons::STEP_FAILED, format!("{words}: {error}"));
            tell_failure(context, resource, &failure.1).await;
            Some(failure)
        }
    }
}

/// When a disk fills up, and when there is space again.
async fn tell_of_space(
    context: &Context,
    resource: &DEngineCluster,
    status: &DEngineClusterStatus,
) {
    let before = resource.status.iter().flat_map(|status| &status.conditions);
    let before = before
        .filter(|c| c.type_ == types::LOW_ON_SPACE)
        .any(|c| c.status == "True");
    let now = status
        .conditions
        .iter()
        .find(|c| c.type_ == types::LOW_ON_SPACE);
    let happening = match now {
        Some(now) if now.status == "True" && !before => {
            Happening::warning(events::LOW_ON_SPACE, now.message.clone())
        }
        Some(now) if now.status == "False" && before => {
            Happening::normal(events::SPACE_IS_BACK, now.message.clone())
        }
        _ => return,
    };
    context.tell(&resource.object_ref(&()), &happening).await;
}

/// Once, not with every repetition: the condition keeps the words for as long as it goes on.
async fn tell_failure(context: &Context, resource: &DEngineCluster, message: &str) {
    tracing::warn!(cluster = resource.name_any(), message, "a step failed");
    let conditions = resource.status.iter().flat_map(|status| &status.conditions);
    let said = conditions
        .filter(|condition| condition.type_ == types::PROGRESSING)
        .any(|condition| message.starts_with(&condition.message));
    if !said {
        let happening = Happening::warning(events::STEP_FAILED, message);
        context.tell(&resource.object_ref(&()), &happening).await;
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
pub fn on_error(
    _: Arc<Guarded<DEngineCluster>>,
    _: &ReconcileError,
    _: Arc<controller::Shared>,
) -> Action {
    Action::requeue(Duration::from_secs(5))
}
