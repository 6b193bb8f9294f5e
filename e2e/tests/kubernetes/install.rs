//! What Helm does to the operator never touches a cluster's life or data.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dengine_client::Consistency;
use dengine_crds::DEngineCluster;
use dengine_e2e::{install, product};
use dengine_local_kubernetes::shell;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::load::{Load, connect};
use crate::node::second_tag;
use crate::support::{World, test, test_alone};

const ENOUGH: usize = 200;
const PATIENCE: Duration = Duration::from_secs(60);
const CRD: &str = "dengineclusters.dengine.io";

#[tokio::test]
async fn uninstalling_the_operator_keeps_clusters_and_data_and_installing_it_finds_them() {
    test_alone("uninstall", async |world| {
        world.make_cluster("kept", 3).await?;
        let client = connect(world, "kept").await?;
        client.put("color", "blue").await?;
        let pods = pods(world).await?;

        let mut uninstall = world.cluster().helm();
        shell::run(uninstall.args([
            "uninstall",
            install::RELEASE,
            "--namespace",
            install::NAMESPACE,
            "--wait",
        ]))?;
        let kept = crds(world)
            .get(CRD)
            .await
            .context("the CRD outlives the operator");
        let found = world
            .api::<DEngineCluster>()
            .get("kept")
            .await
            .context("the cluster outlives the operator");
        let got = client.get("color", Consistency::Linearizable).await;
        // Whatever was found: the other tests need the operator.
        install::operator(world.cluster(), &world.shared.images)?;

        kept?;
        ensure!(
            found?.metadata.deletion_timestamp.is_none(),
            "the cluster is being deleted"
        );
        ensure!(
            got?.kv.is_some_and(|kv| kv.value == "blue"),
            "the data is gone"
        );
        world.await_ready("kept").await?;
        ensure!(self::pods(world).await? == pods, "pods were replaced");
        Ok(())
    })
    .await;
}

// Writers go on while this thread waits for Helm.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn upgrading_the_chart_upgrades_the_definitions_and_restarts_no_member() {
    test_alone("upgrade", async |world| {
        let upgraded = upgrade_under_load(world).await;
        // Whatever was found: the other tests need the operator.
        install::operator(world.cluster(), &world.shared.images)?;
        upgraded
    })
    .await;
}

async fn upgrade_under_load(world: &World) -> Result<()> {
    install_older_chart(world)?;
    let columns_before = columns(world).await?;
    ensure!(
        columns_before.iter().any(|column| column == "Old"),
        "the older chart was not installed: {columns_before:?}"
    );
    world.make_cluster("kept", 3).await?;
    let load = Load::start(&connect(world, "kept").await?).await?;
    let pods_before = pods(world).await?;
    load.await_more(ENOUGH, PATIENCE).await?;

    install::operator(world.cluster(), &world.shared.images)?;
    let columns_after = columns(world).await?;
    ensure!(
        columns_after.iter().all(|column| column != "Old"),
        "the upgrade left the old definition: {columns_after:?}"
    );
    // The new operator carries out a change, so it has looked at the cluster.
    world.edit("kept", json!({"spec": {"replicas": 5}})).await?;
    world.await_settled("kept", 5).await?;
    load.await_more(ENOUGH, PATIENCE).await?;
    let pods_after = pods(world).await?;
    ensure!(
        pods_before.iter().all(|pod| pods_after.contains(pod)),
        "a member restarted: before {pods_before:?}, now {pods_after:?}"
    );
    load.check(world, "kept").await.map(drop)
}

#[tokio::test]
async fn helm_test_sees_that_the_operator_works() {
    test("helm-test", async |world| {
        let mut helm = world.cluster().helm();
        helm.args(["test", install::RELEASE, "--namespace", install::NAMESPACE]);
        let said = shell::run(helm.args(["--timeout", "120s"]))?;
        ensure!(said.contains("Succeeded"), "{said}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn everything_optional_of_the_chart_is_accepted_by_the_api_server() {
    test("optional", async |world| {
        let mut helm = world.cluster().helm();
        helm.args(["template", "optional"])
            .arg(product::workspace()?.join("charts/dengine-operator"));
        helm.args([
            "--kube-version=1.34.0",
            "--skip-tests",
            "--namespace",
            &world.namespace,
            "--set=networkPolicy.enabled=true,monitoring.dashboard.enabled=true,crds.install=false",
            "--set=replicas=2",
            "--set=monitoring.podMonitor.enabled=true,monitoring.prometheusRule.enabled=true",
        ]);
        let rendered = shell::run(&mut helm)?;
        ensure!(rendered.contains("runbook_url: https://"), "{rendered}");
        // The Prometheus operator's kinds are not on every Kubernetes.
        let documents = rendered
            .split("\n---")
            .filter(|text| text.contains("kind:"));
        let known: Vec<&str> = documents
            .filter(|text| !text.contains("monitoring.coreos.com/v1"))
            .collect();
        for kind in ["NetworkPolicy", "PodDisruptionBudget"] {
            let line = format!("kind: {kind}");
            ensure!(known.iter().any(|text| text.contains(&line)), "{known:?}");
        }
        let mut kubectl = world.cluster().kubectl();
        kubectl.args(["create", "--dry-run=server", "--filename=-"]);
        shell::run_with_input(&mut kubectl, &known.join("\n---")).map(drop)
    })
    .await;
}

/// Two namespaces instead of all: a Role in each, and nothing for the whole of Kubernetes.
#[tokio::test]
async fn the_chart_can_look_after_some_namespaces_and_no_others() {
    test("some-namespaces", async |world| {
        let second = format!("{}-b", world.namespace);
        let mut helm = world.cluster().helm();
        helm.args(["template", "some"])
            .arg(product::workspace()?.join("charts/dengine-operator"));
        helm.args([
            "--kube-version=1.34.0",
            "--skip-tests",
            "--set=crds.install=false",
        ]);
        helm.args(["--namespace", &world.namespace]);
        helm.arg(format!(
            "--set=watchNamespaces={{{},{second}}}",
            world.namespace
        ));
        let rendered = shell::run(&mut helm)?;
        let of_kind = |kind: &str| {
            let documents = rendered.split("\n---");
            let line = format!("\nkind: {kind}\n");
            documents.filter(|text| text.contains(&line)).count()
        };
        ensure!(
            of_kind("ClusterRole") + of_kind("ClusterRoleBinding") == 0,
            "{rendered}"
        );
        // That of the Lease is the third.
        ensure!(
            (of_kind("Role"), of_kind("RoleBinding")) == (3, 3),
            "{rendered}"
        );
        for argument in [
            format!("--namespace-scope={},{second}", world.namespace),
            format!("--identity={}/some-operator", world.namespace),
        ] {
            ensure!(rendered.contains(&argument), "no {argument}: {rendered}");
        }
        world.kubectl(&["create", "namespace", &second])?;
        let mut kubectl = world.cluster().kubectl();
        kubectl.args(["create", "--dry-run=server", "--filename=-"]);
        let accepted = shell::run_with_input(&mut kubectl, &rendered);
        world.kubectl(&["delete", "namespace", &second, "--wait=false"])?;
        accepted.map(drop)
    })
    .await;
}

/// Installs the chart as it might have been, with another default image.
fn install_older_chart(world: &World) -> Result<()> {
    let folder = tempfile::tempdir()?;
    older_chart(folder.path())?;
    let mut helm = world.cluster().helm();
    helm.args(["upgrade", install::RELEASE])
        .arg(folder.path().join("dengine-operator"));
    helm.args([
        "--namespace",
        install::NAMESPACE,
        "--reuse-values",
        "--wait",
    ]);
    if let Some(image) = second_tag(world, "localhost/dengine:older")? {
        helm.arg(format!("--set-string=defaultImages.server={image}"));
    }
    shell::run(&mut helm).map(drop)
}

/// With another name for a printed column.
fn older_chart(folder: &Path) -> Result<()> {
    let chart = product::workspace()?.join("charts/dengine-operator");
    shell::run(
        shell::command("cp")
            .arg("--recursive")
            .arg(chart)
            .arg(folder),
    )?;
    let file = folder.join("dengine-operator/files/crds/dengineclusters.yaml");
    let text = fs_err::read_to_string(&file)?;
    ensure!(
        text.contains("name: Version"),
        "the definition has a column named Version"
    );
    Ok(fs_err::write(
        file,
        text.replacen("name: Version", "name: Old", 1),
    )?)
}

async fn columns(world: &World) -> Result<Vec<String>> {
    let crd = crds(world).get(CRD).await?;
    let versions = crd.spec.versions.into_iter();
    let columns =
        versions.flat_map(|version| version.additional_printer_columns.unwrap_or_default());
    Ok(columns.map(|column| column.name).collect())
}

fn crds(world: &World) -> Api<CustomResourceDefinition> {
    Api::all(world.client.clone())
}

async fn pods(world: &World) -> Result<Vec<String>> {
    let found = world.api::<Pod>().list(&ListParams::default()).await?;
    Ok(found.items.iter().filter_map(ResourceExt::uid).collect())
}
