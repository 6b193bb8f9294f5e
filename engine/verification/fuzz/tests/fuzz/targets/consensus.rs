//! What a peer sends, into a member that works.

use crate::driver::Target;
use bytes::Bytes;
use dengine_log::conformance::small_options;
use dengine_log::memory::MemoryDisk;
use dengine_log::{Batch, Log, LogReader};
use dengine_raft::consensus::{
    Action, Consensus, ConsensusConfig, Event, Proposal, Restored, Role, Token,
};
use dengine_types::{MemberId, Moment};

/// Ticks, proposals and messages, one after the other: see [`run`].
pub(crate) const MESSAGES: Target = Target {
    run,
    seeds,
    memory: (256 << 10, 16),
};

/// The member that receives all this.
pub(super) const ME: MemberId = MemberId(1);

/// A member whose disk and state machine are done at once.
pub(super) struct Member {
    log: Log<MemoryDisk>,
    pub(super) consensus: Consensus<LogReader<MemoryDisk>>,
}

impl Member {
    pub(super) fn new(id: MemberId) -> Self {
        let (log, _) = Log::open(MemoryDisk::new(), small_options()).unwrap();
        let restored = Restored {
            voters: [1, 2, 3].map(MemberId).to_vec(),
            ..Restored::default()
        };
        let config = ConsensusConfig {
            cache_bytes: 1 << 12,
            acknowledges_unsynced: true,
            ..ConsensusConfig::new(id, 5)
        };
        let consensus = Consensus::new(config, restored, log.reader()).unwrap();
        Self { log, consensus }
    }

    /// Takes in an event, and carries out what follows. `false`: it takes no further part.
    pub(super) fn step(&mut self, event: Event) -> bool {
        // A refusal is as good as any other end.
        drop(self.consensus.step(event));
        let goes_on = self.settle().is_some();
        let held = self.consensus.held_messages();
        assert!(held < 10_000, "what is held is bounded, not {held}");
        goes_on
    }

    /// Carries out what follows; returns what it sends. `None`: it takes no further part.
    fn settle(&mut self) -> Option<Vec<(MemberId, Bytes)>> {
        let mut sent = Vec::new();
        loop {
            let actions = self.consensus.actions();
            if actions.is_empty() {
                return Some(sent);
            }
            for action in actions {
                match action {
                    Action::Append {
                        id,
                        hard_state,
                        entries,
                    } => {
                        self.log
                            .append(&Batch {
                                hard_state,
                                entries,
                            })
                            .unwrap();
                        self.log.sync().unwrap();
                        self.consensus.step(Event::Persisted(id)).unwrap();
                    }
                    Action::Apply(entries) => {
                        let index = entries.last().unwrap().index;
                        let changes = Vec::new();
                        self.consensus
                            .step(Event::Applied { index, changes })
                            .unwrap();
                    }
                    Action::Send(messages) => {
                        sent.extend(messages.into_iter().map(|it| (it.to, it.bytes)));
                    }
                    Action::Install { .. } | Action::Diverged(_) => return None,
                    _ => {}
                }
            }
        }
    }
}

/// The input is a list of events, each with a byte that says what it is: a tick, a proposal, or a
/// message with its sender and length.
fn run(input: &[u8]) {
    let mut member = Member::new(ME);
    let mut rest = input;
    let mut now = 0;
    while let Some((kind, after)) = rest.split_first() {
        rest = after;
        now += 1_000_000;
        member.consensus.observe(Moment(now));
        let event = match kind % 8 {
            0..=1 => Event::Tick,
            2 => propose(),
            _ => {
                let Some((bytes, after)) = super::part(rest) else {
                    break;
                };
                rest = after;
                let from = MemberId(u64::from(kind / 8 % 5));
                let bytes = Bytes::copy_from_slice(bytes);
                Event::Message { from, bytes }
            }
        };
        if !member.step(event) {
            return;
        }
    }
}

fn propose() -> Event {
    Event::Propose(vec![Proposal {
        token: Token(1),
        context: Bytes::from_static(b"context"),
        data: Bytes::from_static(b"data"),
    }])
}

/// What reaches member 1 when it follows, and when it leads, in a healthy cluster.
fn seeds() -> Vec<Vec<u8>> {
    let input = |leader| reaching(leader).iter().flat_map(Reached::bytes).collect();
    // Entries of no bytes.
    let empty_entries = Reached::Message {
        from: MemberId(2),
        bytes: [0x3a, 0].repeat(32_000).into(),
    };
    vec![
        input(MemberId(2)),
        input(ME),
        vec![0; 40],
        empty_entries.bytes(),
    ]
}

/// What reaches member 1.
pub(super) enum Reached {
    Tick,
    Proposal,
    Message { from: MemberId, bytes: Bytes },
}

impl Reached {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Tick => vec![0],
            Self::Proposal => vec![2],
            Self::Message { from, bytes } => {
                let kind = 7 + 8 * from.0 as u8;
                [&[kind], &super::joined([bytes])[..]].concat()
            }
        }
    }
}

/// Runs three members until `leader` leads and has committed; returns what reached member 1.
pub(super) fn reaching(leader: MemberId) -> Vec<Reached> {
    let mut members = [1, 2, 3].map(|id| Member::new(MemberId(id)));
    let mut reached = Vec::new();
    let mut now = 0;
    for round in 0..200 {
        now += 100_000_000;
        let place = (leader.0 - 1) as usize;
        for member in &mut members {
            member.consensus.observe(Moment(now));
        }
        // Only it ever times out; the others have to tick for the votes that they may not give at
        // first.
        let leads = members[place].consensus.state().role == Role::Leader;
        for (at, member) in members.iter_mut().enumerate() {
            if at == place || round < 10 {
                member.consensus.step(Event::Tick).unwrap();
                if at == 0 {
                    reached.push(Reached::Tick);
                }
            }
        }
        if leads && round % 5 == 0 {
            members[place].consensus.step(propose()).unwrap();
            if place == 0 {
                reached.push(Reached::Proposal);
            }
        }
        deliver(&mut members, &mut reached);
        if leads && members[place].consensus.commit_index().0 > 3 {
            break;
        }
    }
    reached
}

fn deliver(members: &mut [Member; 3], reached: &mut Vec<Reached>) {
    loop {
        let mut mail = Vec::new();
        for (at, member) in members.iter_mut().enumerate() {
            let from = MemberId(at as u64 + 1);
            let sent = member.settle().expect("nobody sends snapshots");
            mail.extend(sent.into_iter().map(|(to, bytes)| (from, to, bytes)));
        }
        if mail.is_empty() {
            return;
        }
        for (from, to, bytes) in mail {
            if to == ME {
                let bytes = bytes.clone();
                reached.push(Reached::Message { from, bytes });
            }
            let receiver = &mut members[(to.0 - 1) as usize];
            receiver
                .consensus
                .step(Event::Message { from, bytes })
                .unwrap();
        }
    }
}
