//! What every test needs: the shared Kubernetes, a namespace of its own, and the evidence when it
//! fails.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use dengine_crds::{DEngineCluster, conditions};
use dengine_e2e::cluster::{Cluster, LocalArgs};
use dengine_e2e::product::{self, Profile};
use dengine_e2e::{install, observe};
use dengine_local_kubernetes::images::Archive;
use dengine_local_kubernetes::shell;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::time::Instant;

use crate::load::say;

/// How long three members may take from nothing to Ready on a busy machine.
pub(crate) const READY_PATIENCE: Duration = Duration::from_secs(240);

/// Tests that only use the operator share it; one that takes it away is alone with it.
static OPERATOR: RwLock<()> = RwLock::const_new(());

/// The Kubernetes with the operator on it, and the images that are in it.
pub(crate) struct SharedWorld {
    pub(crate) cluster: Cluster,
    pub(crate) images: Vec<Archive>,
}

/// The Kubernetes of this process, brought up by whichever test comes first.
fn shared() -> Result<&'static SharedWorld> {
    static SHARED: OnceLock<Result<SharedWorld, String>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| set_up().map_err(|error| format!("{error:#}")));
    shared
        .as_ref()
        .map_err(|error| anyhow!("there is no Kubernetes to test on: {error}"))
}

fn set_up() -> Result<SharedWorld> {
    let cluster = Cluster::choose(
        Path::new(env!("CARGO_BIN_EXE_dengine-e2e")),
        LocalArgs::default(),
    )?;
    let images = product::ensure(Profile::Release)?;
    cluster.load(&images)?;
    install::operator(&cluster, &images)?;
    Ok(SharedWorld { cluster, images })
}

/// What a test works with.
pub(crate) struct World {
    pub(crate) shared: &'static SharedWorld,
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl World {
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.shared.cluster
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// `kubectl` in the test's namespace.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        shell::run(
            self.cluster()
                .kubectl()
                .args(["--namespace", &self.namespace])
                .args(arguments),
        )
    }

    /// Makes a cluster and waits until it is Ready.
    pub(crate) async fn make_cluster(&self, name: &str, replicas: u32) -> Result<DEngineCluster> {
        let made = serde_json::from_value(json!({
            "apiVersion": "dengine.io/v1alpha1",
            "kind": "DEngineCluster",
            "metadata": {"name": name},
            "spec": {"replicas": replicas, "storage": {"size": "1Gi"}},
        }))?;
        self.api::<DEngineCluster>()
            .create(&PostParams::default(), &made)
            .await?;
        self.await_ready(name).await
    }

    pub(crate) async fn await_ready(&self, name: &str) -> Result<DEngineCluster> {
        observe::until(&self.api(), name, READY_PATIENCE, |cluster| {
            observe::has_condition(cluster, conditions::READY)
        })
        .await
    }
}

/// What a test that cannot be run on another's cluster ends with.
pub(crate) fn not_run(why: &str) -> Result<()> {
    say(format_args!("    not run: {why}"));
    Ok(())
}

/// Runs a test in a namespace of its own, beside others.
pub(crate) async fn test(name: &str, body: impl AsyncFnOnce(&World) -> Result<()>) {
    let operator = OPERATOR.read().await;
    run(name, Guard::Shared(operator), body).await;
}

/// Like [`test`], while no other test needs the operator.
pub(crate) async fn test_alone(name: &str, body: impl AsyncFnOnce(&World) -> Result<()>) {
    let operator = OPERATOR.write().await;
    run(name, Guard::Alone(operator), body).await;
}

enum Guard {
    Shared(#[expect(dead_code, reason = "held, not read")] RwLockReadGuard<'static, ()>),
    Alone(#[expect(dead_code, reason = "held, not read")] RwLockWriteGuard<'static, ()>),
}

async fn run(name: &str, _guard: Guard, body: impl AsyncFnOnce(&World) -> Result<()>) {
    // Bringing a Kubernetes up is blocking work.
    let shared = tokio::task::spawn_blocking(shared).await.unwrap().unwrap();
    let world = World {
        shared,
        client: shared.cluster.client().await.unwrap(),
        namespace: unique(name),
    };
    make_namespace(&world).await.unwrap();
    let started = Instant::now();
    let outcome = body(&world).await;
    say(format_args!(
        "    {name}: {:.0} s",
        started.elapsed().as_secs_f64()
    ));
    if let Err(error) = outcome {
        let evidence = observe::report(world.cluster(), &world.namespace);
        remove_namespace(&world).await.ok();
        panic!("{error:#}\n{evidence}");
    }
    remove_namespace(&world).await.unwrap();
}

/// Different for every test and every run, so that an interrupted run is in nobody's way.
fn unique(name: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!(
        "e2e-{name}-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

async fn make_namespace(world: &World) -> Result<()> {
    let namespace = serde_json::from_value(json!({
        "metadata": {
            "name": world.namespace,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        },
    }))?;
    Api::<Namespace>::all(world.client.clone())
        .create(&PostParams::default(), &namespace)
        .await?;
    Ok(())
}

/// Custom resources first: while the namespace goes, the operator could not finish what they need.
async fn remove_namespace(world: &World) -> Result<()> {
    world.kubectl(&[
        "delete",
        "dengineclusters,denginebenchmarks",
        "--all",
        "--wait=false",
    ])?;
    Api::<Namespace>::all(world.client.clone())
        .delete(&world.namespace, &DeleteParams::background())
        .await
        .context("removing the test's namespace")?;
    Ok(())
}
