//! How long leases last: the leader's account, by a clock that is passed in.
//!
//! Every member knows all leases, as of what it has applied. A leader counts their time anew, from
//! when it begins to lead, and for one that it learns of later from then: so a lease may last longer
//! than was asked for, and never ends early. That it is kept alive is written nowhere, but for a
//! checkpoint that is then void. So a lease that was kept alive by the leader before lasts its whole
//! time under the next one, which began to lead after that.
//!
//! An end and a checkpoint name the entry that last changed the lease's record, and do nothing if
//! another has changed it since. What this leader has proposed may be applied at any time, so a
//! lease whose end is proposed is not kept alive any more, unless its record changes first.

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
    /// When it ends.
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
        if term.is_none() || planted!(LeasesNotCountedAnew) {
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dengine_kv::store::MemoryStore;
    use dengine_kv::{CommandVersion, Request, StateMachine};
    use dengine_types::{Entry, EntryKind};
    use proptest::prelude::*;

    use super::*;

    const LEASE: LeaseId = LeaseId(7);
    const SECOND: u64 = 1_000;
    const MINUTE: u64 = 60 * SECOND;

    fn at(ms: u64) -> Moment {
        Moment(0).after(Duration::from_millis(ms))
    }

    fn granted(ttl_ms: u64) -> LeaseChange {
        LeaseChange::Granted {
            lease: LEASE,
            ttl_ms,
            at: Index(1),
        }
    }

    fn end_of(touched: u64) -> Command {
        Command::ExpireLease {
            lease: LEASE,
            seen: Index(touched),
        }
    }

    fn checkpoint_of(remaining_ms: u64, touched: u64) -> Command {
        Command::CheckpointLeases {
            leases: vec![LeaseCheckpoint {
                lease: LEASE,
                remaining_ms,
                seen: Index(touched),
            }],
        }
    }

    fn checkpointed(remaining_ms: u64, index: u64) -> LeaseChange {
        LeaseChange::Checkpointed {
            lease: LEASE,
            remaining_ms,
            at: Index(index),
        }
    }

    fn kept(ttl_ms: u64) -> Asked {
        Asked::Answer(LeaseAnswer::Kept { ttl_ms })
    }

    /// It leads from the beginning, and the lease is granted then.
    fn leader(ttl_ms: u64) -> Lessor {
        let mut lessor = Lessor::default();
        lessor.lead(Some(Term(1)), at(0));
        lessor.apply(granted(ttl_ms), at(0));
        lessor
    }

    #[test]
    fn a_lease_ends_its_time_after_it_was_last_kept_alive_and_not_before() {
        let mut lessor = leader(10 * SECOND);
        assert_eq!(lessor.ends(at(9_999)), []);
        assert_eq!(lessor.keep_alive(LEASE, at(9_999)), kept(10 * SECOND));
        let lasts = |remaining_ms| LeaseAnswer::Lasts {
            ttl_ms: 10 * SECOND,
            remaining_ms,
        };
        assert_eq!(lessor.remaining(LEASE, at(12_999)), lasts(7 * SECOND));
        assert_eq!(lessor.ends(at(19_998)), []);
        assert_eq!(lessor.ends(at(19_999)), [end_of(1)]);
        lessor.apply(LeaseChange::Gone { lease: LEASE }, at(20_000));
        let none = Asked::Answer(LeaseAnswer::NotFound);
        assert_eq!(lessor.keep_alive(LEASE, at(20_000)), none);
        assert_eq!(lessor.remaining(LEASE, at(20_000)), LeaseAnswer::NotFound);
        assert_eq!(lessor.ends(at(MINUTE)), []);
    }

    /// Its end may be applied at any time, whatever is answered now.
    #[test]
    fn a_lease_whose_end_is_proposed_is_kept_alive_only_once_that_does_nothing_any_more() {
        let mut lessor = leader(SECOND);
        assert_eq!(lessor.ends(at(SECOND)), [end_of(1)]);
        assert_eq!(lessor.keep_alive(LEASE, at(SECOND)), Asked::Wait);
        assert_eq!(lessor.ends(at(4_999)), [], "it is under way");
        assert_eq!(lessor.ends(at(5_000)), [end_of(1)], "it got lost");
        lessor.apply(checkpointed(SECOND, 9), at(5_001));
        assert_eq!(lessor.keep_alive(LEASE, at(5_002)), kept(SECOND));
        assert_eq!(lessor.ends(at(6_001)), []);
        assert_eq!(lessor.ends(at(6_002)), [end_of(9)]);
    }

    #[test]
    fn who_leads_anew_counts_anew_from_what_was_left_at_the_last_checkpoint() {
        let mut lessor = Lessor::default();
        lessor.apply(granted(10 * MINUTE), at(0));
        lessor.apply(checkpointed(4 * MINUTE, 2), at(1));
        assert_eq!(lessor.ends(at(60 * MINUTE)), [], "others propose nothing");
        assert_eq!(lessor.checkpoint(at(60 * MINUTE)), None);
        lessor.lead(Some(Term(3)), at(60 * MINUTE));
        assert_eq!(lessor.ends(at(64 * MINUTE - 1)), []);
        assert_eq!(lessor.ends(at(64 * MINUTE)), [end_of(2)]);
        // The next one knows nothing of what this one has proposed.
        lessor.lead(None, at(64 * MINUTE));
        lessor.lead(Some(Term(5)), at(64 * MINUTE));
        assert_eq!(lessor.ends(at(68 * MINUTE - 1)), []);
        assert_eq!(lessor.ends(at(68 * MINUTE)), [end_of(2)]);
    }

    /// It had not applied yet that the lease was kept alive, and ended it early.
    #[test]
    fn who_leads_anew_and_learns_late_that_a_checkpoint_is_void_counts_the_whole_time() {
        let mut lessor = Lessor::default();
        lessor.apply(granted(10 * MINUTE), at(0));
        lessor.apply(checkpointed(MINUTE, 2), at(0));
        lessor.lead(Some(Term(3)), at(0));
        lessor.apply(checkpointed(10 * MINUTE, 3), at(1));
        assert_eq!(lessor.ends(at(10 * MINUTE)), []);
        assert_eq!(lessor.ends(at(10 * MINUTE + 1)), [end_of(3)]);
    }

    #[test]
    fn only_long_leases_that_nobody_keeps_alive_are_recorded() {
        let mut lessor = leader(5 * MINUTE);
        assert_eq!(lessor.checkpoint(at(60 * MINUTE)), None, "it is short");
        let mut lessor = leader(20 * MINUTE);
        assert_eq!(lessor.keep_alive(LEASE, at(4 * MINUTE)), kept(20 * MINUTE));
        assert_eq!(lessor.checkpoint(at(9 * MINUTE - 1)), None);
        let expected = checkpoint_of(15 * MINUTE, 1);
        assert_eq!(lessor.checkpoint(at(9 * MINUTE)), Some(expected));
        assert_eq!(lessor.checkpoint(at(14 * MINUTE - 1)), None);
        let expected = checkpoint_of(10 * MINUTE, 1);
        assert_eq!(lessor.checkpoint(at(14 * MINUTE)), Some(expected));
    }

    /// The next leader counts from the checkpoint, and would end it early.
    #[test]
    fn a_lease_with_a_checkpoint_is_kept_alive_once_that_is_void() {
        let whole = 20 * MINUTE;
        let mut lessor = leader(whole);
        assert!(lessor.checkpoint(at(5 * MINUTE)).is_some());
        // It may be applied yet.
        let void = Asked::Propose(checkpoint_of(whole, 1));
        assert_eq!(lessor.keep_alive(LEASE, at(6 * MINUTE)), void);
        assert_eq!(lessor.keep_alive(LEASE, at(6 * MINUTE)), Asked::Wait);
        assert_eq!(
            lessor.checkpoint(at(12 * MINUTE)),
            None,
            "it would be older"
        );
        lessor.apply(checkpointed(15 * MINUTE, 5), at(13 * MINUTE));
        let void = Asked::Propose(checkpoint_of(whole, 5));
        assert_eq!(lessor.keep_alive(LEASE, at(13 * MINUTE)), void);
        lessor.apply(checkpointed(whole, 6), at(13 * MINUTE));
        assert_eq!(lessor.keep_alive(LEASE, at(13 * MINUTE)), kept(whole));
        assert_eq!(lessor.ends(at(33 * MINUTE - 1)), []);
        assert_eq!(lessor.ends(at(33 * MINUTE)), [end_of(6)]);
    }

    #[test]
    fn what_has_ended_and_has_keys_left_goes_on_to_be_ended() {
        let mut lessor = leader(10 * SECOND);
        let dying = |index| LeaseChange::Dying {
            lease: LEASE,
            at: Index(index),
        };
        lessor.apply(dying(5), at(1));
        let none = Asked::Answer(LeaseAnswer::NotFound);
        assert_eq!(lessor.keep_alive(LEASE, at(1)), none);
        assert_eq!(lessor.ends(at(1)), [end_of(5)]);
        lessor.apply(dying(6), at(2));
        assert_eq!(lessor.ends(at(2)), [end_of(6)]);
        lessor.lead(Some(Term(2)), at(3));
        assert_eq!(lessor.ends(at(3)), [end_of(6)]);
    }

    #[test]
    fn of_many_that_end_together_some_end_at_a_time() {
        let mut lessor = Lessor::default();
        lessor.lead(Some(Term(1)), at(0));
        for id in 1..=250 {
            let change = LeaseChange::Granted {
                lease: LeaseId(id),
                ttl_ms: SECOND,
                at: Index(1),
            };
            lessor.apply(change, at(0));
        }
        let mut ends = || lessor.ends(at(SECOND)).len();
        assert_eq!([ends(), ends(), ends(), ends()], [100, 100, 50, 0]);
    }

    #[derive(Clone, Debug)]
    enum Event {
        Pass(u64),
        Tick,
        /// What the leader has proposed reaches the log, or gets lost.
        Log(bool),
        /// A member applies some of what it has not.
        Apply(usize, usize),
        KeepAlive(i64),
        Grant(i64, u64),
        Lead(usize),
    }

    fn event() -> impl Strategy<Value = Event> {
        let lease = || 1..3_i64;
        let ttl_ms = prop::sample::select(vec![SECOND, 8 * MINUTE]);
        prop_oneof![
            4 => prop::sample::select(vec![1, SECOND / 2, SECOND, 2 * MINUTE, 5 * MINUTE])
                .prop_map(Event::Pass),
            4 => Just(Event::Tick),
            3 => prop::bool::weighted(0.8).prop_map(Event::Log),
            3 => (0..MEMBERS, 1..4_usize).prop_map(|(member, most)| Event::Apply(member, most)),
            4 => lease().prop_map(Event::KeepAlive),
            2 => (lease(), ttl_ms).prop_map(|(lease, ttl_ms)| Event::Grant(lease, ttl_ms)),
            1 => (0..MEMBERS).prop_map(Event::Lead),
        ]
    }

    const MEMBERS: usize = 2;

    /// Members that lead in turn, with one log.
    struct Cluster {
        now: u64,
        term: u64,
        leader: usize,
        lessors: [Lessor; MEMBERS],
        /// How much of the log each has applied.
        applied: [usize; MEMBERS],
        machine: StateMachine<MemoryStore>,
        /// What each entry of the log does.
        log: Vec<Vec<LeaseChange>>,
        proposed: Vec<Command>,
        /// Until when each lease was promised to last.
        promised: BTreeMap<LeaseId, u64>,
    }

    impl Cluster {
        fn new() -> Self {
            let mut cluster = Self {
                now: 0,
                term: 0,
                leader: 0,
                lessors: Default::default(),
                applied: [0; MEMBERS],
                machine: StateMachine::open(MemoryStore::default()).expect("open"),
                log: Vec::new(),
                proposed: Vec::new(),
                promised: BTreeMap::new(),
            };
            cluster.lead(0);
            cluster
        }

        fn lead(&mut self, member: usize) {
            self.term += 1;
            self.leader = member;
            for (number, lessor) in self.lessors.iter_mut().enumerate() {
                let term = (number == member).then_some(Term(self.term));
                lessor.lead(term, at(self.now));
            }
            // What the one before had proposed is in the log, or never will be.
            self.proposed.clear();
        }

        fn write(&mut self, command: Command) -> Outcome {
            let index = self.machine.applied().0.next();
            let entry = Entry {
                index,
                term: Term(self.term),
                kind: EntryKind::Command,
                context: Bytes::new(),
                data: Request::from(command).encode(CommandVersion::CURRENT),
            };
            let applied = self.machine.apply(&[entry]).expect("apply").remove(0);
            let changes = LeaseChange::of(&applied);
            for change in &changes {
                if let LeaseChange::Gone { lease } = change {
                    let promised = self.promised.remove(lease).unwrap_or_default();
                    assert!(self.now >= promised, "{lease} at {}", self.now);
                }
            }
            self.log.push(changes);
            applied.outcome
        }

        fn apply(&mut self, member: usize, most: usize) {
            let from = self.applied[member];
            let to = self.log.len().min(from + most);
            for change in self.log[from..to].iter().flatten() {
                self.lessors[member].apply(*change, at(self.now));
            }
            self.applied[member] = to;
        }

        fn keep_alive(&mut self, lease: LeaseId) {
            self.apply(self.leader, usize::MAX);
            match self.lessors[self.leader].keep_alive(lease, at(self.now)) {
                Asked::Answer(LeaseAnswer::Kept { ttl_ms }) => {
                    self.promised.insert(lease, self.now + ttl_ms);
                }
                Asked::Propose(command) => self.proposed.push(command),
                _ => {}
            }
        }

        fn on(&mut self, event: Event) {
            match event {
                Event::Pass(ms) => self.now += ms,
                Event::Tick => {
                    let lessor = &mut self.lessors[self.leader];
                    self.proposed.extend(lessor.ends(at(self.now)));
                    self.proposed.extend(lessor.checkpoint(at(self.now)));
                }
                Event::Log(reaches) if !self.proposed.is_empty() => {
                    let command = self.proposed.remove(0);
                    if reaches {
                        self.write(command);
                    }
                }
                Event::Log(_) => {}
                Event::Apply(member, most) => self.apply(member, most),
                Event::KeepAlive(lease) => self.keep_alive(LeaseId(lease)),
                Event::Grant(lease, ttl_ms) => {
                    let lease = LeaseId(lease);
                    let granted = self.write(Command::GrantLease { lease, ttl_ms });
                    if matches!(granted, Outcome::LeaseGranted { .. }) {
                        self.promised.insert(lease, self.now + ttl_ms);
                    }
                }
                Event::Lead(member) => self.lead(member),
            }
        }
    }

    proptest! {
        #[test]
        fn no_lease_ends_before_it_was_promised_whoever_leads(
            events in prop::collection::vec(event(), 1..120)
        ) {
            let mut cluster = Cluster::new();
            events.into_iter().for_each(|event| cluster.on(event));
        }

        /// And what nobody keeps alive ends.
        #[test]
        fn every_lease_ends_in_its_time_under_a_leader_that_stays(
            events in prop::collection::vec(event(), 1..120)
        ) {
            let mut cluster = Cluster::new();
            events.into_iter().for_each(|event| cluster.on(event));
            for _ in 0..20 {
                cluster.now += MINUTE;
                cluster.on(Event::Tick);
                while !cluster.proposed.is_empty() {
                    cluster.on(Event::Log(true));
                }
                cluster.apply(cluster.leader, usize::MAX);
            }
            let left = cluster.machine.leases().expect("read");
            prop_assert!(left.is_empty(), "{left:?}");
        }
    }
}
