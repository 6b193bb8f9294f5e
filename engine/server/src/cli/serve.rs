//! `dengine serve`: one member, from configuration to a clean end.

use std::future::pending;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use dengine::config::{self, Config, ConfigOverrides};
use dengine::error::{Fatal, StartError};
use dengine::node::Node;
use dengine::server::{self, Listeners, ServeError, ServerThreads};
use dengine::{files, preemption, telemetry};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{EXIT_ENVIRONMENT, EXIT_FAILED, EXIT_OK, EXIT_REPLACE, say};
use crate::allocator;

/// What `dengine serve` takes.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// TOML file with settings; environment and flags win over it. Unknown settings are refused.
    #[arg(long, value_name = "FILE", env = "DENGINE_CONFIG")]
    config: Option<PathBuf>,

    /// Print the settings that result from file, environment and flags as TOML, and exit.
    #[arg(long)]
    print_config: bool,

    #[command(flatten)]
    overrides: ConfigOverrides,
}

/// Runs a member until a signal or a failure ends it.
pub(super) fn run(args: &ServeArgs) -> anyhow::Result<u8> {
    let config = config::load(args.config.as_deref(), &args.overrides)?;
    if args.print_config {
        say(config.to_toml().trim_end());
        return Ok(EXIT_OK);
    }
    let lines = telemetry::install_log_lines(config.log_format, &config.log_level)?;
    files::raise_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(HOUSEKEEPERS)
        .event_interval(server::TASKS_BETWEEN_EVENTS)
        .build()
        .map_err(StartError::Thread)?;
    let threads = ServerThreads::start().map_err(StartError::Thread)?;
    let code = runtime.block_on(serve(config, &threads));
    if let Ok(End::WhileOpening) = code {
        drop(lines);
        end_at_once(EXIT_OK);
    }
    // Requests that outlasted everybody's patience end here, and with them the last handles of the
    // store: RocksDB must be closed before the process runs its exit handlers.
    threads.end(runtime, SHUTDOWN_GRACE);
    match code? {
        End::WithCode(code) => Ok(code),
        End::WhileOpening => unreachable!("the process has ended"),
    }
}

/// Threads for what serves no single client: probes, connections that come in, requests on their
/// way to the leader, watches' history, and what waits for a disk now and then.
const HOUSEKEEPERS: usize = 2;

/// How a member ended.
enum End {
    WithCode(u8),
    /// By a signal, while a thread may still be opening the data directory.
    WhileOpening,
}

/// Ends the process without its exit handlers: they would take RocksDB's globals from under a
/// thread that is opening it.
#[expect(unsafe_code, reason = "the standard library runs the exit handlers")]
fn end_at_once(code: u8) -> ! {
    // SAFETY: `_exit` takes any number, runs nothing of this process and does not return.
    unsafe { libc::_exit(code.into()) }
}

async fn serve(config: Config, threads: &ServerThreads) -> anyhow::Result<End> {
    let mut stop_signals = StopSignals::install()?;
    let metrics = telemetry::install_metrics()?;
    let listeners = Listeners::bind(&config).await?;
    let Some(node) = open(&config, &mut stop_signals).await? else {
        return Ok(End::WhileOpening);
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        name = config.name,
        data_dir = %config.data_dir.display(),
        client = config.advertise_client,
        peer = config.advertise_peer,
        monitor = %config.listen_monitor,
        folder_id = node.status().folder_id,
        "member started"
    );
    tokio::spawn(preemption::judge());
    let stop = CancellationToken::new();
    let (member, give_back) = (node.clone(), allocator::give_back);
    let serving = server::serve(
        member,
        &config,
        listeners,
        metrics,
        give_back,
        threads,
        stop.clone(),
    );
    let code = until_stopped(&node, &config, serving, stop, stop_signals).await;
    // Whoever drops the last handle waits for the member's threads. A disk that hangs may keep them
    // forever, so this is left to where `run` waits for so long and no longer.
    tokio::task::spawn_blocking(move || drop(node));
    code.map(End::WithCode)
}

/// Opens the member's data directory, which takes long if the log or the state is large or the disk
/// slow. `None` if a signal came first: nothing was served, and the directory is in a state that a
/// kill may leave too.
async fn open(config: &Config, stop_signals: &mut StopSignals) -> anyhow::Result<Option<Node>> {
    // On a thread of its own, for it blocks.
    let mut opening = tokio::spawn(Node::start(config.clone()));
    let name = tokio::select! {
        opened = &mut opening => return Ok(Some(or_panic(opened)?)),
        name = stop_signals.next() => name,
    };
    tracing::info!(signal = name, "stopping before the data directory is open");
    tokio::select! {
        opened = &mut opening => if let Err(fatal) = or_panic(opened)?.shutdown().await {
            tracing::warn!(error = %fatal, "the member did not stop in good order");
        },
        () = tokio::time::sleep(OPENING_GRACE) => {
            tracing::info!("gave up waiting for the data directory to open; its content is safe");
        }
        name = stop_signals.next() => tracing::info!(signal = name, "stopping at once"),
    }
    Ok(None)
}

/// Goes on with its panic if it panicked, as the runtime does that can't have a thread: that says
/// nothing about the data directory, and must not exit with the code of an error.
fn or_panic<T>(ended: Result<T, tokio::task::JoinError>) -> T {
    ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Serves until a signal or a failure, and then winds down.
async fn until_stopped(
    node: &Node,
    config: &Config,
    serving: impl Future<Output = Result<(), ServeError>>,
    stop: CancellationToken,
    mut stop_signals: StopSignals,
) -> anyhow::Result<u8> {
    let mut serving = Box::pin(serving);
    let code = tokio::select! {
        biased;
        fatal = node.stopped() => {
            tracing::error!(error = %fatal, "member ends");
            stop.cancel();
            // Nothing may be acknowledged any more, so that requests in flight get no time but to
            // hear that they failed: one of them may have found what ends the member.
            let told = tokio::time::timeout(LAST_ANSWERS, serving);
            let ended = tokio::time::timeout(SHUTDOWN_GRACE, node.shutdown());
            let _ = tokio::join!(told, ended);
            return Ok(code_of(&fatal));
        }
        name = stop_signals.next() => {
            tracing::info!(signal = name, "stopping");
            EXIT_OK
        }
        served = &mut serving => {
            served?;
            EXIT_FAILED
        }
    };
    node.hand_over().await;
    stop.cancel();
    let wind_down = async {
        let _ = tokio::time::timeout(config.limits.shutdown_timeout(), serving).await;
        node.shutdown().await
    };
    tokio::select! {
        ended = wind_down => match ended {
            Ok(()) => tracing::info!("stopped"),
            Err(fatal) => {
                tracing::error!(error = %fatal, "the member did not stop in good order");
                return Ok(code_of(&fatal));
            }
        },
        () = tokio::time::sleep(config.limits.shutdown_timeout() + SHUTDOWN_GRACE) => {
            tracing::warn!("gave up waiting for the member's threads; the log is safe as it is");
        }
        name = stop_signals.next() => tracing::warn!(signal = name, "stopping at once"),
    }
    Ok(code)
}

fn code_of(fatal: &Fatal) -> u8 {
    if fatal.needs_replacement() {
        EXIT_REPLACE
    } else if fatal.is_of_the_environment() {
        EXIT_ENVIRONMENT
    } else {
        EXIT_FAILED
    }
}

/// How long opening the data directory may take after a signal: if it opens in time, it is closed
/// cleanly.
const OPENING_GRACE: Duration = Duration::from_secs(3);

/// What the node's threads get after the requests in flight had their time: one flush and sync.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// What answers get that are known when a member ends by itself.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// The signals by which people and Kubernetes end a process.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn install() -> anyhow::Result<Self> {
        let install = |kind| signal(kind).context("signals can't be handled");
        Ok(Self {
            terminate: install(SignalKind::terminate())?,
            interrupt: install(SignalKind::interrupt())?,
        })
    }

    /// The name of the next one.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            Some(()) = self.terminate.recv() => "SIGTERM",
            Some(()) = self.interrupt.recv() => "SIGINT",
            else => pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use dengine_kv::StoreError;

    use super::*;

    #[tokio::test]
    #[should_panic(expected = "can't have a thread")]
    async fn a_panic_while_the_folder_is_opened_goes_on() {
        or_panic(tokio::spawn(async { panic!("can't have a thread") }).await);
    }

    /// It served for a while, so the next start would find nothing, until it reads there again.
    #[test]
    fn damage_that_a_running_member_finds_has_it_replaced() {
        let damaged = StoreError::Corrupt("a block".to_owned());
        assert_eq!(code_of(&Fatal::State(damaged)), EXIT_REPLACE);
    }
}
