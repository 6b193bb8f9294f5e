//! Clients that do all that clients can, on few keys, and write down what they asked and were told.

use std::cmp::Ordering;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dengine_checker::{
    Answer, BatchStep, Call, CallId, Expected, History, Level, Recorder, Reply, Seen,
};
use dengine_client::{
    self as client, Client, Consistency, Error, Header, OperationResult, PutOptions,
};
use dengine_testkit::Random;

const KEYS: usize = 6;
/// Between two calls of one client: many more would only lengthen the search.
const PAUSE: (u64, u64) = (2, 25);
/// Of what may expire: so short that it does within a round, and so long that some is replaced
/// before.
const TIME_TO_LIVE: Duration = Duration::from_millis(300);

/// What all clients of a round share.
#[derive(Debug)]
pub(crate) struct Notes {
    recorder: Mutex<Recorder>,
    begun: Instant,
    /// Keys and values of one round are of that round alone.
    round: usize,
    stop: AtomicBool,
}

impl Notes {
    /// Begins with what is still open from the round before.
    pub(crate) fn new(round: usize, alone_since: u64, open: Vec<Call>) -> Self {
        let mut recorder = Recorder::new(Some(alone_since));
        for call in open {
            // Never answered in this round either.
            let _: CallId = recorder.call(u64::MAX, call, 0);
        }
        Self {
            recorder: Mutex::new(recorder),
            begun: Instant::now(),
            round,
            stop: AtomicBool::new(false),
        }
    }

    /// The clients finish what they are at.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Everything that was written down so far.
    pub(crate) fn history(&self) -> History {
        self.recorder.lock().unwrap().history().clone()
    }

    fn call(&self, client: u64, call: Call) -> CallId {
        let nanos = self.nanos();
        self.recorder.lock().unwrap().call(client, call, nanos)
    }

    fn answer(&self, id: CallId, (answer, member): (Answer, u64)) {
        let nanos = self.nanos();
        self.recorder
            .lock()
            .unwrap()
            .answer(id, answer, member, nanos);
    }

    fn key(&self, number: usize) -> String {
        key_of(self.round, number)
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

fn key_of(round: usize, number: usize) -> String {
    format!("r{round}k{number}")
}

/// Deletes all keys of the round and of the one before it, so that none expires in the next one;
/// `None` if that did not succeed. Those of the round before may be there because of a put that
/// nobody had an answer to.
pub(crate) async fn sweep(notes: &Notes, client: &Client) -> Option<()> {
    let rounds = notes.round.saturating_sub(1)..=notes.round;
    let keys = rounds.flat_map(|round| (0..KEYS).map(move |key| key_of(round, key)));
    let call = Call::Batch {
        compares: Vec::new(),
        then: keys.map(BatchStep::Delete).collect(),
        otherwise: Vec::new(),
    };
    let id = notes.call(u64::MAX - 1, call.clone());
    let answer = ask(client, &call).await;
    let succeeded = matches!(answer.0, Answer::Batch { .. });
    notes.answer(id, answer);
    succeeded.then_some(())
}

/// One client; ends when told to.
pub(crate) struct Caller {
    pub(crate) id: u64,
    pub(crate) client: Client,
    pub(crate) notes: Arc<Notes>,
    pub(crate) dice: Random,
    /// What it last saw of each key.
    seen: Vec<Option<Seen>>,
    values: usize,
}

impl Caller {
    pub(crate) fn new(id: u64, client: Client, notes: Arc<Notes>, dice: Random) -> Self {
        Self {
            id,
            client,
            notes,
            dice,
            seen: vec![None; KEYS],
            values: 0,
        }
    }

    pub(crate) async fn run(mut self) {
        while !self.notes.stop.load(Relaxed) {
            let key = self.dice.below(KEYS);
            let call = self.invent(key);
            let id = self.notes.call(self.id, call.clone());
            let answer = ask(&self.client, &call).await;
            self.learn(key, &answer.0);
            self.notes.answer(id, answer);
            tokio::time::sleep(Duration::from_millis(self.dice.between(PAUSE.0, PAUSE.1))).await;
        }
    }

    fn invent(&mut self, key: usize) -> Call {
        let name = self.notes.key(key);
        match self.dice.below(10) {
            0..=2 => Call::Put {
                key: name,
                value: self.value(),
                expires: self.expires(),
            },
            3 => Call::Delete { key: name },
            4 | 5 => Call::CompareAndSwap {
                key: name,
                expected: self.expected(key),
                value: self.value(),
                expires: self.expires(),
            },
            6 => self.batch(key, name),
            _ => Call::Read {
                keys: vec![name],
                level: self.level(),
            },
        }
    }

    /// Of two keys, after looking at one of them.
    fn batch(&mut self, key: usize, name: String) -> Call {
        let other = (key + 1 + self.dice.below(KEYS - 1)) % KEYS;
        let other = self.notes.key(other);
        Call::Batch {
            compares: vec![(name.clone(), self.expected(key))],
            then: vec![
                BatchStep::Get(name.clone()),
                self.put_step(name.clone()),
                self.put_step(other.clone()),
            ],
            otherwise: vec![BatchStep::Get(name), BatchStep::Delete(other)],
        }
    }

    fn put_step(&mut self, key: String) -> BatchStep {
        match self.expires() {
            true => BatchStep::PutExpiring(key, self.value()),
            false => BatchStep::Put(key, self.value()),
        }
    }

    /// Whether what it puts shall.
    fn expires(&mut self) -> bool {
        self.dice.below(5) == 0
    }

    fn level(&mut self) -> Level {
        match self.dice.below(5) {
            0 => Level::Eventual,
            1 => Level::Session {
                after: self.client.position().revision,
            },
            2 | 3 => Level::Lease,
            _ => Level::Linearizable,
        }
    }

    /// As it saw the key last, which is often right.
    fn expected(&mut self, key: usize) -> Expected {
        match (&self.seen[key], self.dice.below(2)) {
            (Some(seen), 0) => Expected::Value(seen.value.clone()),
            (seen, _) => Expected::ModRevision(seen.as_ref().map_or(0, |it| it.mod_revision)),
        }
    }

    /// No value is written twice.
    fn value(&mut self) -> String {
        self.values += 1;
        format!("r{}c{}n{}", self.notes.round, self.id, self.values)
    }

    fn learn(&mut self, key: usize, answer: &Answer) {
        match answer {
            Answer::Read { found, .. } => self.seen[key].clone_from(&found[0]),
            Answer::CompareAndSwap { previous, .. } => self.seen[key].clone_from(previous),
            Answer::Batch { replies, .. } => {
                if let Some(Reply::Get(found)) = replies.first() {
                    self.seen[key].clone_from(found);
                }
            }
            _ => {}
        }
    }
}

/// Does what the call says; the answer, and which member gave it.
async fn ask(client: &Client, call: &Call) -> (Answer, u64) {
    match send(client, call.clone()).await {
        Ok((answer, header)) => {
            assert!(!header.trimmed, "answers as small as these are kept whole");
            (answer, header.member_id)
        }
        Err(error) => (failed(&error), 0),
    }
}

async fn send(client: &Client, call: Call) -> Result<(Answer, Header), Error> {
    match call {
        Call::Put {
            key,
            value,
            expires,
        } => {
            let options = PutOptions {
                ttl: expires.then_some(TIME_TO_LIVE),
                ..PutOptions::default()
            };
            client.put_with(key, value, options).await.map(|it| {
                let revision = it.header.revision;
                (Answer::Put { revision }, it.header)
            })
        }
        Call::Delete { key } => client.delete(key).await.map(|it| {
            let answer = Answer::Delete {
                revision: it.header.revision,
                deleted: it.deleted > 0,
            };
            (answer, it.header)
        }),
        Call::CompareAndSwap {
            key,
            expected,
            value,
            expires,
        } => {
            let ttl = expires.then_some(TIME_TO_LIVE);
            let swap = client.compare_and_swap_with(key, wire(expected), value, ttl);
            swap.await.map(|it| {
                let answer = Answer::CompareAndSwap {
                    revision: it.header.revision,
                    succeeded: it.succeeded,
                    previous: it.previous.as_ref().map(seen),
                };
                (answer, it.header)
            })
        }
        Call::Read { keys, level } => {
            let get = client.get(keys[0].clone(), consistency(level)).await;
            get.map(|it| {
                let answer = Answer::Read {
                    revision: it.header.revision,
                    found: vec![it.kv.as_ref().map(seen)],
                };
                (answer, it.header)
            })
        }
        Call::Batch {
            compares,
            then,
            otherwise,
        } => client
            .batch(batch(compares, then, otherwise))
            .await
            .map(|it| {
                let answer = Answer::Batch {
                    revision: it.header.revision,
                    succeeded: it.succeeded,
                    replies: it.results.iter().map(reply).collect(),
                };
                (answer, it.header)
            }),
    }
}

fn batch(
    compares: Vec<(String, Expected)>,
    then: Vec<BatchStep>,
    otherwise: Vec<BatchStep>,
) -> client::Batch {
    let mut batch = client::Batch::new();
    for (key, expected) in compares {
        batch = batch.when(match expected {
            Expected::ModRevision(it) => client::Compare::mod_revision(key, Ordering::Equal, it),
            Expected::Value(it) => client::Compare::value(key, Ordering::Equal, it),
        });
    }
    for step in then {
        batch = batch.then(operation(step));
    }
    for step in otherwise {
        batch = batch.otherwise(operation(step));
    }
    batch
}

fn operation(step: BatchStep) -> client::Operation {
    match step {
        BatchStep::Put(key, value) => client::Operation::put(key, value),
        BatchStep::PutExpiring(key, value) => {
            client::Operation::put_with_ttl(key, value, TIME_TO_LIVE)
        }
        BatchStep::Delete(key) => client::Operation::delete(key),
        BatchStep::Get(key) => client::Operation::get(key),
    }
}

fn reply(result: &OperationResult) -> Reply {
    match result {
        OperationResult::Put { .. } => Reply::Put,
        OperationResult::Delete { deleted, .. } => Reply::Delete(*deleted > 0),
        OperationResult::Get { kvs, .. } => Reply::Get(kvs.first().map(seen)),
    }
}

/// What an error says about the call. Anything but these must not happen, whatever goes wrong.
fn failed(error: &Error) -> Answer {
    match error {
        Error::UnknownOutcome { .. } => Answer::Unknown,
        error if error.retryable() => Answer::Refused,
        error => panic!("a fault showed itself as: {error}"),
    }
}

fn wire(expected: Expected) -> client::Expected {
    match expected {
        Expected::ModRevision(0) => client::Expected::Absent,
        Expected::ModRevision(revision) => client::Expected::ModRevision(revision),
        Expected::Value(value) => client::Expected::Value(value.into()),
    }
}

fn consistency(level: Level) -> Consistency {
    match level {
        Level::Linearizable => Consistency::Linearizable,
        Level::Lease => Consistency::Lease,
        Level::Session { .. } => Consistency::Session,
        Level::Eventual => Consistency::Eventual,
    }
}

fn seen(kv: &client::KeyValue) -> Seen {
    Seen {
        value: String::from_utf8_lossy(&kv.value).into_owned(),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
    }
}

/// Fails fast enough that a client is not stuck on a dead member for long.
pub(crate) fn options() -> client::ClientOptions {
    client::ClientOptions {
        connections: crate::MEMBERS,
        connect_timeout: Duration::from_millis(500),
        request_timeout: Duration::from_secs(3),
        // Followers answer linearizable reads too.
        spread_reads: true,
        ..client::ClientOptions::default()
    }
}
