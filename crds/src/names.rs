//! Names that the operator, the chart, the benchmark Job and the tests must agree on: API group,
//! labels, annotations, field managers, ports of meaning, and the names of the objects we make.

/// API group of both kinds.
pub const GROUP: &str = "dengine.io";
/// API version of both kinds.
pub const VERSION: &str = "v1alpha1";

/// Longest name of a custom resource: every name derived from it, and the revision label that the
/// StatefulSet controller appends (`-` and ten characters), still fits the 63 of a DNS label.
pub const NAME_LENGTH_MAX: usize = 52;

/// Labels on everything that the operator makes.
pub mod labels {
    /// Always [`NAME_VALUE`].
    pub const NAME: &str = "app.kubernetes.io/name";
    /// Value of [`NAME`].
    pub const NAME_VALUE: &str = "dengine";
    /// Name of the custom resource that the object belongs to.
    pub const INSTANCE: &str = "app.kubernetes.io/instance";
    /// Always [`MANAGED_BY_VALUE`].
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// Value of [`MANAGED_BY`].
    pub const MANAGED_BY_VALUE: &str = "dengine-operator";
    /// What the object is part of: [`COMPONENT_MEMBER`] or [`COMPONENT_BENCHMARK`].
    pub const COMPONENT: &str = "app.kubernetes.io/component";
    /// A member of a cluster.
    pub const COMPONENT_MEMBER: &str = "member";
    /// A benchmark's Job.
    pub const COMPONENT_BENCHMARK: &str = "benchmark";
    /// Name of the cluster that a member's object belongs to.
    pub const CLUSTER: &str = "dengine.io/cluster";
    /// What a benchmark's Job loads: a cluster's name, or what stands for an etcd.
    pub const TARGET: &str = "dengine.io/target";
    /// On a PersistentVolume whose reclaim policy the operator changed to Retain: name of the cluster for which. It is by this
    /// label that the operator, and people, find such volumes.
    pub const KEPT_FOR: &str = "dengine.io/kept-for";
    /// The same: that cluster's namespace.
    pub const KEPT_FOR_NAMESPACE: &str = "dengine.io/kept-for-namespace";
    /// Name of the benchmark that a Job's object belongs to.
    pub const BENCHMARK: &str = "dengine.io/benchmark";
}

/// Annotations that the operator writes or reads.
pub mod annotations {
    /// On the pod template of a benchmark's Job and on the Job: the run that it is.
    pub const RUN_ID: &str = "dengine.io/run-id";
    /// On everything the operator applies: hash of what it applied, so that the same is not written again.
    pub const APPLIED_HASH: &str = "dengine.io/applied-hash";
    /// On a pod template and its pods: hash of the template; a pod with another one is outdated.
    pub const TEMPLATE_HASH: &str = "dengine.io/template-hash";
    /// On a claim: `CLUSTER_ID/MEMBER_ID` of the member whose removal makes its data superfluous. On a PersistentVolume that is
    /// kept: of the member whose data it holds.
    pub const REMOVED_MEMBER: &str = "dengine.io/removed-member";
    /// On a PersistentVolume that is kept: the pod whose it was.
    pub const KEPT_FOR_POD: &str = "dengine.io/kept-for-pod";
    /// On a PersistentVolume that is kept: the reclaim policy that it had, and has again once it is not kept any more.
    pub const RECLAIM_POLICY: &str = "dengine.io/reclaim-policy";
    /// On a cluster, by people: measures it with the profile of this name, which may have `/` and any text behind it. The
    /// operator removes it once the benchmark is there; one that a manifest declares stays, and runs once for each value.
    pub const BENCHMARK: &str = "dengine.io/benchmark";
    /// On a cluster: the runs that an annotation of a manifest asked for, each of which has had its turn.
    pub const BENCHMARKS_DECLARED: &str = "dengine.io/benchmarks-declared";
    /// On a StatefulSet: the operator that looks after the cluster, as `NAMESPACE/NAME` of its release. Another one leaves it
    /// alone; to hand a cluster over is to write the other one's name here. While there is no StatefulSet, the cluster's
    /// status says it.
    pub const OPERATOR: &str = "dengine.io/operator";
    /// On a StatefulSet: the cluster's id, once it had members. It counts if the cluster's status has none, and no new cluster
    /// is formed.
    pub const CLUSTER_ID: &str = "dengine.io/cluster-id";
    /// On a StatefulSet, and on claims: the highest version that every member has run, which counts if the cluster's status knows
    /// less.
    pub const CLUSTER_VERSION: &str = "dengine.io/cluster-version";
    /// On claims: the image of the members. It counts where there is no StatefulSet that has it.
    pub const IMAGE: &str = "dengine.io/image";
    /// On a cluster, by people: any new value restarts the members, one at a time and the leader last.
    pub const RESTART: &str = "dengine.io/restart";
}

/// Field managers of server-side apply.
pub mod managers {
    /// The operator: everything but `status.runs` of a benchmark.
    pub const OPERATOR: &str = "dengine-operator";
    /// An operator that leaves a cluster alone because it is another's: that one condition, and nothing else.
    pub const BYSTANDER: &str = "dengine-operator-bystander";
    /// The Job of a benchmark: its own entry of `status.runs` and nothing else. One manager for each run: an apply takes
    /// away what the same manager applied before, and earlier runs are to be kept.
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

    /// Service that leads clients to ready members.
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

    /// The benchmark that an annotation of a cluster asks for. A long name is cut, and a hash of all of it keeps it apart from
    /// others that begin alike.
    pub fn asked_for(cluster: &str, profile: &str) -> String {
        let name = format!("{cluster}-{profile}");
        if name.len() <= super::NAME_LENGTH_MAX {
            return name;
        }
        let tail = format!("-{:08x}-{profile}", super::fnv1a(cluster.as_bytes()));
        let room = super::NAME_LENGTH_MAX.saturating_sub(tail.len());
        format!("{}{tail}", &cluster[..room.min(cluster.len())])
    }

    /// Value of the label that says what a benchmark's Job loads, by the endpoints of an etcd; no cluster's name has a dot.
    pub fn etcd_target(endpoints: &[String]) -> String {
        let mut sorted = endpoints.to_vec();
        sorted.sort();
        format!("etcd.{:08x}", super::fnv1a(sorted.join(",").as_bytes()))
    }

    /// Under which run id the etcd posts that a run is compared with; no run id of a spec can hold an `@`.
    pub fn rival(run_id: &str) -> String {
        format!("{run_id}@etcd")
    }
}

/// 32 bits are enough: the names only have to differ between the runs of one benchmark, and the
/// operator compares the run id annotation before it takes a Job for its own.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_only_of_own_pods() {
        assert_eq!(cluster::ordinal("demo", "demo-0"), Some(0));
        assert_eq!(cluster::ordinal("demo", "demo-12"), Some(12));
        for other in [
            "demo", "demo-", "demo-01", "demo-x", "demo-1-0", "demos-0", "demo-+1",
        ] {
            assert_eq!(cluster::ordinal("demo", other), None, "{other}");
        }
    }

    #[test]
    fn the_longest_name_still_makes_valid_names() {
        let name = "n".repeat(NAME_LENGTH_MAX);
        for derived in [
            cluster::client_service(&name),
            cluster::peer_service(&name),
            cluster::pod(&name, 6),
            benchmark::job(&name, "a run"),
            benchmark::reporter(&name),
            // What the StatefulSet controller writes into a label of each pod.
            format!("{name}-5d59d67564"),
        ] {
            assert!(derived.len() <= 63, "{derived}");
        }
    }

    #[test]
    fn a_benchmark_that_is_asked_for_has_a_name_that_fits() {
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
