//! Installs the operator as a person does: with Helm, from the chart.

use anyhow::{Context as _, Result};
use dengine_local_kubernetes::images::Archive;
use dengine_local_kubernetes::progress::ProgressStep;
use dengine_local_kubernetes::shell;

use crate::cluster::Cluster;
use crate::{made, product};

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
    let step = ProgressStep::start(format!("helm upgrade --install {RELEASE} {CHART}"));
    // The operator has to get along with the strictest profile, so it gets no other.
    let kubectl = |arguments: &[&str]| shell::run(cluster.kubectl().args(arguments));
    made::make(&kubectl, NAMESPACE, "namespace", NAMESPACE, || {
        cluster.apply(include_str!("../manifests/operator-namespace.yaml"))
    })?;
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
    made::make(&kubectl, NAMESPACE, "deployment", made::DEPLOYMENT, || {
        shell::run(&mut helm).map(drop)
    })
    .with_context(|| crate::observe::report(cluster, NAMESPACE))?;
    step.done("");
    Ok(())
}

/// Removes what the demo made in a Kubernetes that is not ours.
///
/// # Errors
/// When the API server refuses.
pub fn remove_demo(cluster: &Cluster, namespace: &str, name: &str) -> Result<()> {
    let step = ProgressStep::start("Removing the demo");
    let kubectl = |arguments: &[&str]| shell::run(cluster.kubectl().args(arguments));
    let helm = |arguments: &[&str]| shell::run(cluster.helm().args(arguments));
    let stays = made::remove(&kubectl, &helm, namespace, name)?;
    if stays.is_empty() {
        step.done("");
    } else {
        step.done(format_args!("what stays: {}", stays.join("; ")));
    }
    Ok(())
}
