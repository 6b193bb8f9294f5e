//! Three members' consensus and logs in one thread: what replicating takes besides applying.

use std::collections::VecDeque;
use std::error::Error;

use bytes::Bytes;
use dengine_log::memory::MemoryDisk;
use dengine_log::{Log, LogError, LogOptions};
use dengine_raft::consensus::testing::{Driver, Prompt};
use dengine_raft::consensus::{ConsensusConfig, Proposal, Restored};
use dengine_types::{ClusterId, MemberId};

const MEMBERS: u64 = 3;
/// More ticks than any election timeout.
const TICKS_MAX: usize = 100;

type Member = Driver<Prompt<MemoryDisk>>;

/// Three members, the first of which leads.
pub(crate) struct Cluster {
    members: Vec<Member>,
    in_flight: VecDeque<(MemberId, MemberId, Bytes)>,
}

impl Cluster {
    pub(crate) fn new() -> Result<Self, Box<dyn Error>> {
        let mut cluster = Cluster {
            members: (1..=MEMBERS).map(member).collect::<Result<_, _>>()?,
            in_flight: VecDeque::new(),
        };
        // A leader has applied the entry that began its term. Only the first member's time passes.
        for _ in 0..TICKS_MAX {
            if cluster.applied() > 0 {
                return Ok(cluster);
            }
            cluster.members[0].tick();
            cluster.settle()?;
        }
        Err("nobody was elected".into())
    }

    /// Replicates commands that were proposed at once, until the leader may apply them.
    pub(crate) fn replicate(&mut self, commands: Vec<Bytes>) -> Result<(), Box<dyn Error>> {
        let until = self.applied() + commands.len() as u64;
        let proposals = commands.into_iter().map(|data| Proposal {
            context: vec![1; 24],
            data,
        });
        let proposals = proposals.collect();
        self.members[0].consensus.propose(proposals)?;
        self.settle()?;
        if self.applied() < until {
            return Err("what was proposed was not committed".into());
        }
        Ok(())
    }

    /// How far the leader has applied the log.
    fn applied(&self) -> u64 {
        self.members[0].host.applied.0
    }

    /// Does and delivers everything until nothing is left.
    fn settle(&mut self) -> Result<(), Box<dyn Error>> {
        loop {
            let mut busy = false;
            for (from, member) in (1..).map(MemberId).zip(&mut self.members) {
                busy |= member
                    .advance()
                    .map_err(|end| format!("member {from} ended: {end:?}"))?;
                let sent = member.host.sent.drain(..);
                self.in_flight
                    .extend(sent.map(|message| (from, message.to, message.bytes)));
            }
            for (from, to, bytes) in self.in_flight.drain(..) {
                let to = &mut self.members[(to.0 - 1) as usize];
                to.consensus.message(from, &bytes)?;
            }
            if !busy {
                return Ok(());
            }
        }
    }
}

/// An empty log in memory, whose segments hold all that a run writes and are soon made.
pub(crate) fn open_log(member: MemberId) -> Result<Log<MemoryDisk>, LogError> {
    let options = LogOptions {
        segment_bytes: 4 << 20,
        ..LogOptions::new(ClusterId(1), member, 1)
    };
    Ok(Log::open(MemoryDisk::new(), options)?.0)
}

fn member(id: u64) -> Result<Member, Box<dyn Error>> {
    let log = open_log(MemberId(id))?;
    let restored = Restored {
        voters: (1..=MEMBERS).map(MemberId).collect(),
        ..Restored::default()
    };
    let config = ConsensusConfig::new(MemberId(id), 1);
    let mut host = Prompt::new(log);
    // What a disk in memory does for a sync is no part of the path.
    host.syncs = false;
    let log = host.log.reader();
    Ok(Driver::new(config, restored, log, host)?)
}
