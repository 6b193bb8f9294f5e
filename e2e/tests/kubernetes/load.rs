//! Writers that run while something happens to a cluster, remember what was acknowledged and look
//! for all of it at the end; and the way to a cluster from outside of Kubernetes.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use dengine_client::{
    Client, ClientOptions, Consistency, Error, KeyRange, RangeQuery, SessionOptions,
};
use dengine_crds::names;
use dengine_e2e::cluster::Cluster;
use k8s_openapi::api::core::v1::Service;
use tokio::task::JoinSet;
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
/// Keys that one read of the check asks for.
const PAGE: u32 = 2_000;
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
    book: Arc<Mutex<Book>>,
    stopping: Arc<AtomicBool>,
    writers: JoinSet<()>,
    started: Instant,
}

/// What the writers were told.
#[derive(Debug, Default)]
struct Book {
    acknowledged: BTreeMap<String, String>,
    at: Vec<Instant>,
    unknown: usize,
    refused: usize,
    first_error: Option<String>,
}

impl Book {
    fn note(&mut self, key: String, value: String, error: Option<Error>) {
        let Some(error) = error else {
            self.acknowledged.insert(key, value);
            self.at.push(Instant::now());
            return;
        };
        match error {
            Error::UnknownOutcome { .. } => self.unknown += 1,
            _ => self.refused += 1,
        }
        self.first_error.get_or_insert_with(|| error.to_string());
    }
}

/// What came of a load, once everything that was acknowledged has been looked for.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) acknowledged: usize,
    pub(crate) unknown: usize,
    pub(crate) refused: usize,
    pub(crate) retries: u64,
    pub(crate) lost: usize,
    pub(crate) longest_pause: Duration,
    pub(crate) first_error: Option<String>,
}

impl Load {
    /// Starts writers with the client's default retries.
    pub(crate) async fn start(client: &Client) -> Result<Self> {
        let (book, stopping) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let mut own = client.with_affinity(writer);
            if writer % 2 == 0 {
                own = own.with_session(SessionOptions::default()).await?;
            }
            writers.spawn(write(own, writer, Arc::clone(&book), Arc::clone(&stopping)));
        }
        Ok(Self {
            client: client.clone(),
            book,
            stopping,
            writers,
            started: Instant::now(),
        })
    }

    /// How many writes were acknowledged so far.
    pub(crate) fn acknowledged(&self) -> usize {
        self.book.lock().unwrap().acknowledged.len()
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
                    self.book.lock().unwrap().first_error
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// The longest time since `start` in which no write was acknowledged.
    pub(crate) fn longest_pause_since(&self, start: Instant) -> Duration {
        longest_pause(&self.book.lock().unwrap().at, start)
    }

    /// Ends the writers, looks for every acknowledged write, prints what came of it, and fails if
    /// one is lost.
    pub(crate) async fn check(mut self, world: &World, cluster: &str) -> Result<Summary> {
        self.stopping.store(true, Ordering::Relaxed);
        while let Some(ended) = self.writers.join_next().await {
            ended.context("a writer panicked")?;
        }
        let book = std::mem::take(&mut *self.book.lock().unwrap());
        let found = everything(&connect(world, cluster).await?).await?;
        let lost = book
            .acknowledged
            .iter()
            .filter(|(key, value)| found.get(*key) != Some(*value));
        let lost: Vec<&String> = lost.map(|(key, _)| key).collect();
        let summary = Summary {
            acknowledged: book.acknowledged.len(),
            unknown: book.unknown,
            refused: book.refused,
            retries: self.client.retries(),
            lost: lost.len(),
            longest_pause: longest_pause(&book.at, self.started),
            first_error: book.first_error,
        };
        say(format_args!("    {}/{cluster}: {summary}", world.namespace));
        ensure!(lost.is_empty(), "acknowledged and gone: {lost:?}");
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

fn longest_pause(at: &[Instant], start: Instant) -> Duration {
    let mut at: Vec<Instant> = at.iter().copied().filter(|at| *at > start).collect();
    at.push(start);
    at.sort_unstable();
    let gaps = at.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or_default()
}

/// A new key for every attempt: one whose outcome is unknown is neither counted nor written again.
async fn write(client: Client, writer: usize, book: Arc<Mutex<Book>>, stopping: Arc<AtomicBool>) {
    let mut sequence = 0_u64;
    while !stopping.load(Ordering::Relaxed) {
        sequence += 1;
        let (key, value) = (
            format!("writer-{writer}/{sequence:08}"),
            format!("value {sequence} of {writer}"),
        );
        let answer = client.put(key.clone(), value.clone()).await;
        book.lock().unwrap().note(key, value, answer.err());
        tokio::time::sleep(PACE).await;
    }
    // Whether the session ends now or expires is nothing that is tested here.
    let _ = client.close_session().await;
}

/// What the writers' keys hold, page by page.
async fn everything(client: &Client) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut start = "writer-".to_owned();
    loop {
        // `.` follows `-`.
        let range = KeyRange::between(start.clone(), "writer.");
        let page = client.range(RangeQuery::new(range).limit(PAGE)).await?;
        for kv in page.kvs {
            let (key, value) = (String::from_utf8(kv.key.into())?, kv.value.to_vec());
            start = format!("{key}\0");
            found.insert(key, String::from_utf8(value)?);
        }
        if !page.more {
            return Ok(found);
        }
    }
}
