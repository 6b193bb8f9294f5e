//! One load on a target at a time: two at once would spoil each other's numbers. What loads a target is seen in its Jobs,
//! which say so in a label; a Job that was only just asked for, and that the cache may not know yet, is kept in mind here.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use dengine_crds::names::{self, labels};
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::runtime::reflector::Store;

use super::resources::{Benchmark, job};

/// After so long the cache knows of a Job that was asked for, or there is none.
const CACHE_IS_BEHIND: Duration = Duration::from_secs(15);

/// Jobs that were asked for lately, by namespace and target.
#[derive(Debug, Default)]
pub struct Turns(Mutex<HashMap<(String, String), (String, Instant)>>);

/// What else may load a target.
pub struct Others<'a> {
    /// The Jobs of all benchmarks.
    pub jobs: &'a Store<Job>,
    /// Those that may not be among them yet.
    pub turns: &'a Turns,
}

impl Others<'_> {
    /// Whose load is on the target of this benchmark now, in words.
    pub fn busy(&self, benchmark: &Benchmark) -> Option<String> {
        let target = job::loads(&benchmark.spec);
        let own = names::benchmark::job(&benchmark.name, &benchmark.posts_as());
        let loads = |job: &&std::sync::Arc<Job>| {
            job.namespace().as_deref() == Some(&benchmark.namespace)
                && job.labels().get(labels::TARGET) == Some(&target)
                && job.name_any() != own
                && !has_ended(job)
        };
        let jobs = self.jobs.state();
        let job = jobs.iter().find(loads).map(|job| {
            let benchmark = job.labels().get(labels::BENCHMARK);
            let name = benchmark.map_or("of another name", String::as_str);
            format!(
                "benchmark {name}, whose Job {} has not ended",
                job.name_any()
            )
        });
        job.or_else(|| self.turns.taken(benchmark, &target))
    }

    /// Takes the turn, if nobody else did lately.
    ///
    /// # Errors
    /// Who did, in words.
    pub fn take(&self, benchmark: &Benchmark) -> Result<(), String> {
        let target = job::loads(&benchmark.spec);
        let place = (benchmark.namespace.clone(), target);
        let mut turns = self.turns.0.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, (_, since)| since.elapsed() < CACHE_IS_BEHIND);
        if let Some((name, _)) = turns
            .get(&place)
            .filter(|(name, _)| *name != benchmark.name)
        {
            return Err(format!("benchmark {name}, which is about to begin"));
        }
        turns.insert(place, (benchmark.name.clone(), Instant::now()));
        Ok(())
    }
}

impl Turns {
    fn taken(&self, benchmark: &Benchmark, target: &str) -> Option<String> {
        let turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (name, since) = turns.get(&(benchmark.namespace.clone(), target.to_owned()))?;
        let others = *name != benchmark.name && since.elapsed() < CACHE_IS_BEHIND;
        others.then(|| format!("benchmark {name}, which is about to begin"))
    }
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
    use k8s_openapi::api::batch::v1::{JobCondition, JobStatus};
    use kube::runtime::{reflector, watcher};

    use super::*;
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

    #[test]
    fn a_target_is_busy_until_the_job_on_it_has_ended() {
        let (jobs, mut writer) = reflector::store();
        let turns = Turns::default();
        let others = Others {
            jobs: &jobs,
            turns: &turns,
        };
        let (first, second) = (named("first", OF_DEMO), named("second", OF_DEMO));
        let mut job = job::build(&first);
        writer.apply_watcher_event(&watcher::Event::Apply(job.clone()));
        let busy = others.busy(&second).unwrap();
        assert!(busy.starts_with("benchmark first"), "{busy}");
        assert_eq!(others.busy(&first), None, "its own");
        let elsewhere = named(
            "second",
            "{workload: put, target: {clusterRef: {name: d2}}}",
        );
        assert_eq!(others.busy(&elsewhere), None);
        job.status = Some(ended());
        writer.apply_watcher_event(&watcher::Event::Apply(job));
        assert_eq!(others.busy(&second), None);
    }

    #[test]
    fn of_two_that_begin_at_once_one_waits() {
        let (jobs, _writer) = reflector::store();
        let turns = Turns::default();
        let others = Others {
            jobs: &jobs,
            turns: &turns,
        };
        let (first, second) = (named("first", OF_DEMO), named("second", OF_DEMO));
        assert_eq!(others.take(&first), Ok(()));
        assert!(
            others
                .take(&second)
                .unwrap_err()
                .contains("benchmark first")
        );
        assert!(others.busy(&second).unwrap().contains("benchmark first"));
        assert_eq!((others.busy(&first), others.take(&first)), (None, Ok(())));
    }
}
