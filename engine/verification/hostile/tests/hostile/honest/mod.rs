//! The honest: 500 writes and 2,000 reads a second, wanted whether or not earlier ones were
//! answered, and once a second somebody new, who connects, opens a session, writes, and sees it by
//! a watch. Over etcd's API a fifth of that, and whom [`guest`] is about. None of them tries
//! anything twice.

mod guest;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dengine_bench::keys::{Keys, Order};
use dengine_bench::load::{self, Measured, Operation, Part, Plan};
use dengine_bench::progress::Progress;
use dengine_bench::target::{Access, Connect, Target};
use dengine_bench_model::results::{Protocol, ReadConsistency, Wire};
use dengine_client::{
    Client, ClientOptions, KeyRange, RetryPolicy, SessionOptions, WatchQuery, WatchUpdate,
};
use tokio::time::{MissedTickBehavior, interval, timeout};

use self::guest::Stays;
use crate::member::Endpoints;

const WRITES_A_SECOND: u64 = 500;
const READS_A_SECOND: u64 = 2_000;
/// Over etcd's API so many times less.
const ETCD_PART: u64 = 5;
/// In flight at most: more than what half a second of reads wants.
const WRITERS: u64 = 256;
const READERS: u64 = 1_024;
const CONNECTIONS: usize = 4;
/// Those that are written and read.
const KEYS: u64 = 10_000;
const KEY_BYTES: u32 = 16;
const VALUE_BYTES: u32 = 256;
/// Of a single request, and of each step of somebody new.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the honest met.
#[derive(Clone, Debug, Default)]
pub(crate) struct Met {
    pub(crate) write_p99: Duration,
    pub(crate) read_p99: Duration,
    /// Over etcd's API.
    pub(crate) etcd_write_p99: Duration,
    pub(crate) etcd_read_p99: Duration,
    /// Requests that were answered.
    pub(crate) answered: u64,
    /// Requests that were not, and newcomers who could not do what they came for.
    pub(crate) errors: u64,
    /// The first of each kind of honest clients, in words.
    pub(crate) complaints: Vec<String>,
}

/// Writes all keys once, so that each can be read.
pub(crate) async fn fill(endpoints: &Endpoints) {
    let plan = plan(Operation::Put, 64, KEYS, None, Order::Sequential);
    let filled = run(Wire::Pipelined, &endpoints.client, plan)
        .await
        .expect("nobody attacks yet");
    assert_eq!(filled.errors, 0, "{:?}", filled.first_error);
}

/// The honest load for so long, on the runtime's own threads: they have the priority.
pub(crate) async fn measure(endpoints: &Endpoints, time: Duration) -> Met {
    let endpoints = endpoints.clone();
    let measured = tokio::spawn(async move { measure_here(&endpoints, time).await });
    measured.await.expect("it does not panic")
}

async fn measure_here(endpoints: &Endpoints, time: Duration) -> Met {
    let everybody = everybody(endpoints);
    let Endpoints { client, etcd } = endpoints;
    let (writes, reads, etcd_writes, etcd_reads) = tokio::join!(
        run(Wire::Pipelined, client, writes(1, time)),
        run(Wire::Pipelined, client, reads(1, time)),
        run(Wire::Etcd, etcd, writes(ETCD_PART, time)),
        run(Wire::Etcd, etcd, reads(ETCD_PART, time)),
    );
    let mut met = Met::default();
    for each in everybody {
        let fared = each.end();
        met.errors += fared.failed;
        met.complaints.extend(fared.complaint);
    }
    met.write_p99 = met.add("write", writes);
    met.read_p99 = met.add("read", reads);
    met.etcd_write_p99 = met.add("etcd write", etcd_writes);
    met.etcd_read_p99 = met.add("etcd read", etcd_reads);
    met
}

/// Those who do something once a second.
fn everybody(endpoints: &Endpoints) -> [EachSecond; 3] {
    let Endpoints { client, etcd } = endpoints.clone();
    let (client, stays) = (Arc::new(client), Arc::<Stays>::default());
    let etcd = Arc::new(etcd);
    let at = Arc::clone(&etcd);
    [
        EachSecond::begin("newcomer", move |number| {
            let client = Arc::clone(&client);
            async move { visit(&client, number).await }
        }),
        EachSecond::begin("etcd newcomer", move |number| {
            let at = Arc::clone(&at);
            async move { guest::visit(&at, number).await }
        }),
        EachSecond::begin("etcd client", move |number| {
            let (stays, etcd) = (Arc::clone(&stays), Arc::clone(&etcd));
            async move { stays.look_around(&etcd, number).await }
        }),
    ]
}

/// A part of the honest writes.
fn writes(part: u64, time: Duration) -> Plan {
    paced(Operation::Put, WRITERS / part, WRITES_A_SECOND / part, time)
}

/// The same of reads.
fn reads(part: u64, time: Duration) -> Plan {
    let read = Operation::Get(ReadConsistency::Linearizable);
    paced(read, READERS / part, READS_A_SECOND / part, time)
}

impl Met {
    /// Adds what one kind of requests met; its p99. Who could not even connect met one error.
    fn add(&mut self, what: &str, measured: Result<Measured>) -> Duration {
        let complain = |error: String| format!("{what}: {error}");
        match measured {
            Ok(measured) => {
                self.answered += measured.latency_us.len();
                self.errors += measured.errors;
                let error = measured.first_error.clone();
                self.complaints.extend(error.map(complain));
                p99(&measured)
            }
            Err(error) => {
                self.errors += 1;
                self.complaints.push(complain(format!("{error:#}")));
                Duration::ZERO
            }
        }
    }
}

fn p99(measured: &Measured) -> Duration {
    Duration::from_micros(measured.latency_us.value_at_quantile(0.99))
}

fn paced(operation: Operation, clients: u64, rate: u64, time: Duration) -> Plan {
    let total = rate * time.as_secs();
    plan(operation, clients, total, Some(rate as f64), Order::Random)
}

fn plan(operation: Operation, clients: u64, total: u64, rate: Option<f64>, order: Order) -> Plan {
    Plan {
        operation,
        clients,
        part: Part::WHOLE,
        total,
        at_least: None,
        ends_after: None,
        rate,
        keys: Keys::new(KEYS, KEY_BYTES, order, 1),
        value_size: VALUE_BYTES,
        seed: 1,
        request_timeout: PATIENCE,
    }
}

async fn run(wire: Wire, endpoints: &[String], plan: Plan) -> Result<Measured> {
    let connect = Connect {
        access: Access {
            protocol: Protocol::Dengine,
            wire: Some(wire),
        },
        endpoints: endpoints.to_vec(),
        followers: Vec::new(),
        connections: CONNECTIONS,
        request_timeout: PATIENCE,
        retry: false,
    };
    let target = Target::connect(&connect).await?;
    let progress = Progress {
        phase: "honest".to_owned(),
    };
    let never = std::future::pending();
    Ok(load::run(plan, |client| target.lane(client), &progress, never).await)
}

/// Somebody who does something once a second.
struct EachSecond {
    complaints: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

/// How often they failed, and why at first.
struct Fared {
    failed: u64,
    complaint: Option<String>,
}

impl EachSecond {
    fn begin<F>(who: &'static str, step: impl Fn(u64) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let complaints = Arc::<Mutex<Vec<String>>>::default();
        let complain = Arc::clone(&complaints);
        let task = tokio::spawn(async move {
            let mut seconds = interval(Duration::from_secs(1));
            seconds.set_missed_tick_behavior(MissedTickBehavior::Skip);
            for number in 0.. {
                seconds.tick().await;
                if let Err(error) = step(number).await {
                    let mut complaints = complain.lock().unwrap_or_else(PoisonError::into_inner);
                    complaints.push(format!("{who}: {error:#}"));
                }
            }
        });
        Self { complaints, task }
    }

    fn end(self) -> Fared {
        self.task.abort();
        let mut complaints = self
            .complaints
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Fared {
            failed: complaints.len() as u64,
            complaint: complaints.drain(..).next(),
        }
    }
}

/// All that a new client does first.
async fn visit(endpoints: &[String], number: u64) -> Result<()> {
    let options = ClientOptions {
        connect_timeout: PATIENCE,
        request_timeout: PATIENCE,
        retry: RetryPolicy::NONE,
        ..ClientOptions::default()
    };
    let client = Client::connect_with(endpoints.iter().cloned(), options);
    let client = within("connect", client).await?;
    let session = client.with_session(SessionOptions::default());
    let session = within("open a session", session).await?;
    let key = format!("newcomer/{}", number % 100);
    let put = within("write", session.put(key.clone(), "here")).await?;
    let query = WatchQuery::new(KeyRange::key(key)).from_revision(put.header.revision);
    let mut watch = within("watch", client.watch(query)).await?;
    loop {
        let told = within("see the write", watch.next()).await?;
        if let WatchUpdate::Events { revision, .. } = told {
            ensure!(revision == put.header.revision, "saw another write");
            break;
        }
    }
    within("close the session", session.close_session()).await
}

/// A step that must not take longer than somebody waits.
async fn within<T, E>(what: &str, step: impl Future<Output = Result<T, E>>) -> Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let step = timeout(PATIENCE, step).await;
    let step = step.with_context(|| format!("{what}: not within {PATIENCE:?}"))?;
    step.with_context(|| what.to_owned())
}
