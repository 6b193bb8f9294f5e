//! The controller of `DEngineBenchmark`: one Job per run, its result judged and shown.

mod compare;
pub mod controller;
mod observe;
mod plan;
mod pods;
mod resources;
mod runs;
mod schedule;
pub(crate) mod status;
mod thresholds;
pub mod turns;
mod verdict;

use std::time::Duration;

use dengine_crds::benchmark::{BenchmarkPhase, Leg};
use dengine_crds::names::{annotations, managers};
use dengine_crds::reasons::{benchmark as reasons, events};
use dengine_crds::{DEngineBenchmark, DEngineBenchmarkStatus, conditions as types};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, PostParams, PropagationPolicy};
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};

use crate::apply::{ApplyError, ensure, exactly, gone_or_done, is_code};
use crate::cluster::bystander;
use crate::context::{Context, Event, now};
use crate::status_writer;
use plan::{BenchmarkStep, Ending, Observed};
use resources::{Benchmark, job, pods_service, role, role_binding, service_account};
use status::Outcome;
use turns::Turns;

/// While the target cannot be measured yet, or the Job runs (its end also triggers).
const WHILE_WAITING: Duration = Duration::from_secs(2);
/// After a failed step other than the creation of the Job.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// How often the Job's creation is tried; the pauses between double from the first, four minutes in
/// all.
const TRIES_MAX: u32 = 8;
const FIRST_PAUSE_SECONDS: u64 = 2;
const AFTER_STEP: Duration = Duration::from_millis(100);
/// When all is done; only a change of the resource matters then.
const WHEN_DONE: Duration = Duration::from_secs(600);

/// While another operator manages the cluster that it measures.
const WHEN_ANOTHERS: Duration = Duration::from_secs(60);

/// Why a step was not carried out.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error("the Job: {0}")]
    Job(kube::Error),
    #[error(transparent)]
    Api(kube::Error),
    #[error("waiting for {0}")]
    NotOurTurn(String),
    #[error(
        "Job {0} exists and does not belong to this run; rename the benchmark or choose another \
         runId"
    )]
    NameTaken(String),
}

/// Takes one step of one benchmark and writes its status.
pub async fn reconcile(
    resource: &DEngineBenchmark,
    context: &Context,
    turns: &Turns,
) -> Result<Action, kube::Error> {
    let namespace = resource.namespace().unwrap_or_default();
    let recorded_job = |of: &DEngineBenchmark| of.status.as_ref().and_then(|s| s.job_name.clone());
    // First the Job, then the resource: a Job that has ended has posted its result.
    let job_name = recorded_job(resource);
    let job = find_job(context, &turns.jobs, &namespace, job_name.as_deref()).await?;
    let api: Api<DEngineBenchmark> = Api::namespaced(context.client.clone(), &namespace);
    let Some(resource) = api.get_opt(&resource.name_any()).await? else {
        return Ok(Action::await_change());
    };
    if recorded_job(&resource) != job_name {
        // The cache lags, so the Job was not the right one.
        return Ok(Action::requeue(AFTER_STEP));
    }
    let Some(owner) = resource.controller_owner_ref(&()) else {
        return Ok(Action::await_change());
    };
    if resource.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    if let Some(other) = bystander::of_benchmark(context, &resource).await? {
        tracing::debug!(benchmark = resource.name_any(), other, "left alone");
        return Ok(Action::requeue(WHEN_ANOTHERS));
    }
    let benchmark = benchmark(context, &resource, namespace, owner);
    let now = now();
    let observed = observe::observe(context, &benchmark, &resource, job, turns, &now).await?;
    let step = plan::plan(&observed);
    let carried_out = carry_out(
        context,
        &benchmark,
        &resource,
        observed.job.as_ref(),
        turns,
        &step,
    );
    let outcome = match carried_out.await {
        Ok(()) => Outcome::Taken(step.clone()),
        // Another benchmark was faster; the next reconciliation finds which.
        Err(StepError::NotOurTurn(_)) => return Ok(Action::requeue(AFTER_STEP)),
        Err(error) => refused(context, &resource, &step, &error).await,
    };
    let status = status::derive(&resource, &outcome, &observed, &now);
    match write(context, &resource, &status).await {
        // The Job posted its result meanwhile.
        Err(error) if is_code(&error, 409) => return Ok(Action::requeue(AFTER_STEP)),
        written => written?,
    }
    runs::prune(context, &resource).await?;
    runs::let_go(context, &resource, &turns.jobs).await?;
    tell(context, &resource, &outcome, &observed, &status).await;
    let again = again(&outcome);
    let due = observe::due_in(&resource, observed.next, &now).unwrap_or(again);
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
        user: context.defaults.user,
        run_id: status.and_then(|s| s.run_id.clone()).unwrap_or_default(),
        leg: status.and_then(|s| s.leg).unwrap_or(Leg::Target),
        spec,
    }
}

/// Events of runs that were skipped, and of the one that just ended.
async fn tell(
    context: &Context,
    resource: &DEngineBenchmark,
    outcome: &Outcome,
    observed: &Observed,
    status: &DEngineBenchmarkStatus,
) {
    let about = resource.object_ref(&());
    if let Some(skipped) = &observed.skipped {
        let event = Event::warning(events::RUN_SKIPPED, skipped.message.clone());
        context.publish(&about, &event).await;
    }
    if let Some(ending) = ending_of(outcome) {
        let run = status.run_id.as_deref().unwrap_or_default();
        let event = Event {
            reason: events::RUN_FINISHED,
            note: format!("run {run}: {}", ending.message),
            warning: ending.phase != BenchmarkPhase::Succeeded,
        };
        context.publish(&about, &event).await;
    }
}

/// How the run ended, if it just did.
fn ending_of(outcome: &Outcome) -> Option<Ending> {
    match outcome {
        Outcome::Taken(BenchmarkStep::Finish(ending) | BenchmarkStep::Cancel(ending)) => {
            Some(ending.clone())
        }
        Outcome::JobRefused {
            reason,
            message,
            retry_in: None,
        } => Some(status::given_up(reason, message)),
        Outcome::JobRefused {
            retry_in: Some(_), ..
        }
        | Outcome::Failed { .. }
        | Outcome::Taken(
            BenchmarkStep::Refuse { .. }
            | BenchmarkStep::Record
            | BenchmarkStep::NextLeg
            | BenchmarkStep::MakeJob
            | BenchmarkStep::NoteJob { .. }
            | BenchmarkStep::Wait
            | BenchmarkStep::BackOff { .. }
            | BenchmarkStep::Expire
            | BenchmarkStep::Done,
        ) => None,
    }
}

fn again(outcome: &Outcome) -> Duration {
    match outcome {
        Outcome::Failed { .. } => AFTER_FAILURE,
        Outcome::JobRefused { retry_in, .. } => retry_in.map_or(AFTER_STEP, Duration::from_secs),
        Outcome::Taken(BenchmarkStep::BackOff { seconds }) => Duration::from_secs(*seconds),
        // Only an edit helps, and that triggers.
        Outcome::Taken(BenchmarkStep::Refuse { reason, .. })
            if [reasons::INVALID_SPEC, reasons::SUSPENDED].contains(reason) =>
        {
            WHEN_DONE
        }
        Outcome::Taken(BenchmarkStep::Refuse { .. } | BenchmarkStep::Wait) => WHILE_WAITING,
        // One that cannot be deleted is retried then.
        Outcome::Taken(BenchmarkStep::Done | BenchmarkStep::Expire) => WHEN_DONE,
        Outcome::Taken(
            BenchmarkStep::Record
            | BenchmarkStep::NextLeg
            | BenchmarkStep::MakeJob
            | BenchmarkStep::NoteJob { .. }
            | BenchmarkStep::Cancel(_)
            | BenchmarkStep::Finish(_),
        ) => AFTER_STEP,
    }
}

/// A Job that is missing in the cache is looked up.
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
    job: Option<&plan::Job>,
    turns: &Turns,
    step: &BenchmarkStep,
) -> Result<(), StepError> {
    match step {
        BenchmarkStep::MakeJob => {
            let turn = turns.take(benchmark).map_err(StepError::NotOurTurn)?;
            let made = make_job(context, benchmark, resource).await;
            // However long the API server took.
            drop(turn);
            made
        }
        BenchmarkStep::Cancel(_) => delete_job(context, benchmark, resource, job).await,
        BenchmarkStep::Expire => expire(context, benchmark, resource).await,
        // They only change the status.
        BenchmarkStep::Refuse { .. }
        | BenchmarkStep::Record
        | BenchmarkStep::NextLeg
        | BenchmarkStep::NoteJob { .. }
        | BenchmarkStep::Wait
        | BenchmarkStep::BackOff { .. }
        | BenchmarkStep::Finish(_)
        | BenchmarkStep::Done => Ok(()),
    }
}

fn job_name(resource: &DEngineBenchmark) -> String {
    let status = resource.status.as_ref();
    let name = status.and_then(|status| status.job_name.clone());
    name.unwrap_or_default()
}

/// Cancels a run. The Job stays until its pod is gone: until then there is load, and keys are being
/// deleted.
async fn delete_job(
    context: &Context,
    benchmark: &Benchmark,
    resource: &DEngineBenchmark,
    job: Option<&plan::Job>,
) -> Result<(), StepError> {
    let Some(job) = job else { return Ok(()) };
    let api: Api<Job> = Api::namespaced(context.client.clone(), &benchmark.namespace);
    let parameters = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Foreground),
        ..exactly(&job.uid)
    };
    let answer = api.delete(&job_name(resource), &parameters).await;
    gone_or_done(answer).map_err(StepError::Job)
}

/// Deletes the resource, if it still is the observed one; its objects are deleted with it.
async fn expire(
    context: &Context,
    benchmark: &Benchmark,
    resource: &DEngineBenchmark,
) -> Result<(), StepError> {
    let api: Api<DEngineBenchmark> = Api::namespaced(context.client.clone(), &benchmark.namespace);
    let parameters = exactly(&benchmark.owner.uid);
    let deleted = api.delete(&benchmark.name, &parameters);
    let attempt = format!("expire {}", benchmark.owner.uid);
    let what_fails = "the benchmark has expired and cannot be deleted";
    let about = resource.object_ref(&());
    let done = context
        .best_effort(&about, &attempt, what_fails, deleted)
        .await;
    done.map_err(StepError::Api)
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
    if benchmark.has_several_pods() {
        ensure(client, pods_service::build(benchmark), None).await?;
    }
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
            let event = Event::normal(events::RUN_STARTED, note);
            context.publish(&resource.object_ref(&()), &event).await;
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

async fn refused(
    context: &Context,
    resource: &DEngineBenchmark,
    step: &BenchmarkStep,
    error: &StepError,
) -> Outcome {
    let message = error.to_string();
    let conditions = resource.status.as_ref().map(|status| &*status.conditions);
    let event = Event::warning(events::STEP_FAILED, message.clone());
    let about = resource.object_ref(&());
    context
        .publish_once(
            &about,
            conditions.unwrap_or_default(),
            types::FAILED,
            &event,
        )
        .await;
    let reason = match error {
        StepError::NameTaken(_) | StepError::Apply(ApplyError::NameTaken { .. }) => {
            reasons::NAME_TAKEN
        }
        StepError::Apply(_) | StepError::Job(_) | StepError::Api(_) | StepError::NotOurTurn(_) => {
            if *step == BenchmarkStep::MakeJob {
                reasons::JOB_REFUSED
            } else {
                reasons::JOB_FAILED
            }
        }
    };
    if *step != BenchmarkStep::MakeJob {
        return Outcome::Failed { reason, message };
    }
    let tries = resource.status.as_ref().and_then(|status| status.tries);
    Outcome::JobRefused {
        reason,
        message,
        retry_in: retry_in(tries.unwrap_or(0), error.is_invalid()),
    }
}

/// Seconds until the next try after this many failed ones, if there is one.
fn retry_in(tries: u32, is_invalid: bool) -> Option<u64> {
    let again = !is_invalid && tries + 1 < TRIES_MAX;
    again.then(|| FIRST_PAUSE_SECONDS << tries)
}

impl StepError {
    /// The API server found it invalid; retrying does not help.
    fn is_invalid(&self) -> bool {
        match self {
            Self::Job(error) => is_code(error, 422) || is_code(error, 400),
            Self::Apply(error) => error.is_invalid(),
            Self::Api(_) | Self::NotOurTurn(_) | Self::NameTaken(_) => false,
        }
    }
}

/// Writes the status if it changed. `runs` belongs to the Jobs.
async fn write(
    context: &Context,
    resource: &DEngineBenchmark,
    status: &DEngineBenchmarkStatus,
) -> Result<(), kube::Error> {
    let before = resource.status.clone();
    let before = before.map(|status| DEngineBenchmarkStatus {
        runs: Default::default(),
        ..status
    });
    if before.as_ref() == Some(status) {
        return Ok(());
    }
    let written = status_writer::write(&context.client, resource, status).await;
    written.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_job_is_retried_a_bounded_number_of_times() {
        let pauses: Vec<Option<u64>> = (0..8).map(|tries| retry_in(tries, false)).collect();
        let expected = [2, 4, 8, 16, 32, 64, 128].map(Some);
        assert_eq!(pauses[..7], expected);
        assert_eq!(pauses[7], None);
        assert_eq!(retry_in(0, true), None, "what is invalid stays so");
    }

    #[test]
    fn a_benchmark_that_needs_an_edit_is_rarely_reconciled() {
        let refuse = |reason| {
            again(&Outcome::Taken(BenchmarkStep::Refuse {
                reason,
                message: String::new(),
            }))
        };
        assert_eq!(refuse(reasons::INVALID_SPEC), WHEN_DONE);
        assert_eq!(refuse(reasons::SUSPENDED), WHEN_DONE);
        assert_eq!(refuse(reasons::TARGET_NOT_READY), WHILE_WAITING);
        assert_eq!(refuse(reasons::TARGET_BUSY), WHILE_WAITING);
    }
}
