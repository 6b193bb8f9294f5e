//! `make kwok`: a Kubernetes of many nodes and pods, on DEngine and on etcd, in turns.
//!
//! Nodes and pods are objects and nothing more: kwok, a program of the Kubernetes project, says of
//! them what kubelets would. All else is real: what keeps the objects, API server, scheduler and
//! controllers, which have far more to do than one real node could ask of them.

mod metrics;
mod nodes;
mod pods;
mod probe;
mod program;
mod report;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use dengine_local_kubernetes::layout::Layout;
use dengine_local_kubernetes::process::Process;
use dengine_local_kubernetes::progress::ProgressStep;
use dengine_local_kubernetes::settings::{self, Settings};
use dengine_local_kubernetes::up::{self, Local, NodeRecord};
use dengine_local_kubernetes::{down, programs, shell};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use tokio::time::Instant;

use self::metrics::Requests;
use self::pods::Pods;
use self::probe::Probe;
use self::program::Kwok;
pub use self::report::{Measured, render};
use crate::bench;
use crate::cluster::{Cluster, Store};

const NAMESPACE: &str = "load";
/// Requests of this program that are under way at once.
const AT_ONCE: usize = 16;
/// Between two looks at what is awaited.
const INTERVAL: Duration = Duration::from_millis(250);

/// What `dengine-e2e kwok` takes.
#[derive(Debug, Clone, Args)]
pub struct Options {
    #[command(flatten)]
    size: Size,
    /// What the API server keeps its objects in, one after the other, each in a Kubernetes of its
    /// own; of several, each round goes there and back
    #[arg(long, value_enum, value_delimiter = ',', default_value = "dengine")]
    store: Vec<Store>,
    /// How many rounds
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    /// A file for the results, as JSON
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// How large the Kubernetes is.
#[derive(Debug, Clone, Copy, Args)]
pub struct Size {
    /// Nodes that are not there
    #[arg(long, default_value_t = 100)]
    pub nodes: u32,
    /// Pods that come and go
    #[arg(long, default_value_t = 1_000)]
    pub pods: u32,
}

/// Measures in turns, and prints what came of it.
///
/// # Errors
/// When a local Kubernetes is up, or one cannot be brought up, or its pods do not come and go.
pub async fn run(options: &Options, own_program: &Path) -> Result<()> {
    options.size.validate()?;
    programs::kwok()?;
    bench::warn_if_busy();
    let mut runs = Vec::new();
    for store in options.turns() {
        let settings = store.settings(own_program)?;
        runs.push(turn(own_program, settings.store, options.size).await?);
        print(&format!("\n{}\n", render(&runs)))?;
        if let Some(file) = &options.output {
            fs_err::write(file, serde_json::to_string_pretty(&runs)?)?;
        }
    }
    Ok(())
}

impl Options {
    /// There and back: what slows this machine down little by little slows down all of them.
    fn turns(&self) -> Vec<Store> {
        let mut round = self.store.clone();
        if round.len() > 1 {
            round.extend(self.store.iter().rev());
        }
        let all = round.len() * self.repeat;
        round.into_iter().cycle().take(all).collect()
    }
}

impl Size {
    fn validate(self) -> Result<()> {
        let room = u64::from(self.nodes) * u64::from(nodes::PODS_EACH_MAX);
        ensure!(
            (1..=room).contains(&u64::from(self.pods)),
            "{} nodes have room for 1 to {room} pods",
            self.nodes
        );
        Ok(())
    }

    /// How long anything may take.
    fn patience(self) -> Duration {
        Duration::from_secs(120 + u64::from(self.pods / 10 + self.nodes))
    }
}

/// One run in a Kubernetes of its own. It goes when all went well, and otherwise stays, with the
/// logs of its programs.
///
/// # Errors
/// As [`run`].
pub async fn turn(own_program: &Path, store: settings::Store, size: Size) -> Result<Measured> {
    let name = store.name();
    let settings = Settings {
        store,
        raised_limits: true,
        ..Settings::default()
    };
    let own_program = own_program.to_owned();
    // Bringing a Kubernetes up is blocking work.
    let local = tokio::task::spawn_blocking(move || bring_up(&own_program, &settings)).await??;
    let measured = load(&local, name, size).await;
    let measured = measured.context("the local Kubernetes stays up: `make down` removes it")?;
    tokio::task::spawn_blocking(down::down).await??;
    Ok(measured)
}

/// A fresh one: what an earlier one kept would be measured too.
fn bring_up(own_program: &Path, settings: &Settings) -> Result<Local> {
    let node = NodeRecord::load(&Layout::of_this_user()?)?;
    if node.map_or(Ok(false), |node| node.is_alive())? {
        bail!("a local Kubernetes is up: take it down first, with `make down`");
    }
    up::up(own_program, Some(settings))
}

async fn load(local: &Local, store: &str, size: Size) -> Result<Measured> {
    let cluster = Cluster::Local(Box::new(local.clone()));
    let client = cluster.client().await?;
    let title = format!("{} nodes and {} pods", size.nodes, size.pods);
    let mut step = ProgressStep::start(title);
    let mut kwok = Kwok::start(local)?;
    let run = Load {
        local,
        store,
        cluster: &cluster,
        client: &client,
        size,
    };
    let measured = run.measure(&mut step).await;
    let measured = measured.with_context(|| format!("kwok said:\n{}", kwok.said()))?;
    kwok.must_run()?;
    step.done("");
    Ok(measured)
}

/// A Kubernetes with kwok beside it.
struct Load<'a> {
    local: &'a Local,
    /// The name of what it keeps its objects in.
    store: &'a str,
    cluster: &'a Cluster,
    client: &'a Client,
    size: Size,
}

impl Load<'_> {
    async fn measure(&self, step: &mut ProgressStep) -> Result<Measured> {
        let patience = self.size.patience();
        step.note("nodes");
        let started = Instant::now();
        nodes::make(self.client, self.size.nodes, patience).await?;
        let nodes_seconds = started.elapsed().as_secs_f64();
        self.make_namespace().await?;

        let mut pods = Pods::watch(self.client, NAMESPACE);
        let before = Spent::so_far(self.local, self.cluster)?;
        let probe = Probe::start(self.client, NAMESPACE);
        step.note("pods come");
        let started = Instant::now();
        pods.make(self.size.pods, patience).await?;
        let running_seconds = started.elapsed().as_secs_f64();
        pods.compare(patience).await?;
        step.note("pods go");
        let started = Instant::now();
        pods.delete(patience).await?;
        let gone_seconds = started.elapsed().as_secs_f64();
        let lag = probe.end().await?;
        let after = Spent::so_far(self.local, self.cluster)?;
        pods.compare(patience).await?;
        Ok(Measured {
            store: self.store.to_owned(),
            nodes: self.size.nodes,
            pods: self.size.pods,
            nodes_seconds,
            running_seconds,
            gone_seconds,
            store_cpu_seconds: spent(&before.store, &after.store)?,
            api_server_cpu_seconds: spent(&before.api_server, &after.api_server)?,
            lag,
            requests: after.requests.since(&before.requests),
        })
    }

    /// With what pods in it need.
    async fn make_namespace(&self) -> Result<()> {
        let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        Api::<Namespace>::all(self.client.clone())
            .create(&PostParams::default(), &namespace)
            .await?;
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), NAMESPACE);
        let what = "the namespace has its service account";
        until(what, self.size.patience(), async || {
            accounts.get("default").await?;
            Ok(())
        })
        .await
    }
}

/// What the programs had used up at a moment.
struct Spent {
    store: Vec<(Process, Duration)>,
    api_server: Vec<(Process, Duration)>,
    requests: Requests,
}

impl Spent {
    fn so_far(local: &Local, cluster: &Cluster) -> Result<Self> {
        let cpu = |program: &str| {
            let process = local.process(program)?;
            let cpu = process.cpu()?;
            anyhow::Ok((process, cpu))
        };
        let metrics = shell::run(cluster.kubectl().args(["get", "--raw=/metrics"]))?;
        Ok(Self {
            requests: Requests::parse(&metrics)?,
            store: local
                .store_members()
                .into_iter()
                .map(cpu)
                .collect::<Result<_>>()?,
            api_server: vec![cpu("kube-apiserver")?],
        })
    }
}

/// By all of them between two moments.
fn spent(before: &[(Process, Duration)], after: &[(Process, Duration)]) -> Result<f64> {
    let mut seconds = 0.0;
    for ((process, before), (same, after)) in before.iter().zip(after) {
        ensure!(process == same, "a program was started again meanwhile");
        seconds += after.saturating_sub(*before).as_secs_f64();
    }
    Ok(seconds)
}

/// Tries until it works.
async fn until(
    what: &str,
    patience: Duration,
    mut attempt: impl AsyncFnMut() -> Result<()>,
) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        match attempt().await {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("waiting in vain: {what}")));
            }
            Err(_) => tokio::time::sleep(INTERVAL).await,
        }
    }
}

fn print(text: &str) -> Result<()> {
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(store: &[Store], repeat: usize) -> Options {
        Options {
            size: Size { nodes: 1, pods: 1 },
            store: store.to_vec(),
            repeat,
            output: None,
        }
    }

    #[test]
    fn two_stores_take_turns_there_and_back() {
        let (a, b) = (Store::Dengine, Store::EtcdOfThree);
        assert_eq!(options(&[a, b], 1).turns(), [a, b, b, a]);
        assert_eq!(options(&[a, b], 2).turns(), [a, b, b, a, a, b, b, a]);
        assert_eq!(options(&[a], 2).turns(), [a, a]);
    }

    #[test]
    fn pods_that_fit_on_no_node_are_refused() {
        let fits = |nodes, pods| Size { nodes, pods }.validate().is_ok();
        assert!(fits(1, 110) && fits(1_000, 10_000));
        assert!(!fits(1, 111) && !fits(1, 0) && !fits(0, 1));
    }
}
