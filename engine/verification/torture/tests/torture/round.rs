//! One round: clients and faults, then healing, then judgement.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dengine_checker::{Answer, Call};
use dengine_client::{ClientOptions, SessionOptions};
use dengine_testkit::Random;
use tokio::task::JoinSet;

use crate::clients::{Caller, Notes, options, sweep};
use crate::cluster::{Cluster, eventually};
use crate::faults::Fault;

/// Every other one has a session, so that it never has to leave an outcome unknown.
const CLIENTS: u64 = 8;
/// A history that is checked at once.
const ROUND: Duration = Duration::from_secs(40);

/// The rounds so far.
#[derive(Debug)]
pub(crate) struct Rounds {
    seed: u64,
    rounds: usize,
    operations: usize,
    unknown: usize,
    undecided: usize,
    faults: usize,
    /// The highest revision that the last round's clients were told.
    revision: u64,
    /// Calls of the last round of which nobody knows what became.
    open: Vec<Call>,
}

impl fmt::Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rounds, {} operations ({} of unknown outcome), {} faults, {} histories undecided",
            self.rounds, self.operations, self.unknown, self.faults, self.undecided
        )
    }
}

impl Rounds {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            rounds: 0,
            operations: 0,
            unknown: 0,
            undecided: 0,
            faults: 0,
            revision: 1,
            open: Vec::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rounds == 0
    }

    /// Runs one, not longer than `left` but for the healing.
    pub(crate) async fn run(&mut self, cluster: &mut Cluster, dice: &mut Random, left: Duration) {
        let open = std::mem::take(&mut self.open);
        let evidence = Evidence {
            notes: Arc::new(Notes::new(self.rounds, self.revision, open)),
            home: cluster.home.path().to_owned(),
            seed: self.seed,
        };
        let notes = &evidence.notes;
        let mut callers = JoinSet::new();
        for id in 1..=CLIENTS {
            let mut client = cluster.client(options()).await.with_affinity(id as usize);
            if id % 2 == 0 {
                client = eventually("a session is opened", || async {
                    client.with_session(SessionOptions::default()).await.ok()
                })
                .await;
            }
            callers.spawn(Caller::new(id, client, Arc::clone(notes), dice.fork()).run());
        }
        let end = Instant::now() + left.min(ROUND);
        self.faults += Fault::rage(cluster, dice, end).await;
        notes.stop();
        while let Some(caller) = callers.join_next().await {
            caller.expect("clients meet only failures that faults explain");
        }
        cluster.heal();
        let client = cluster.client(ClientOptions::default()).await;
        eventually("a write succeeds after everything is healed", || {
            sweep(notes, &client)
        })
        .await;
        cluster.is_equal().await;
        self.judge(&evidence);
    }

    fn judge(&mut self, evidence: &Evidence) {
        let history = evidence.notes.history();
        let summary =
            match dengine_checker::check(&history, dengine_checker::linearizable::DEFAULT_STEPS) {
                Ok(summary) => summary,
                Err(violation) => panic!("SEED={}: {violation}", self.seed),
            };
        let revisions = history
            .operations
            .iter()
            .filter_map(|it| it.answer.revision());
        self.revision = revisions.max().unwrap_or(self.revision);
        self.open = (history.operations.into_iter())
            .filter(|it| it.answer == Answer::Unknown && it.client != u64::MAX)
            .filter(|it| !matches!(it.call, Call::Read { .. }))
            .map(|it| it.call)
            .collect();
        self.rounds += 1;
        self.operations += summary.answered + summary.unknown;
        self.unknown += summary.unknown;
        self.undecided += summary.undecided;
        eprintln!("torture: {self}");
    }
}

/// What must not be lost when something is wrong: left in a folder if this thread panics.
struct Evidence {
    notes: Arc<Notes>,
    home: PathBuf,
    seed: u64,
}

impl Drop for Evidence {
    fn drop(&mut self) {
        if std::thread::panicking() {
            match self.leave() {
                Ok(folder) => eprintln!(
                    "torture: history, seed and logs are in {}",
                    folder.display()
                ),
                Err(error) => eprintln!("torture: the evidence is lost: {error}"),
            }
        }
    }
}

impl Evidence {
    fn leave(&self) -> std::io::Result<PathBuf> {
        let run = format!("{}-{}", self.seed, std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join("torture")
            .join(run);
        fs_err::create_dir_all(&folder)?;
        fs_err::write(folder.join("seed"), self.seed.to_string())?;
        let history = fs_err::File::create(folder.join("history.jsonl"))?;
        self.notes
            .history()
            .write_json_lines(std::io::BufWriter::new(history))?;
        for entry in fs_err::read_dir(&self.home)? {
            let path = entry?.path();
            if let (Some("log"), Some(name)) = (
                path.extension().and_then(|it| it.to_str()),
                path.file_name(),
            ) {
                fs_err::copy(&path, folder.join(name))?;
            }
        }
        Ok(folder)
    }
}
