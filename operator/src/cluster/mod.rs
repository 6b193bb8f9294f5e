//! The controller of `DEngineCluster`: observe (I/O) → validate (pure) → plan (pure) → take one
//! step (I/O) → status (pure, from what was observed and done).

mod benchmark_annotation;
pub mod benchmarks;
pub(crate) mod bystander;
pub mod controller;
pub(crate) mod ends;
mod execute;
mod messages;
pub mod model;
mod objects;
pub mod observe;
mod old_volumes;
pub mod older_volumes;
pub mod plan;
mod pod_trouble;
pub(crate) mod refusals;
mod refused_steps;
mod replacements;
mod resources;
mod standing;
mod status;
pub mod validate;
pub mod versions;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use dengine_crds::names::annotations;
use dengine_crds::reasons::{cluster as reasons, events};
use dengine_crds::{DEngineCluster, DEngineClusterStatus, conditions as types};
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};

use crate::apply::is_code;
use crate::context::{Context, Event, now};
use crate::guard::Guarded;
use crate::{hash, status_writer, telemetry};
use model::Wanted;
use objects::ObjectsError;
use observe::{Caches, Observation};
use plan::Step;
use status::{Notice, Outcome};
use validate::Cluster;

/// After a step, the next one follows as soon as its effect can be seen.
const AFTER_STEP: Duration = Duration::from_millis(300);
/// While waiting for a change.
const WHILE_WAITING: Duration = Duration::from_secs(1);

/// A cluster without changes is reconciled less and less often, down to once in this many polls.
const QUIET_POLLS: u32 = 10;
/// The same for one with a failure that persists.
const FAILING_POLLS: u32 = 20;

/// Takes one step towards the spec of a cluster and writes its status.
pub async fn reconcile(
    resource: &DEngineCluster,
    context: &Context,
    caches: &Caches,
) -> Result<Action, kube::Error> {
    let namespace = resource.namespace().unwrap_or_default();
    let api: Api<DEngineCluster> = Api::namespaced(context.client.clone(), &namespace);
    let mut resource = resource.clone();
    if !may_be_from_cache(&resource) {
        let Some(fresh) = api.get_opt(&resource.name_any()).await? else {
            return Ok(Action::await_change());
        };
        resource = fresh;
    }
    if resource.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    if let Some(other) = bystander::other(&caches.stateful_sets, &resource, &context.identity) {
        return bystander::stand_by(context, &resource, &other).await;
    }
    match bystander::take_on(context, &mut resource).await {
        Ok(None) => {}
        Ok(Some(other)) => return bystander::stand_by(context, &resource, &other).await,
        // It was changed meanwhile, perhaps by another operator that took the cluster on.
        Err(error) if is_code(&error, 409) => return Ok(Action::requeue(AFTER_STEP)),
        Err(error) => return Err(error),
    }
    let (name, uid) = (resource.name_any(), resource.uid().unwrap_or_default());
    let standing = observe::standing(caches, &name, &namespace, &uid);
    let validated = validate::validate(&resource, &context.defaults, &standing);
    let outcome = match validated {
        Ok(cluster) => observe_and_act(context, caches, &cluster, &mut resource).await,
        Err(error) => Outcome::Invalid(error.to_string()),
    };
    let benchmarks = benchmarks::lines(&caches.benchmarks, &resource);
    let status = status::derive(&resource, &outcome, benchmarks, now());
    telemetry::record_status(&resource, &status);
    publish_disk_space(context, &resource, &status).await;
    if resource.status.clone().map(bystander::without).as_ref() != Some(&status) {
        // The status follows from what was read. The resource may have changed since, for example
        // by a newer operator.
        match status_writer::write(&context.client, &resource, &status).await {
            Err(error) if is_code(&error, 409) => return Ok(Action::requeue(AFTER_STEP)),
            written => written.map(drop)?,
        }
    }
    bystander::forget(context, &resource).await?;
    benchmark_annotation::handle(context, &resource, &caches.benchmarks.store).await?;
    let again = requeue(context, &resource, &outcome, &status);
    Ok(Action::requeue(again))
}

/// Whether the cached resource suffices. An annotation that starts something once is read from the
/// API server. Everything else may come from the cache: changes name the UID of their object, or
/// the version that was read. That includes the cluster's identity: nothing is done before it is
/// recorded, and the API server refuses to record it over an older version.
fn may_be_from_cache(resource: &DEngineCluster) -> bool {
    !resource.annotations().contains_key(annotations::BENCHMARK)
}

/// One reconciliation of a cluster whose spec can be carried out.
struct Reconciliation<'a> {
    context: &'a Context,
    caches: &'a Caches,
    cluster: &'a Cluster,
    resource: &'a mut DEngineCluster,
    observation: Observation,
    wanted: Wanted,
}

/// Reason and message of a failure.
type Failure = (&'static str, String);

async fn observe_and_act(
    context: &Context,
    caches: &Caches,
    cluster: &Cluster,
    resource: &mut DEngineCluster,
) -> Outcome {
    let status = resource.status.clone().unwrap_or_default();
    let observation = observe::observe(context, caches, cluster, &status).await;
    let wanted = Wanted {
        replicas: cluster.spec.replicas,
        template_hash: resources::stateful_set::template_hash(cluster),
    };
    let step = plan::plan(&observation.observed, &wanted);
    let notice = version_notice(cluster).or_else(|| {
        let (claims, pods) = (&observation.claims, &observation.observed.pods);
        volumes::notice(claims, pods, &cluster.spec.storage.size)
    });
    let mut reconciliation = Reconciliation {
        context,
        caches,
        cluster,
        resource,
        observation,
        wanted,
    };
    let paused = cluster.spec.paused;
    let (error, kept) = if paused {
        (None, None)
    } else {
        reconciliation.act(&step).await
    };
    let Reconciliation {
        observation,
        wanted,
        ..
    } = reconciliation;
    Outcome::Observed {
        observed: Box::new(observation.observed),
        wanted,
        default_image: cluster.default_image.clone(),
        step,
        paused,
        error,
        notice: notice.or(kept),
    }
}

/// Members keep the image that they run.
fn version_notice(cluster: &Cluster) -> Option<Notice> {
    let message = cluster.refused_image.as_ref()?;
    let message = format!("the image is refused: {message}");
    Some(Notice::rests(reasons::VERSION_REFUSED, message))
}

impl Reconciliation<'_> {
    /// Objects first: they carry no risk, and most steps need those of the members. Volumes last.
    /// Returns what went wrong, and the notice about volumes that are kept.
    async fn act(&mut self, step: &Step) -> (Option<Failure>, Option<Notice>) {
        let (context, caches, cluster) = (self.context, self.caches, self.cluster);
        let objects = objects::ensure(context, caches, cluster, &self.observation, &self.wanted);
        let mut refused = None;
        if let Err(error) = objects.await {
            let failure = self.fail(error.reason(), error.to_string()).await;
            if !matches!(error, ObjectsError::Beside(_)) {
                return (Some(failure), None);
            }
            refused = Some(failure);
        }
        standing::note_on_claims(context, cluster, &self.observation).await;
        refusals::retry(context, cluster, &self.observation).await;
        let failure = self.take_step(step).await;
        let failure = refused.or(failure);
        // Whatever becomes of the step: a full disk may be what it fails for. And after it: volumes
        // that cannot grow must not keep members from being repaired, added or restarted.
        let failure = match volumes::expand(context, cluster, &self.observation).await {
            Err(error) if failure.is_none() => {
                let reason = reasons::EXPANDING_VOLUMES;
                Some(self.fail(reason, error.to_string()).await)
            }
            Ok(()) | Err(_) => failure,
        };
        let observed = &self.observation.observed;
        let pending = refused_steps::message(observed);
        let failure = failure.or_else(|| Some((reasons::STEP_FAILED, pending?)));
        let unneeded = plan::no_longer_needed(observed, &self.wanted);
        let kept = old_volumes::release(context, cluster, self.resource, &unneeded).await;
        (failure, kept)
    }

    /// Takes the step and publishes its event. Returns what went wrong.
    async fn take_step(&mut self, step: &Step) -> Option<Failure> {
        let (context, cluster) = (self.context, self.cluster);
        let observation = &mut self.observation;
        let executed = execute::execute(context, cluster, self.resource, observation, step).await;
        if executed.is_ok() && step.acts() {
            context.crash_point();
        }
        match executed {
            Ok(event) => {
                refused_steps::succeeded(context, step);
                if let Some(event) = event {
                    let (reason, note) = (event.reason, &event.note);
                    tracing::info!(cluster = cluster.name, reason, note, "step taken");
                    telemetry::count_step(reason);
                    context.publish(&cluster.reference(), &event).await;
                }
                None
            }
            Err(error) if error.is_not_yet() => {
                tracing::debug!(cluster = cluster.name, ?step, %error, "not yet");
                None
            }
            Err(error) => {
                let (_, _, doing) = messages::progress(step, &self.observation.observed);
                let message = format!("{doing}: {error}");
                if error.is_answer() {
                    refused_steps::note(context, step, &message);
                }
                Some(self.fail(reasons::STEP_FAILED, message).await)
            }
        }
    }

    async fn fail(&self, reason: &'static str, message: String) -> Failure {
        let event = Event::warning(events::STEP_FAILED, message.clone());
        publish_failure(self.context, self.resource, &event).await;
        (reason, message)
    }
}

/// Publishes an event when a disk fills up, and when there is space again.
async fn publish_disk_space(
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
    let event = match now {
        Some(now) if now.status == "True" && !before => {
            Event::warning(events::LOW_ON_SPACE, now.message.clone())
        }
        Some(now) if now.status == "False" && before => {
            Event::normal(events::SPACE_IS_BACK, now.message.clone())
        }
        _ => return,
    };
    context.publish(&resource.object_ref(&()), &event).await;
}

/// Publishes a failure unless the condition `Progressing` shows it.
async fn publish_failure(context: &Context, resource: &DEngineCluster, event: &Event) {
    let conditions = resource.status.as_ref().map(|status| &*status.conditions);
    let (about, shown) = (resource.object_ref(&()), conditions.unwrap_or_default());
    context
        .publish_once(&about, shown, types::PROGRESSING, event)
        .await;
}

/// When the cluster is reconciled next, if nothing happens to it in Kubernetes before.
fn requeue(
    context: &Context,
    resource: &DEngineCluster,
    outcome: &Outcome,
    status: &DEngineClusterStatus,
) -> Duration {
    let poll = context.poll_interval;
    let most = match outcome {
        Outcome::Invalid(_) | Outcome::Observed { paused: true, .. } => QUIET_POLLS * poll,
        Outcome::Observed {
            error: Some((reason, _)),
            ..
        } if *reason != reasons::EXPANDING_VOLUMES => FAILING_POLLS * poll,
        Outcome::Observed { step, .. } => match step {
            Step::Done => QUIET_POLLS * poll,
            Step::Blocked(_) => poll,
            Step::Wait(_) => return WHILE_WAITING.min(poll),
            Step::Record(_) | Step::Object(_) | Step::Membership(_) => {
                return AFTER_STEP.min(poll);
            }
        },
    };
    let most = match outcome {
        Outcome::Observed {
            observed,
            paused: false,
            ..
        } if observed.refused.is_some() => most.min(refusals::RETRY_AFTER),
        _ => most,
    };
    let uid = resource.metadata.uid.as_deref().unwrap_or_default();
    let state = serde_json::to_value(status).expect("a status is plain data");
    context.pace.next(uid, &hash::of(&state), poll, most)
}

/// When to retry a reconciliation that failed.
pub(crate) fn on_error(
    _: Arc<Guarded<DEngineCluster>>,
    _: &kube::Error,
    _: Arc<controller::ClusterShared>,
) -> Action {
    Action::requeue(Duration::from_secs(5))
}
