//! Where a system comes from: addresses that somebody else serves, or programs that are started
//! here, on loopback, with fresh data, and end with what started them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use dengine_testkit::{Listen, Process, free_port};
use tonic::Code;

use crate::operation::Operation;
use crate::pb;
use crate::system::{Client, System as _};

/// How long a system may take to answer its first call.
const START_PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Addresses of one cluster that serves already.
    Endpoints(Vec<String>),
    /// The program `etcd`.
    Etcd(PathBuf),
    /// The program `dengine`.
    DEngine(PathBuf),
}

impl FromStr for Source {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(program) = text.strip_prefix("etcd=") {
            return Ok(Self::Etcd(program.into()));
        }
        if let Some(program) = text.strip_prefix("dengine=") {
            return Ok(Self::DEngine(program.into()));
        }
        let endpoints: Vec<String> = text.split(',').map(str::to_owned).collect();
        let plausible = |endpoint: &String| endpoint.contains(':');
        ensure!(
            endpoints.iter().all(plausible),
            "{text} is neither etcd=PROGRAM, dengine=PROGRAM nor addresses such as 127.0.0.1:2379"
        );
        Ok(Self::Endpoints(endpoints))
    }
}

/// How programs are started.
#[derive(Clone, Debug)]
pub struct Starting {
    /// Members of a cluster of DEngine.
    pub members: usize,
    /// Further flags of `dengine serve`.
    pub serve_args: Vec<String>,
}

/// A system that serves.
pub(crate) struct Running {
    pub(crate) addresses: Vec<String>,
    /// Whether its store is as it was made.
    pub(crate) fresh: bool,
    _processes: Vec<Process>,
}

impl Source {
    /// Starts what is to be started, with its data below `folder`, and waits until it serves.
    pub(crate) async fn start(&self, folder: &Path, starting: &Starting) -> Result<Running> {
        fs_err::create_dir_all(folder)?;
        let running = match self {
            Self::Endpoints(addresses) => Running {
                addresses: addresses.clone(),
                fresh: false,
                _processes: Vec::new(),
            },
            Self::Etcd(program) => etcd(program, folder)?,
            Self::DEngine(program) => dengine(program, folder, starting).await?,
        };
        for address in &running.addresses {
            let served = serves(address).await;
            served.with_context(|| format!("{address} does not serve{}", last_lines(folder)))?;
        }
        Ok(running)
    }
}

fn etcd(program: &Path, folder: &Path) -> Result<Running> {
    let [client, peer] = std::array::from_fn(|_| format!("127.0.0.1:{}", free_port()));
    let [client_url, peer_url] = [&client, &peer].map(|address| format!("http://{address}"));
    let mut serve = held(program);
    serve
        .args(["--name", "etcd", "--log-level", "error", "--data-dir"])
        .arg(folder.join("data"))
        .args(["--listen-client-urls", &client_url])
        .args(["--advertise-client-urls", &client_url])
        .args(["--listen-peer-urls", &peer_url])
        .args(["--initial-advertise-peer-urls", &peer_url])
        .args(["--initial-cluster", &format!("etcd={peer_url}")])
        // Nothing here outlives a loss of power, and syncing is most of the time.
        .arg("--unsafe-no-fsync");
    let process = Process::start(&mut serve, &folder.join("etcd.log"));
    Ok(Running {
        addresses: vec![client],
        fresh: true,
        _processes: vec![process],
    })
}

async fn dengine(program: &Path, folder: &Path, starting: &Starting) -> Result<Running> {
    let mut processes = Vec::new();
    let (mut addresses, mut own) = (Vec::new(), Vec::new());
    for number in 0..starting.members {
        let listen = Listen::free();
        let address = format!("127.0.0.1:{}", free_port());
        let mut serve = held(program);
        let data = folder.join(format!("data-{number}"));
        dengine_testkit::serve(&mut serve, &format!("m{number}"), &listen, &data);
        serve
            .args(["--listen-etcd", &address])
            .args(["--log-level", "warn"])
            .args(&starting.serve_args);
        let log = folder.join(format!("dengine-{number}.log"));
        processes.push(Process::start(&mut serve, &log));
        addresses.push(address);
        own.push(listen.client.to_string());
    }
    let mut init = Command::new(program);
    dengine_testkit::without_settings(&mut init);
    init.args(["init", "--endpoints", &own.join(",")]);
    // Other sequences go on meanwhile.
    let formed = tokio::task::spawn_blocking(move || init.output()).await?;
    let formed = formed.with_context(|| format!("running {}", program.display()))?;
    if !formed.status.success() {
        let said = String::from_utf8_lossy(&formed.stderr).into_owned();
        bail!("no cluster was formed: {said}{}", last_lines(folder));
    }
    Ok(Running {
        addresses,
        fresh: true,
        _processes: processes,
    })
}

/// A program that the kernel ends with this one.
fn held(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"ETCD_") {
            command.env_remove(name);
        }
    }
    command
}

async fn serves(address: &str) -> Result<()> {
    let begun = Instant::now();
    let status = Operation::Range(pb::RangeRequest {
        key: "\0".into(),
        ..Default::default()
    });
    loop {
        let failure = match Client::connect(address).await {
            Ok(mut client) => match client.call(&status).await.code() {
                Code::Ok => return Ok(()),
                code => anyhow::anyhow!("it answers {code}"),
            },
            Err(error) => error,
        };
        if begun.elapsed() > START_PATIENCE {
            return Err(failure);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The end of each log, below a line that names it.
fn last_lines(folder: &Path) -> String {
    const LINES: usize = 10;
    let mut text = String::new();
    for entry in fs_err::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|it| it == "log")
            && let Ok(log) = fs_err::read_to_string(&path)
        {
            text += &format!("\n{}:", path.display());
            let lines: Vec<&str> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(LINES)..] {
                text += &format!("\n  {line}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_a_program_or_addresses() {
        let parse = |text: &str| text.parse::<Source>();
        let etcd = parse("etcd=/bin/etcd").unwrap();
        assert_eq!(etcd, Source::Etcd("/bin/etcd".into()));
        let addresses = parse("127.0.0.1:1,http://b:2").unwrap();
        let expected = ["127.0.0.1:1", "http://b:2"].map(str::to_owned).to_vec();
        assert_eq!(addresses, Source::Endpoints(expected));
        assert!(parse("/bin/etcd").is_err());
    }
}
