//! How long leases last: by example, and whatever happens to members that lead in turn.

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
        let to = self.log.len().min(from.saturating_add(most));
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

    fn on(&mut self, event: &Event) {
        match *event {
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
        events.iter().for_each(|event| cluster.on(event));
    }

    /// And what nobody keeps alive ends.
    #[test]
    fn every_lease_ends_in_its_time_under_a_leader_that_stays(
        events in prop::collection::vec(event(), 1..120)
    ) {
        let mut cluster = Cluster::new();
        events.iter().for_each(|event| cluster.on(event));
        for _ in 0..20 {
            cluster.now += MINUTE;
            cluster.on(&Event::Tick);
            while !cluster.proposed.is_empty() {
                cluster.on(&Event::Log(true));
            }
            cluster.apply(cluster.leader, usize::MAX);
        }
        let left = cluster.machine.leases().expect("read");
        prop_assert!(left.is_empty(), "{left:?}");
    }
}
