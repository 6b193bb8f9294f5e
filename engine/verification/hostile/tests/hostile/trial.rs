//! One attack: a fresh cluster, the honest alone, and the honest beside attackers, who are a
//! process in a cgroup of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dengine_client::{Batch, Client, Operation};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::attackers::{
    self, Arena, Attacker, LARGE_BYTES, LARGE_KEYS, MANY_KEYS, NEIGHBOUR, large_key, one_of_many,
};
use crate::cgroup::{Bounds, Cgroup};
use crate::honest::{self, Met};
use crate::member::{Cluster, Doors, Endpoints, Lead, MEMORY_BYTES, Member};
use crate::precedence;
use crate::report::{self, Row};
use crate::settings::Settings;
use crate::tally::{Counts, Tally};
use crate::verdict::Seen;

const ORDER: &str = "DENGINE_HOSTILE_ORDER";
/// All attackers together.
const ATTACKERS: Bounds = Bounds {
    memory_bytes: 2 << 30,
    processors: Some(1),
};
/// The honest warm up, and so does the member.
const WARM_UP: Duration = Duration::from_secs(2);
/// Before the honest are looked at, so that attackers are there from the first moment on.
const HEAD_START: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What the attackers' process is told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    attackers: Vec<String>,
    doors: Doors,
    lead: Lead,
    time: Duration,
    /// Where it leaves its [`Counts`].
    counts: PathBuf,
}

impl Order {
    /// What this process is told, if it is the attackers'.
    pub(crate) fn given() -> Option<Self> {
        let order = std::env::var(ORDER).ok()?;
        Some(serde_json::from_str(&order).unwrap())
    }

    /// Attacks until the time is over.
    pub(crate) fn carry_out(self) {
        let runtime = runtime(|| {});
        let tally = Tally::default();
        runtime.block_on(async {
            let mut attacks = JoinSet::new();
            for name in &self.attackers {
                let attacker = attackers::named(name).expect("who gives orders knows them");
                attacks.spawn((attacker.run)(Arena {
                    doors: self.doors,
                    lead: self.lead.clone(),
                    tally: tally.clone(),
                }));
            }
            sleep(self.time).await;
            tally.write(&self.counts);
        });
        runtime.shutdown_background();
    }
}

/// An attack that is about to be made.
pub(crate) struct Trial<'a> {
    settings: &'a Settings,
    /// Of this program: what carries orders out.
    test: &'a str,
    name: &'a str,
    attackers: &'a [&'a Attacker],
}

impl<'a> Trial<'a> {
    pub(crate) fn new(
        settings: &'a Settings,
        test: &'a str,
        name: &'a str,
        attackers: &'a [&'a Attacker],
    ) -> Self {
        Self {
            settings,
            test,
            name,
            attackers,
        }
    }

    /// Makes it.
    pub(crate) fn run(&self) -> Row {
        let _disk = precedence::Disk::first();
        // The honest stand for other machines.
        runtime(precedence::take).block_on(self.attack())
    }

    async fn attack(&self) -> Row {
        let mut cluster = Cluster::form(self.settings.members).await;
        let endpoints = cluster.endpoints();
        honest::fill(&endpoints).await;
        fill(&endpoints.client).await;
        honest::measure(&endpoints, WARM_UP).await;
        let (leading, lead) = cluster.lead().await;
        let doors = cluster.members[leading].doors;
        let before = self.own(&endpoints, doors, &lead).await;

        let logged: Vec<_> = cluster.members.iter().map(|it| length(&it.log)).collect();
        let attack = Attack::begin(
            self.test,
            self.attackers,
            doors,
            &lead,
            self.settings.attack,
        );
        sleep(HEAD_START).await;
        let peak = Peak::watch(&cluster);
        let during = honest::measure(&endpoints, self.settings.attack).await;
        let memory_peak_bytes = peak.end();
        let counts = attack.end();

        let ended = cluster.members.iter_mut().filter_map(Member::ended);
        let ended: Vec<_> = ended.collect();
        let after = match ended.is_empty() {
            true => cluster.try_lead().await.map(|(_, lead)| lead),
            false => None,
        };
        let killed = cluster.members.iter().map(Member::killed_for_memory);
        let seen = Seen {
            before,
            during,
            memory_peak_bytes,
            memory_bytes_max: MEMORY_BYTES,
            killed_for_memory: killed.sum(),
            lead_lost: after != Some(lead),
            ended,
            attacked: counts.done > 0,
        };
        let logs = cluster.members.iter().zip(logged);
        let logged = logs.map(|(it, from)| tail(&it.log, from)).collect();
        Row::new(self.name, self.attackers, &seen, &counts, logged)
    }
}

impl Trial<'_> {
    /// The honest beside the neighbour; and in the trial of the neighbour itself, alone.
    async fn own(&self, endpoints: &Endpoints, doors: Doors, lead: &Lead) -> Met {
        let time = self.settings.before;
        if self.name == NEIGHBOUR.name {
            return honest::measure(endpoints, time).await;
        }
        let neighbour = Attack::begin(self.test, &[&NEIGHBOUR], doors, lead, time);
        sleep(HEAD_START).await;
        let own = honest::measure(endpoints, time).await;
        drop(neighbour);
        own
    }
}

fn runtime(on_thread_start: fn()) -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .on_thread_start(on_thread_start)
        .build()
        .unwrap()
}

/// What attackers ask for.
async fn fill(endpoints: &[String]) {
    const BATCH: usize = 128;
    let client = Client::connect(endpoints.iter().cloned()).await.unwrap();
    let numbers: Vec<_> = (0..MANY_KEYS as usize).collect();
    for some in numbers.chunks(BATCH) {
        let puts = some.iter().map(|&n| Operation::put(one_of_many(n), "x"));
        client
            .batch(puts.fold(Batch::new(), Batch::then))
            .await
            .unwrap();
    }
    for n in 0..LARGE_KEYS as usize {
        client
            .put(large_key(n), vec![7; LARGE_BYTES])
            .await
            .unwrap();
    }
}

/// The attackers' process. Killed, by its process id, when dropped.
struct Attack {
    child: Child,
    counts: PathBuf,
    // Behind the process, which must have ended before it goes.
    _cgroup: Cgroup,
}

impl Attack {
    fn begin(
        test: &str,
        attackers: &[&Attacker],
        doors: Doors,
        lead: &Lead,
        time: Duration,
    ) -> Self {
        let cgroup = Cgroup::new("attackers", ATTACKERS);
        let counts = report::folder().join("counts.json");
        let _ = fs_err::remove_file(&counts);
        let order = Order {
            attackers: attackers.iter().map(|it| it.name.to_owned()).collect(),
            doors,
            lead: lead.clone(),
            // They stay for all of what is measured.
            time: HEAD_START + time + HEAD_START,
            counts: counts.clone(),
        };
        let child = cgroup
            .command(&std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(ORDER, serde_json::to_string(&order).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            counts,
            _cgroup: cgroup,
        }
    }

    /// What they did; they are given a while to end by themselves.
    fn end(mut self) -> Counts {
        const PATIENCE: Duration = Duration::from_secs(10);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && self.child.try_wait().unwrap().is_none() {
            std::thread::sleep(LOOK_EVERY);
        }
        Counts::read(&self.counts)
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The most memory that any member had.
struct Peak {
    most: Arc<AtomicU64>,
    tasks: JoinSet<()>,
}

impl Peak {
    fn watch(cluster: &Cluster) -> Self {
        let (most, mut tasks) = (Arc::<AtomicU64>::default(), JoinSet::new());
        for member in &cluster.members {
            let (most, memory) = (Arc::clone(&most), member.memory());
            tasks.spawn(async move {
                loop {
                    most.fetch_max(memory.anonymous_bytes(), Ordering::Relaxed);
                    sleep(LOOK_EVERY).await;
                }
            });
        }
        Self { most, tasks }
    }

    fn end(mut self) -> u64 {
        self.tasks.abort_all();
        self.most.load(Ordering::Relaxed)
    }
}

fn length(file: &Path) -> usize {
    fs_err::metadata(file).unwrap().len() as usize
}

/// What was added to a log since it was so long.
fn tail(file: &Path, from: usize) -> String {
    let bytes = fs_err::read(file).unwrap();
    String::from_utf8_lossy(bytes.get(from..).unwrap_or_default()).into_owned()
}
