//! A member: replica, log writer, filler of segments, applier and flusher, each in a thread of its
//! own as in `dengine`, connected by queues.
//!
//! The threads themselves are the model's, for they do nothing but take from a queue: what they
//! call is what ships.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use dengine_kv::store::MemoryStore;
use dengine_kv::{
    Command, CommandVersion, Flusher, Member, Outcome, Reader, Request, StateMachine,
};
use dengine_log::conformance::small_options;
use dengine_log::memory::MemoryDisk;
use dengine_log::{Filled, Log, LogReader, Piece};
use dengine_planted::{Bug, plant};
use dengine_types::{ClusterId, HardState, MemberId, Moment, Revision};
use shuttle::future::block_on;
use shuttle::sync::mpsc::{Receiver, Sender, channel};
use shuttle::thread;

use super::{any_turns, long_turns};
use crate::consensus::ConsensusConfig;
use crate::input::{AppendId, EncodedCommand, Input, Token, Write};
use crate::models::KEY;
use crate::output::{ApplyJob, LogJob, Output, Written};
use crate::replica::{
    Applier, LogStep, LogWriter, Replica, ReplicaConfig, RequestError, Role, SyncRule,
    WriteAnswers, WriteReply, first_batch,
};

const ID: MemberId = MemberId(1);
const NOW: Moment = Moment(1_000_000_000);
const WRITES: u64 = 4;
/// So large that a segment of the log takes two, and segments are dropped while they are read.
const VALUE_BYTES: usize = 1_800;

/// A log and a state that were bootstrapped with one voter.
fn bootstrapped(disk: MemoryDisk) -> (Log<MemoryDisk>, StateMachine<MemoryStore>, HardState) {
    let first = first_batch(
        ClusterId(1),
        Member {
            id: ID,
            name: "m1".to_owned(),
            peer_address: "m1:1".to_owned(),
            client_address: "m1:2".to_owned(),
            folder_id: "f1".to_owned(),
            voter: true,
        },
        Revision(1),
    );
    let hard_state = first.hard_state.expect("its term begins");
    let (mut log, _) = Log::open(disk, small_options()).expect("memory opens");
    log.append(&first).expect("memory can be written");
    log.sync().expect("memory can be synced");
    let machine = StateMachine::open(MemoryStore::default());
    let mut machine = machine.expect("an empty store opens");
    machine
        .apply(&first.entries)
        .expect("memory can be written");
    (log, machine, hard_state)
}

/// What reaches the thread that decides.
enum Told {
    Input(Input),
    Write(EncodedCommand, WriteReply),
    Stop,
}

type Inbox = Sender<Told>;

/// What the applier's thread is given: entries, and the callers that wait for some of them.
type Apply = (ApplyJob, Vec<(Token, WriteReply)>);

/// The thread that decides, with those who wait.
struct Decider {
    replica: Replica<LogReader<MemoryDisk>>,
    callers: BTreeMap<Token, WriteReply>,
    logs: Sender<LogJob>,
    applies: Sender<Apply>,
}

impl Decider {
    fn run(mut self, told: &Receiver<Told>) {
        loop {
            let is_gone = |token| self.callers.get(&token).is_none_or(WriteReply::is_gone);
            for output in self.replica.outputs(NOW, &is_gone) {
                self.carry_out(output);
            }
            let Ok(first) = told.recv() else { return };
            let more = std::iter::from_fn(|| told.try_recv().ok());
            for told in std::iter::once(first).chain(more) {
                match told {
                    Told::Input(input) => self.replica.handle(input, NOW),
                    Told::Write(command, caller) => self.write(command, caller),
                    Told::Stop => return,
                }
            }
        }
    }

    fn write(&mut self, command: EncodedCommand, caller: WriteReply) {
        let token = self.replica.name();
        self.callers.insert(token, caller);
        let from = None;
        let write = Write::Command {
            command,
            from,
            passes: false,
        };
        self.replica.handle(Input::Write { token, write }, NOW);
    }

    /// A thread that is gone has panicked, and that ends the model.
    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Log(job) => drop(self.logs.send(job)),
            Output::Apply(job) => {
                let tokens = job.awaited.iter().map(|(_, token)| *token);
                let callers = tokens.filter_map(|it| Some((it, self.callers.remove(&it)?)));
                let callers = callers.collect();
                let _ = self.applies.send((job, callers));
            }
            _ => {}
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
            LogStep::Persisted { id, .. } => drop(inbox.send(Told::Input(Input::Persisted(id)))),
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
    mut applier: Applier<MemoryStore>,
    jobs: &Receiver<Apply>,
    inbox: &Inbox,
    flushes: &Sender<()>,
) {
    let mut callers = BTreeMap::new();
    while let Ok(first) = jobs.recv() {
        let mut first = Some(first);
        loop {
            let queued = std::iter::from_fn(|| jobs.try_recv().ok());
            let jobs = first.take().into_iter().chain(queued).map(|(job, more)| {
                callers.extend(more);
                job
            });
            let Some(done) = applier.work(jobs, || NOW).expect("memory can be written") else {
                break;
            };
            for (token, written) in done.answers {
                if let Some(caller) = callers.remove(&token) {
                    WriteReply::answer(caller, Ok(written));
                }
            }
            let _ = flushes.send(());
            let _ = inbox.send(Told::Input(Input::Applied(done.range)));
        }
    }
}

fn flush(flusher: &Flusher<MemoryStore>, requests: &Receiver<()>, inbox: &Inbox) {
    while requests.recv().is_ok() {
        let index = flusher.flush().expect("memory can be flushed");
        let _ = inbox.send(Told::Input(Input::Flushed(index)));
    }
}

/// Writes again and again; each write takes effect once, and a caller that is answered can read it.
fn write(inbox: &Inbox, reader: &Reader<MemoryStore>) {
    for _ in 0..WRITES {
        let put = Command::put(KEY, Bytes::from(vec![7; VALUE_BYTES]));
        let request = Request {
            session: None,
            command: put,
        };
        let command = EncodedCommand::new(request, CommandVersion::CURRENT);
        let (replies, mut answers) = WriteAnswers::of(1, None);
        for caller in replies {
            let _ = inbox.send(Told::Write(command.clone(), caller));
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
) -> (Replica<LogReader<MemoryDisk>>, Applier<MemoryStore>) {
    let config = ReplicaConfig {
        member_id: ID,
        boot_nonce: 1,
        election_timeout: Duration::from_secs(1),
        max_waiting_reads: 1,
        log_keep_bytes: 0,
        log_keep_bytes_for_followers: 0,
        shared_entries_min: 1,
        slow_disk: None,
    };
    let consensus = ConsensusConfig::new(ID, 1);
    let replica = Replica::new(config, consensus, hard_state, log.reader(), &machine);
    let mut replica = replica.expect("the settings work");
    let mut applier = Applier::new(machine);
    let mut writer = LogWriter::new(SyncRule::AtOnce, log);
    while !(replica.status().role == Role::Leader && replica.status().ready) {
        replica.handle(Input::Tick, NOW);
        for output in replica.outputs(NOW, &|_| false) {
            match output {
                Output::Log(job) => {
                    writer.add(job);
                    for id in write_all(&mut writer, log) {
                        replica.handle(Input::Persisted(id), NOW);
                    }
                }
                Output::Apply(job) => {
                    let mut job = Some(job);
                    while let Some(done) = applier
                        .work(job.take(), || NOW)
                        .expect("memory can be written")
                    {
                        replica.handle(Input::Applied(done.range), NOW);
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
    let decider = Decider {
        replica,
        callers: BTreeMap::new(),
        logs,
        applies,
    };
    let (pieces, due) = channel();
    let (done, filled) = channel();
    let filler = ToFiller { pieces, filled };
    let log = thread::spawn(move || write_log(log, &log_jobs, &filler, &from_log));
    let threads = [
        thread::spawn(move || decider.run(&inputs)),
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
    let _ = inbox.send(Told::Stop);
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
