//! The Job of one run. It runs once: a second try would be a second measurement. It gets no TTL
//! here, because a Job that is deleted before its result arrived looks like one that never ran.

use std::collections::BTreeMap;

use dengine_bench_model::pods;
use dengine_bench_model::results::{Protocol, ReadConsistency, Wire, Workload};
use dengine_crds::DEngineBenchmarkSpec;
use dengine_crds::benchmark::Leg;
use dengine_crds::names::{self, annotations};
use dengine_protocol::ports;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Container, EnvVar, EnvVarSource, LocalObjectReference, ObjectFieldSelector, PodSpec,
    PodTemplateSpec, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::{Benchmark, labels, meta};
use crate::pod;

/// The tool limits the run's time itself and posts what it has; Kubernetes ends only a Job that
/// hangs. The slack is for adding a node, pulling the image, waiting for the target, deleting the
/// keys and posting.
const DEADLINE_SLACK_SECONDS: i64 = 1_200;
/// How long several pods wait for each other, which counts for nothing else.
const JOINING_SECONDS: i64 = 600;
/// After SIGTERM the tool posts what it has, and deletes its keys.
const GRACE_SECONDS: i64 = 60;

/// Flag before each address of the target.
pub(super) const ENDPOINTS: &str = "--endpoints=";

/// The container of the tool.
pub(crate) const CONTAINER: &str = "dengine-bench";

/// The Job of the recorded run.
pub(crate) fn build(benchmark: &Benchmark) -> Job {
    let spec = &benchmark.spec;
    let run = BTreeMap::from([(annotations::RUN_ID.to_owned(), benchmark.posts_as())]);
    let job = names::benchmark::job(&benchmark.name, &benchmark.posts_as());
    let pods = i32::try_from(spec.pods).unwrap_or(i32::MAX);
    Job {
        metadata: ObjectMeta {
            annotations: Some(run.clone()),
            labels: Some(job_labels(benchmark)),
            ..meta(benchmark, job)
        },
        spec: Some(JobSpec {
            parallelism: Some(pods),
            completions: Some(pods),
            // Each pod learns its index, and is known by it.
            completion_mode: benchmark.has_several_pods().then(|| "Indexed".to_owned()),
            // No pod is tried again. One of several that fails ends no other: the first one reports
            // that it is lost, which it could not if Kubernetes ended it for that.
            backoff_limit: (!benchmark.has_several_pods()).then_some(0),
            backoff_limit_per_index: benchmark.has_several_pods().then_some(0),
            active_deadline_seconds: Some(deadline(benchmark)),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels(&benchmark.name)),
                    annotations: Some(run),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod_spec(benchmark)),
            },
            ..JobSpec::default()
        }),
        ..Job::default()
    }
}

fn deadline(benchmark: &Benchmark) -> i64 {
    let joining = if benchmark.has_several_pods() {
        JOINING_SECONDS
    } else {
        0
    };
    i64::from(benchmark.spec.timeout_seconds) + DEADLINE_SLACK_SECONDS + joining
}

/// The target, for people to select by.
fn job_labels(benchmark: &Benchmark) -> BTreeMap<String, String> {
    let target = (names::labels::TARGET.to_owned(), target(benchmark));
    labels(&benchmark.name)
        .into_iter()
        .chain([target])
        .collect()
}

/// A cluster by its name, or an etcd.
fn target(benchmark: &Benchmark) -> String {
    let cluster = &benchmark.spec.target.cluster_ref;
    match (endpoints(benchmark), cluster) {
        ((Protocol::Etcd, endpoints), _) => names::benchmark::etcd_target(&endpoints),
        (_, cluster) => cluster
            .clone()
            .map(|cluster| cluster.name)
            .unwrap_or_default(),
    }
}

fn pod_spec(benchmark: &Benchmark) -> PodSpec {
    let spec = &benchmark.spec;
    let secrets: Vec<LocalObjectReference> = spec
        .image_pull_secrets
        .iter()
        .map(|secret| LocalObjectReference {
            name: secret.name.clone(),
        })
        .collect();
    PodSpec {
        restart_policy: Some("Never".to_owned()),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        service_account_name: Some(names::benchmark::reporter(&benchmark.name)),
        automount_service_account_token: Some(true),
        enable_service_links: Some(false),
        security_context: Some(pod::security_context(benchmark.user)),
        image_pull_secrets: (!secrets.is_empty()).then_some(secrets),
        containers: vec![Container {
            name: CONTAINER.to_owned(),
            image: Some(benchmark.image.clone()),
            image_pull_policy: spec
                .image_pull_policy
                .map(|policy| policy.as_str().to_owned()),
            args: Some(args(benchmark)),
            env: Some(vec![EnvVar {
                name: "NODE_NAME".to_owned(),
                value_from: Some(EnvVarSource {
                    field_ref: Some(ObjectFieldSelector {
                        api_version: Some("v1".to_owned()),
                        field_path: "spec.nodeName".to_owned(),
                    }),
                    ..EnvVarSource::default()
                }),
                ..EnvVar::default()
            }]),
            resources: pod::resources(&spec.resources),
            security_context: Some(pod::container_security_context()),
            ..Container::default()
        }],
        subdomain: benchmark
            .has_several_pods()
            .then(|| names::benchmark::pods_service(&benchmark.name)),
        ..scheduled(benchmark)
    }
}

/// Several pods on one node have no more CPU than one there, so they are spread, if that is
/// possible, and if nobody says how else.
fn scheduled(benchmark: &Benchmark) -> PodSpec {
    let labels = labels(&benchmark.name);
    let scheduled = pod::scheduled(&benchmark.spec.scheduling, &labels);
    if !benchmark.has_several_pods() || scheduled.topology_spread_constraints.is_some() {
        return scheduled;
    }
    PodSpec {
        topology_spread_constraints: Some(vec![TopologySpreadConstraint {
            max_skew: 1,
            topology_key: "kubernetes.io/hostname".to_owned(),
            when_unsatisfiable: "ScheduleAnyway".to_owned(),
            label_selector: Some(LabelSelector {
                match_labels: Some(labels),
                ..LabelSelector::default()
            }),
            ..TopologySpreadConstraint::default()
        }]),
        ..scheduled
    }
}

/// The same flags that a person would type.
fn args(benchmark: &Benchmark) -> Vec<String> {
    let spec = &benchmark.spec;
    let (protocol, endpoints) = endpoints(benchmark);
    let mut args = match (&spec.profile, spec.workload) {
        (Some(profile), _) => vec!["run".to_owned(), format!("--profile={profile}")],
        (None, workload) => command(workload.unwrap_or(Workload::Put)),
    };
    args.push(format!("--protocol={}", protocol.as_str()));
    // It is about the cluster: an etcd beside it has no choice.
    let wire = spec.wire.filter(|_| protocol == Protocol::Dengine);
    args.extend(wire.map(|wire| format!("--wire={}", wire.as_str())));
    args.extend(
        endpoints
            .iter()
            .map(|endpoint| format!("{ENDPOINTS}{endpoint}")),
    );
    // A profile's workloads have parameters of their own.
    if let (None, Some(workload)) = (&spec.profile, spec.workload) {
        args.extend(shape(spec, workload));
    }
    if let Some(prefix) = &spec.key_prefix {
        args.push(format!("--key-prefix={prefix}"));
    }
    args.extend(pods_of_many(benchmark));
    args.push(format!("--timeout={}s", spec.timeout_seconds));
    args.push(format!(
        "--report-to={}/{}",
        benchmark.namespace, benchmark.name
    ));
    args.push(format!("--run-id={}", benchmark.posts_as()));
    args
}

/// Which index each pod has, Kubernetes tells it (`JOB_COMPLETION_INDEX`).
fn pods_of_many(benchmark: &Benchmark) -> Vec<String> {
    if !benchmark.has_several_pods() {
        return Vec::new();
    }
    let (name, run) = (&benchmark.name, benchmark.posts_as());
    let first = names::benchmark::first_pod(name, &run, &benchmark.namespace);
    vec![
        format!("--pods={}", benchmark.spec.pods),
        format!("--first-pod={first}:{}", pods::PORT),
    ]
}

/// Protocol and addresses of the target.
pub(super) fn endpoints(benchmark: &Benchmark) -> (Protocol, Vec<String>) {
    let spec = &benchmark.spec;
    if let (Leg::Rival, Some(with)) = (benchmark.leg, &spec.compare_with) {
        return (Protocol::Etcd, with.etcd.endpoints.clone());
    }
    match (&spec.target.cluster_ref, &spec.target.etcd) {
        (Some(cluster), _) => {
            let service = names::cluster::client_service(&cluster.name);
            let port = match spec.wire {
                Some(Wire::Etcd) => ports::ETCD,
                Some(Wire::Pipelined | Wire::Unary) | None => ports::CLIENT,
            };
            let endpoint = format!("{service}.{}.svc:{port}", benchmark.namespace);
            (Protocol::Dengine, vec![endpoint])
        }
        (None, Some(etcd)) => (Protocol::Etcd, etcd.endpoints.clone()),
        // The schema refuses a target without either.
        (None, None) => (Protocol::Dengine, Vec::new()),
    }
}

fn shape(spec: &DEngineBenchmarkSpec, workload: Workload) -> Vec<String> {
    let mut args = vec![
        format!("--conns={}", spec.connections),
        format!("--clients={}", spec.clients),
        format!("--total={}", spec.total),
        format!("--key-size={}", spec.key_size),
        format!("--value-size={}", spec.value_size),
    ];
    if let Some(seconds) = spec.at_least_seconds {
        args.push(format!("--at-least={seconds}s"));
    }
    if spec.key_space > 0 {
        args.push(format!("--key-space={}", spec.key_space));
    }
    if spec.sequential_keys {
        args.push("--sequential-keys".to_owned());
    }
    args.extend(reads_and_watches(spec, workload));
    args
}

/// What only some workloads have.
fn reads_and_watches(spec: &DEngineBenchmarkSpec, workload: Workload) -> Vec<String> {
    let consistency = spec.consistency.map(ReadConsistency::as_str);
    match workload {
        Workload::Put | Workload::Swap | Workload::Seen | Workload::List | Workload::Scan => {
            Vec::new()
        }
        Workload::Range => vec![format!("--consistency={}", consistency.unwrap_or("l"))],
        Workload::Mixed => {
            let consistency = consistency.map(|it| format!("--read-consistency={it}"));
            let percent = spec.read_percent.map(|it| format!("--read-percent={it}"));
            consistency.into_iter().chain(percent).collect()
        }
        Workload::Watch => {
            let watchers = spec.watchers.map(|it| format!("--watchers={it}"));
            watchers.into_iter().collect()
        }
    }
}

/// The tool's subcommand for a workload.
fn command(workload: Workload) -> Vec<String> {
    match workload {
        Workload::Put | Workload::Range | Workload::Swap => vec![workload.as_str().to_owned()],
        Workload::Mixed | Workload::Watch => {
            vec![
                "run".to_owned(),
                format!("--workload={}", workload.as_str()),
            ]
        }
        Workload::Seen => vec!["run".to_owned(), "--workload=extra/put-seen".to_owned()],
        Workload::List => vec![
            "run".to_owned(),
            "--workload=extra/list-while-writing".to_owned(),
        ],
        Workload::Scan => vec!["run".to_owned(), "--workload=extra/paged-list".to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::resources::tests::benchmark;

    #[test]
    fn flags_are_those_that_a_person_would_type() {
        let put = benchmark("{workload: put, target: {clusterRef: {name: demo}}}");
        assert_eq!(
            args(&put).join(" "),
            "put --protocol=dengine --endpoints=demo-client.test.svc:4100 --conns=10 \
             --clients=100 --total=10000 --key-size=8 --value-size=256 --timeout=600s \
             --report-to=test/demo-write --run-id=1"
        );
        let range = benchmark(
            "{workload: range, atLeastSeconds: 30, keySpace: 5, sequentialKeys: true, keyPrefix: \
             p/, target: {etcd: {endpoints: [a, b]}}}",
        );
        assert_eq!(
            args(&range).join(" "),
            "range --protocol=etcd --endpoints=a --endpoints=b --conns=10 --clients=100 \
             --total=10000 --key-size=8 --value-size=256 --at-least=30s --key-space=5 \
             --sequential-keys --consistency=l --key-prefix=p/ --timeout=600s \
             --report-to=test/demo-write --run-id=1"
        );
        let swap = benchmark("{workload: swap, target: {clusterRef: {name: demo}}}");
        assert_eq!(args(&swap)[0], "swap");
        let seen = benchmark("{workload: seen, target: {clusterRef: {name: demo}}}");
        assert_eq!(args(&seen)[..2], ["run", "--workload=extra/put-seen"]);
        let list = benchmark("{workload: list, target: {clusterRef: {name: demo}}}");
        assert_eq!(args(&list)[1], "--workload=extra/list-while-writing");
    }

    #[test]
    fn what_only_some_workloads_have_is_passed_on_when_it_is_set() {
        let given = |spec: &str| {
            let args = args(&benchmark(spec));
            let own = ["--read", "--watchers", "--consistency"];
            let own = |arg: &String| own.iter().any(|flag| arg.starts_with(flag));
            args.into_iter().filter(own).collect::<Vec<_>>()
        };
        let target = "target: {clusterRef: {name: demo}}";
        assert_eq!(
            given(&format!(
                "{{workload: mixed, readPercent: 50, consistency: e, {target}}}"
            )),
            ["--read-consistency=e", "--read-percent=50"]
        );
        assert_eq!(
            given(&format!("{{workload: watch, watchers: 9, {target}}}")),
            ["--watchers=9"]
        );
        for workload in ["put", "mixed", "watch", "swap"] {
            let plain = given(&format!("{{workload: {workload}, {target}}}"));
            assert!(plain.is_empty(), "{plain:?}");
        }
    }

    #[test]
    fn a_profile_is_run_on_both_systems_alike() {
        let mut both = benchmark(
            "{profile: quick, target: {clusterRef: {name: demo}}, compareWith: {etcd: {endpoints: \
             [e:2379]}}}",
        );
        assert_eq!(
            args(&both).join(" "),
            "run --profile=quick --protocol=dengine --endpoints=demo-client.test.svc:4100 \
             --timeout=600s --report-to=test/demo-write --run-id=1"
        );
        both.leg = Leg::Rival;
        assert_eq!(
            args(&both).join(" "),
            "run --profile=quick --protocol=etcd --endpoints=e:2379 \
             --timeout=600s --report-to=test/demo-write --run-id=1@etcd"
        );
    }

    #[test]
    fn etcds_api_is_at_a_port_of_its_own_and_etcd_beside_it_is_told_of_no_wire() {
        let mut both = benchmark(
            "{profile: etcd, wire: etcd, target: {clusterRef: {name: demo}}, compareWith: {etcd: \
             {endpoints: [e:2379]}}}",
        );
        let target = |benchmark: &Benchmark| args(benchmark)[2..5].join(" ");
        assert_eq!(
            target(&both),
            "--protocol=dengine --wire=etcd --endpoints=demo-client.test.svc:2379"
        );
        both.leg = Leg::Rival;
        assert!(target(&both).starts_with("--protocol=etcd --endpoints=e:2379 "));
        let unary = benchmark("{workload: put, wire: unary, target: {clusterRef: {name: demo}}}");
        let unary = args(&unary).join(" ");
        let own = "--protocol=dengine --wire=unary --endpoints=demo-client.test.svc:4100 ";
        assert!(unary.contains(own), "{unary}");
    }

    #[test]
    fn labels_name_the_target_of_a_job() {
        let target = |spec: &str, leg| {
            let benchmark = Benchmark {
                leg,
                ..benchmark(spec)
            };
            let labels = build(&benchmark).metadata.labels.unwrap();
            labels[names::labels::TARGET].clone()
        };
        let both = "{profile: quick, target: {clusterRef: {name: demo}}, compareWith: {etcd: \
                    {endpoints: [a, b]}}}";
        assert_eq!(target(both, Leg::Target), "demo");
        let etcd = "{workload: put, target: {etcd: {endpoints: [b, a]}}}";
        let etcd = target(etcd, Leg::Target);
        assert_eq!(target(both, Leg::Rival), etcd);
        assert!(etcd.starts_with("etcd."), "{etcd}");
    }

    #[test]
    fn a_jobs_pod_names_no_user_if_the_platform_assigns_one() {
        let benchmark = Benchmark {
            user: pod::User::Assigned,
            ..benchmark("{workload: put, target: {clusterRef: {name: demo}}}")
        };
        let pod = pod_spec(&benchmark).security_context.unwrap();
        let named = [pod.run_as_user, pod.run_as_group, pod.fs_group];
        assert_eq!(named, [None; 3]);
    }

    /// What one pod does is what it did before there could be several.
    #[test]
    fn one_pod_needs_no_others() {
        let one = build(&benchmark(
            "{workload: put, target: {clusterRef: {name: demo}}}",
        ));
        let spec = one.spec.unwrap();
        assert_eq!((spec.parallelism, spec.completions), (Some(1), Some(1)));
        assert_eq!(spec.completion_mode, None);
        let pod = spec.template.spec.unwrap();
        assert_eq!(
            (pod.subdomain, pod.topology_spread_constraints),
            (None, None)
        );
    }

    #[test]
    fn several_pods_are_indexed_spread_and_find_the_first() {
        let spec = "{workload: put, pods: 3, target: {clusterRef: {name: demo}}}";
        let mut several = benchmark(spec);
        let job = build(&several).spec.unwrap();
        assert_eq!((job.parallelism, job.completions), (Some(3), Some(3)));
        assert_eq!(job.completion_mode.as_deref(), Some("Indexed"));
        let limits = (job.backoff_limit, job.backoff_limit_per_index);
        assert_eq!(limits, (None, Some(0)), "one that fails ends no other");
        assert_eq!(job.active_deadline_seconds, Some(600 + 1_200 + 600));
        let pod = job.template.spec.unwrap();
        let spread = pod.topology_spread_constraints.unwrap().remove(0);
        assert_eq!(spread.when_unsatisfiable, "ScheduleAnyway");
        assert_eq!(
            spread.label_selector.unwrap().match_labels,
            job.template.metadata.unwrap().labels
        );
        let own = |benchmark: &Benchmark| {
            let args = args(benchmark).into_iter();
            args.filter(|arg| arg.contains("pod")).collect::<Vec<_>>()
        };
        let job = names::benchmark::job("demo-write", "1");
        let first = format!("--first-pod={job}-0.demo-write-pods.test.svc:4104");
        assert_eq!(own(&several), ["--pods=3".to_owned(), first.clone()]);
        several.leg = Leg::Rival;
        assert_ne!(own(&several)[1], first, "a Job of its own");
    }

    #[test]
    fn what_a_spec_says_of_spreading_counts() {
        let spread = "{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}";
        let several = benchmark(&format!(
            "{{profile: quick, pods: 2, target: {{clusterRef: {{name: demo}}}}, scheduling: \
             {{topologySpreadConstraints: [{spread}]}}}}"
        ));
        let constraints = pod_spec(&several).topology_spread_constraints.unwrap();
        let keys: Vec<&str> = constraints.iter().map(|it| &*it.topology_key).collect();
        assert_eq!(keys, ["zone"]);
    }

    #[test]
    fn a_job_runs_once_and_has_no_ttl_before_its_result() {
        let job = build(&benchmark(
            "{workload: put, timeoutSeconds: 60, target: {clusterRef: {name: demo}}}",
        ));
        let spec = job.spec.unwrap();
        let limits = (spec.backoff_limit, spec.backoff_limit_per_index);
        assert_eq!(limits, (Some(0), None));
        assert_eq!(spec.active_deadline_seconds, Some(1_260));
        assert_eq!(spec.ttl_seconds_after_finished, None);
        assert_eq!(
            spec.template.spec.unwrap().restart_policy.as_deref(),
            Some("Never")
        );
    }
}
