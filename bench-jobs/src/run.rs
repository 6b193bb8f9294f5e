//! One run from its checked command line to its delivered result.

use std::{
    fmt::Display,
    io::{self, Write},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use dengine_crds::benchmark::{Preload, ReadConsistency, RunResult, Shape, Workload};
use jiff::Timestamp;
use tokio::time::{sleep, timeout};

use crate::{
    cli::Cli,
    cut::Cut,
    keys::{self, Keys, Order},
    load::{self, Measured, Operation, Plan},
    outcome::{self, Frame, Verdict},
    progress::Progress,
    report, summary,
    target::{Connect, Facts, Target},
};

/// Clients that fill the key space: enough to batch well, few enough not to overload.
const PRELOAD_CLIENTS: u64 = 64;
/// How long members may take to catch up with the filled key space before eventual reads.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);
/// How long to ask for the leader after a run that failed.
const AFTER_FAILURE_LIMIT: Duration = Duration::from_secs(3);
const SETTLE_POLL: Duration = Duration::from_millis(20);

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitStatus(u8);

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        ExitCode::from(status.0)
    }
}

/// Carries a command line out: measures, prints, writes and posts.
pub async fn run(cli: Cli) -> ExitStatus {
    if let Err(error) = cli.validate() {
        error.exit();
    }
    let result = match Run::new(&cli) {
        Ok(run) => run.carry_out().await,
        Err(error) => {
            say(&mut io::stderr(), format_args!("error: {error:#}\n"));
            return ExitStatus(1);
        }
    };
    let verdict = Verdict::of(&result);
    let delivered = deliver(&cli, &result).await;
    if let Err(error) = &delivered {
        say(&mut io::stderr(), format_args!("error: {error:#}\n"));
    }
    ExitStatus(if delivered.is_err() {
        verdict.exit_status().max(1)
    } else {
        verdict.exit_status()
    })
}

/// A run under way: what is known so far.
struct Run<'a> {
    cli: &'a Cli,
    cut: Cut,
    frame: Frame,
}

impl<'a> Run<'a> {
    fn new(cli: &'a Cli) -> anyhow::Result<Self> {
        let now = Timestamp::now();
        let frame = Frame {
            protocol: cli.options.protocol.into(),
            shape: cli.shape(),
            target_leader: cli.options.target_leader,
            seed: cli.options.seed,
            warm_up: cli.warm_up(),
            preload: None,
            node: cli.options.node.clone(),
            started_at: now,
            finished_at: now,
            before: None,
            after: None,
        };
        let cut = Cut::after(cli.options.timeout).context("signal handlers")?;
        Ok(Run { cli, cut, frame })
    }

    async fn carry_out(mut self) -> RunResult {
        match self.prepare_and_measure().await {
            Ok(measured) => outcome::result(&self.frame, &measured),
            Err(error) => {
                self.frame.finished_at = Timestamp::now();
                outcome::failed(&self.frame, &format!("{error:#}"))
            }
        }
    }

    async fn prepare_and_measure(&mut self) -> anyhow::Result<Measured> {
        let cut = self.cut.clone();
        let (connect, target) = cut.unless(self.prepare()).await?;

        let shape = &self.frame.shape;
        let plan = self.plan(shape, shape.total);
        self.frame.started_at = Timestamp::now();
        let measured = self.load(plan, &target, "measuring").await;
        self.frame.finished_at = Timestamp::now();

        let patience = match measured.errors {
            0 => self.cli.options.ready_timeout,
            // The numbers do not count anyway, and a terminated pod has little time left.
            _ => AFTER_FAILURE_LIMIT,
        };
        self.frame.after = self.await_ready(&connect.endpoints, patience).await.ok();
        Ok(measured)
    }

    /// Everything before the first request that counts.
    async fn prepare(&mut self) -> anyhow::Result<(Connect, Target)> {
        let options = &self.cli.options;
        let before = self
            .await_ready(&options.endpoints, options.ready_timeout)
            .await?;
        let endpoints = match (options.target_leader, &before.leader) {
            (true, Some(leader)) => vec![leader.address.clone()],
            (true, None) => bail!("--target-leader: the cluster has no leader"),
            (false, _) => options.endpoints.clone(),
        };
        self.frame.before = Some(before);
        let connect = Connect {
            protocol: self.frame.protocol,
            endpoints,
            connections: options.conns as usize,
            request_timeout: options.request_timeout,
            retry: false,
        };
        let target = Target::connect(&connect).await.context("connecting")?;
        let shape = self.frame.shape.clone();
        if shape.workload == Workload::Range {
            let revision = self.fill(&connect, &shape).await?;
            self.settle(&target, &shape, revision).await?;
        }
        self.warm_up(&target, &shape).await?;
        // Asked again, because electing a leader during the preparation harms nobody.
        let before = self
            .await_ready(&connect.endpoints, options.ready_timeout)
            .await?;
        self.frame.before = Some(before);
        Ok((connect, target))
    }

    async fn await_ready(&self, endpoints: &[String], limit: Duration) -> anyhow::Result<Facts> {
        Facts::await_ready(self.frame.protocol, endpoints, limit).await
    }

    fn plan(&self, shape: &Shape, total: u64) -> Plan {
        let seed = self.cli.options.seed;
        let operation = match (shape.workload, shape.consistency) {
            (Workload::Put, _) => Operation::Put,
            (Workload::Range, fresh) => {
                Operation::Get(fresh.unwrap_or(ReadConsistency::Linearizable))
            }
        };
        Plan {
            operation,
            clients: u64::from(shape.clients),
            total,
            keys: Keys::new(keys::space(shape), shape.key_size, Order::of(shape), seed),
            value_size: shape.value_size,
            seed,
        }
    }

    /// Writes every key of the key space once; the revision of the last.
    async fn fill(&mut self, connect: &Connect, shape: &Shape) -> anyhow::Result<u64> {
        let keys = keys::space(shape);
        let clients = PRELOAD_CLIENTS.min(keys);
        let connections = connect.connections.min(clients as usize);
        let connect = Connect {
            connections,
            retry: true,
            ..connect.clone()
        };
        let target = Target::connect(&connect).await.context("connecting")?;
        let plan = Plan {
            operation: Operation::Put,
            clients,
            total: keys,
            keys: Keys::new(
                keys,
                shape.key_size,
                Order::Sequential,
                self.cli.options.seed,
            ),
            ..self.plan(shape, keys)
        };
        let filled = self.load(plan, &target, "filling").await;
        succeeded(&filled, keys).context("filling the key space")?;
        self.frame.preload = Some(Preload {
            keys: filled.requests(),
            total_seconds: filled.elapsed.as_secs_f64(),
        });
        Ok(filled.revision)
    }

    /// Waits until every connection serves the filled key space: an eventual read may be answered by
    /// a member that has not applied it yet.
    async fn settle(&self, target: &Target, shape: &Shape, revision: u64) -> anyhow::Result<()> {
        let keys = Keys::new(keys::space(shape), shape.key_size, Order::Sequential, 0);
        let first = keys.client(0).key(0);
        let settled = async {
            for connection in 0..shape.connections as usize {
                let mut lane = target.lane(connection);
                loop {
                    let fresh = ReadConsistency::Eventual;
                    match lane.get(first.clone(), fresh).await {
                        Ok(found) if found.revision >= revision => break,
                        Ok(_) | Err(_) => sleep(SETTLE_POLL).await,
                    }
                }
            }
        };
        timeout(SETTLE_LIMIT, settled).await.map_err(|_| {
            anyhow::anyhow!("a member did not catch up with the keys within {SETTLE_LIMIT:?}")
        })
    }

    /// Runs the same kind of requests for a while, so that connections, caches and branch predictors
    /// are as they will be. A put writes one key per client, so the others are still new.
    async fn warm_up(&self, target: &Target, shape: &Shape) -> anyhow::Result<()> {
        let total = self.cli.warm_up();
        let seed = self.cli.options.seed;
        let space = u64::from(shape.clients).min(keys::space(shape));
        let plan = Plan {
            keys: Keys::new(space, shape.key_size, Order::Sequential, seed),
            ..self.plan(shape, total)
        };
        let warmed = self.load(plan, target, "warming up").await;
        succeeded(&warmed, total).context("warming up")
    }

    async fn load(&self, plan: Plan, target: &Target, phase: &'static str) -> Measured {
        load::run(plan, target, &Progress { phase }, self.cut.reason()).await
    }
}

fn succeeded(measured: &Measured, total: u64) -> anyhow::Result<()> {
    match &measured.first_error {
        Some(error) => bail!(
            "{} of {total} requests failed; the first: {error}",
            measured.errors
        ),
        None => Ok(()),
    }
}

async fn deliver(cli: &Cli, result: &RunResult) -> anyhow::Result<()> {
    let summary = summary::render(result);
    let json_to_stdout = cli.options.json.as_deref() == Some(Path::new("-"));
    if json_to_stdout {
        say(&mut io::stderr(), &summary);
    } else {
        say(&mut io::stdout(), &summary);
    }
    let written = match &cli.options.json {
        Some(path) => write_json(path, result),
        None => Ok(()),
    };
    let posted = match (&cli.options.report_to, &cli.options.run_id) {
        (Some(to), Some(run_id)) => report::post(to, run_id, result).await,
        _ => Ok(()),
    };
    written.and(posted)
}

fn write_json(path: &Path, result: &RunResult) -> anyhow::Result<()> {
    let mut json = serde_json::to_string_pretty(result).context("result as JSON")?;
    json.push('\n');
    if path == Path::new("-") {
        say(&mut io::stdout(), &json);
        return Ok(());
    }
    std::fs::write(path, json).with_context(|| format!("writing {}", path.display()))
}

/// Prints; a reader that is gone is no reason to fail a run.
fn say(to: &mut impl Write, text: impl Display) {
    let _ = write!(to, "{text}");
    let _ = to.flush();
}
