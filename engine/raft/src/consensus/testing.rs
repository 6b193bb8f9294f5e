//! What drives one member's [`Consensus`] in tests and benchmarks: all that they know of
//! [`Output`]s is here.

use std::collections::VecDeque;

use bytes::Bytes;
use dengine_log::{Batch, Disk, Log, LogReader, Position};
use dengine_types::{Entry, HardState, Index, MemberId, Moment};

use super::{
    ConfigChange, Consensus, ConsensusConfig, ConsensusConfigError, LogRead, Refusal, ReplicaState,
    Restored,
};
use crate::input::{AppendId, SnapshotMeta, Token};
use crate::output::{Divergence, LogJob, Outbound, Output};

/// What a member has besides its consensus: disk, state machine, network and callers.
pub trait Host {
    /// What consensus reads of the disk.
    type Log: LogRead;

    /// Takes a write to the disk; the oldest is synced first.
    fn append(&mut self, id: AppendId, hard_state: Option<HardState>, entries: Vec<Entry>);
    /// The next write that is on disk and was not returned before.
    fn synced(&mut self) -> Option<AppendId>;
    /// Takes entries to apply.
    fn apply(&mut self, entries: Vec<Entry>);
    /// How far entries are applied, if further than returned before; and the membership changes
    /// that were accepted among them.
    fn applied(&mut self) -> Option<(Index, Vec<ConfigChange>)>;
    /// Takes messages to peers.
    fn send(&mut self, messages: Vec<Outbound>);

    /// Reads are linearizable once `index` is applied.
    fn on_reads_ready(&mut self, _tokens: &[Token], _index: Index) {}
    /// Reads cannot be confirmed.
    fn on_reads_refused(&mut self, _tokens: &[Token], _refusal: Refusal) {}
    /// Role, leader or term is another one.
    fn on_state(&mut self, _state: ReplicaState) {}
    /// Makes a snapshot of what is applied; `None`: it has none to give.
    fn make_snapshot(&mut self) -> Option<SnapshotMeta> {
        None
    }

    /// Takes the snapshot that was made last, to send it with this message.
    fn send_snapshot(&mut self, _to: MemberId, _message: Bytes) {}
}

/// Why a member goes on no longer as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its history was given up.
    Diverged(Divergence),
    /// A snapshot replaces its log and its state machine, and it starts again.
    Install {
        /// The last entry of the snapshot.
        base: Position,
        /// Goes with it.
        hard_state: HardState,
    },
}

/// A member's consensus, with what carries out its outputs.
pub struct Driver<H: Host> {
    /// What is driven. Messages, proposals and whatever else the driver has no method for are given
    /// to it directly.
    pub consensus: Consensus<H::Log>,
    /// What it asks for things.
    pub host: H,
}

impl<H: Host> Driver<H> {
    /// A member that starts with what is `restored` and in `log`.
    ///
    /// # Errors
    /// The configuration contradicts itself, or the log.
    pub fn new(
        config: ConsensusConfig,
        restored: Restored,
        log: H::Log,
        host: H,
    ) -> Result<Self, ConsensusConfigError> {
        let consensus = Consensus::new(config, restored, log)?;
        Ok(Self { consensus, host })
    }

    /// Carries out outputs until there are none.
    ///
    /// # Errors
    /// The member ends, and this is why.
    pub fn settle(&mut self) -> Result<(), End> {
        while self.advance()? {}
        Ok(())
    }

    /// Carries out the outputs that there are, and tells consensus what the host is done with.
    /// Returns whether there was anything to do.
    ///
    /// # Errors
    /// The member ends, and this is why.
    pub fn advance(&mut self) -> Result<bool, End> {
        let outputs = self.consensus.outputs();
        let mut busy = !outputs.is_empty();
        for output in outputs {
            self.carry_out(output)?;
        }
        while let Some(id) = self.host.synced() {
            busy = true;
            self.consensus.persisted(id);
        }
        if let Some((index, changes)) = self.host.applied() {
            busy = true;
            self.consensus.applied(index, &changes);
        }
        Ok(busy)
    }

    fn carry_out(&mut self, output: Output) -> Result<(), End> {
        let host = &mut self.host;
        match output {
            Output::Log(LogJob::Append {
                id,
                hard_state,
                entries,
            }) => host.append(id, hard_state, entries),
            Output::Send(messages) => host.send(messages),
            Output::Apply(job) => host.apply(job.entries),
            Output::MayRead { tokens, index } => host.on_reads_ready(&tokens, index),
            Output::StateChanged(state) => host.on_state(state),
            Output::MakeSnapshot => {
                let made = host.make_snapshot();
                self.consensus.snapshot_made(made.as_ref());
            }
            Output::SendSnapshot { to, message } => host.send_snapshot(to, message),
            Output::Diverged(divergence) => return Err(End::Diverged(divergence)),
            Output::Install { base, hard_state } => return Err(End::Install { base, hard_state }),
            other => panic!("consensus alone does not ask for {other:?}"),
        }
        Ok(())
    }

    /// One tick of time passed.
    pub fn tick(&mut self) {
        let late = self.consensus.tick();
        if !late.is_empty() {
            self.host.on_reads_refused(&late, Refusal::NoQuorum);
        }
    }

    /// The same, seen on the member's clock.
    pub fn tick_at(&mut self, now: Moment) {
        self.consensus.observe(now);
        self.tick();
    }

    /// Asks for a linearizable read.
    pub fn read(&mut self, token: Token) {
        if let Err(refusal) = self.consensus.read(token) {
            self.host.on_reads_refused(&[token], refusal);
        }
    }

    /// Asks for one for which the leader's lease will do.
    pub fn lease_read(&mut self, token: Token) {
        match self.consensus.lease_read(token) {
            Ok(Some(index)) => self.host.on_reads_ready(&[token], index),
            Ok(None) => {}
            Err(refusal) => self.host.on_reads_refused(&[token], refusal),
        }
    }
}

/// A host whose disk and state machine are done at once: a real log, a state machine that only
/// counts, and messages that wait to be fetched.
pub struct Prompt<D: Disk> {
    /// Where entries go.
    pub log: Log<D>,
    /// Whether each write is synced, as it is by a real disk.
    pub syncs: bool,
    /// Everything up to here is applied.
    pub applied: Index,
    /// Messages that wait to be fetched.
    pub sent: Vec<Outbound>,
    written: VecDeque<AppendId>,
    told: Index,
}

impl<D: Disk> Prompt<D> {
    /// With this log, and nothing applied.
    pub fn new(log: Log<D>) -> Self {
        Self {
            log,
            syncs: true,
            applied: Index(0),
            sent: Vec::new(),
            written: VecDeque::new(),
            told: Index(0),
        }
    }
}

impl<D: Disk> Host for Prompt<D> {
    type Log = LogReader<D>;

    fn append(&mut self, id: AppendId, hard_state: Option<HardState>, entries: Vec<Entry>) {
        let batch = Batch {
            hard_state,
            entries,
        };
        self.log.append(&batch).expect("the disk takes it");
        if self.syncs {
            self.log.sync().expect("the disk syncs");
        }
        self.written.push_back(id);
    }

    fn synced(&mut self) -> Option<AppendId> {
        self.written.pop_front()
    }

    fn apply(&mut self, entries: Vec<Entry>) {
        let last = entries.last().expect("there is something to apply");
        self.applied = last.index;
    }

    fn applied(&mut self) -> Option<(Index, Vec<ConfigChange>)> {
        let news = self.applied > self.told;
        self.told = self.applied;
        news.then(|| (self.applied, Vec::new()))
    }

    fn send(&mut self, messages: Vec<Outbound>) {
        self.sent.extend(messages);
    }
}
