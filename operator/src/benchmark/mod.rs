//! The controller of `DEngineBenchmark`: one Job per run, its result judged and shown.

pub mod compare;
pub mod controller;
mod observe;
pub mod plan;
pub mod resources;
mod runs;
pub mod schedule;
pub mod status;
pub mod thresholds;
pub mod verdict;

use std::time::Duration;

use dengine_crds::benchmark::{BenchmarkPhase, Leg};
use dengine_crds::names::{annotations, managers};
use dengine_crds::reasons::{benchmark as reasons, events};
use dengine_crds::{DEngineBenchmark, DEngineBenchmarkStatus, conditions as types};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use serde_json::json;

use crate::apply::{ApplyError, ensure, is_code};
use crate::context::{Context, Happening, now};
use plan::Step;
use resources::{Benchmark, job, role, role_binding, service_account};
use status::Outcome;

/// How long a Job stays after its result is in, for its logs.
const JOB_TTL_SECONDS: i32 = 3600;
/// While the target can not be measured yet, or the Job runs (its end also triggers).
const WHILE_WAITING: Duration = Duration::from_secs(2);
/// Between steps.
const AFTER_STEP: Duration = Duration::from_millis(100);
/// When all is done; only a change of the resource matters then.
const WHEN_DONE: Duration = Duration::from_secs(600);

/// Why a reconciliation ended early: the Kubernetes API did not answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ReconcileError(#[from] kube::Error);

/// Why a step was not carried out.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error("the Job: {0}")]
    Job(kube::Error),
    #[error("deleting what has expired: {0}")]
    Expire(kube::Error),
    #[error(
        "a Job {0} exists and does not belong to this run; rename the benchmark or choose another runId"
    )]
    NameTaken(String),
}

/// Brings one benchmark one step nearer to its result.
///
/// # Errors
/// If the Kubernetes API does not let us read the resource or write its status.
pub async fn reconcile(
    resource: &DEngineBenchmark,
    context: &Context,
    jobs: &Store<Job>,
) -> Result<Action, ReconcileError> {
    let namespace = resource.namespace().unwrap_or_default();
    let recorded_job = |of: &DEngineBenchmark| of.status.as_ref().and_then(|s| s.job_name.clone());
    // First the Job, then the resource: a Job that has ended posted its result before.
    let job_name = recorded_job(resource);
    let job = find_job(context, jobs, &namespace, job_name.as_deref()).await?;
    let api: Api<DEngineBenchmark> = Api::namespaced(context.client.clone(), &namespace);
    let Some(resource) = api.get_opt(&resource.name_any()).await? else {
        return Ok(Action::await_change());
    };
    if recorded_job(&resource) != job_name {
        // The cache is behind, so the Job was not the right one.
        return Ok(Action::requeue(AFTER_STEP));
    }
    let Some(owner) = resource.controller_owner_ref(&()) else {
        return Ok(Action::await_change());
    };
    if resource.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let benchmark = benchmark(context, &resource, namespace, owner);
    let now = now();
    let (observed, next) = observe::observe(context, &benchmark, &resource, job, &now).await?;
    let step = plan::plan(&observed);
    let outcome = match carry_out(context, &benchmark, &resource, &step).await {
        Ok(()) => Outcome::Taken(step.clone()),
        Err(error) => refused(context, &resource, &error).await,
    };
    let mut status = status::derive(&resource, &outcome, &observed, &now);
    status.next_run_at = next.map(|next| next.to_string());
    match write(context, &resource, &status).await {
        // The Job posted its result meanwhile: what follows from it is derived anew.
        Err(error) if is_code(&error, 409) => return Ok(Action::requeue(AFTER_STEP)),
        written => written?,
    }
    runs::prune(context, &resource).await?;
    if let Outcome::Taken(Step::Finish(ending)) = &outcome {
        let note = format!(
            "run {}: {}",
            status.run_id.unwrap_or_default(),
            ending.message
        );
        let warning = ending.phase != BenchmarkPhase::Succeeded;
        let happening = Happening {
            reason: events::RUN_FINISHED,
            note,
            warning,
        };
        context.tell(&resource.object_ref(&()), &happening).await;
    }
    let again = again(&outcome);
    let due = observe::due_in(&resource, next, &now).unwrap_or(again);
    Ok(Action::requeue(again.min(due)))
}

fn benchmark(
    context: &Context,
    resource: &DEngineBenchmark,
    namespace: String,
    owner: OwnerReference,
) -> Benchmark {
    let spec = resource.spec.clone();
    let status = resource.status.as_ref();
    let image = spec.image.as_ref().unwrap_or(&context.defaults.bench_image);
    Benchmark {
        name: resource.name_any(),
        namespace,
        owner,
        image: image.clone(),
        run_id: status.and_then(|s| s.run_id.clone()).unwrap_or_default(),
        leg: status.and_then(|s| s.leg).unwrap_or(Leg::Target),
        spec,
    }
}

fn again(outcome: &Outcome) -> Duration {
    match outcome {
        Outcome::Failed { .. } => WHILE_WAITING,
        Outcome::Taken(Step::Refuse { .. } | Step::Wait) => WHILE_WAITING,
        Outcome::Taken(Step::Done) => WHEN_DONE,
        Outcome::Taken(_) => AFTER_STEP,
    }
}

/// That a Job is gone is believed only if the API server says so.
async fn find_job(
    context: &Context,
    jobs: &Store<Job>,
    namespace: &str,
    name: Option<&str>,
) -> Result<Option<Job>, kube::Error> {
    let Some(name) = name else { return Ok(None) };
    if let Some(job) = jobs.get(&ObjectRef::new(name).within(namespace)) {
        return Ok(Some(job.as_ref().clone()));
    }
    let api: Api<Job> = Api::namespaced(context.client.clone(), namespace);
    api.get_opt(name).await
}

async fn carry_out(
    context: &Context,
    benchmark: &Benchmark,
    resource: &DEngineBenchmark,
    step: &Step,
) -> Result<(), StepError> {
    match step {
        Step::MakeJob => make_job(context, benchmark, resource).await,
        // The Job has posted what it measured; nothing needs it any more but people who read its log.
        Step::SetTtl | Step::NextLeg => set_ttl(context, benchmark, resource).await,
        Step::Expire => expire(context, benchmark).await,
        _ => Ok(()),
    }
}

async fn set_ttl(
    context: &Context,
    benchmark: &Benchmark,
    resource: &DEngineBenchmark,
) -> Result<(), StepError> {
    let api: Api<Job> = Api::namespaced(context.client.clone(), &benchmark.namespace);
    let patch = json!({"spec": {"ttlSecondsAfterFinished": JOB_TTL_SECONDS}});
    let status = resource.status.as_ref();
    let name = status
        .and_then(|status| status.job_name.clone())
        .unwrap_or_default();
    let parameters = PatchParams {
        field_manager: Some(managers::OPERATOR.to_owned()),
        ..PatchParams::default()
    };
    match api.patch(&name, &parameters, &Patch::Merge(patch)).await {
        Err(error) if !is_code(&error, 404) => Err(StepError::Job(error)),
        _ => Ok(()),
    }
}

/// Deletes the resource, if it still is the one that was looked at; what it owns goes with it.
async fn expire(context: &Context, benchmark: &Benchmark) -> Result<(), StepError> {
    let api: Api<DEngineBenchmark> = Api::namespaced(context.client.clone(), &benchmark.namespace);
    let parameters = DeleteParams::default().preconditions(Preconditions {
        uid: Some(benchmark.owner.uid.clone()),
        resource_version: None,
    });
    match api.delete(&benchmark.name, &parameters).await {
        Err(error) if !is_code(&error, 404) => Err(StepError::Expire(error)),
        _ => Ok(()),
    }
}

async fn make_job(
    context: &Context,
    benchmark: &Benchmark,
    resource: &DEngineBenchmark,
) -> Result<(), StepError> {
    let client = &context.client;
    ensure(client, service_account::build(benchmark), None).await?;
    ensure(client, role::build(benchmark), None).await?;
    ensure(client, role_binding::build(benchmark), None).await?;
    let api: Api<Job> = Api::namespaced(client.clone(), &benchmark.namespace);
    let job = job::build(benchmark);
    let name = job.name_any();
    let parameters = PostParams {
        field_manager: Some(managers::OPERATOR.to_owned()),
        ..PostParams::default()
    };
    match api.create(&parameters, &job).await {
        Ok(_) => {
            let note = format!("run {} started as Job {name}", benchmark.posts_as());
            let happening = Happening::normal(events::RUN_STARTED, note);
            context.tell(&resource.object_ref(&()), &happening).await;
            Ok(())
        }
        Err(error) if is_code(&error, 409) => {
            let there = api.get(&name).await.map_err(StepError::Job)?;
            let same_run =
                there.annotations().get(annotations::RUN_ID) == Some(&benchmark.posts_as());
            let ours = there
                .owner_references()
                .iter()
                .any(|o| o.uid == benchmark.owner.uid);
            if same_run && ours {
                Ok(())
            } else {
                Err(StepError::NameTaken(name))
            }
        }
        Err(error) => Err(StepError::Job(error)),
    }
}

async fn refused(context: &Context, resource: &DEngineBenchmark, error: &StepError) -> Outcome {
    tracing::warn!(benchmark = resource.name_any(), %error, "step failed");
    let message = error.to_string();
    // Once, not with every repetition: the condition keeps the words for as long as it goes on.
    let conditions = resource.status.iter().flat_map(|status| &status.conditions);
    let said = conditions
        .filter(|condition| condition.type_ == types::FAILED)
        .any(|condition| message.starts_with(&condition.message));
    if !said {
        let happening = Happening::warning(events::STEP_FAILED, message.clone());
        context.tell(&resource.object_ref(&()), &happening).await;
    }
    let reason = match error {
        StepError::NameTaken(_) | StepError::Apply(ApplyError::NameTaken { .. }) => {
            reasons::NAME_TAKEN
        }
        _ => reasons::JOB_FAILED,
    };
    Outcome::Failed { reason, message }
}

/// Writes the status if it changed. The resource version makes sure that it follows from what is there.
async fn write(
    context: &Context,
    resource: &DEngineBenchmark,
    status: &DEngineBenchmarkStatus,
) -> Result<(), kube::Error> {
    let before = resource
        .status
        .clone()
        .map(|status| DEngineBenchmarkStatus {
            runs: Default::default(),
            ..status
        });
    if before.as_ref() == Some(status) {
        return Ok(());
    }
    let patch = json!({
        "apiVersion": DEngineBenchmark::api_version(&()),
        "kind": DEngineBenchmark::kind(&()),
        "metadata": {
            "name": resource.name_any(),
            "uid": resource.metadata.uid,
            "resourceVersion": resource.metadata.resource_version,
        },
        "status": status,
    });
    let namespace = resource.namespace().unwrap_or_default();
    let api: Api<DEngineBenchmark> = Api::namespaced(context.client.clone(), &namespace);
    let parameters = PatchParams::apply(managers::OPERATOR).force();
    api.patch_status(&resource.name_any(), &parameters, &Patch::Apply(&patch))
        .await?;
    Ok(())
}
