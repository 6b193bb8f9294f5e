//! `spec.etcd`: etcd's own client, unchanged, at the Service of a cluster.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dengine_crds::{DEngineCluster, conditions};
use dengine_e2e::observe;
use dengine_local_kubernetes::{programs, shell};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::PostParams;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::timeout;

use crate::forward;
use crate::plugin::dengine;
use crate::support::{World, test};

const PORT: u16 = 2379;
/// For what a watch tells of the past, and for a change that the operator has to see.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn etcdctl_reads_writes_and_watches_a_cluster_that_serves_etcds_api() {
    test("etcd", async |world| {
        make_cluster(world).await?;
        let endpoint = forward::to(world, "e-client", PORT).await?;
        let etcdctl = Etcdctl {
            program: &programs::etcdctl()?,
            endpoint,
        };
        reads_and_writes(world, &etcdctl)?;
        etcdctl
            .watches(&["PUT", "color", "blue", "PUT", "color", "green"])
            .await?;
        loses_history_only_by_compaction(&etcdctl)?;
        is_turned_off(world).await
    })
    .await;
}

async fn make_cluster(world: &World) -> Result<()> {
    let made = serde_json::from_value(json!({
        "apiVersion": "dengine.io/v1alpha1",
        "kind": "DEngineCluster",
        "metadata": {"name": "e"},
        "spec": {"replicas": 3, "storage": {"size": "1Gi"}, "etcd": {"enabled": true}},
    }))?;
    let clusters = world.api::<DEngineCluster>();
    clusters.create(&PostParams::default(), &made).await?;
    world.await_ready("e").await.map(drop)
}

struct Etcdctl<'a> {
    program: &'a Path,
    endpoint: String,
}

impl Etcdctl<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command
            .args(["--endpoints", &self.endpoint])
            .args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<String> {
        shell::run(&mut self.command(arguments))
    }

    /// What a watch of `color` prints from the beginning on.
    async fn watches(&self, expected: &[&str]) -> Result<()> {
        let mut watch = tokio::process::Command::from(self.command(&["watch", "color", "--rev=1"]))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = watch.stdout.take().context("it is piped")?;
        let mut lines = BufReader::new(output).lines();
        for expected in expected {
            let line = timeout(PATIENCE, lines.next_line()).await??;
            ensure!(
                line.as_deref() == Some(*expected),
                "{line:?}, not {expected}"
            );
        }
        Ok(())
    }

    fn says(&self, arguments: &[&str], expected: &str) -> Result<()> {
        let said = self.run(arguments)?;
        ensure!(said == expected, "etcdctl {arguments:?}: {said:?}");
        Ok(())
    }
}

fn reads_and_writes(world: &World, etcdctl: &Etcdctl<'_>) -> Result<()> {
    etcdctl.says(&["put", "color", "blue"], "OK\n")?;
    let got = dengine(world, &["get", "e", "color"])?;
    ensure!(got == "blue\n", "by our own API: {got}");
    dengine(world, &["put", "e", "shape", "round"])?;
    let all = "color\nblue\nshape\nround\n";
    etcdctl.says(&["get", "--prefix", ""], all)?;
    let script = "value(\"color\") = \"blue\"\n\nput color green\n\nget color\n\n";
    let moved = shell::run_with_input(&mut etcdctl.command(&["txn"]), script)?;
    ensure!(moved.trim_end() == "SUCCESS\n\nOK", "{moved:?}");
    etcdctl.says(&["del", "--prev-kv", "shape"], "1\nshape\nround\n")?;
    let health = etcdctl.run(&["endpoint", "health"])?;
    ensure!(health.contains("is healthy"), "{health}");
    let members = etcdctl.run(&["member", "list"])?;
    ensure!(members.lines().count() == 3, "{members}");
    Ok(())
}

fn loses_history_only_by_compaction(etcdctl: &Etcdctl<'_>) -> Result<()> {
    etcdctl.says(&["get", "color", "--rev=2"], "color\nblue\n")?;
    let compacted = etcdctl.run(&["compaction", "4"])?;
    ensure!(compacted == "compacted revision 4\n", "{compacted:?}");
    let gone = etcdctl.run(&["get", "color", "--rev=2"]).err();
    let words = gone.map(|error| format!("{error:#}"));
    let expected = "etcdserver: mvcc: required revision has been compacted";
    ensure!(
        words
            .as_deref()
            .is_some_and(|words| words.contains(expected)),
        "{words:?}"
    );
    Ok(())
}

/// The members restart one after the other without the port, and keep the keys.
async fn is_turned_off(world: &World) -> Result<()> {
    let before = world.uids::<Pod>("e").await?;
    world
        .edit("e", json!({"spec": {"etcd": {"enabled": false}}}))
        .await?;
    world
        .await_cluster("e", PATIENCE, |cluster| {
            !observe::has_condition(cluster, conditions::MEMBERS_UPDATED)
        })
        .await?;
    world.await_settled("e", before.len()).await?;
    let now = world.uids::<Pod>("e").await?;
    ensure!(
        now.iter().all(|(pod, uid)| before.get(pod) != Some(uid)),
        "before {before:?}, now {now:?}"
    );
    let service = world.api::<Service>().get("e-client").await?;
    let ports = service.spec.and_then(|spec| spec.ports);
    ensure!(
        ports.as_ref().is_some_and(|ports| ports.len() == 1),
        "{ports:?}"
    );
    let got = dengine(world, &["get", "e", "color"])?;
    ensure!(got == "green\n", "{got}");
    Ok(())
}
