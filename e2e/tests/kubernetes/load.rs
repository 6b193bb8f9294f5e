//! Writers that run while something happens to a cluster; and the way to a cluster from outside of
//! Kubernetes.

use std::fmt;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use dengine_client::{Client, ClientOptions, Consistency, Error, SessionOptions};
use dengine_crds::names;
use dengine_e2e::cluster::Cluster;
use k8s_openapi::api::core::v1::Service;
use tokio::time::Instant;

use crate::forward;
use crate::support::{READY_PATIENCE, World};

/// Between two attempts to get through.
const PAUSE: Duration = Duration::from_millis(200);
/// Every other one with a session, whose writes are sent again until they are answered.
const WRITERS: usize = 8;
/// Between two writes of one writer: enough load to see a gap of a few milliseconds, and little
/// enough to leave the machine to what is tested.
const PACE: Duration = Duration::from_millis(10);
const CLIENT_PORT: u16 = 4100;

/// A client of a cluster's client Service: by its address on the local Kubernetes, through
/// `kubectl port-forward` on another.
pub(crate) async fn connect(world: &World, cluster: &str) -> Result<Client> {
    let service = names::cluster::client_service(cluster);
    let endpoint = match world.cluster() {
        Cluster::Local(_) => {
            let found = world.api::<Service>().get(&service).await?;
            let address = found
                .spec
                .and_then(|spec| spec.cluster_ip)
                .context("a client Service has an address")?;
            format!("{address}:{CLIENT_PORT}")
        }
        Cluster::Current { .. } => forward::to(world, &service, CLIENT_PORT).await?,
    };
    let options = ClientOptions {
        connections: 2,
        ..ClientOptions::default()
    };
    await_route(&endpoint, &options).await
}

/// A Service that has just been made has an address before every node knows the way to it.
async fn await_route(endpoint: &str, options: &ClientOptions) -> Result<Client> {
    let answers = async {
        loop {
            let connected = Client::connect_with([endpoint], options.clone()).await;
            let read = match &connected {
                Ok(client) => client.get("any", Consistency::Eventual).await.map(drop),
                Err(error) => Err(error.clone()),
            };
            match read {
                Err(Error::Unavailable { .. }) => tokio::time::sleep(PAUSE).await,
                _ => return Ok(connected?),
            }
        }
    };
    tokio::time::timeout(READY_PATIENCE, answers)
        .await
        .context("no node knows the way to the client Service")?
}

/// Concurrent writers, each with keys of its own.
pub(crate) struct Load {
    client: Client,
    writers: dengine_load::Load,
}

/// What came of a load, once everything that was acknowledged has been looked for.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) refused: usize,
    pub(crate) first_error: Option<String>,
    acknowledged: usize,
    unknown: usize,
    retries: u64,
    lost: usize,
    longest_pause: Duration,
}

impl Load {
    /// Starts writers with the client's default retries.
    pub(crate) async fn start(client: &Client) -> Result<Self> {
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let mut own = client.with_affinity(writer);
            if writer % 2 == 0 {
                own = own.with_session(SessionOptions::default()).await?;
            }
            writers.push(own);
        }
        Ok(Self {
            client: client.clone(),
            writers: dengine_load::Load::start(writers, Vec::new(), PACE),
        })
    }

    /// How many writes were acknowledged so far.
    pub(crate) fn acknowledged(&self) -> usize {
        self.writers.acknowledged()
    }

    /// Waits for so many more acknowledged writes.
    pub(crate) async fn await_more(&self, count: usize, patience: Duration) -> Result<()> {
        let (wanted, deadline) = (self.acknowledged() + count, Instant::now() + patience);
        while self.acknowledged() < wanted {
            if Instant::now() > deadline {
                bail!(
                    "{} of {wanted} writes acknowledged in {} s; the first error: {:?}",
                    self.acknowledged(),
                    patience.as_secs(),
                    self.writers.first_error()
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// The longest time since `start` in which no write was acknowledged.
    pub(crate) fn longest_pause_since(&self, start: Instant) -> Duration {
        self.writers.longest_pause_since(start)
    }

    /// Ends the writers, looks for every acknowledged write, prints what came of it, and fails if
    /// one is lost or another promise is broken.
    pub(crate) async fn check(self, world: &World, cluster: &str) -> Result<Summary> {
        let client = connect(world, cluster).await?;
        let outcome = self.writers.finish(&client).await?;
        let summary = Summary {
            refused: outcome.refused,
            first_error: outcome.first_error,
            acknowledged: outcome.acknowledged,
            unknown: outcome.unknown,
            retries: self.client.retries(),
            lost: outcome.lost.len(),
            longest_pause: outcome.longest_pause,
        };
        say(format_args!("    {}/{cluster}: {summary}", world.namespace));
        let lost = outcome.lost;
        ensure!(lost.is_empty(), "acknowledged and gone: {lost:?}");
        if let Err(violation) = outcome.verdict {
            bail!("{violation}");
        }
        Ok(summary)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} writes, {} retries, {} refused, {} without an outcome; {} acknowledged and \
             checked, {} lost; longest pause {} ms",
            self.acknowledged + self.unknown + self.refused,
            self.retries,
            self.refused,
            self.unknown,
            self.acknowledged,
            self.lost,
            self.longest_pause.as_millis()
        )
    }
}

/// Shown whether or not the test harness captures what tests print.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
