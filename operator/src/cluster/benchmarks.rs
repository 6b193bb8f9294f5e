//! The lines of a cluster's status about its benchmarks. Pure but for the cache it reads; the
//! benchmarks' own controller never writes here.

use dengine_crds::cluster::BenchmarkLine;
use dengine_crds::{DEngineBenchmark, DEngineCluster};
use futures::FutureExt;
use kube::ResourceExt;
use kube::runtime::reflector::Store;

use crate::guard::Guarded;

/// As many lines as the schema lets a status hold; the newest runs win.
const LINES_MAX: usize = 64;

/// The newest run of each benchmark of this cluster, by name. Until the cache has seen all of them: what was said before.
pub fn lines(
    benchmarks: &Store<Guarded<DEngineBenchmark>>,
    cluster: &DEngineCluster,
) -> Vec<BenchmarkLine> {
    if benchmarks.wait_until_ready().now_or_never().is_none() {
        let status = cluster.status.as_ref();
        return status.map_or_else(Vec::new, |status| status.benchmarks.clone());
    }
    let (name, namespace) = (cluster.name_any(), cluster.namespace());
    let mut lines: Vec<BenchmarkLine> = benchmarks
        .state()
        .iter()
        .filter(|benchmark| benchmark.namespace() == namespace)
        .filter_map(|benchmark| benchmark.0.as_ref().ok())
        .filter(|benchmark| reports_to(benchmark).as_deref() == Some(&name))
        .filter_map(line)
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
pub fn reports_to(benchmark: &DEngineBenchmark) -> Option<String> {
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

/// Nothing is said of a benchmark before it ran.
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
        DEngineBenchmark::new("b", serde_yaml::from_str(spec).unwrap())
    }

    #[test]
    fn an_etcd_run_may_show_beside_the_clusters_own() {
        let own = benchmark("{workload: put, target: {clusterRef: {name: demo}}}");
        let etcd =
            benchmark("{workload: put, target: {etcd: {endpoints: [e], reportTo: {name: demo}}}}");
        let silent = benchmark("{workload: put, target: {etcd: {endpoints: [e]}}}");
        assert_eq!(reports_to(&own).as_deref(), Some("demo"));
        assert_eq!(reports_to(&etcd).as_deref(), Some("demo"));
        assert_eq!(reports_to(&silent), None);
    }

    #[test]
    fn a_cache_that_is_not_complete_takes_no_line_away() {
        let (store, mut writer) = kube::runtime::reflector::store();
        let mut cluster = DEngineCluster::new("demo", serde_yaml::from_str("{}").unwrap());
        let said: BenchmarkLine = serde_json::from_value(serde_json::json!({
            "name": "b", "phase": "Succeeded", "runId": "1", "shape": "",
        }))
        .unwrap();
        cluster.status = Some(dengine_crds::DEngineClusterStatus {
            benchmarks: vec![said.clone()],
            ..Default::default()
        });
        assert_eq!(lines(&store, &cluster), [said]);
        for event in [watcher::Event::Init, watcher::Event::InitDone] {
            writer.apply_watcher_event(&event);
        }
        assert_eq!(lines(&store, &cluster), []);
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
