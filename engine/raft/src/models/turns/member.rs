//! A member: replica, log writer, filler of segments, applier and flusher, each in a thread of its own as in `dengine`, connected by
//! queues.
//!
//! The threads themselves are the model's, for they do nothing but take from a queue: what they call is what ships.

use super::{any_turns, long_turns};
use crate::consensus::{AppendId, ConsensusConfig};
use crate::models::KEY;
use crate::replica::{
    Applier, ApplyJob, Caller, Effect, EncodedCommand, Env, Input, LogJob, LogStep, LogWriter,
    Replica, ReplicaConfig, Request as Asked, RequestError, Role, SyncRule, WriteAnswers,
    WriteReply, Written,
};
use bytes::Bytes;
use dengine_kv::store::MemoryStore;
use dengine_kv::{
    Command, CommandVersion, Flusher, Member, MembershipChange, Outcome, Reader, Request,
    StateMachine,
};
use dengine_log::conformance::small_options;
use dengine_log::memory::MemoryDisk;
use dengine_log::{Batch, Filled, Log, LogReader, Piece};
use dengine_planted::{Bug, plant};
use dengine_types::{ClusterId, Entry, EntryKind, HardState, Index, MemberId, Moment, Term};
use shuttle::future::block_on;
use shuttle::sync::mpsc::{Receiver, Sender, channel};
use shuttle::thread;
use std::time::Duration;

const ID: MemberId = MemberId(1);
const NOW: Moment = Moment(1_000_000_000);
const WRITES: u64 = 4;
/// So large that a segment of the log takes two, and segments are dropped while they are read.
const VALUE_BYTES: usize = 1_800;

enum Threads {}

impl Env for Threads {
    type Write = WriteReply;
    type Read = Nobody;
    type Transfer = Nobody;
}

struct Nobody;

impl<T> Caller<T> for Nobody {
    fn is_gone(&self) -> bool {
        true
    }

    fn answer(self, _: Result<T, RequestError>) {}
}

/// A log and a state that were bootstrapped with one voter.
fn bootstrapped(disk: MemoryDisk) -> (Log<MemoryDisk>, StateMachine<MemoryStore>, HardState) {
    let bootstrap = MembershipChange::Bootstrap {
        cluster_id: ClusterId(1),
        member: Member {
            id: ID,
            name: "m1".to_owned(),
            peer_address: "m1:1".to_owned(),
            client_address: "m1:2".to_owned(),
            folder_id: "f1".to_owned(),
            voter: true,
        },
    };
    let first = Entry {
        index: Index(1),
        term: Term(1),
        kind: EntryKind::Membership,
        context: Bytes::new(),
        data: bootstrap.encode(),
    };
    let hard_state = HardState {
        term: Term(1),
        vote: MemberId(0),
        commit: Index(1),
    };
    let batch = Batch {
        hard_state: Some(hard_state),
        entries: vec![first.clone()],
    };
    let (mut log, _) = Log::open(disk, small_options()).expect("memory opens");
    log.append(&batch).expect("memory can be written");
    log.sync().expect("memory can be synced");
    let machine = StateMachine::open(MemoryStore::default());
    let mut machine = machine.expect("an empty store opens");
    machine.apply(&[first]).expect("memory can be written");
    (log, machine, hard_state)
}

type Inbox = Sender<Option<Input<Threads>>>;

fn decide(
    mut replica: Replica<LogReader<MemoryDisk>, Threads>,
    inputs: &Receiver<Option<Input<Threads>>>,
    logs: &Sender<LogJob>,
    applies: &Sender<ApplyJob<Threads>>,
) {
    loop {
        for effect in replica.effects(NOW) {
            // Whoever is gone has panicked, and that ends the model.
            match effect {
                Effect::Log(job) => drop(logs.send(job)),
                Effect::Apply(job) => drop(applies.send(job)),
                _ => {}
            }
        }
        let Ok(Some(first)) = inputs.recv() else {
            return;
        };
        replica.handle(first, NOW);
        while let Ok(more) = inputs.try_recv() {
            let Some(more) = more else { return };
            replica.handle(more, NOW);
        }
    }
}

/// The log writer's end of the queues to and from the filler.
struct ToFiller {
    pieces: Sender<Piece<MemoryDisk>>,
    filled: Receiver<Filled<MemoryDisk>>,
}

fn fill(pieces: &Receiver<Piece<MemoryDisk>>, done: &Sender<Filled<MemoryDisk>>) {
    while let Ok(piece) = pieces.recv() {
        let _ = done.send(piece.fill());
    }
}

fn write_log(
    mut log: Log<MemoryDisk>,
    jobs: &Receiver<LogJob>,
    filler: &ToFiller,
    inbox: &Inbox,
) -> Log<MemoryDisk> {
    let mut writer = LogWriter::new(SyncRule::AtOnce, &log);
    let mut filled = None;
    loop {
        if let Some(filled) = filled.or_else(|| filler.filled.try_recv().ok()) {
            let taken = writer.take_back(&mut log, filled, NOW);
            taken.expect("memory can be written");
        }
        filled = None;
        match writer.step(&mut log, NOW).expect("memory can be written") {
            LogStep::Sync => log.sync().expect("memory can be synced"),
            LogStep::Persisted { id, .. } => drop(inbox.send(Some(Input::Persisted(id)))),
            LogStep::Fill(piece) => drop(filler.pieces.send(piece)),
            LogStep::AwaitPiece => filled = filler.filled.recv().ok(),
            LogStep::Wait { .. } => {
                let Ok(first) = jobs.recv() else { return log };
                let queued = std::iter::from_fn(|| jobs.try_recv().ok());
                std::iter::once(first)
                    .chain(queued)
                    .for_each(|job| writer.add(job));
            }
        }
    }
}

fn apply(
    mut applier: Applier<MemoryStore, Threads>,
    jobs: &Receiver<ApplyJob<Threads>>,
    inbox: &Inbox,
    flushes: &Sender<()>,
) {
    while let Ok(first) = jobs.recv() {
        let mut first = Some(first);
        let mut work = || {
            let queued = std::iter::from_fn(|| jobs.try_recv().ok());
            let applied = applier.work(first.take().into_iter().chain(queued));
            applied.expect("memory can be written")
        };
        while let Some(range) = work() {
            let _ = flushes.send(());
            let _ = inbox.send(Some(Input::Applied(range)));
        }
    }
}

fn flush(flusher: &Flusher<MemoryStore>, requests: &Receiver<()>, inbox: &Inbox) {
    while requests.recv().is_ok() {
        let index = flusher.flush().expect("memory can be flushed");
        let _ = inbox.send(Some(Input::Flushed(index)));
    }
}

/// Writes again and again; each write takes effect once, and whoever is answered can read it.
fn write(inbox: &Inbox, reader: &Reader<MemoryStore>) {
    for _ in 0..WRITES {
        let put = Command::Put {
            key: KEY,
            value: Bytes::from(vec![7; VALUE_BYTES]),
            prev_kv: false,
            ttl_ms: 0,
        };
        let request = Request {
            session: None,
            command: put,
        };
        let command = EncodedCommand::new(request, CommandVersion::CURRENT);
        let (replies, mut answers) = WriteAnswers::of(1, None);
        for caller in replies {
            let write = Input::Request(Asked::Write {
                command: command.clone(),
                caller,
                from: None,
            });
            let _ = inbox.send(Some(write));
        }
        block_on(answers.complete());
        let (mut written, _) = answers.take(|| RequestError::ShuttingDown);
        let Some(Ok(Written {
            outcome: Outcome::Put { revision, .. },
            ..
        })) = written.pop()
        else {
            panic!("a write had no answer");
        };
        let (at, found) = reader.get(&KEY, None).expect("memory can be read");
        let found = found.expect("it was put").mod_revision;
        assert!(
            at >= revision && found >= revision,
            "an answered write can't be read"
        );
    }
}

/// Writes all that there is, without other threads.
fn write_all(writer: &mut LogWriter, log: &mut Log<MemoryDisk>) -> Vec<AppendId> {
    let mut persisted = Vec::new();
    loop {
        match writer.step(log, NOW).expect("memory can be written") {
            LogStep::Sync => log.sync().expect("memory can be synced"),
            LogStep::Persisted { id, .. } => persisted.push(id),
            LogStep::Fill(piece) => {
                let taken = writer.take_back(log, piece.fill(), NOW);
                taken.expect("memory can be written");
            }
            LogStep::AwaitPiece => panic!("no piece is away"),
            LogStep::Wait { .. } => return persisted,
        }
    }
}

/// The leader, which led before the threads began.
fn leader(
    log: &mut Log<MemoryDisk>,
    machine: StateMachine<MemoryStore>,
    hard_state: HardState,
) -> (
    Replica<LogReader<MemoryDisk>, Threads>,
    Applier<MemoryStore, Threads>,
) {
    let config = ReplicaConfig {
        member_id: ID,
        boot_nonce: 1,
        election_timeout: Duration::from_secs(1),
        max_waiting_reads: 1,
        log_keep_bytes: 0,
        log_keep_bytes_for_followers: 0,
        shared_entries_min: 1,
    };
    let consensus = ConsensusConfig::new(ID, 1);
    let replica = Replica::new(config, consensus, hard_state, log.reader(), &machine);
    let mut replica: Replica<_, Threads> = replica.expect("the settings work");
    let mut applier = Applier::new(machine);
    let mut writer = LogWriter::new(SyncRule::AtOnce, log);
    while !(replica.status().role == Role::Leader && replica.status().ready) {
        replica.handle(Input::Tick, NOW);
        for effect in replica.effects(NOW) {
            match effect {
                Effect::Log(job) => {
                    writer.add(job);
                    for id in write_all(&mut writer, log) {
                        replica.handle(Input::Persisted(id), NOW);
                    }
                }
                Effect::Apply(job) => {
                    let mut job = Some(job);
                    while let Some(range) = applier.work(job.take()).expect("memory can be written")
                    {
                        replica.handle(Input::Applied(range), NOW);
                    }
                }
                _ => {}
            }
        }
    }
    (replica, applier)
}

fn every_write_is_answered_and_can_be_read() {
    let disk = MemoryDisk::new();
    let (mut log, machine, hard_state) = bootstrapped(disk.clone());
    let (reader, flusher) = (machine.reader(), machine.flusher());
    let (replica, applier) = leader(&mut log, machine, hard_state);
    let (inbox, inputs) = channel();
    let (logs, log_jobs) = channel();
    let (applies, apply_jobs) = channel();
    let (flushes, flush_requests) = channel();
    let (from_log, from_applier, from_flusher) = (inbox.clone(), inbox.clone(), inbox.clone());
    let (pieces, due) = channel();
    let (done, filled) = channel();
    let filler = ToFiller { pieces, filled };
    let log = thread::spawn(move || write_log(log, &log_jobs, &filler, &from_log));
    let threads = [
        thread::spawn(move || decide(replica, &inputs, &logs, &applies)),
        thread::spawn(move || fill(&due, &done)),
        thread::spawn(move || apply(applier, &apply_jobs, &from_applier, &flushes)),
        thread::spawn(move || flush(&flusher, &flush_requests, &from_flusher)),
    ];
    let other = (inbox.clone(), reader.clone());
    let other = thread::spawn(move || write(&other.0, &other.1));
    write(&inbox, &reader);
    other.join().expect("it wrote");
    assert_eq!(
        reader.revision().0,
        1 + 2 * WRITES,
        "each write took effect once"
    );
    let _ = inbox.send(None);
    for thread in threads {
        thread.join().expect("it worked");
    }
    let last = log.join().expect("it worked").reader().last();
    let (log, recovered) = Log::open_existing(disk, small_options()).expect("the log opens again");
    assert_eq!((log.reader().last(), recovered.torn), (last, None));
}

#[test]
fn a_member_answers_every_write_once() {
    any_turns(200, every_write_is_answered_and_can_be_read);
    long_turns(200, every_write_is_answered_and_can_be_read);
}

/// What is flushed comes to the replica before it hears that the same is applied.
#[test]
#[should_panic(expected = "is known to be applied")]
fn a_log_that_is_truncated_too_early_is_found() {
    plant(Some(Bug::TruncatedPastApplied));
    any_turns(2_000, every_write_is_answered_and_can_be_read);
}
