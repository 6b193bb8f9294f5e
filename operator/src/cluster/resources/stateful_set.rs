//! The StatefulSet of the members. `OnDelete`, because the operator restarts members itself, one at
//! a time and the leader last; `Parallel`, because an empty member only waits and may start beside
//! others. Claims are retained: the operator deletes a claim itself, once its member is removed.

use std::collections::BTreeMap;

use dengine_crds::cluster::{DEngineClusterSpec, Engine, Retention};
use dengine_crds::common::{Scheduling, TopologySpread, WhenUnsatisfiable};
use dengine_crds::names::{self, annotations};
use dengine_protocol::{health, ports};
use k8s_openapi::api::apps::v1::{
    StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec,
    StatefulSetUpdateStrategy,
};
use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerPort, EnvVar, EnvVarSource, GRPCAction, Lifecycle,
    LifecycleHandler, LocalObjectReference, ObjectFieldSelector, PersistentVolumeClaim,
    PersistentVolumeClaimSpec, PodAffinityTerm, PodAntiAffinity, PodSpec, PodTemplateSpec, Probe,
    SleepAction, VolumeMount, VolumeResourceRequirements, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::{labels, meta, selector};
use crate::cluster::validate::Cluster;
use crate::{hash, pod};

/// Mount path of the volume; the data directory is one level below, beside `lost+found`.
const MOUNT: &str = "/var/lib/dengine";
const DATA_DIR: &str = "/var/lib/dengine/data";

/// How long a stopping member continues to serve.
const SERVES_ON_SECONDS: i64 = 2;

/// A stopping member transfers leadership and finishes the requests in flight.
const TERMINATION_GRACE_SECONDS: i64 = 30;

/// The StatefulSet `NAME` of this size. `claim_size` is that of the existing claim template, since
/// Kubernetes refuses to change it; claims grow one by one.
pub(crate) fn build(cluster: &Cluster, replicas: u32, claim_size: Option<&str>) -> StatefulSet {
    StatefulSet {
        metadata: meta(cluster, names::cluster::stateful_set(&cluster.name)),
        spec: Some(StatefulSetSpec {
            replicas: Some(i32::try_from(replicas).expect("a handful of members")),
            service_name: Some(names::cluster::peer_service(&cluster.name)),
            pod_management_policy: Some("Parallel".to_owned()),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("OnDelete".to_owned()),
                ..StatefulSetUpdateStrategy::default()
            }),
            persistent_volume_claim_retention_policy: Some(
                StatefulSetPersistentVolumeClaimRetentionPolicy {
                    when_deleted: Some("Retain".to_owned()),
                    when_scaled: Some("Retain".to_owned()),
                },
            ),
            selector: LabelSelector {
                match_labels: Some(selector(&cluster.name)),
                ..LabelSelector::default()
            },
            template: template(cluster),
            volume_claim_templates: Some(vec![claim_template(cluster, claim_size)]),
            ..StatefulSetSpec::default()
        }),
        ..StatefulSet::default()
    }
}

/// Hash of the pod template: a pod with another one is outdated.
pub(crate) fn template_hash(cluster: &Cluster) -> String {
    let template = bare_template(cluster);
    hash::of(&serde_json::to_value(template).expect("a template is plain data"))
}

fn template(cluster: &Cluster) -> PodTemplateSpec {
    let mut template = bare_template(cluster);
    let metadata = template.metadata.get_or_insert_default();
    let hash = (
        annotations::TEMPLATE_HASH.to_owned(),
        template_hash(cluster),
    );
    metadata.annotations.get_or_insert_default().extend([hash]);
    template
}

fn bare_template(cluster: &Cluster) -> PodTemplateSpec {
    let spec = &cluster.spec;
    let restart = cluster
        .restart
        .iter()
        .map(|value| (annotations::RESTART.to_owned(), value.clone()));
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels(&cluster.name)),
            annotations: Some(restart.collect()),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            service_account_name: Some(names::cluster::stateful_set(&cluster.name)),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            termination_grace_period_seconds: Some(TERMINATION_GRACE_SECONDS),
            security_context: Some(pod::security_context(cluster.user)),
            image_pull_secrets: image_pull_secrets(cluster),
            affinity: Some(spread_over_nodes(cluster)),
            containers: vec![container(cluster)],
            ..pod::scheduled(&scheduling(&spec.scheduling), &selector(&cluster.name))
        }),
    }
}

fn image_pull_secrets(cluster: &Cluster) -> Option<Vec<LocalObjectReference>> {
    let secrets = &cluster.spec.image_pull_secrets;
    (!secrets.is_empty()).then(|| {
        secrets
            .iter()
            .map(|secret| LocalObjectReference {
                name: secret.name.clone(),
            })
            .collect()
    })
}

/// Without constraints in the spec, members spread over zones where possible; nodes without that
/// label count as one zone.
fn scheduling(scheduling: &Scheduling) -> Scheduling {
    let mut scheduling = scheduling.clone();
    if scheduling.topology_spread_constraints.is_empty() {
        scheduling.topology_spread_constraints.push(TopologySpread {
            max_skew: 1,
            topology_key: "topology.kubernetes.io/zone".to_owned(),
            when_unsatisfiable: WhenUnsatisfiable::ScheduleAnyway,
        });
    }
    scheduling
}

/// Preferred, not required: a cluster must start on fewer nodes than members.
fn spread_over_nodes(cluster: &Cluster) -> Affinity {
    Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![
                WeightedPodAffinityTerm {
                    weight: 100,
                    pod_affinity_term: PodAffinityTerm {
                        topology_key: "kubernetes.io/hostname".to_owned(),
                        label_selector: Some(LabelSelector {
                            match_labels: Some(selector(&cluster.name)),
                            ..LabelSelector::default()
                        }),
                        ..PodAffinityTerm::default()
                    },
                },
            ]),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    }
}

fn container(cluster: &Cluster) -> Container {
    let port = |name: &str, port: u16| ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(port),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    };
    Container {
        name: names::cluster::CONTAINER.to_owned(),
        image: Some(cluster.image.clone()),
        image_pull_policy: cluster
            .spec
            .image_pull_policy
            .map(|p| p.as_str().to_owned()),
        args: Some(args(cluster)),
        env: Some(env(&cluster.spec)),
        ports: Some(
            [
                port("client", ports::CLIENT),
                port("peer", ports::PEER),
                port("monitor", ports::MONITOR),
                port("admin", ports::ADMIN),
            ]
            .into_iter()
            .chain(serves_etcd(&cluster.spec).then(|| port("etcd", ports::ETCD)))
            .collect(),
        ),
        // The end of a failed member's log, so that status and events can show why it ended.
        lifecycle: Some(keep_serving()),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        resources: pod::resources(&cluster.spec.resources),
        security_context: Some(pod::container_security_context()),
        volume_mounts: Some(vec![VolumeMount {
            name: names::cluster::VOLUME.to_owned(),
            mount_path: MOUNT.to_owned(),
            ..VolumeMount::default()
        }]),
        // Opening a large data directory may take minutes; liveness starts to count after that.
        startup_probe: Some(probe(health::LIVE, 2, 300)),
        liveness_probe: Some(probe(health::LIVE, 10, 6)),
        readiness_probe: Some(probe(health::READY, 2, 3)),
        ..Container::default()
    }
}

/// Address of this member for the others. The member reports it too, so that the operator can tell
/// who answers at a pod's address.
pub(crate) fn peer_address(cluster: &Cluster, pod: &str) -> String {
    let host = names::cluster::member_host(&cluster.name, &cluster.namespace, pod);
    format!("{host}:{}", ports::PEER)
}

/// Arguments are what differs between members, or names a place; settings are environment
/// variables.
fn args(cluster: &Cluster) -> Vec<String> {
    let host = names::cluster::member_host(&cluster.name, &cluster.namespace, "$(POD_NAME)");
    vec![
        "serve".to_owned(),
        "--name=$(POD_NAME)".to_owned(),
        format!("--data-dir={DATA_DIR}"),
        // Addresses of both families; the server uses IPv4 alone where there is no IPv6.
        format!("--listen-client=[::]:{}", ports::CLIENT),
        format!("--listen-peer=[::]:{}", ports::PEER),
        format!("--listen-monitor=[::]:{}", ports::MONITOR),
        format!("--advertise-client={host}:{}", ports::CLIENT),
        format!("--advertise-peer={}", peer_address(cluster, "$(POD_NAME)")),
    ]
}

fn env(spec: &DEngineClusterSpec) -> Vec<EnvVar> {
    let engine = &spec.engine;
    let set = |name: &str, value: String| EnvVar {
        name: name.to_owned(),
        value: Some(value),
        ..EnvVar::default()
    };
    // Only what is set: a new default of the server must not restart members.
    let retention = retention(spec);
    let retention = [
        ("DENGINE_RETENTION_REVISIONS", retention.revisions),
        ("DENGINE_RETENTION_SECONDS", retention.seconds),
    ];
    let retention = retention
        .into_iter()
        .filter_map(|(name, value)| Some(set(name, value?.to_string())));
    let mut all = vec![
        EnvVar {
            name: "POD_NAME".to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    api_version: Some("v1".to_owned()),
                    field_path: "metadata.name".to_owned(),
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        },
        // Not an argument: a server of an older version ignores unknown variables, and refuses
        // unknown arguments.
        set("DENGINE_LISTEN_ADMIN", format!("[::]:{}", ports::ADMIN)),
        set("DENGINE_DURABILITY", engine.durability.as_str().to_owned()),
        set("DENGINE_TICK_MS", engine.tick_ms.to_string()),
        set("DENGINE_ELECTION_TICKS", engine.election_ticks.to_string()),
        set("DENGINE_MAX_KEY_BYTES", engine.max_key_bytes.to_string()),
        set(
            "DENGINE_MAX_VALUE_BYTES",
            engine.max_value_bytes.to_string(),
        ),
        set("DENGINE_LOG_LEVEL", engine.log_level.as_str().to_owned()),
        set("DENGINE_LOG_FORMAT", "json".to_owned()),
    ];
    all.extend(retention);
    // As an argument members of an older version would refuse it.
    let etcd = serves_etcd(spec).then(|| format!("[::]:{}", ports::ETCD));
    all.extend(etcd.map(|address| set("DENGINE_LISTEN_ETCD", address)));
    let slow = engine.slow_request_ms;
    all.extend(slow.map(|ms| set("DENGINE_SLOW_REQUEST_MS", ms.to_string())));
    let slow_disk = engine.slow_disk_ms;
    all.extend(slow_disk.map(|ms| set("DENGINE_SLOW_DISK_MS", ms.to_string())));
    let memory = memory(engine).into_iter();
    all.extend(memory.filter_map(|(name, bytes)| Some(set(name, bytes?.to_string()))));
    if let Some(tracing) = &spec.tracing {
        all.push(set("DENGINE_TRACING_ENDPOINT", tracing.endpoint.clone()));
        let ratio = tracing.sample_ratio.map(|it| it.to_string());
        all.extend(ratio.map(|it| set("DENGINE_TRACING_SAMPLE_RATIO", it)));
    }
    all
}

/// What the members keep in memory, and how much of it.
fn memory(engine: &Engine) -> [(&'static str, Option<u64>); 3] {
    [
        (
            "DENGINE_STATE_BLOCK_CACHE_BYTES",
            engine.state_block_cache_bytes,
        ),
        (
            "DENGINE_STATE_KEY_CACHE_BYTES",
            engine.state_key_cache_bytes,
        ),
        (
            "DENGINE_STATE_WRITE_BUFFER_BYTES",
            engine.state_write_buffer_bytes,
        ),
    ]
}

pub(super) fn serves_etcd(spec: &DEngineClusterSpec) -> bool {
    spec.etcd.is_some_and(|etcd| etcd.enabled)
}

/// Clients of etcd compact history themselves, and count on what they did not compact: an API
/// server of Kubernetes reads its pages from it for minutes.
fn retention(spec: &DEngineClusterSpec) -> Retention {
    let none = Retention {
        revisions: Some(0),
        seconds: Some(0),
    };
    let unset = || serves_etcd(spec).then_some(none);
    spec.engine.retention.or_else(unset).unwrap_or_default()
}

/// Load balancers may not know for a moment that a member is stopping; it serves until then. The
/// kubelet itself waits: our images hold no program but the server.
fn keep_serving() -> Lifecycle {
    Lifecycle {
        pre_stop: Some(LifecycleHandler {
            sleep: Some(SleepAction {
                seconds: SERVES_ON_SECONDS,
            }),
            ..LifecycleHandler::default()
        }),
        ..Lifecycle::default()
    }
}

fn probe(service: &str, period_seconds: i32, failures: i32) -> Probe {
    Probe {
        grpc: Some(GRPCAction {
            port: i32::from(ports::MONITOR),
            service: Some(service.to_owned()),
        }),
        period_seconds: Some(period_seconds),
        timeout_seconds: Some(2),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

fn claim_template(cluster: &Cluster, claim_size: Option<&str>) -> PersistentVolumeClaim {
    let storage = &cluster.spec.storage;
    let size = claim_size.unwrap_or(&storage.size).to_owned();
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(names::cluster::VOLUME.to_owned()),
            labels: Some(labels(&cluster.name)),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: storage.storage_class_name.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), Quantity(size))])),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::validate::tests::{cluster, cluster_with};
    use crate::pod::User;

    fn pod_spec(cluster: &Cluster) -> PodSpec {
        build(cluster, 3, None).spec.unwrap().template.spec.unwrap()
    }

    #[test]
    fn no_stray_scale_and_no_rolling_update_touches_data() {
        let spec = build(&cluster("demo"), 3, None).spec.unwrap();
        let retention = spec.persistent_volume_claim_retention_policy.unwrap();
        assert_eq!(retention.when_deleted.as_deref(), Some("Retain"));
        assert_eq!(retention.when_scaled.as_deref(), Some("Retain"));
        assert_eq!(
            spec.update_strategy.unwrap().type_.as_deref(),
            Some("OnDelete")
        );
        assert_eq!(spec.pod_management_policy.as_deref(), Some("Parallel"));
    }

    #[test]
    fn pods_pass_the_restricted_standard() {
        let spec = pod_spec(&cluster("demo"));
        let pod = spec.security_context.unwrap();
        assert_eq!(pod.run_as_non_root, Some(true));
        assert_eq!(pod.seccomp_profile.unwrap().type_, "RuntimeDefault");
        let container = spec.containers[0].security_context.clone().unwrap();
        assert_eq!(container.allow_privilege_escalation, Some(false));
        assert_eq!(container.read_only_root_filesystem, Some(true));
        assert_eq!(
            container.capabilities.unwrap().drop,
            Some(vec!["ALL".to_owned()])
        );
        assert_eq!(spec.automount_service_account_token, Some(false));
    }

    /// OpenShift refuses pods with a user of their own. Members that already run as the images'
    /// user are not restarted.
    #[test]
    fn pods_name_no_user_if_the_platform_assigns_one() {
        let fixed = cluster("demo");
        let assigned = Cluster {
            user: User::Assigned,
            ..fixed.clone()
        };
        let names = |cluster: &Cluster| {
            let pod = pod_spec(cluster).security_context.unwrap();
            assert_eq!(pod.run_as_non_root, Some(true));
            [pod.run_as_user, pod.run_as_group, pod.fs_group]
        };
        assert_eq!(names(&fixed), [Some(65532); 3]);
        assert_eq!(names(&assigned), [None; 3]);
        assert_ne!(template_hash(&assigned), template_hash(&fixed));
    }

    #[test]
    fn members_advertise_a_name_that_outlives_their_pod() {
        let args = pod_spec(&cluster("demo")).containers[0]
            .args
            .clone()
            .unwrap();
        assert!(args.contains(&"--advertise-peer=$(POD_NAME).demo-peer.test.svc:4101".to_owned()));
        assert!(
            args.contains(&"--advertise-client=$(POD_NAME).demo-peer.test.svc:4100".to_owned())
        );
    }

    #[test]
    fn members_listen_on_every_address_and_serve_while_stopping() {
        let container = pod_spec(&cluster("demo")).containers.remove(0);
        let sleep = container.lifecycle.unwrap().pre_stop.unwrap().sleep;
        assert_eq!(sleep.unwrap().seconds, 2);
        let args = container.args.unwrap();
        let listens = args.iter().filter(|arg| arg.starts_with("--listen-"));
        let addresses: Vec<&str> = listens
            .filter_map(|arg| Some(arg.split_once('=')?.1))
            .collect();
        assert_eq!(addresses, ["[::]:4100", "[::]:4101", "[::]:4102"]);
        let env = container.env.unwrap();
        let admin = env.iter().find(|set| set.name == "DENGINE_LISTEN_ADMIN");
        assert_eq!(admin.unwrap().value.as_deref(), Some("[::]:4103"));
    }

    #[test]
    fn members_spread_over_zones_unless_the_spec_says_otherwise() {
        let spread = |spec: &str| {
            let spread = pod_spec(&cluster_with("demo", spec)).topology_spread_constraints;
            let spread = spread.unwrap();
            assert_eq!(spread.len(), 1);
            (
                spread[0].topology_key.clone(),
                spread[0].when_unsatisfiable.clone(),
            )
        };
        let default = (
            "topology.kubernetes.io/zone".to_owned(),
            "ScheduleAnyway".to_owned(),
        );
        assert_eq!(spread("{}"), default);
        let own = "{scheduling: {topologySpreadConstraints: [{maxSkew: 1, topologyKey: rack, \
                   whenUnsatisfiable: DoNotSchedule}]}}";
        assert_eq!(spread(own), ("rack".to_owned(), "DoNotSchedule".to_owned()));
    }

    #[test]
    fn readiness_may_depend_on_the_quorum_and_liveness_may_not() {
        let container = pod_spec(&cluster("demo")).containers.remove(0);
        let service = |probe: Option<Probe>| probe.unwrap().grpc.unwrap().service.unwrap();
        assert_eq!(service(container.readiness_probe), "ready");
        assert_eq!(service(container.liveness_probe), "live");
        assert_eq!(service(container.startup_probe), "live");
    }

    #[test]
    fn only_what_a_pod_needs_to_restart_for_changes_the_hash() {
        let base = template_hash(&cluster("demo"));
        for same in [
            "{replicas: 5}",
            "{paused: true}",
            "{storage: {size: 2Gi}}",
            "{etcd: {enabled: false}}",
        ] {
            assert_eq!(template_hash(&cluster_with("demo", same)), base, "{same}");
        }
        for other in [
            "{image: other}",
            "{engine: {tickMs: 50}}",
            "{engine: {retention: {seconds: 60}}}",
            "{tracing: {endpoint: 'http://collector:4317'}}",
            "{etcd: {enabled: true}}",
            "{resources: {requests: {cpu: 1}}}",
            "{scheduling: {nodeSelector: {disk: fast}}}",
        ] {
            assert_ne!(template_hash(&cluster_with("demo", other)), base, "{other}");
        }
    }

    #[test]
    fn unset_settings_keep_the_servers_default() {
        let names = |spec: &str| -> Vec<String> {
            let env = env(&cluster_with("demo", spec).spec);
            env.into_iter().map(|variable| variable.name).collect()
        };
        let retains = |names: Vec<String>| names.iter().any(|name| name.contains("RETENTION"));
        assert!(!retains(names("{}")));
        assert!(retains(names("{engine: {retention: {revisions: 5}}}")));
        for (spec, name) in [
            ("slowRequestMs: 0", "DENGINE_SLOW_REQUEST_MS"),
            ("slowDiskMs: 0", "DENGINE_SLOW_DISK_MS"),
            (
                "stateBlockCacheBytes: 1048576",
                "DENGINE_STATE_BLOCK_CACHE_BYTES",
            ),
            ("stateKeyCacheBytes: 0", "DENGINE_STATE_KEY_CACHE_BYTES"),
            (
                "stateWriteBufferBytes: 1048576",
                "DENGINE_STATE_WRITE_BUFFER_BYTES",
            ),
        ] {
            let name = name.to_owned();
            assert!(!names("{}").contains(&name), "{name}");
            let set = names(&format!("{{engine: {{{spec}}}}}"));
            assert!(set.contains(&name), "{name}");
        }
    }

    #[test]
    fn etcds_api_has_a_port_and_keeps_history_until_a_client_compacts_it() {
        let has = |spec: &str, name: &str| {
            let env = env(&cluster_with("demo", spec).spec).into_iter();
            let found = env.filter(|it| it.name == name).map(|it| it.value);
            found.collect::<Vec<_>>()
        };
        let some = |value: &str| vec![Some(value.to_owned())];
        const ON: &str = "{etcd: {enabled: true}}";
        for (spec, listens, seconds) in [
            ("{}", vec![], vec![]),
            ("{etcd: {}}", vec![], vec![]),
            (ON, some("[::]:2379"), some("0")),
            (
                "{etcd: {enabled: true}, engine: {retention: {seconds: 60}}}",
                some("[::]:2379"),
                some("60"),
            ),
        ] {
            assert_eq!(has(spec, "DENGINE_LISTEN_ETCD"), listens, "{spec}");
            assert_eq!(has(spec, "DENGINE_RETENTION_SECONDS"), seconds, "{spec}");
        }
        assert_eq!(has(ON, "DENGINE_RETENTION_REVISIONS"), some("0"));
        let ports = |spec: &str| {
            let container = pod_spec(&cluster_with("demo", spec)).containers.remove(0);
            let ports = container.ports.unwrap().into_iter();
            ports.map(|it| it.name.unwrap()).collect::<Vec<_>>()
        };
        assert!(!ports("{}").contains(&"etcd".to_owned()));
        assert!(ports(ON).contains(&"etcd".to_owned()));
    }

    #[test]
    fn members_send_traces_where_the_spec_says() {
        let tracing = |spec: &str| -> Vec<(String, Option<String>)> {
            let env = env(&cluster_with("demo", spec).spec).into_iter();
            env.filter(|it| it.name.starts_with("DENGINE_TRACING_"))
                .map(|it| (it.name, it.value))
                .collect()
        };
        assert!(tracing("{}").is_empty());
        let set = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
        let endpoint = set("DENGINE_TRACING_ENDPOINT", "http://collector:4317");
        assert_eq!(
            tracing("{tracing: {endpoint: 'http://collector:4317'}}"),
            std::slice::from_ref(&endpoint)
        );
        assert_eq!(
            tracing("{tracing: {endpoint: 'http://collector:4317', sampleRatio: 0.01}}"),
            [endpoint, set("DENGINE_TRACING_SAMPLE_RATIO", "0.01")]
        );
    }

    /// A changed template of an unchanged spec restarts every member of every cluster when the
    /// operator is upgraded. If it has to change: say so in the CHANGELOG, and write the new hash
    /// here.
    #[test]
    fn an_operator_upgrade_restarts_no_member() {
        assert_eq!(template_hash(&cluster("demo")), "1688aad01811be30");
    }

    #[test]
    fn the_template_names_neither_operator_nor_version() {
        let template = build(&cluster("demo"), 3, None).spec.unwrap().template;
        let text = serde_json::to_string(&template).unwrap();
        assert!(!text.contains(env!("CARGO_PKG_VERSION")), "{text}");
    }

    #[test]
    fn the_claim_template_keeps_its_size() {
        let grown = cluster_with("demo", "{storage: {size: 2Gi}}");
        let spec = build(&grown, 3, Some("1Gi")).spec.unwrap();
        let claim = spec.volume_claim_templates.unwrap().remove(0).spec.unwrap();
        assert_eq!(
            claim.resources.unwrap().requests.unwrap()["storage"].0,
            "1Gi"
        );
    }
}
