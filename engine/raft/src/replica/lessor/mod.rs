//! How long leases last: the leader's account, by a clock that is passed in.
//!
//! Every member knows all leases, as of what it has applied. A leader counts their time from when
//! it begins to lead, and for one that it learns of later from then: so a lease may last longer
//! than was asked for, and never ends early. That it is kept alive is written nowhere, but for a
//! checkpoint that is then void. So a lease that was kept alive by the leader before lasts its
//! whole time under the next one, which began to lead after that.
//!
//! An end and a checkpoint name the entry that last changed the lease's record, and do nothing if
//! another has changed it since. What this leader has proposed may be applied at any time, so a
//! lease whose end is proposed is not kept alive any more, unless its record changes first.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dengine_kv::{Applied, Command, EXPIRY_RETRY, LeaseCheckpoint, LeaseEnd, LeaseInfo, Outcome};
use dengine_planted::planted;
use dengine_types::{Index, LeaseId, Moment, Term};

use crate::output::LeaseAnswer;

/// How often what is left of a lease is recorded, and how long one lasts at least for that to be
/// done: a change of leaders lengthens it by no more than that.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(300);
/// Leases that are recorded by one command at most.
const CHECKPOINTS_MAX: usize = 256;
/// Leases whose ends are proposed at once at most; what is left is due at the next tick.
const ENDS_MAX: usize = 100;

/// What an entry did to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    Granted {
        lease: LeaseId,
        ttl_ms: u64,
        /// The entry.
        at: Index,
    },
    /// So much is left of it.
    Checkpointed {
        lease: LeaseId,
        remaining_ms: u64,
        /// The entry.
        at: Index,
    },
    /// It has ended, and some of its keys are still to be deleted.
    Dying {
        lease: LeaseId,
        /// The entry.
        at: Index,
    },
    Gone {
        lease: LeaseId,
    },
}

impl LeaseChange {
    /// What an applied entry did to leases.
    pub(super) fn of(applied: &Applied) -> Vec<Self> {
        let at = applied.index;
        match &applied.outcome {
            Outcome::LeaseGranted { lease, ttl_ms, .. } => vec![Self::Granted {
                lease: *lease,
                ttl_ms: *ttl_ms,
                at,
            }],
            Outcome::LeaseEnded { lease, end, .. } => match end {
                LeaseEnd::Gone => vec![Self::Gone { lease: *lease }],
                LeaseEnd::Dying => vec![Self::Dying { lease: *lease, at }],
                LeaseEnd::NotDone => Vec::new(),
            },
            Outcome::LeasesCheckpointed { leases } => leases
                .iter()
                .map(|it| Self::Checkpointed {
                    lease: it.lease,
                    remaining_ms: it.remaining_ms,
                    at,
                })
                .collect(),
            _ => Vec::new(),
        }
    }
}

/// What becomes of a question about a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Answer(LeaseAnswer),
    /// It is known once more is applied.
    Wait,
    /// The same, and this has to be applied.
    Propose(Command),
}

/// The leases, and while this member leads their deadlines.
#[derive(Debug, Default)]
pub(super) struct Lessor {
    leases: BTreeMap<LeaseId, Held>,
    /// In which it leads.
    term: Option<Term>,
    /// When each lease is to be looked at: it ends then, or its end is proposed again. Only while
    /// it leads.
    looks: BTreeSet<(Moment, LeaseId)>,
    /// When what is left of a long lease is to be recorded. Only while it leads.
    checkpoints: BTreeSet<(Moment, LeaseId)>,
}

/// A lease, as far as the applied entries tell, and how this leader counts it.
#[derive(Clone, Copy, Debug)]
struct Held {
    ttl_ms: u64,
    remaining_ms: u64,
    touched: Index,
    dying: bool,
    ends: Moment,
    /// Where it is in [`Lessor::looks`] and [`Lessor::checkpoints`].
    look: Moment,
    checkpoint: Moment,
    /// A command that ends it as its record is now was proposed, and may be in the log.
    end_proposed: bool,
    /// The same for a checkpoint.
    checkpoint_proposed: bool,
    /// When the checkpoint that voids others was proposed last.
    voided: Option<Moment>,
}

impl Held {
    fn new(ttl_ms: u64, remaining_ms: u64, touched: Index, dying: bool) -> Self {
        Self {
            ttl_ms,
            remaining_ms,
            touched,
            dying,
            ends: Moment(0),
            look: Moment(0),
            checkpoint: Moment(0),
            end_proposed: false,
            checkpoint_proposed: false,
            voided: None,
        }
    }

    /// Its record has changed: what was proposed before does nothing any more.
    fn touch(&mut self, at: Index) {
        self.touched = at;
        self.end_proposed = false;
        self.checkpoint_proposed = false;
        self.voided = None;
    }

    /// Whether the next leader would count less than its whole time.
    fn is_checkpointed(&self) -> bool {
        self.remaining_ms < self.ttl_ms || self.checkpoint_proposed
    }

    fn is_long(&self) -> bool {
        Duration::from_millis(self.ttl_ms) > CHECKPOINT_EVERY
    }

    fn remaining_ms(&self, now: Moment) -> u64 {
        let remaining = self.ends.since(now).as_millis();
        u64::try_from(remaining).map_or(self.ttl_ms, |it| it.min(self.ttl_ms))
    }
}

impl Lessor {
    pub(super) fn new(leases: impl IntoIterator<Item = LeaseInfo>) -> Self {
        let held = |it: LeaseInfo| {
            let held = Held::new(it.ttl_ms, it.remaining_ms, it.touched, it.dying);
            (it.id, held)
        };
        Self {
            leases: leases.into_iter().map(held).collect(),
            ..Self::default()
        }
    }

    /// In which term it leads.
    pub(super) fn term(&self) -> Option<Term> {
        self.term
    }

    /// From now on this member leads in that term, or does not lead.
    pub(super) fn lead(&mut self, term: Option<Term>, now: Moment) {
        if self.term == term {
            return;
        }
        self.term = term;
        self.looks.clear();
        self.checkpoints.clear();
        if term.is_none() || planted!(LeasesNotCountedAgain) {
            return;
        }
        for (lease, held) in &mut self.leases {
            held.touch(held.touched);
            let left_ms = if held.dying { 0 } else { held.remaining_ms };
            held.ends = now.after(Duration::from_millis(left_ms));
            held.look = held.ends;
            held.checkpoint = now.after(CHECKPOINT_EVERY);
            self.looks.insert((held.look, *lease));
            if held.is_long() {
                self.checkpoints.insert((held.checkpoint, *lease));
            }
        }
    }

    /// Takes note of an entry that is applied.
    pub(super) fn apply(&mut self, change: LeaseChange, now: Moment) {
        match change {
            LeaseChange::Granted { lease, ttl_ms, at } => {
                self.leases
                    .insert(lease, Held::new(ttl_ms, ttl_ms, at, false));
                self.lengthen(lease, ttl_ms, now);
            }
            LeaseChange::Checkpointed {
                lease,
                remaining_ms,
                at,
            } => {
                if let Some(held) = self.leases.get_mut(&lease) {
                    held.touch(at);
                    held.remaining_ms = remaining_ms;
                }
                // A leader that began before it knew of this has counted from an older one.
                self.lengthen(lease, remaining_ms, now);
            }
            LeaseChange::Dying { lease, at } => {
                if let Some(held) = self.leases.get_mut(&lease) {
                    held.touch(at);
                    held.dying = true;
                    held.ends = now;
                }
                self.look_at(lease, now);
            }
            LeaseChange::Gone { lease } => {
                if let Some(held) = self.leases.remove(&lease) {
                    self.looks.remove(&(held.look, lease));
                    self.checkpoints.remove(&(held.checkpoint, lease));
                }
            }
        }
    }

    /// Keeps a lease alive: it lasts its whole time from now on. Only for a leader that has applied
    /// what was committed before it was asked.
    pub(super) fn keep_alive(&mut self, lease: LeaseId, now: Moment) -> Asked {
        let Some(held) = self.leases.get_mut(&lease).filter(|held| !held.dying) else {
            return Asked::Answer(LeaseAnswer::NotFound);
        };
        if held.end_proposed && !planted!(KeepAliveOverPendingExpiry) {
            return Asked::Wait;
        }
        let held = *held;
        self.lengthen(lease, held.ttl_ms, now);
        if held.is_checkpointed() {
            return self.void_checkpoints(lease, now);
        }
        if held.is_long() {
            self.checkpoint_at(lease, now.after(CHECKPOINT_EVERY));
        }
        Asked::Answer(LeaseAnswer::Kept {
            ttl_ms: held.ttl_ms,
        })
    }

    /// The next leader would count from a checkpoint, unless a later one says that it is void.
    fn void_checkpoints(&mut self, lease: LeaseId, now: Moment) -> Asked {
        let Some(held) = self.leases.get_mut(&lease) else {
            return Asked::Wait;
        };
        if held.voided.is_some_and(|at| now.since(at) < EXPIRY_RETRY) {
            return Asked::Wait;
        }
        held.voided = Some(now);
        let whole = LeaseCheckpoint {
            lease,
            remaining_ms: held.ttl_ms,
            seen: held.touched,
        };
        Asked::Propose(Command::CheckpointLeases {
            leases: vec![whole],
        })
    }

    /// How much is left of a lease.
    pub(super) fn remaining(&self, lease: LeaseId, now: Moment) -> LeaseAnswer {
        match self.leases.get(&lease).filter(|held| !held.dying) {
            Some(held) => LeaseAnswer::Lasts {
                ttl_ms: held.ttl_ms,
                remaining_ms: held.remaining_ms(now),
            },
            None => LeaseAnswer::NotFound,
        }
    }

    /// The commands that end what is over by now. What is not applied is due again later.
    pub(super) fn ends(&mut self, now: Moment) -> Vec<Command> {
        let mut commands = Vec::new();
        while commands.len() < ENDS_MAX
            && let Some(&(at, lease)) = self.looks.first()
            && at <= now
        {
            let Some(held) = self.leases.get_mut(&lease) else {
                self.looks.pop_first();
                continue;
            };
            held.end_proposed = true;
            commands.push(Command::ExpireLease {
                lease,
                seen: held.touched,
            });
            self.look_at(lease, now.after(EXPIRY_RETRY));
        }
        commands
    }

    /// The command that records what is left of long leases that nobody has kept alive for a while.
    pub(super) fn checkpoint(&mut self, now: Moment) -> Option<Command> {
        let mut leases = Vec::new();
        while leases.len() < CHECKPOINTS_MAX
            && let Some(&(at, lease)) = self.checkpoints.first()
            && at <= now
        {
            let Some(held) = self.leases.get_mut(&lease) else {
                self.checkpoints.pop_first();
                continue;
            };
            if !held.dying && !held.end_proposed && held.voided.is_none() {
                held.checkpoint_proposed = true;
                leases.push(LeaseCheckpoint {
                    lease,
                    remaining_ms: held.remaining_ms(now),
                    seen: held.touched,
                });
            }
            self.checkpoint_at(lease, now.after(CHECKPOINT_EVERY));
        }
        (!leases.is_empty()).then_some(Command::CheckpointLeases { leases })
    }

    /// A lease lasts for so long from now on, at least.
    fn lengthen(&mut self, lease: LeaseId, left_ms: u64, now: Moment) {
        let Some(held) = self.leases.get_mut(&lease) else {
            return;
        };
        held.ends = held.ends.max(now.after(Duration::from_millis(left_ms)));
        let (ends, is_new) = (held.ends, held.checkpoint == Moment(0));
        self.look_at(lease, ends);
        if is_new {
            self.checkpoint_at(lease, now.after(CHECKPOINT_EVERY));
        }
    }

    fn look_at(&mut self, lease: LeaseId, at: Moment) {
        if let Some(held) = self.leases.get_mut(&lease).filter(|_| self.term.is_some()) {
            self.looks.remove(&(held.look, lease));
            held.look = at;
            self.looks.insert((at, lease));
        }
    }

    fn checkpoint_at(&mut self, lease: LeaseId, at: Moment) {
        if let Some(held) = self.leases.get_mut(&lease).filter(|_| self.term.is_some())
            && held.is_long()
        {
            self.checkpoints.remove(&(held.checkpoint, lease));
            held.checkpoint = at;
            self.checkpoints.insert((at, lease));
        }
    }
}
