//! What a peer sends, into a member that works.

use bytes::Bytes;
use dengine_log::conformance::small_options;
use dengine_log::memory::MemoryDisk;
use dengine_log::{Log, LogReader};
use dengine_raft::Outbound;
use dengine_raft::consensus::testing::{Driver, Prompt};
use dengine_raft::consensus::{Consensus, ConsensusConfig, Proposal, Restored, Role};
use dengine_types::{MemberId, Moment};

use crate::driver::Target;

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
    pub(super) driver: Driver<Prompt<MemoryDisk>>,
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
        let reader = log.reader();
        let driver = Driver::new(config, restored, reader, Prompt::new(log)).unwrap();
        Self { driver }
    }

    /// Has something happen, and carries out what follows. `false`: it takes no further part.
    pub(super) fn step(
        &mut self,
        event: impl FnOnce(&mut Consensus<LogReader<MemoryDisk>>),
    ) -> bool {
        event(&mut self.driver.consensus);
        let goes_on = self.driver.settle().is_ok();
        let held = self.driver.consensus.held_messages();
        assert!(held < 10_000, "what is held is bounded, not {held}");
        drop(self.take_sent());
        goes_on
    }

    /// What it sent since this was called last.
    fn take_sent(&mut self) -> Vec<Outbound> {
        std::mem::take(&mut self.driver.host.sent)
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
        member.driver.consensus.observe(Moment(now));
        let goes_on = match kind % 8 {
            0..=1 => member.step(|it| drop(it.tick())),
            2 => member.step(propose),
            _ => {
                let Some((bytes, after)) = super::part(rest) else {
                    break;
                };
                rest = after;
                let from = MemberId(u64::from(kind / 8 % 5));
                let bytes = Bytes::copy_from_slice(bytes);
                // A refusal is as good as any other end.
                member.step(|it| drop(it.message(from, &bytes)))
            }
        };
        if !goes_on {
            return;
        }
    }
}

/// Who does not lead takes none.
fn propose(consensus: &mut Consensus<LogReader<MemoryDisk>>) {
    let proposal = Proposal {
        context: b"context".to_vec(),
        data: Bytes::from_static(b"data"),
    };
    let _ = consensus.propose(vec![proposal]);
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
            member.driver.consensus.observe(Moment(now));
        }
        // Only it ever times out; the others have to tick for the votes that they may not give at
        // first.
        let leads = members[place].driver.consensus.state().role == Role::Leader;
        for (at, member) in members.iter_mut().enumerate() {
            if at == place || round < 10 {
                member.driver.consensus.tick();
                if at == 0 {
                    reached.push(Reached::Tick);
                }
            }
        }
        if leads && round % 5 == 0 {
            propose(&mut members[place].driver.consensus);
            if place == 0 {
                reached.push(Reached::Proposal);
            }
        }
        deliver(&mut members, &mut reached);
        if leads && members[place].driver.consensus.commit_index().0 > 3 {
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
            member.driver.settle().expect("nobody sends snapshots");
            let sent = member.take_sent().into_iter();
            mail.extend(sent.map(|message| (from, message.to, message.bytes)));
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
            receiver.driver.consensus.message(from, &bytes).unwrap();
        }
    }
}
