//! One load on a target at a time: two at once would distort each other's numbers. Jobs in the
//! cache show what loads a target; one that was just created, and that the cache may not have yet,
//! is remembered here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use dengine_crds::names::{self, labels};
use futures::future::join_all;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::time::timeout;

use super::resources::{Benchmark, loads};

/// After this time the cache has a Job that was created, or there is none.
const CACHE_IS_BEHIND: Duration = Duration::from_secs(15);
/// A store gets a new list only once it is complete; a Job that was noted and is missing by then is
/// gone.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// After its deadline a Job's pod has its grace period to end, and clocks differ.
const ENDS_AFTER_DEADLINE: SignedDuration = SignedDuration::from_mins(5);
/// Kubernetes' default grace period.
const GRACE_SECONDS: i64 = 30;

/// Which benchmark may load each target, as one scope sees it.
#[derive(Debug)]
pub struct Turns {
    /// The Jobs of all benchmarks of the scope.
    pub jobs: Store<Job>,
    targets: Arc<Targets>,
}

/// State of all targets, in every scope: benchmarks of two namespaces may load the same one.
#[derive(Debug)]
pub struct Targets {
    begun: Instant,
    state: Mutex<TargetsState>,
}

impl Default for Targets {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            state: Mutex::default(),
        }
    }
}

#[derive(Debug, Default)]
struct TargetsState {
    stores: Vec<Store<Job>>,
    /// By target: the benchmark that is about to create a Job, or did so at this time.
    asked: HashMap<String, (Name, Option<Instant>)>,
    /// By target: Jobs that had not ended when they were noted. Going through all Jobs in each
    /// reconciliation of a thousand benchmarks would cost more than everything else.
    loaded: HashMap<String, HashMap<Name, Noted>>,
    swept: Option<Instant>,
}

/// A Job that had not ended at that time.
#[derive(Clone, Debug)]
struct Noted {
    at: Instant,
    benchmark: String,
    /// How long its pod may run once the Job is gone.
    outlived_for: Duration,
}

impl Noted {
    fn of(job: &Job, at: Instant) -> Self {
        let benchmark = job.labels().get(labels::BENCHMARK);
        Self {
            at,
            benchmark: benchmark
                .map_or("of another name", String::as_str)
                .to_owned(),
            outlived_for: outlived_for(job),
        }
    }

    fn may_run(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < self.outlived_for
    }
}

/// Holds a target until the benchmark's Job was created; the turn lasts until the cache has the
/// Job.
#[must_use]
#[derive(Debug)]
pub(crate) struct Turn {
    targets: Arc<Targets>,
    whose: Name,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.targets.lock();
        let asked = state.asked.values_mut();
        for (_, since) in asked.filter(|(whose, _)| *whose == self.whose) {
            *since = Some(now);
        }
    }
}

type Name = (String, String);

impl Turns {
    /// For the Jobs in the store of a scope; [`Self::note`] is called for its changes.
    pub fn new(jobs: Store<Job>, targets: Arc<Targets>) -> Self {
        let turns = Self { jobs, targets };
        turns.lock().stores.push(turns.jobs.clone());
        for job in turns.jobs.state() {
            turns.note(&job);
        }
        turns
    }

    /// Waits until the Jobs of all scopes are known. Other scopes are waited for only as long as a
    /// list takes: one whose namespace is gone is never listed.
    pub(crate) async fn wait_until_ready(&self) {
        // An error means that the watch ended, and with it this process.
        let _ = self.jobs.wait_until_ready().await;
        let stores = self.lock().stores.clone();
        let ready = join_all(stores.iter().map(Store::wait_until_ready));
        let left = CACHE_IS_BEHIND.saturating_sub(self.targets.begun.elapsed());
        if timeout(left, ready).await.is_err() {
            tracing::debug!("the Jobs of a scope are not known");
        }
    }

    /// Called for each Job that was added, changed or deleted.
    pub(crate) fn note(&self, job: &Job) {
        self.note_at(job, Instant::now());
    }

    fn note_at(&self, job: &Job, now: Instant) {
        let name = (job.namespace().unwrap_or_default(), job.name_any());
        let mut state = self.lock();
        for place in loads::by(job) {
            let jobs = state.loaded.entry(place).or_default();
            if has_ended(job) {
                jobs.remove(&name);
            } else {
                jobs.insert(name.clone(), Noted::of(job, now));
            }
        }
        state.sweep(now);
    }

    /// The benchmark that loads this one's target now, with its Job.
    pub(crate) fn busy(&self, benchmark: &Benchmark) -> Option<String> {
        self.busy_at(benchmark, Instant::now(), Timestamp::now())
    }

    /// `now` and `time` are the same moment.
    fn busy_at(&self, benchmark: &Benchmark, now: Instant, time: Timestamp) -> Option<String> {
        let own = names::benchmark::job(&benchmark.name, &benchmark.posts_as());
        let own = (benchmark.namespace.clone(), own);
        let places = loads::of(benchmark);
        let state = self.lock();
        let jobs = places.iter().filter_map(|place| state.loaded.get(place));
        let job = jobs.flatten().find_map(|(name, noted)| {
            let why = match find(&state.stores, name) {
                Some(job) => (*name != own && !is_over(&job, time)).then_some("has not ended"),
                // Also a Job of this name: the benchmark was deleted and is created again.
                None => noted
                    .may_run(now)
                    .then_some("was deleted, and whose pod may take a minute to end"),
            }?;
            let whose = seen_from(benchmark, &name.0, &noted.benchmark);
            Some(format!("benchmark {whose}, whose Job {} {why}", name.1))
        });
        let mut places = places.iter();
        job.or_else(|| places.find_map(|place| state.taken(benchmark, place)))
    }

    /// Takes the turn, unless another benchmark just did.
    ///
    /// # Errors
    /// Which one did.
    pub(crate) fn take(&self, benchmark: &Benchmark) -> Result<Turn, String> {
        let places = loads::of(benchmark);
        let mut state = self.lock();
        state.asked.retain(|_, (_, since)| is_behind(*since));
        let taken = places
            .iter()
            .find_map(|place| state.taken(benchmark, place));
        if let Some(message) = taken {
            return Err(message);
        }
        let whose = who(benchmark);
        let ours = places
            .into_iter()
            .map(|place| (place, (whose.clone(), None)));
        state.asked.extend(ours);
        drop(state);
        let targets = Arc::clone(&self.targets);
        Ok(Turn { targets, whose })
    }

    fn lock(&self) -> MutexGuard<'_, TargetsState> {
        self.targets.lock()
    }
}

impl Targets {
    fn lock(&self) -> MutexGuard<'_, TargetsState> {
        self.state.lock().expect("nobody panics with the lock")
    }
}

impl TargetsState {
    /// Forgets Jobs of targets that no benchmark asks about.
    fn sweep(&mut self, now: Instant) {
        let last = self.swept.get_or_insert(now);
        if now.saturating_duration_since(*last) < FORGET_AFTER {
            return;
        }
        *last = now;
        let is_new = |noted: &Noted| now.saturating_duration_since(noted.at) < FORGET_AFTER;
        let stores = &self.stores;
        self.loaded.retain(|_, jobs| {
            jobs.retain(|name, noted| is_new(noted) || find(stores, name).is_some());
            !jobs.is_empty()
        });
    }

    fn taken(&self, benchmark: &Benchmark, place: &str) -> Option<String> {
        let (asked, since) = self.asked.get(place)?;
        let others = *asked != who(benchmark) && is_behind(*since);
        let name = seen_from(benchmark, &asked.0, &asked.1);
        others.then(|| format!("benchmark {name}, which is about to start"))
    }
}

/// Whether the cache may lag behind this time.
fn is_behind(since: Option<Instant>) -> bool {
    since.is_none_or(|since| since.elapsed() < CACHE_IS_BEHIND)
}

/// In the store of its scope.
fn find(stores: &[Store<Job>], (namespace, name): &Name) -> Option<Arc<Job>> {
    let job = ObjectRef::new(name).within(namespace);
    stores.iter().find_map(|jobs| jobs.get(&job))
}

fn who(benchmark: &Benchmark) -> Name {
    (benchmark.namespace.clone(), benchmark.name.clone())
}

fn seen_from(benchmark: &Benchmark, namespace: &str, name: &str) -> String {
    if namespace == benchmark.namespace {
        return name.to_owned();
    }
    format!("{namespace}/{name}")
}

/// Whether it no longer loads anything. The end of a Job is not seen if its namespace is no longer
/// watched.
fn is_over(job: &Job, time: Timestamp) -> bool {
    let spec = job.spec.as_ref();
    let deadline = spec.and_then(|spec| spec.active_deadline_seconds);
    let status = job.status.as_ref();
    let started = status.and_then(|status| status.start_time.as_ref());
    let started = started.or(job.metadata.creation_timestamp.as_ref());
    let ends = started.zip(deadline).and_then(|(started, deadline)| {
        let lasts = SignedDuration::from_secs(deadline);
        let end = started.0.checked_add(lasts).ok()?;
        end.checked_add(ENDS_AFTER_DEADLINE).ok()
    });
    has_ended(job) || ends.is_some_and(|ends| ends < time)
}

/// A Job that is deleted in the foreground ends after its pod; otherwise the pod gets its signal
/// only when the Job is gone.
fn outlived_for(job: &Job) -> Duration {
    if job.metadata.deletion_timestamp.is_some() {
        return Duration::ZERO;
    }
    let pod = job
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let grace = pod.and_then(|pod| pod.termination_grace_period_seconds);
    let grace = u64::try_from(grace.unwrap_or(GRACE_SECONDS)).unwrap_or(0);
    Duration::from_secs(grace) + CACHE_IS_BEHIND
}

fn has_ended(job: &Job) -> bool {
    let conditions = job
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    conditions
        .filter(|condition| condition.status == "True")
        .any(|condition| matches!(condition.type_.as_str(), "Complete" | "Failed"))
}

#[cfg(test)]
mod tests {
    use dengine_crds::benchmark::Leg;
    use k8s_openapi::api::batch::v1::{JobCondition, JobStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kube::runtime::{reflector, watcher};

    use super::*;
    use crate::benchmark::resources::job;
    use crate::benchmark::resources::tests::benchmark;

    const OF_DEMO: &str = "{workload: put, target: {clusterRef: {name: demo}}}";

    fn named(name: &str, spec: &str) -> Benchmark {
        Benchmark {
            name: name.to_owned(),
            ..benchmark(spec)
        }
    }

    fn ended() -> JobStatus {
        let condition = JobCondition {
            type_: "Complete".to_owned(),
            status: "True".to_owned(),
            ..JobCondition::default()
        };
        JobStatus {
            conditions: Some(vec![condition]),
            ..JobStatus::default()
        }
    }

    /// Turns with this Job alone.
    fn turns_beside(job: &Job) -> Turns {
        Turns::new(store_of(job), Arc::default())
    }

    fn store_of(job: &Job) -> Store<Job> {
        let (jobs, mut writer) = reflector::store();
        writer.apply_watcher_event(&watcher::Event::Apply(job.clone()));
        jobs
    }

    fn full_address(namespace: &str, name: &str) -> Benchmark {
        let spec = "{workload: put, target: {etcd: {endpoints: ['etcd.infra.svc:2379']}}}";
        Benchmark {
            namespace: namespace.to_owned(),
            ..named(name, spec)
        }
    }

    /// As with `watchNamespaces: [a, b]`: each namespace has its own watches.
    #[test]
    fn an_etcd_is_busy_for_all_watched_namespaces() {
        let (first, second) = (full_address("a", "first"), full_address("b", "second"));
        let targets = Arc::<Targets>::default();
        let _of_a = Turns::new(store_of(&job::build(&first)), Arc::clone(&targets));
        let of_b = Turns::new(reflector::store().0, targets);
        let busy = of_b.busy(&second).unwrap();
        assert!(busy.starts_with("benchmark a/first, whose Job"), "{busy}");
    }

    #[test]
    fn of_two_simultaneous_runs_in_two_namespaces_one_waits() {
        let targets = Arc::<Targets>::default();
        let turns = |targets: &Arc<Targets>| {
            let (jobs, _writer) = reflector::store();
            Turns::new(jobs, Arc::clone(targets))
        };
        let (of_a, of_b) = (turns(&targets), turns(&targets));
        assert!(of_a.take(&full_address("a", "first")).is_ok());
        let message = of_b.take(&full_address("b", "second")).unwrap_err();
        assert!(message.contains("benchmark a/first"), "{message}");
    }

    #[test]
    fn a_target_is_busy_until_the_job_on_it_has_ended() {
        let (first, second) = (named("first", OF_DEMO), named("second", OF_DEMO));
        let mut job = job::build(&first);
        let turns = turns_beside(&job);
        let busy = turns.busy(&second).unwrap();
        assert!(busy.starts_with("benchmark first"), "{busy}");
        assert_eq!(turns.busy(&first), None, "its own");
        let elsewhere = named(
            "second",
            "{workload: put, target: {clusterRef: {name: d2}}}",
        );
        assert_eq!(turns.busy(&elsewhere), None);
        job.status = Some(ended());
        assert_eq!(turns_beside(&job).busy(&second), None);
    }

    /// Before the second one's Job is created, for its target or for the etcd that it is compared
    /// with.
    #[test]
    fn an_etcd_is_busy_for_every_benchmark_that_loads_it() {
        let against = "{profile: quick, target: {clusterRef: {name: demo}},
            compareWith: {etcd: {endpoints: ['etcd-0.etcd:2379', 'etcd-1.etcd:2379']}}}";
        let mut rival = named("first", against);
        rival.leg = Leg::Rival;
        let turns = turns_beside(&job::build(&rival));
        assert_eq!(turns.busy(&named("second", OF_DEMO)), None, "not demo");
        let mut same = named("second", against);
        assert_eq!(turns.busy(&same), None, "its cluster comes first");
        same.leg = Leg::Rival;
        let busy = turns.busy(&same).unwrap();
        assert!(busy.starts_with("benchmark first, whose Job"), "{busy}");
        let part = "{workload: put, target: {etcd: {endpoints: ['etcd-1.etcd:2379']}}}";
        assert!(turns.busy(&named("second", part)).is_some());
        let full = "{workload: put, target: {etcd: {endpoints: ['etcd-1.etcd.test.svc:2379']}}}";
        let elsewhere = Benchmark {
            namespace: "another".to_owned(),
            ..named("first", full)
        };
        let busy = turns.busy(&elsewhere).unwrap();
        assert!(busy.starts_with("benchmark test/first"), "{busy}");
        let own = Benchmark {
            namespace: "another".to_owned(),
            ..named("second", part)
        };
        assert_eq!(turns.busy(&own), None, "an etcd of its own namespace");
    }

    #[test]
    fn jobs_that_ended_or_are_gone_are_forgotten() {
        let mut job = job::build(&named("first", OF_DEMO));
        let turns = turns_beside(&job);
        let (now, mut gone) = (Instant::now(), job.clone());
        gone.metadata.name = Some("gone".to_owned());
        turns.note_at(&gone, now);
        let known = || {
            turns
                .lock()
                .loaded
                .values()
                .map(HashMap::len)
                .sum::<usize>()
        };
        assert_eq!(known(), 2);
        turns.note_at(&job, now + FORGET_AFTER * 2);
        assert_eq!(known(), 1, "the other one is in no store");
        job.status = Some(ended());
        turns.note(&job);
        assert_eq!(known(), 0);
    }

    /// Its namespace was removed from `watchNamespaces`, say: its cached state no longer changes.
    #[test]
    fn an_unwatched_job_ends_with_its_deadline() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let (first, second) = (named("first", OF_DEMO), named("second", OF_DEMO));
        let mut job = job::build(&first);
        job.metadata.creation_timestamp = Some(Time(time("2026-01-01T00:00:00Z")));
        // Ten minutes for the run, and twenty of slack.
        let busy = |job: &Job, at: &str| {
            let turns = turns_beside(job);
            turns.busy_at(&second, Instant::now(), time(at)).is_some()
        };
        assert!(busy(&job, "2026-01-01T00:34:59Z"), "its pod may still end");
        assert!(!busy(&job, "2026-01-01T00:35:01Z"));
        // It was suspended for a while: then its deadline started again.
        job.status = Some(JobStatus {
            start_time: Some(Time(time("2026-01-01T12:00:00Z"))),
            ..JobStatus::default()
        });
        assert!(busy(&job, "2026-01-01T12:34:59Z"));
        assert!(!busy(&job, "2026-01-01T12:35:01Z"));
        job.spec.as_mut().unwrap().active_deadline_seconds = None;
        assert!(busy(&job, "2027-01-01T00:00:00Z"), "it may run forever");
    }

    /// `kubectl delete` of a running benchmark, or of its Job: the pod has a minute to delete its
    /// keys.
    #[test]
    fn a_deleted_job_counts_while_its_pod_may_run() {
        let (first, second) = (named("first", OF_DEMO), named("second", OF_DEMO));
        let (mut foreground, mut ended_before) = (job::build(&first), job::build(&first));
        let background = foreground.clone();
        foreground.metadata.deletion_timestamp = Some(Time(Timestamp::now()));
        ended_before.status = Some(ended());
        let now = Instant::now();
        let after = |seconds: u64, of: &Benchmark, job: &Job| {
            let (jobs, mut writer) = reflector::store();
            writer.apply_watcher_event(&watcher::Event::Apply(background.clone()));
            let turns = Turns::new(jobs, Arc::default());
            writer.apply_watcher_event(&watcher::Event::Delete(job.clone()));
            turns.note_at(job, now);
            let then = now + Duration::from_secs(seconds);
            turns.busy_at(of, then, Timestamp::now())
        };
        let message = after(60, &second, &background).unwrap();
        assert!(
            message.starts_with("benchmark first, whose Job"),
            "{message}"
        );
        assert!(message.contains("was deleted"), "{message}");
        assert_eq!(after(76, &second, &background), None);
        assert_eq!(after(0, &second, &foreground), None, "its pod is gone");
        assert_eq!(after(0, &second, &ended_before), None);
        assert!(after(60, &first, &background).is_some(), "made again");
    }

    /// Three writes come before the Job, and a webhook that does not answer delays each by ten
    /// seconds.
    #[test]
    fn a_turn_lasts_until_the_cache_has_the_job() {
        let etcd = "{workload: put, target: {etcd: {endpoints: ['e:2379']}}}";
        let (first, second) = (named("first", etcd), named("second", etcd));
        let (jobs, _writer) = reflector::store();
        let turns = Turns::new(jobs, Arc::default());
        let pass = || {
            for (_, since) in turns.lock().asked.values_mut() {
                *since = since.map(|since| since.checked_sub(CACHE_IS_BEHIND).unwrap());
            }
        };
        let turn = turns.take(&first).unwrap();
        pass();
        assert!(turns.take(&second).is_err() && turns.busy(&second).is_some());
        drop(turn);
        assert!(turns.take(&second).is_err());
        pass();
        assert!(turns.take(&second).is_ok());
    }

    #[test]
    fn of_two_simultaneous_runs_one_waits() {
        let (jobs, _writer) = reflector::store();
        let turns = Turns::new(jobs, Arc::default());
        let (first, second) = (named("first", OF_DEMO), named("second", OF_DEMO));
        assert!(turns.take(&first).is_ok());
        assert!(turns.take(&second).unwrap_err().contains("benchmark first"));
        assert!(turns.busy(&second).unwrap().contains("benchmark first"));
        assert!(turns.busy(&first).is_none() && turns.take(&first).is_ok());
    }
}
