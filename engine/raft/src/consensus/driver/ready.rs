//! What comes out: the crate's readies, turned into outputs.

use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::{Entry, Index, MemberId, Term};
use prost_raft::Message as _;
use raft::{StateRole, eraftpb};

use super::Consensus;
use crate::consensus::log_view::LogRead;
use crate::consensus::types::{ReplicaState, Role};
use crate::consensus::{appends, convert};
use crate::output::{ApplyJob, LogJob, Outbound, Output};

impl<L: LogRead> Consensus<L> {
    /// Whether the crate has something to say. What it wants to be applied does not count while
    /// there is no room for it.
    pub(super) fn has_ready(&self) -> bool {
        if !self.apply_window.is_full() {
            return self.node.has_ready();
        }
        let raft = &self.node.raft;
        !raft.msgs.is_empty()
            || !raft.read_states.is_empty()
            || !raft.raft_log.unstable_entries().is_empty()
            || self.hard_state() != self.hard_state
            || self.current_state() != self.state
    }

    pub(super) fn hand_out_readies(&mut self) {
        while self.has_ready() {
            self.on_ready();
        }
    }

    fn on_ready(&mut self) {
        let room = !self.apply_window.is_full();
        let apply_bytes = if room { self.config.max_apply_bytes } else { 0 };
        self.node.raft.set_max_committed_size_per_ready(apply_bytes);
        let mut ready = self.node.ready();
        self.note_state();

        let mut messages = ready.take_messages();
        messages.extend(ready.take_persisted_messages());
        self.tell_of_commit(&mut messages);
        self.tell_of_waiting(&mut messages);
        let committed = ready.take_committed_entries();
        let read_states = ready.take_read_states();
        self.append(ready);

        let messages = appends::merge(messages, self.config.max_message_bytes);
        self.note_commit_told(&messages);
        let free = self.outbox.push(messages);
        self.send(free);
        self.apply(committed);
        for read in read_states {
            self.on_round_confirmed(&read.request_ctx, Index(read.index));
        }
        self.start_read_round();
    }

    /// Hands out what the ready wants written; a ready with nothing to write is persisted as soon
    /// as everything before it is.
    fn append(&mut self, mut ready: raft::Ready) {
        let durable = (self.hard_state.term, self.hard_state.vote);
        if let Some(hard_state) = ready.hs() {
            self.hard_state = convert::hard_state_from_raft(hard_state);
            self.hard_state_unsaved = true;
        }
        let new_term = (self.hard_state.term, self.hard_state.vote) != durable;
        let mut entries: Vec<_> = ready.take_entries().into_iter().map(own_entry).collect();
        if planted!(UnconfirmedWrittenAgain) && !entries.is_empty() {
            entries = self.with_unconfirmed(entries);
        }
        let number = ready.number();
        if new_term || !entries.is_empty() {
            self.node.mut_store().append(&entries);
            let id = self.outbox.append(new_term && !planted!(VoteNotSynced));
            self.pending_readies.push_back((id, number));
            let unsaved = std::mem::take(&mut self.hard_state_unsaved);
            self.outputs.push(Output::Log(LogJob::Append {
                id,
                hard_state: unsaved.then_some(self.hard_state),
                entries,
            }));
        } else if let Some((_, covered)) = self.pending_readies.back_mut() {
            *covered = number;
        }
        self.node.advance_append_async(ready);
        if self.pending_readies.is_empty() {
            self.node.on_persist_ready(number);
        }
    }

    /// Only for [`dengine_planted::Bug::UnconfirmedWrittenAgain`]: with those before that the disk
    /// has not confirmed.
    fn with_unconfirmed(&self, entries: Vec<Entry>) -> Vec<Entry> {
        let (from, first) = (self.node.raft.raft_log.persisted + 1, entries[0].index.0);
        if from >= first || self.node.raft.state != StateRole::Leader {
            return entries;
        }
        let before = self.node.store().read(from, first, u64::MAX);
        let mut all = before.unwrap_or_default();
        all.extend(entries);
        all
    }

    fn apply(&mut self, committed: Vec<eraftpb::Entry>) {
        let entries = committed.into_iter().map(own_entry).collect();
        if let Some(entries) = self.apply_window.offer(entries) {
            self.push_apply(entries);
        }
    }

    fn push_apply(&mut self, entries: Vec<Entry>) {
        // The replica knows which callers wait for them.
        let awaited = Vec::new();
        let job = ApplyJob { entries, awaited };
        self.outputs.push(Output::Apply(job));
    }

    /// Hands out what had no room before.
    pub(super) fn hand_out(&mut self) {
        while let Some((from, to)) = self.apply_window.next() {
            let read = self
                .node
                .store()
                .read(from, to, self.config.max_apply_bytes);
            // As where the crate reads the log: without it, nothing can go on.
            let entries = read.unwrap_or_else(|error| panic!("{error}"));
            self.apply_window.hand_out(&entries);
            self.push_apply(entries);
        }
    }

    pub(super) fn send(&mut self, messages: Vec<eraftpb::Message>) {
        let mut small = Vec::with_capacity(messages.len());
        for mut message in messages {
            if planted!(ContextNotSent) {
                message.entries.iter_mut().for_each(|it| it.context.clear());
            }
            let to = MemberId(message.to);
            let carries_log = message.msg_type() == eraftpb::MessageType::MsgAppend;
            let bytes = Bytes::from(message.encode_to_vec());
            if message.msg_type() == eraftpb::MessageType::MsgSnapshot {
                self.send_snapshot(to, bytes);
            } else {
                small.push(Outbound {
                    to,
                    bytes,
                    carries_log,
                });
            }
        }
        if !small.is_empty() {
            self.outputs.push(Output::Send(small));
        }
    }

    fn current_state(&self) -> ReplicaState {
        let raft = &self.node.raft;
        ReplicaState {
            role: match raft.state {
                StateRole::Follower => Role::Follower,
                StateRole::PreCandidate => Role::PreCandidate,
                StateRole::Candidate => Role::Candidate,
                StateRole::Leader => Role::Leader,
            },
            leader: (raft.leader_id != raft::INVALID_ID).then_some(MemberId(raft.leader_id)),
            term: Term(raft.term),
        }
    }

    fn note_state(&mut self) {
        let state = self.current_state();
        if state != self.state {
            self.state = state;
            if state.leader.is_some() {
                self.stands_from = 0;
            }
            // A round asked of the leader before, or in the term before, may never be answered.
            self.reads.retry(self.tick, 0);
            self.outputs.push(Output::StateChanged(state));
        }
    }
}

fn own_entry(entry: eraftpb::Entry) -> Entry {
    convert::entry_from_raft(entry)
        .expect("entries are checked when they are proposed here or taken from a peer")
}
