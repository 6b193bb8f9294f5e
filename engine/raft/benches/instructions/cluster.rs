//! Three members' consensus and logs in one thread: what replicating takes besides applying.

use std::{collections::VecDeque, error::Error};

use bytes::Bytes;
use dengine_log::{Batch, Log, LogError, LogOptions, LogReader, memory::MemoryDisk};
use dengine_raft::consensus::{Consensus, ConsensusConfig, Proposal, Restored};
use dengine_raft::{LogJob, Output};
use dengine_types::{ClusterId, HardState, Index, MemberId};

const MEMBERS: u64 = 3;
/// More ticks than any election timeout.
const TICKS_MAX: usize = 100;

struct Member {
    consensus: Consensus<LogReader<MemoryDisk>>,
    log: Log<MemoryDisk>,
    applied: u64,
}

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
            if cluster.members[0].applied > 0 {
                return Ok(cluster);
            }
            cluster.members[0].consensus.tick();
            cluster.settle()?;
        }
        Err("nobody was elected".into())
    }

    /// Replicates commands that were proposed at once, until the leader may apply them.
    pub(crate) fn replicate(&mut self, commands: Vec<Bytes>) -> Result<(), Box<dyn Error>> {
        let until = self.members[0].applied + commands.len() as u64;
        let proposals = commands.into_iter().map(|data| Proposal {
            context: vec![1; 24],
            data,
        });
        let proposals = proposals.collect();
        self.members[0].consensus.propose(proposals)?;
        self.settle()?;
        if self.members[0].applied < until {
            return Err("what was proposed was not committed".into());
        }
        Ok(())
    }

    /// Does and delivers everything until nothing is left.
    fn settle(&mut self) -> Result<(), Box<dyn Error>> {
        loop {
            let mut idle = true;
            for place in 0..self.members.len() {
                for output in self.members[place].consensus.outputs() {
                    idle = false;
                    self.carry_out(place, output)?;
                }
            }
            while let Some((from, to, bytes)) = self.in_flight.pop_front() {
                idle = false;
                let to = (to.0 - 1) as usize;
                self.members[to].consensus.message(from, &bytes)?;
            }
            if idle {
                return Ok(());
            }
        }
    }

    fn carry_out(&mut self, place: usize, output: Output) -> Result<(), Box<dyn Error>> {
        let member = &mut self.members[place];
        match output {
            Output::Log(LogJob::Append {
                id,
                hard_state,
                entries,
            }) => {
                member.log.append(&Batch {
                    hard_state,
                    entries,
                })?;
                member.consensus.persisted(id);
            }
            Output::Send(messages) => {
                let from = MemberId(place as u64 + 1);
                let sent = messages
                    .into_iter()
                    .map(|message| (from, message.to, message.bytes));
                self.in_flight.extend(sent);
            }
            Output::Apply(job) => {
                let last = job.entries.last();
                let last = last.map_or(Index(member.applied), |entry| entry.index);
                member.applied = last.0;
                member.consensus.applied(last, &[]);
            }
            _ => {}
        }
        Ok(())
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
        hard_state: HardState::default(),
        applied: Index(0),
        voters: (1..=MEMBERS).map(MemberId).collect(),
        learners: Vec::new(),
    };
    let config = ConsensusConfig::new(MemberId(id), 1);
    Ok(Member {
        consensus: Consensus::new(config, restored, log.reader())?,
        log,
        applied: 0,
    })
}
