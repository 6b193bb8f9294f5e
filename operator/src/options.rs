//! Options from the command line and the environment.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;

use crate::pod::User;
use crate::telemetry::LogFormat;

/// Kubernetes operator of DEngine: makes every DEngineCluster what its spec asks for, and runs
/// every DEngineBenchmark.
///
/// Several may run; the one that holds the Lease is active, the others stand by. It connects to the
/// Kubernetes API with the kubeconfig or, in a pod, with its ServiceAccount.
#[derive(Clone, Debug, Parser)]
#[command(name = "dengine-operator", version)]
pub struct Options {
    /// Manage only these namespaces, separated by commas. Default: all namespaces.
    #[arg(
        long,
        env = "DENGINE_OPERATOR_NAMESPACE_SCOPE",
        value_name = "NAMESPACE",
        value_delimiter = ','
    )]
    pub namespace_scope: Vec<String>,

    /// Name of this operator, recorded on the StatefulSet of each cluster that it manages;
    /// operators with another name leave the cluster alone. The chart sets NAMESPACE/NAME of its
    /// release. Default: namespace and name of the Lease.
    #[arg(long, env = "DENGINE_OPERATOR_IDENTITY", value_name = "NAME")]
    pub identity: Option<String>,

    /// Image of the server for clusters whose spec names none.
    #[arg(
        long,
        env = "DENGINE_OPERATOR_DEFAULT_IMAGE",
        default_value = "localhost/dengine:dev",
        value_name = "IMAGE"
    )]
    pub default_image: String,

    /// Image of dengine-bench for benchmarks whose spec names none.
    #[arg(
        long,
        env = "DENGINE_OPERATOR_DEFAULT_BENCH_IMAGE",
        default_value = "localhost/dengine-bench:dev",
        value_name = "IMAGE"
    )]
    pub default_bench_image: String,

    /// User of the pods of members and benchmarks: fixed is user and group 65532, assigned lets the
    /// platform choose, as OpenShift does.
    #[arg(long, env = "DENGINE_OPERATOR_POD_USER", default_value = "fixed")]
    pub pod_user: User,

    /// Address of /metrics, /healthz and /readyz. `[::]` means all IPv6 and IPv4 addresses, also on
    /// hosts without IPv6.
    #[arg(
        long,
        env = "DENGINE_OPERATOR_LISTEN",
        default_value = "[::]:8080",
        value_name = "ADDRESS"
    )]
    pub listen: SocketAddr,

    /// Name of the Lease that elects one of several operators.
    #[arg(
        long,
        env = "DENGINE_OPERATOR_LEASE_NAME",
        default_value = "dengine-operator",
        value_name = "NAME"
    )]
    pub lease_name: String,

    /// Namespace of that Lease. The chart sets the operator's own.
    #[arg(
        long,
        env = "DENGINE_OPERATOR_LEASE_NAMESPACE",
        default_value = "default",
        value_name = "NAMESPACE"
    )]
    pub lease_namespace: String,

    /// Seconds after which another operator takes over from one that stopped renewing the lease.
    #[arg(
        long,
        env = "DENGINE_OPERATOR_LEASE_SECONDS",
        default_value_t = 15,
        value_parser = clap::value_parser!(u64).range(5..=600),
    )]
    pub lease_seconds: u64,

    /// Milliseconds between two reconciliations of a cluster without a change in Kubernetes.
    #[arg(
        long,
        env = "DENGINE_OPERATOR_POLL_INTERVAL_MS",
        default_value_t = 3000,
        value_parser = clap::value_parser!(u64).range(100..=60_000),
    )]
    pub poll_interval_ms: u64,

    /// How many clusters, and how many benchmarks, are reconciled at once.
    #[arg(
        long,
        env = "DENGINE_OPERATOR_CONCURRENCY",
        default_value_t = 32,
        value_parser = clap::value_parser!(u16).range(1..=256),
    )]
    pub concurrency: u16,

    /// Log filter: a level, or directives such as info,dengine_operator=debug.
    #[arg(
        long,
        env = "DENGINE_OPERATOR_LOG_LEVEL",
        default_value = "info",
        value_name = "FILTER"
    )]
    pub log_level: String,

    /// Format of the log on standard error.
    #[arg(long, env = "DENGINE_OPERATOR_LOG_FORMAT", default_value = "json")]
    pub log_format: LogFormat,

    /// Only check whether the custom resources are served and an operator holds the lease, and
    /// report it.
    #[arg(long)]
    pub check: bool,

    /// For tests: exits, as if killed, right after this many writes.
    #[arg(long, env = "DENGINE_OPERATOR_EXIT_AFTER_WRITES", hide = true)]
    pub exit_after_writes: Option<u32>,
}

impl Options {
    /// Name of this operator on its clusters; the same for all processes that share a Lease.
    pub fn identity(&self) -> String {
        let lease = || format!("{}/{}", self.lease_namespace, self.lease_name);
        self.identity.clone().unwrap_or_else(lease)
    }

    pub(crate) fn poll_interval(&self) -> Duration {
        Duration::from_millis(self.poll_interval_ms)
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::Options;

    #[test]
    fn namespaces_are_a_list_and_the_lease_gives_the_identity() {
        let options = Options::parse_from([
            "dengine-operator",
            "--namespace-scope=a,b",
            "--lease-namespace=there",
        ]);
        assert_eq!(options.namespace_scope, ["a", "b"]);
        assert_eq!(options.identity(), "there/dengine-operator");
        let named = Options::parse_from(["dengine-operator", "--identity=here/prod"]);
        assert!(named.namespace_scope.is_empty());
        assert_eq!(named.identity(), "here/prod");
    }

    #[test]
    fn the_command_line_is_consistent() {
        super::Options::command().debug_assert();
    }
}
