//! Names that the operator, the chart, the benchmark Job and the tests must agree on: API group,
//! labels, annotations, field managers, and names of the objects that the operator creates.

/// API group of both kinds.
pub const GROUP: &str = "dengine.io";
/// API version of both kinds.
pub const VERSION: &str = "v1alpha1";

/// Longest name of a custom resource: every name derived from it, and the revision label that the
/// StatefulSet controller appends (`-` and ten characters), still fits the 63 characters of a DNS
/// label.
pub const NAME_LENGTH_MAX: usize = 52;

/// Labels of everything that the operator creates.
pub mod labels {
    /// Always [`NAME_VALUE`].
    pub const NAME: &str = "app.kubernetes.io/name";
    pub const NAME_VALUE: &str = "dengine";
    /// Name of the custom resource that the object belongs to.
    pub const INSTANCE: &str = "app.kubernetes.io/instance";
    /// Always [`MANAGED_BY_VALUE`].
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    pub const MANAGED_BY_VALUE: &str = "dengine-operator";
    /// What the object is part of: [`COMPONENT_MEMBER`] or [`COMPONENT_BENCHMARK`].
    pub const COMPONENT: &str = "app.kubernetes.io/component";
    /// A member of a cluster.
    pub const COMPONENT_MEMBER: &str = "member";
    /// A benchmark's Job.
    pub const COMPONENT_BENCHMARK: &str = "benchmark";
    /// Name of the cluster that a member's object belongs to.
    pub const CLUSTER: &str = "dengine.io/cluster";
    /// Target of a benchmark's Job: a cluster's name, or a hash of an etcd's endpoints.
    pub const TARGET: &str = "dengine.io/target";
    /// On a PersistentVolume whose reclaim policy the operator changed to Retain: name of its
    /// cluster. The operator finds such volumes by this label.
    pub const KEPT_FOR: &str = "dengine.io/kept-for";
    /// On the same volume: the cluster's namespace.
    pub const KEPT_FOR_NAMESPACE: &str = "dengine.io/kept-for-namespace";
    /// Name of the benchmark that a Job's object belongs to.
    pub const BENCHMARK: &str = "dengine.io/benchmark";
}

/// Annotations that the operator writes or reads.
pub mod annotations {
    /// On a benchmark's Job and its pod template: the id of the run.
    pub const RUN_ID: &str = "dengine.io/run-id";
    /// On every object that the operator applies: hash of what it applied, so that it is not
    /// applied again.
    pub const APPLIED_HASH: &str = "dengine.io/applied-hash";
    /// On a pod template and its pods: hash of the template; a pod with another one is outdated.
    pub const TEMPLATE_HASH: &str = "dengine.io/template-hash";
    /// On a claim: `CLUSTER_ID/MEMBER_ID` of the member after whose removal its data is no longer
    /// needed. On a PersistentVolume that is kept: of the member whose data it holds.
    pub const REMOVED_MEMBER: &str = "dengine.io/removed-member";
    /// On a PersistentVolume that is kept: the pod that used it.
    pub const KEPT_FOR_POD: &str = "dengine.io/kept-for-pod";
    /// On a PersistentVolume that is kept: its reclaim policy before, which is restored when it is
    /// released.
    pub const RECLAIM_POLICY: &str = "dengine.io/reclaim-policy";
    /// On a cluster, set by people: starts a benchmark with the profile of this name, which may be
    /// followed by `/` and any text. The operator removes it once the benchmark is created; one
    /// that a manifest declares stays, and runs once for each value.
    pub const BENCHMARK: &str = "dengine.io/benchmark";
    /// On a cluster: the runs that were started for annotations declared in a manifest.
    pub const BENCHMARKS_DECLARED: &str = "dengine.io/benchmarks-declared";
    /// On a StatefulSet: the operator that manages the cluster, as `NAMESPACE/NAME` of its release.
    /// Other operators leave the cluster alone. Change it to hand the cluster over. While there is
    /// no StatefulSet, `status.operator` of the cluster applies.
    pub const OPERATOR: &str = "dengine.io/operator";
    /// On a StatefulSet: the cluster's id, once it had members. It applies if the cluster's status
    /// has none; no new cluster is formed then.
    pub const CLUSTER_ID: &str = "dengine.io/cluster-id";
    /// On a StatefulSet, and on claims: the highest version that every member has run. It applies
    /// if the cluster's status has a lower one.
    pub const CLUSTER_VERSION: &str = "dengine.io/cluster-version";
    /// On a StatefulSet some of whose pods the API server refuses: when the operator last had its
    /// controller try again. Nothing reads it: the change itself wakes the controller.
    pub const RETRIED_AT: &str = "dengine.io/retried-at";
    /// On claims: the image of the members. It applies while there is no StatefulSet.
    pub const IMAGE: &str = "dengine.io/image";
    /// On a cluster, set by people: any new value restarts the members, one at a time and the
    /// leader last.
    pub const RESTART: &str = "dengine.io/restart";
}

/// Field managers of server-side apply.
pub mod managers {
    /// The operator: everything but `status.runs` of a benchmark.
    pub const OPERATOR: &str = "dengine-operator";
    /// An operator that leaves a cluster to another one: the condition that says so, and nothing
    /// else.
    pub const BYSTANDER: &str = "dengine-operator-bystander";
    /// The Job of a benchmark: its own entry of `status.runs` and nothing else. One manager for
    /// each run: an apply removes what the same manager applied before, and earlier runs must be
    /// kept.
    pub fn bench(run_id: &str) -> String {
        format!("dengine-bench-{:08x}", super::fnv1a(run_id.as_bytes()))
    }
}

/// Names of the objects that belong to one cluster.
pub mod cluster {
    /// Volume claim template of the StatefulSet.
    pub const VOLUME: &str = "data";
    /// Container of a member's pod.
    pub const CONTAINER: &str = "dengine";

    /// StatefulSet, PodDisruptionBudget and ServiceAccount.
    pub fn stateful_set(cluster: &str) -> String {
        cluster.to_owned()
    }

    /// Headless Service that gives every member its DNS name, ready or not.
    pub fn peer_service(cluster: &str) -> String {
        format!("{cluster}-peer")
    }

    /// Service for clients; it selects ready members.
    pub fn client_service(cluster: &str) -> String {
        format!("{cluster}-client")
    }

    /// Pod of the member with this ordinal; also the member's name.
    pub fn pod(cluster: &str, ordinal: u32) -> String {
        format!("{cluster}-{ordinal}")
    }

    /// Claim of the member with this ordinal.
    pub fn claim(cluster: &str, ordinal: u32) -> String {
        format!("{VOLUME}-{cluster}-{ordinal}")
    }

    /// Host name under which other pods reach a member.
    pub fn member_host(cluster: &str, namespace: &str, pod: &str) -> String {
        format!("{pod}.{}.{namespace}.svc", peer_service(cluster))
    }

    /// The ordinal in a pod's name; `None` if the pod is not one of this cluster's members.
    pub fn ordinal(cluster: &str, pod: &str) -> Option<u32> {
        let digits = pod.strip_prefix(cluster)?.strip_prefix('-')?;
        let canonical = digits == "0" || !digits.starts_with('0');
        let all_digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        (canonical && all_digits)
            .then(|| digits.parse().ok())
            .flatten()
    }
}

/// Names of the objects that belong to one benchmark.
pub mod benchmark {
    /// ServiceAccount, Role and RoleBinding with which the Job posts its result.
    pub fn reporter(benchmark: &str) -> String {
        format!("{benchmark}-reporter")
    }

    /// Job of one run. The run id is free text, so the name carries a hash of it.
    pub fn job(benchmark: &str, run_id: &str) -> String {
        format!("{benchmark}-{:08x}", super::fnv1a(run_id.as_bytes()))
    }

    /// Headless Service that gives the pods of a Job their DNS names, if there are several.
    pub fn pods_service(benchmark: &str) -> String {
        format!("{benchmark}-pods")
    }

    /// Host name of the first of several pods of a run's Job, under which the others reach it.
    pub fn first_pod(benchmark: &str, run_id: &str, namespace: &str) -> String {
        let (job, service) = (job(benchmark, run_id), pods_service(benchmark));
        format!("{job}-0.{service}.{namespace}.svc")
    }

    /// The benchmark that an annotation of a cluster asks for. A long name is cut; a hash of the
    /// whole name keeps it distinct from others with the same beginning.
    pub fn asked_for(cluster: &str, profile: &str) -> String {
        let name = format!("{cluster}-{profile}");
        if name.len() <= super::NAME_LENGTH_MAX {
            return name;
        }
        let tail = format!("-{:08x}-{profile}", super::fnv1a(cluster.as_bytes()));
        let room = super::NAME_LENGTH_MAX.saturating_sub(tail.len());
        format!("{}{tail}", &cluster[..room.min(cluster.len())])
    }

    /// Label value for a Job that loads an etcd: a hash of its endpoints. Cluster names have no
    /// dot.
    pub fn etcd_target(endpoints: &[String]) -> String {
        let mut sorted = endpoints.to_vec();
        sorted.sort();
        format!("etcd.{:08x}", super::fnv1a(sorted.join(",").as_bytes()))
    }

    /// Run id for the results of the etcd that a run is compared with; no run id of a spec can
    /// contain an `@`.
    pub fn rival(run_id: &str) -> String {
        format!("{run_id}@etcd")
    }
}

/// 32 bits are enough: the names only have to differ between the runs of one benchmark, and the
/// operator compares the run id annotation before it adopts a Job.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_pods_have_an_ordinal() {
        assert_eq!(cluster::ordinal("demo", "demo-0"), Some(0));
        assert_eq!(cluster::ordinal("demo", "demo-12"), Some(12));
        for other in [
            "demo", "demo-", "demo-01", "demo-x", "demo-1-0", "demos-0", "demo-+1",
        ] {
            assert_eq!(cluster::ordinal("demo", other), None, "{other}");
        }
    }

    #[test]
    fn names_derived_from_the_longest_name_are_valid() {
        let name = "n".repeat(NAME_LENGTH_MAX);
        for derived in [
            cluster::client_service(&name),
            cluster::peer_service(&name),
            cluster::pod(&name, 6),
            benchmark::job(&name, "a run"),
            // Host name of the last pod of ten; with more, the name is shorter by one.
            format!("{}-9", benchmark::job(&name, "a run")),
            benchmark::pods_service(&name),
            benchmark::reporter(&name),
            // What the StatefulSet controller writes into a label of each pod.
            format!("{name}-5d59d67564"),
        ] {
            assert!(derived.len() <= 63, "{derived}");
        }
    }

    #[test]
    fn the_name_of_an_annotated_benchmark_fits() {
        assert_eq!(benchmark::asked_for("demo", "quick"), "demo-quick");
        let long = "n".repeat(NAME_LENGTH_MAX);
        let name = benchmark::asked_for(&long, "standard");
        assert_eq!(name.len(), NAME_LENGTH_MAX);
        assert!(name.ends_with("-standard"), "{name}");
        let other = format!("{}m", "n".repeat(NAME_LENGTH_MAX - 1));
        assert_ne!(name, benchmark::asked_for(&other, "standard"));
    }

    #[test]
    fn runs_of_one_benchmark_have_different_jobs() {
        assert_eq!(benchmark::job("b", "1"), benchmark::job("b", "1"));
        assert_ne!(benchmark::job("b", "1"), benchmark::job("b", "2"));
    }
}
