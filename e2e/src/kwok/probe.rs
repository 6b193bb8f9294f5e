//! How long a change takes until somebody who watches has seen it.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde::Serialize;
use serde_json::json;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, interval, timeout};

/// An object is made this often, whether or not earlier ones have been answered.
const INTERVAL: Duration = Duration::from_millis(25);
/// That many without an answer are no load any more.
const UNANSWERED_MAX: usize = 2_000;
/// How long the last one may take to be seen.
const PATIENCE: Duration = Duration::from_secs(60);
const PREFIX: &str = "probe-";

/// What was seen when, by number.
type Sightings = BTreeMap<usize, Instant>;

/// Makes objects all the time, and watches them.
pub(super) struct Probe {
    stop: oneshot::Sender<()>,
    making: JoinHandle<Result<Vec<Made>>>,
    seen: watch::Receiver<Sightings>,
    watching: JoinHandle<()>,
}

/// An object that was made.
struct Made {
    wanted: Instant,
    answered: Instant,
}

/// From the moment that a change was wanted.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lag {
    /// How many there were.
    pub changes: usize,
    /// Until it was answered.
    pub answered: Percentiles,
    /// Until a watch had shown it.
    pub seen: Percentiles,
}

/// In milliseconds.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Percentiles {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

impl Probe {
    pub(super) fn start(client: &Client, namespace: &str) -> Self {
        let objects = Api::<ConfigMap>::namespaced(client.clone(), namespace);
        let (sees, seen) = watch::channel(Sightings::new());
        let (stop, stopped) = oneshot::channel();
        Self {
            stop,
            watching: tokio::spawn(see(objects.clone(), sees)),
            making: tokio::spawn(make(objects, stopped)),
            seen,
        }
    }

    /// Makes no more, and waits until all have been seen.
    pub(super) async fn end(mut self) -> Result<Lag> {
        let _ = self.stop.send(());
        let made = self.making.await??;
        let all = self.seen.wait_for(|seen| seen.len() == made.len());
        let waited = timeout(PATIENCE, all).await;
        self.watching.abort();
        let count = made.len();
        let seen =
            waited.with_context(|| format!("a watch has not shown all {count} objects"))??;
        lag(&made, &seen)
    }
}

/// Until it is told to stop.
async fn make(objects: Api<ConfigMap>, mut stopped: oneshot::Receiver<()>) -> Result<Vec<Made>> {
    let mut ticks = interval(INTERVAL);
    let (mut under_way, mut count) = (JoinSet::new(), 0);
    let mut made = BTreeMap::new();
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            Some(done) = under_way.join_next() => {
                let (number, one) = done??;
                made.insert(number, one);
            }
            wanted = ticks.tick() => {
                ensure!(under_way.len() < UNANSWERED_MAX, "too many are without an answer");
                under_way.spawn(make_one(objects.clone(), count, wanted));
                count += 1;
            }
        }
    }
    while let Some(done) = under_way.join_next().await {
        let (number, one) = done??;
        made.insert(number, one);
    }
    Ok(made.into_values().collect())
}

async fn make_one(
    objects: Api<ConfigMap>,
    number: usize,
    wanted: Instant,
) -> Result<(usize, Made)> {
    let object = json!({"metadata": {"name": format!("{PREFIX}{number}")}});
    let object = serde_json::from_value(object)?;
    objects.create(&PostParams::default(), &object).await?;
    let answered = Instant::now();
    Ok((number, Made { wanted, answered }))
}

async fn see(objects: Api<ConfigMap>, sees: watch::Sender<Sightings>) {
    let mut events = pin!(watcher(objects, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => {
                if let Some(number) = number_of(&object) {
                    let now = Instant::now();
                    // A later sighting would be of a list.
                    sees.send_modify(|seen| {
                        seen.entry(number).or_insert(now);
                    });
                }
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the probe's watch failed; trying again"),
        }
    }
}

/// Kubernetes makes a ConfigMap of its own in every namespace.
fn number_of(object: &ConfigMap) -> Option<usize> {
    object.name_any().strip_prefix(PREFIX)?.parse().ok()
}

fn lag(made: &[Made], seen: &Sightings) -> Result<Lag> {
    let answered = made.iter().map(|one| one.answered - one.wanted).collect();
    let pairs = made.iter().zip(seen.values());
    let seen = pairs.map(|(one, at)| *at - one.wanted).collect();
    Ok(Lag {
        changes: made.len(),
        answered: Percentiles::of(answered)?,
        seen: Percentiles::of(seen)?,
    })
}

impl Percentiles {
    fn of(mut durations: Vec<Duration>) -> Result<Self> {
        durations.sort();
        let last = durations.len().checked_sub(1);
        let last = last.context("nothing was changed meanwhile")?;
        let at = |percent: usize| durations[last * percent / 100].as_secs_f64() * 1_000.0;
        Ok(Self {
            p50_ms: at(50),
            p99_ms: at(99),
            max_ms: at(100),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_counted_from_when_a_change_was_wanted() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let made = [(0, 3), (25, 29)].map(|(wanted, answered)| Made {
            wanted: after(wanted),
            answered: after(answered),
        });
        let seen = [(0, after(2)), (1, after(85))].into();
        let lag = lag(&made, &seen).unwrap();
        assert_eq!((lag.answered.p50_ms, lag.answered.max_ms), (3.0, 4.0));
        assert_eq!((lag.seen.p50_ms, lag.seen.max_ms), (2.0, 60.0));
    }

    #[test]
    fn percentiles_are_values_that_were_there() {
        let all = (1..=1_000).map(Duration::from_millis).collect();
        let found = Percentiles::of(all).unwrap();
        assert_eq!(
            (found.p50_ms, found.p99_ms, found.max_ms),
            (500.0, 990.0, 1_000.0)
        );
        assert!(Percentiles::of(Vec::new()).is_err());
    }
}
