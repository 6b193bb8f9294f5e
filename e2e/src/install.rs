//! Installs the operator as a person does: with Helm, from the chart.

use anyhow::{Context as _, Result};

use crate::{cluster::Cluster, images::Archive, product, progress::Step, shell};

/// Helm release and namespace of the operator.
pub const RELEASE: &str = "dengine";
/// Where the operator runs.
pub const NAMESPACE: &str = "dengine-system";
const CHART: &str = "charts/dengine-operator";
const PATIENCE: &str = "--timeout=180s";

/// Installs the operator or upgrades it; waits until it runs.
///
/// # Errors
/// When Helm fails.
pub fn operator(cluster: &Cluster, images: &[Archive]) -> Result<()> {
    let step = Step::start(format!("helm upgrade --install {RELEASE} {CHART}"));
    // The operator has to get along with the strictest profile, so it gets no other.
    cluster.apply(include_str!("../manifests/operator-namespace.yaml"))?;
    let mut helm = cluster.helm();
    helm.args(["upgrade", "--install", RELEASE])
        .arg(product::workspace()?.join(CHART));
    helm.args([
        "--namespace",
        NAMESPACE,
        "--create-namespace",
        "--wait",
        PATIENCE,
    ]);
    helm.args(
        cluster
            .pinned(images)
            .iter()
            .map(|value| format!("--set-string={value}")),
    );
    shell::run(&mut helm).with_context(|| crate::observe::report(cluster, NAMESPACE))?;
    step.done("");
    Ok(())
}

/// Removes what the demo made in a Kubernetes that is not ours: the cluster with its volumes, the operator, and the CRDs
/// unless somebody else uses them.
///
/// # Errors
/// When the API server refuses.
pub fn remove_demo(cluster: &Cluster, namespace: &str, name: &str) -> Result<()> {
    let step = Step::start("Removing the demo");
    let kubectl = |arguments: &[&str]| shell::run(cluster.kubectl().args(arguments));
    let in_namespace = format!("--namespace={namespace}");
    let of_cluster = format!("--selector=dengine.io/cluster={name}");
    let crds = ["dengineclusters.dengine.io", "denginebenchmarks.dengine.io"];
    if kubectl(&["get", "crd", crds[0]]).is_ok() {
        kubectl(&[
            "delete",
            &in_namespace,
            "--ignore-not-found",
            "denginebenchmarks",
            "demo-write",
            "demo-read",
            "demo-read-eventual",
        ])?;
        kubectl(&[
            "delete",
            &in_namespace,
            "--ignore-not-found",
            "--cascade=foreground",
            "dengineclusters",
            name,
        ])?;
        kubectl(&[
            "delete",
            &in_namespace,
            "persistentvolumeclaims",
            &of_cluster,
        ])?;
    }
    shell::run(cluster.helm().args([
        "uninstall",
        RELEASE,
        "--namespace",
        NAMESPACE,
        "--ignore-not-found",
        "--wait",
    ]))?;
    kubectl(&["delete", "namespace", NAMESPACE, "--ignore-not-found"])?;
    for crd in crds {
        let left = kubectl(&[
            "get",
            crd,
            "--all-namespaces",
            "--ignore-not-found",
            "--output=name",
        ])
        .unwrap_or_default();
        if left.trim().is_empty() {
            kubectl(&["delete", "crd", crd, "--ignore-not-found"])?;
        }
    }
    step.done("");
    Ok(())
}
