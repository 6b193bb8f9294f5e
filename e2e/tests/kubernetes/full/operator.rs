//! The operator is away, twice there, or dies after each single thing that it does.

use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dengine_crds::DEngineCluster;
use dengine_crds::reasons::events;
use dengine_e2e::cluster::Cluster;
use dengine_e2e::{install, observe, product};
use dengine_local_kubernetes::shell;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::time::Instant;

use crate::clusters::{CHANGE_PATIENCE, ids};
use crate::load::{Load, connect, say};
use crate::scale::{How, scale};
use crate::support::{World, not_run, test_alone};

const ENOUGH: usize = 200;
const PATIENCE: Duration = Duration::from_secs(120);
const DEPLOYMENT: &str = "dengine-operator";

#[tokio::test]
async fn clusters_serve_without_it_and_nothing_restarts_when_it_is_back() {
    test_alone("away", async |world| {
        world.make_cluster("s", 3).await?;
        let load = Load::start(&connect(world, "s").await?).await?;
        let pods = world.uids::<Pod>("s").await?;
        let told = world.events("s").await?.len();
        operators(world, 0).await?;
        load.await_more(ENOUGH, PATIENCE).await?;
        // A member's crash is Kubernetes' to mend.
        world.kill_pod("s-1").await?;
        load.await_more(ENOUGH, PATIENCE).await?;
        operators(world, 1).await?;
        world.await_settled("s", 3).await?;
        let now = world.uids::<Pod>("s").await?;
        let same = now
            .iter()
            .filter(|(name, uid)| pods.get(*name) == Some(*uid));
        ensure!(same.count() == 2, "before {pods:?}, now {now:?}");
        let events = world.events("s").await?.split_off(told);
        ensure!(
            events
                .iter()
                .all(|(reason, _)| reason != events::MEMBER_RESTARTED),
            "{events:#?}"
        );
        load.check(world, "s").await.map(drop)
    })
    .await;
}

#[tokio::test]
async fn of_two_operators_one_writes_and_the_other_takes_over() {
    test_alone("two", async |world| {
        world.make_cluster("s", 1).await?;
        let load = Load::start(&connect(world, "s").await?).await?;
        operators(world, 2).await?;
        let first = holder(world).await?;
        scale(world, &load, 3, How::Kubectl).await?;
        let at_once = kube::api::DeleteParams::default().grace_period(0);
        operator_pods(world).delete(&first, &at_once).await?;
        scale(world, &load, 1, How::Edit).await?;
        let second = holder(world).await?;
        ensure!(
            first != second,
            "{first} was killed and still holds the lease"
        );
        operators(world, 1).await?;
        load.check(world, "s").await.map(drop)
    })
    .await;
}

/// The pod that holds the lease; exactly one says so in its metrics.
async fn holder(world: &World) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut holders = Vec::new();
        for pod in operator_pods(world)
            .list(&ListParams::default())
            .await?
            .items
        {
            let name = pod.name_any();
            let path = format!(
                "/api/v1/namespaces/{}/pods/{name}:8080/proxy/metrics",
                install::NAMESPACE
            );
            let metrics = shell::run(world.cluster().kubectl().args(["get", "--raw", &path]));
            if metrics.is_ok_and(|text| text.lines().any(|l| l == "dengine_operator_leader 1")) {
                holders.push(name);
            }
        }
        ensure!(holders.len() < 2, "two operators work: {holders:?}");
        if let Some(holder) = holders.pop() {
            return Ok(holder);
        }
        ensure!(Instant::now() < deadline, "no operator holds the lease");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test]
async fn killed_after_each_single_write_it_ends_in_the_same_place() {
    test_alone("killed", async |world| {
        if matches!(world.cluster(), Cluster::Current { .. }) {
            return not_run("members of another's cluster cannot be reached from here");
        }
        operators(world, 0).await?;
        let outcome = killed_after_each_write(world).await;
        operators(world, 1).await?;
        outcome
    })
    .await;
}

async fn killed_after_each_write(world: &World) -> Result<()> {
    let mut operator = Mortal::default();
    let made = json!({
        "apiVersion": "dengine.io/v1alpha1", "kind": "DEngineCluster",
        "metadata": {"name": "s"}, "spec": {"replicas": 1},
    });
    world
        .api::<DEngineCluster>()
        .create(
            &kube::api::PostParams::default(),
            &serde_json::from_value(made)?,
        )
        .await?;
    operator.work(world, 1).await?;
    let load = Load::start(&connect(world, "s").await?).await?;
    for (what, change, replicas) in [
        ("1 to 3", json!({"spec": {"replicas": 3}}), 3),
        ("3 to 5", json!({"spec": {"replicas": 5}}), 5),
        ("5 to 3", json!({"spec": {"replicas": 3}}), 3),
        (
            "roll",
            json!({"spec": {"engine": {"logLevel": "debug"}}}),
            3,
        ),
        ("3 to 1", json!({"spec": {"replicas": 1}}), 1),
    ] {
        let lives = operator.lives;
        world.edit("s", change).await?;
        let settled = operator.work(world, replicas).await?;
        ensure!(ids(&settled).len() == replicas, "{:?}", ids(&settled));
        load.await_more(ENOUGH, PATIENCE).await?;
        say(format_args!(
            "    {what}: done by {} operators, each killed after one write",
            operator.lives - lives
        ));
    }
    load.check(world, "s").await.map(drop)
}

/// An operator on this machine that ends after its first write, and is started again as often as it
/// takes.
#[derive(Default)]
struct Mortal {
    lives: u32,
    child: Option<Child>,
}

impl Mortal {
    async fn work(&mut self, world: &World, replicas: usize) -> Result<DEngineCluster> {
        let deadline = Instant::now() + 2 * CHANGE_PATIENCE;
        let settled = async {
            let mut last = anyhow::anyhow!("never looked");
            while Instant::now() < deadline {
                self.live(world)?;
                match world.is_settled("s", replicas).await {
                    Ok(cluster) => return Ok(cluster),
                    Err(error) => last = error,
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(last)
        };
        let settled = settled.await;
        self.end();
        settled.with_context(|| format!("after {} lives", self.lives))
    }

    /// Starts the next one if the last one ended. A lease of its own for each: the dead do not give
    /// theirs back.
    fn live(&mut self, world: &World) -> Result<()> {
        if let Some(child) = &mut self.child
            && child.try_wait()?.is_none()
        {
            return Ok(());
        }
        self.lives += 1;
        let kubeconfig = world
            .cluster()
            .kubeconfig()
            .context("the local kubeconfig")?;
        let images = world.cluster().pinned(&world.shared.images);
        let server = images
            .iter()
            .find_map(|value| value.strip_prefix("defaultImages.server="))
            .context("the server's image")?;
        let child = std::process::Command::new(product::program("dengine-operator")?)
            .env("KUBECONFIG", kubeconfig)
            .env("DENGINE_OPERATOR_EXIT_AFTER_WRITES", "1")
            .arg(format!("--namespace-scope={}", world.namespace))
            .arg(format!("--lease-namespace={}", world.namespace))
            .arg(format!("--lease-name=life-{}", self.lives))
            .arg(format!("--default-image={server}"))
            // Each has a lease of its own, and all look after the same cluster.
            .arg("--identity=e2e/mortal")
            .args(["--listen=127.0.0.1:0", "--poll-interval-ms=500"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting an operator")?;
        self.child = Some(child);
        Ok(())
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.end();
    }
}

fn operator_pods(world: &World) -> Api<Pod> {
    Api::namespaced(world.client.clone(), install::NAMESPACE)
}

/// Scales the operator's Deployment, and waits until it is so.
pub(super) async fn operators(world: &World, count: i32) -> Result<()> {
    let (namespace, replicas) = (
        format!("--namespace={}", install::NAMESPACE),
        format!("--replicas={count}"),
    );
    let deployment = format!("deployment/{DEPLOYMENT}");
    shell::run(
        world
            .cluster()
            .kubectl()
            .args([&namespace, "scale", &deployment, &replicas]),
    )?;
    let deployments: Api<Deployment> = Api::namespaced(world.client.clone(), install::NAMESPACE);
    observe::until(&deployments, DEPLOYMENT, PATIENCE, |deployment| {
        let status = deployment.status.clone().unwrap_or_default();
        status.ready_replicas.unwrap_or(0) == count && status.replicas.unwrap_or(0) == count
    })
    .await?;
    Ok(())
}
