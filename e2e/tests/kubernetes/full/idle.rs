//! What a thousand clusters cost the API server while nothing happens to them.
//!
//! The clusters are resources like any other, and the operator is the program that ships. What is
//! not there is a thousand servers: their pods fit on no node, and the test says in their place
//! that they run, at addresses of this machine where it answers what a member of a settled cluster
//! answers. So what is counted is what an operator asks for that has nothing to do.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use dengine_crds::{DEngineCluster, conditions, names};
use dengine_e2e::cluster::Cluster;
use dengine_e2e::{observe, product};
use dengine_fake_kv::FakeCluster;
use dengine_protocol::ports;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::operator::operators;
use crate::load::say;
use crate::support::{World, not_run, test_alone};

const CLUSTERS: u16 = 1_000;
/// The promise: `docs/operator.md`, "What it costs".
const REQUESTS_PER_SECOND_MAX: f64 = 20.0;
const MEASURED: Duration = Duration::from_secs(120);
/// A settled cluster is looked at less and less, down to every 30 s; after so long all are.
const SETTLES: Duration = Duration::from_secs(90);
const PATIENCE: Duration = Duration::from_secs(1_800);
const AT_ONCE: usize = 16;
const METRICS: &str = "127.0.0.1:18080";
const REQUESTS: &str = "dengine_operator_kubernetes_requests_total";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_clusters_cost_the_api_server_little() {
    test_alone("idle", async |world| {
        if matches!(world.cluster(), Cluster::Current { .. }) {
            return not_run("another's API server is not ours to fill");
        }
        operators(world, 0).await?;
        let outcome = measure(world).await;
        operators(world, 1).await?;
        outcome
    })
    .await;
}

async fn measure(world: &World) -> Result<()> {
    for number in 0..CLUSTERS {
        serve(number).await?;
    }
    let operator = Operator::start(world)?;
    let started = Instant::now();
    stream::iter(0..CLUSTERS)
        .map(|number| make(world, number))
        .buffer_unordered(AT_ONCE)
        .try_for_each(async |()| Ok(()))
        .await?;
    await_ready(world).await?;
    say(format_args!(
        "    {CLUSTERS} clusters Ready after {:.0} s",
        started.elapsed().as_secs_f64()
    ));
    tokio::time::sleep(SETTLES).await;

    let (before, cpu) = (requests()?, operator.cpu_seconds()?);
    tokio::time::sleep(MEASURED).await;
    let (after, cpu) = (requests()?, operator.cpu_seconds()? - cpu);
    let seconds = MEASURED.as_secs_f64();
    let mut total = 0.0;
    for (verb, count) in &after {
        let count = count - before.get(verb).unwrap_or(&0.0);
        total += count;
        say(format_args!(
            "    {verb}: {:.2} requests a second",
            count / seconds
        ));
    }
    say(format_args!(
        "    {CLUSTERS} idle clusters: {:.2} requests a second, {:.1} % of a core, {} KiB resident",
        total / seconds,
        100.0 * cpu / seconds,
        operator.resident_kib()?
    ));
    ensure!(total > 0.0, "the lease at least is renewed: {after:?}");
    ensure!(
        total / seconds < REQUESTS_PER_SECOND_MAX,
        "{:.1} requests a second",
        total / seconds
    );
    all_ready(world)
        .await?
        .context("a cluster is not Ready any more")
}

fn name(number: u16) -> String {
    format!("idle-{number}")
}

async fn make(world: &World, number: u16) -> Result<()> {
    let made = serde_json::from_value(json!({
        "apiVersion": "dengine.io/v1alpha1",
        "kind": "DEngineCluster",
        "metadata": {"name": name(number)},
        "spec": {
            "replicas": 1, "storage": {"size": "512Mi"},
            "scheduling": {"nodeSelector": {"e2e.dengine.io/no-node": "has-this"}},
        },
    }))?;
    world
        .api::<DEngineCluster>()
        .create(&PostParams::default(), &made)
        .await?;
    Ok(())
}

/// Says of each pod that it runs, as soon as it is there, until all clusters are Ready.
async fn await_ready(world: &World) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let pods = world.api::<Pod>().list(&ListParams::default()).await?;
        let waiting = pods.items.into_iter().filter(|pod| {
            let status = pod.status.as_ref();
            status.and_then(|status| status.pod_ip.as_ref()).is_none()
        });
        stream::iter(waiting)
            .map(|pod| runs(world, pod.name_any()))
            .buffer_unordered(AT_ONCE)
            .try_for_each(async |()| Ok(()))
            .await?;
        if all_ready(world).await?.is_some() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    bail!("not all were Ready after {} s", PATIENCE.as_secs())
}

/// What a kubelet says of a pod that runs and is ready.
async fn runs(world: &World, pod: String) -> Result<()> {
    let number = pod
        .strip_prefix("idle-")
        .and_then(|rest| rest.split('-').next());
    let number = number.and_then(|number| number.parse().ok());
    let ip = address(number.with_context(|| format!("{pod} is no pod of ours"))?);
    let ready = json!({"type": "Ready", "status": "True"});
    let status = json!({"status": {
        "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [ready],
    }});
    world
        .api::<Pod>()
        .patch_status(&pod, &PatchParams::default(), &Patch::Strategic(status))
        .await?;
    Ok(())
}

/// `None` while one is not.
async fn all_ready(world: &World) -> Result<Option<()>> {
    let all = world.api::<DEngineCluster>();
    let all = all.list(&ListParams::default()).await?.items;
    let ready = |cluster: &&DEngineCluster| observe::has_condition(*cluster, conditions::READY);
    let ready = all.iter().filter(ready).count();
    Ok((ready == usize::from(CLUSTERS)).then_some(()))
}

/// The operator that ships, on this machine.
struct Operator(Child);

impl Operator {
    fn start(world: &World) -> Result<Self> {
        let kubeconfig = world.cluster().kubeconfig();
        let child = std::process::Command::new(product::program("dengine-operator")?)
            .env("KUBECONFIG", kubeconfig.context("the local kubeconfig")?)
            .arg(format!("--namespace-scope={}", world.namespace))
            .arg(format!("--lease-namespace={}", world.namespace))
            .args(["--identity=e2e/idle", "--listen", METRICS])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting an operator")?;
        Ok(Self(child))
    }

    /// User and system time so far.
    fn cpu_seconds(&self) -> Result<f64> {
        let stat = fs_err::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // The name in parentheses may hold anything.
        let (_, fields) = stat.rsplit_once(')').context("a process has a name")?;
        let ticks: Vec<f64> = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        let per_second = rustix::param::clock_ticks_per_second();
        Ok(ticks.iter().sum::<f64>() / f64::from(u32::try_from(per_second)?))
    }

    fn resident_kib(&self) -> Result<String> {
        let status = fs_err::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let size = line.context("a process has memory")?.trim();
        Ok(size.trim_end_matches(" kB").to_owned())
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Requests to the Kubernetes API so far, by verb, as the operator counts them.
fn requests() -> Result<BTreeMap<String, f64>> {
    let mut found = BTreeMap::new();
    for line in metrics()?.lines() {
        let Some((verb, count)) = line
            .strip_prefix(REQUESTS)
            .and_then(|rest| rest.strip_prefix("{verb=\""))
            .and_then(|rest| rest.split_once("\"} "))
        else {
            continue;
        };
        found.insert(verb.to_owned(), count.parse()?);
    }
    ensure!(!found.is_empty(), "the operator counts no requests");
    Ok(found)
}

fn metrics() -> Result<String> {
    let address: SocketAddr = METRICS.parse()?;
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: e2e\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Where the only member of this cluster is.
fn address(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, 77, high, low)
}

/// Answers in the place of the only member of this cluster.
async fn serve(number: u16) -> Result<()> {
    let listener = TcpListener::bind((address(number), ports::ADMIN)).await;
    let listener = listener.with_context(|| format!("listening at {}", address(number)))?;
    let only = names::cluster::pod(&name(number), 0);
    FakeCluster::new(u64::from(number) + 1, [only]).serve(0, listener);
    Ok(())
}
