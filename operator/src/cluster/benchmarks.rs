//! The lines of a cluster's status about its benchmarks. Pure but for the cache it reads; the
//! benchmark controller does not write here.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dengine_crds::cluster::BenchmarkLine;
use dengine_crds::{DEngineBenchmark, DEngineCluster};
use futures::FutureExt;
use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};

use crate::guard::Guarded;

/// A store gets a new list only once it is complete; a benchmark that was noted and is missing by
/// then is gone.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// As many lines as the schema allows; the newest runs are kept.
const LINES_MAX: usize = 64;

/// Every benchmark, without its results, and which of them show in which cluster's status. Perhaps
/// not complete yet.
#[derive(Clone, Debug)]
pub struct Benchmarks {
    pub store: Store<Guarded<DEngineBenchmark>>,
    /// Names by namespace and cluster: going through all benchmarks in each reconciliation of a
    /// thousand clusters would cost more than everything else. Benchmarks that are gone, or report
    /// to another cluster now, are dropped on lookup.
    shown: Arc<Mutex<Shown>>,
}

/// Names of benchmarks and when they were noted, by namespace and cluster.
#[derive(Debug, Default)]
struct Shown {
    by_cluster: HashMap<(String, String), BTreeMap<String, Instant>>,
    swept: Option<Instant>,
}

impl Benchmarks {
    /// Benchmarks of a store; [`Self::note`] is called for its changes.
    pub fn new(store: Store<Guarded<DEngineBenchmark>>) -> Self {
        let benchmarks = Self {
            shown: Arc::default(),
            store,
        };
        for there in benchmarks.store.state() {
            benchmarks.note(&there);
        }
        benchmarks
    }

    /// Called for each benchmark that was added, changed or deleted.
    pub(crate) fn note(&self, benchmark: &Guarded<DEngineBenchmark>) {
        self.note_at(benchmark, Instant::now());
    }

    fn note_at(&self, benchmark: &Guarded<DEngineBenchmark>, now: Instant) {
        let (Ok(read), Some(namespace)) = (&benchmark.0, benchmark.namespace()) else {
            return;
        };
        if let Some(cluster) = reports_to(read) {
            let mut shown = self.shown.lock().expect("nobody panics with the lock");
            let names = shown.by_cluster.entry((namespace, cluster)).or_default();
            names.insert(read.name_any(), now);
            self.sweep(&mut shown, now);
        }
    }

    /// Forgets names of clusters that do not exist, which no lookup drops.
    fn sweep(&self, shown: &mut Shown, now: Instant) {
        let last = shown.swept.get_or_insert(now);
        if now.saturating_duration_since(*last) < FORGET_AFTER {
            return;
        }
        *last = now;
        shown.by_cluster.retain(|place, names| {
            names.retain(|name, noted| is_new(*noted, now) || self.find(place, name).is_some());
            !names.is_empty()
        });
    }

    /// The benchmark of this name, if it shows in the status of this cluster.
    fn find(
        &self,
        (namespace, cluster): &(String, String),
        name: &str,
    ) -> Option<Arc<Guarded<DEngineBenchmark>>> {
        let there = self.store.get(&ObjectRef::new(name).within(namespace))?;
        let target = reports_to(there.0.as_ref().ok()?);
        (target.as_ref() == Some(cluster)).then_some(there)
    }

    /// The benchmarks that show in the status of this cluster.
    fn of(&self, namespace: &str, cluster: &str) -> Vec<Arc<Guarded<DEngineBenchmark>>> {
        let (place, now) = ((namespace.to_owned(), cluster.to_owned()), Instant::now());
        let mut shown = self.shown.lock().expect("nobody panics with the lock");
        let Some(names) = shown.by_cluster.get_mut(&place) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        names.retain(|name, noted| {
            let there = self.find(&place, name);
            let stays = there.is_some() || is_new(*noted, now);
            found.extend(there);
            stays
        });
        if names.is_empty() {
            shown.by_cluster.remove(&place);
        }
        found
    }
}

/// Whether it may not be in the store yet.
fn is_new(noted: Instant, now: Instant) -> bool {
    now.saturating_duration_since(noted) < FORGET_AFTER
}

/// The newest run of each benchmark of this cluster, by name. Until the cache is complete: the
/// previous lines.
pub(crate) fn lines(benchmarks: &Benchmarks, cluster: &DEngineCluster) -> Vec<BenchmarkLine> {
    if benchmarks.store.wait_until_ready().now_or_never().is_none() {
        let status = cluster.status.as_ref();
        return status.map_or_else(Vec::new, |status| status.benchmarks.clone());
    }
    let (name, namespace) = (cluster.name_any(), cluster.namespace());
    let shown = benchmarks.of(&namespace.unwrap_or_default(), &name);
    let mut lines: Vec<BenchmarkLine> = shown
        .iter()
        .filter_map(|benchmark| line(benchmark.0.as_ref().ok()?))
        .collect();
    lines.sort_by(|a, b| {
        b.finished_at
            .cmp(&a.finished_at)
            .then_with(|| a.name.cmp(&b.name))
    });
    lines.truncate(LINES_MAX);
    lines.sort_by(|a, b| a.name.cmp(&b.name));
    lines
}

/// The cluster in whose status a benchmark shows.
pub(crate) fn reports_to(benchmark: &DEngineBenchmark) -> Option<String> {
    let target = &benchmark.spec.target;
    let etcd = target
        .etcd
        .as_ref()
        .and_then(|etcd| etcd.report_to.as_ref());
    target
        .cluster_ref
        .as_ref()
        .or(etcd)
        .map(|cluster| cluster.name.clone())
}

/// A benchmark shows only once it ran.
fn line(benchmark: &DEngineBenchmark) -> Option<BenchmarkLine> {
    let status = benchmark.status.as_ref()?;
    Some(BenchmarkLine {
        name: benchmark.name_any(),
        measures: crate::benchmark::status::measures(benchmark),
        phase: status.phase?,
        run_id: status.run_id.clone()?,
        ops_per_second: status.ops_per_second,
        p99: status.p99.clone(),
        shape: shape(benchmark),
        score: status.score.clone(),
        durability: status.durability.clone(),
        finished_at: status.finished_at.clone(),
    })
}

fn shape(benchmark: &DEngineBenchmark) -> String {
    let spec = &benchmark.spec;
    if let Some(profile) = &spec.profile {
        return format!("profile {profile}");
    }
    let reads = spec
        .consistency
        .map(|c| format!(" ({})", c.as_str()))
        .unwrap_or_default();
    let system = if spec.target.etcd.is_some() {
        "etcd, "
    } else {
        ""
    };
    format!(
        "{system}{} clients on {} connections, {} B keys, {} B values{reads}",
        spec.clients, spec.connections, spec.key_size, spec.value_size
    )
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher;

    use super::*;

    fn benchmark(spec: &str) -> DEngineBenchmark {
        DEngineBenchmark::new("b", serde_saphyr::from_str(spec).unwrap())
    }

    /// A benchmark of this name that measures this cluster.
    fn named(name: &str, cluster: &str) -> Guarded<DEngineBenchmark> {
        let spec = format!("{{workload: put, target: {{clusterRef: {{name: {cluster}}}}}}}");
        let mut benchmark = benchmark(&spec);
        benchmark.metadata.name = Some(name.to_owned());
        benchmark.metadata.namespace = Some("n".to_owned());
        kube::core::DeserializeGuard(Ok(benchmark))
    }

    #[test]
    fn an_etcd_run_may_report_to_a_cluster() {
        let own = benchmark("{workload: put, target: {clusterRef: {name: demo}}}");
        let etcd =
            benchmark("{workload: put, target: {etcd: {endpoints: [e], reportTo: {name: demo}}}}");
        let silent = benchmark("{workload: put, target: {etcd: {endpoints: [e]}}}");
        assert_eq!(reports_to(&own).as_deref(), Some("demo"));
        assert_eq!(reports_to(&etcd).as_deref(), Some("demo"));
        assert_eq!(reports_to(&silent), None);
    }

    #[test]
    fn an_incomplete_cache_removes_no_line() {
        let (store, mut writer) = kube::runtime::reflector::store();
        let mut cluster = DEngineCluster::new("demo", serde_saphyr::from_str("{}").unwrap());
        let said: BenchmarkLine = serde_json::from_value(serde_json::json!({
            "name": "b", "phase": "Succeeded", "runId": "1", "shape": "",
        }))
        .unwrap();
        cluster.status = Some(dengine_crds::DEngineClusterStatus {
            benchmarks: vec![said.clone()],
            ..Default::default()
        });
        let benchmarks = Benchmarks::new(store);
        assert_eq!(lines(&benchmarks, &cluster), [said]);
        for event in [watcher::Event::Init, watcher::Event::InitDone] {
            writer.apply_watcher_event(&event);
        }
        assert_eq!(lines(&benchmarks, &cluster), []);
    }

    #[test]
    fn each_cluster_finds_its_current_benchmarks() {
        let (store, mut writer) = kube::runtime::reflector::store();
        let benchmarks = Benchmarks::new(store);
        let mut tell = |event: watcher::Event<Guarded<DEngineBenchmark>>| {
            writer.apply_watcher_event(&event);
            if let watcher::Event::Apply(benchmark) | watcher::Event::Delete(benchmark) = &event {
                benchmarks.note(benchmark);
            }
        };
        let of = |cluster: &str| {
            let found = benchmarks.of("n", cluster);
            found.iter().map(|b| b.name_any()).collect::<Vec<_>>()
        };
        for (name, cluster) in [("b", "demo"), ("a", "demo"), ("c", "other")] {
            tell(watcher::Event::Apply(named(name, cluster)));
        }
        assert_eq!(
            (of("demo"), of("other")),
            (vec!["a".into(), "b".into()], vec!["c".into()])
        );
        assert!(benchmarks.of("elsewhere", "demo").is_empty());
        tell(watcher::Event::Apply(named("a", "other")));
        tell(watcher::Event::Delete(named("b", "demo")));
        assert_eq!(
            (of("demo"), of("other")),
            (vec![], vec!["a".into(), "c".into()])
        );
        // A list that is not complete yet.
        benchmarks.note(&named("d", "demo"));
        assert!(of("demo").is_empty());
        tell(watcher::Event::Apply(named("d", "demo")));
        assert_eq!(of("demo"), ["d"]);
    }

    #[test]
    fn names_of_unknown_clusters_are_forgotten() {
        let (store, mut writer) = kube::runtime::reflector::store();
        let benchmarks = Benchmarks::new(store);
        let stays = named("stays", "nowhere");
        writer.apply_watcher_event(&watcher::Event::Apply(stays.clone()));
        let start = Instant::now();
        benchmarks.note_at(&stays, start);
        for number in 0..100 {
            let gone = named(&format!("b{number}"), &format!("c{number}"));
            benchmarks.note_at(&gone, start);
        }
        let clusters = || benchmarks.shown.lock().unwrap().by_cluster.len();
        assert_eq!(clusters(), 101, "a list that is not complete yet");
        benchmarks.note_at(&named("new", "demo"), start + FORGET_AFTER);
        assert_eq!(clusters(), 2, "one that is there, and one that is new");
    }

    #[test]
    fn shapes_read_as_text() {
        let reads =
            benchmark("{workload: range, consistency: e, target: {clusterRef: {name: demo}}}");
        assert_eq!(
            shape(&reads),
            "100 clients on 10 connections, 8 B keys, 256 B values (e)"
        );
    }
}
