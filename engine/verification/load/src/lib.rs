//! Clients that write and read all the time while something happens to a cluster. They record what
//! they asked and were told; at the end every key is read once more, and `dengine-checker` judges
//! all of it: what was acknowledged is there, at its revision and once, and no read goes back.
//!
//! What may not live here: anything that compiles the engine, and what a test awaits or shows.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod counter;
mod judge;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dengine_checker::{Answer, Call, CallId, Recorder};
use dengine_client::{Client, Error};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use counter::COUNTER;
pub use judge::Outcome;

/// Before a client that got an error goes on.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(10);

/// Writers and readers under way.
#[derive(Debug)]
pub struct Load {
    notes: Arc<Notes>,
    clients: JoinSet<()>,
    started: Instant,
}

/// What all clients of a load share.
#[derive(Debug)]
struct Notes {
    stop: AtomicBool,
    begun: Instant,
    told: Mutex<Told>,
}

/// What they were told.
#[derive(Debug, Default)]
struct Told {
    recorder: Recorder,
    /// What the writers' keys were set to.
    acknowledged: BTreeMap<String, String>,
    /// When they were acknowledged.
    at: Vec<Instant>,
    reads: usize,
    unknown: usize,
    refused: usize,
    first_error: Option<String>,
    /// An error that no change of leaders explains.
    unexpected: Option<String>,
}

impl Load {
    /// Starts writers of keys that are written once, with `pace` between two writes of each; and,
    /// if there are any, readers of a counter that one more client counts up.
    pub fn start(writers: Vec<Client>, readers: Vec<Client>, pace: Duration) -> Self {
        let started = Instant::now();
        let notes = Arc::new(Notes {
            stop: AtomicBool::new(false),
            begun: started,
            told: Mutex::default(),
        });
        let mut clients = JoinSet::new();
        let readers_begin = writers.len();
        for (id, client) in writers.into_iter().enumerate() {
            clients.spawn(write(id, client, Arc::clone(&notes), pace));
        }
        if let Some(client) = readers.first() {
            let (id, client) = (readers_begin + readers.len(), client.clone());
            clients.spawn(counter::count(id, client, Arc::clone(&notes)));
        }
        for (place, client) in readers.into_iter().enumerate() {
            clients.spawn(counter::read(
                readers_begin + place,
                client,
                Arc::clone(&notes),
            ));
        }
        Self {
            notes,
            clients,
            started,
        }
    }

    /// How many writes were acknowledged so far.
    pub fn acknowledged(&self) -> usize {
        self.notes.told.lock().unwrap().acknowledged.len()
    }

    /// How many reads of the counter were answered so far.
    pub fn reads(&self) -> usize {
        self.notes.told.lock().unwrap().reads
    }

    /// The first error that a client got.
    pub fn first_error(&self) -> Option<String> {
        self.notes.told.lock().unwrap().first_error.clone()
    }

    /// The longest time since `start` in which no write was acknowledged.
    pub fn longest_pause_since(&self, start: Instant) -> Duration {
        longest_pause(&self.notes.told.lock().unwrap().at, start)
    }

    /// Ends the clients, reads with `client` what the writers' keys hold, and judges everything.
    ///
    /// # Errors
    /// A key cannot be read.
    ///
    /// # Panics
    /// A client panicked.
    pub async fn finish(mut self, client: &Client) -> Result<Outcome, Error> {
        self.notes.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("clients of a load do not panic");
        }
        let found = judge::read_everything(client, &self.notes).await?;
        let told = std::mem::take(&mut *self.notes.told.lock().unwrap());
        Ok(judge::judge(told, &found, self.started))
    }
}

impl Notes {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Takes down a call that is about to be made.
    fn call(&self, client: usize, call: Call) -> CallId {
        let nanos = self.nanos();
        let recorder = &mut self.told.lock().unwrap().recorder;
        recorder.call(client as u64, call, nanos)
    }

    /// Takes down what came of it.
    fn answer(&self, id: CallId, answer: Answer) {
        let nanos = self.nanos();
        let recorder = &mut self.told.lock().unwrap().recorder;
        recorder.answer(id, answer, 0, nanos);
    }

    /// Takes down that a call failed, and pauses. While a leader is replaced, calls fail or stay
    /// open; nothing else may happen to them.
    async fn failed(&self, id: CallId, error: &Error) {
        let open = matches!(error, Error::UnknownOutcome { .. });
        if !open {
            self.answer(id, Answer::Refused);
        }
        {
            let told = &mut *self.told.lock().unwrap();
            *if open {
                &mut told.unknown
            } else {
                &mut told.refused
            } += 1;
            told.first_error.get_or_insert_with(|| error.to_string());
            if !open && !error.retryable() {
                told.unexpected.get_or_insert_with(|| error.to_string());
            }
        }
        tokio::time::sleep(PAUSE_AFTER_ERROR).await;
    }
}

/// A new key for every attempt: one whose outcome is unknown is neither counted nor written again.
async fn write(id: usize, client: Client, notes: Arc<Notes>, pace: Duration) {
    let mut sequence = 0_u64;
    while notes.goes_on() {
        sequence += 1;
        let (key, value) = (
            format!("writer-{id}/{sequence:08}"),
            format!("value {sequence} of {id}"),
        );
        let call = notes.call(
            id,
            Call::Put {
                key: key.clone(),
                value: value.clone(),
                expires: false,
            },
        );
        match client.put(key.clone(), value.clone()).await {
            Ok(put) => {
                let revision = put.header.revision;
                notes.answer(call, Answer::Put { revision });
                let told = &mut *notes.told.lock().unwrap();
                told.acknowledged.insert(key, value);
                told.at.push(Instant::now());
            }
            Err(error) => notes.failed(call, &error).await,
        }
        tokio::time::sleep(pace).await;
    }
    // Whether the session ends now or expires is nothing that is tested here.
    let _ = client.close_session().await;
}

fn longest_pause(at: &[Instant], start: Instant) -> Duration {
    let mut at: Vec<Instant> = at.iter().copied().filter(|at| *at > start).collect();
    at.push(start);
    at.sort_unstable();
    let gaps = at.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or_default()
}
