//! Runs a script against a [`Cluster`] and compares what happened with what was expected.
//!
//! One command a line; `#` begins a remark that is repeated in the transcript. Members are numbers,
//! links are written `1->2`.
//!
//! | command | what it does |
//! |---|---|
//! | `start 1 2 3` | starts these voters with empty logs |
//! | `member 1 voters=1,2 learners=3 log=1,1,2 term=2 vote=1 commit=1 applied=1` | starts a member with a past; `log` lists its entries' terms |
//! | `bootstrap 1` | starts the first member of a cluster: a log of one membership entry, and nothing applied |
//! | `join 4` | starts a member that knows nothing |
//! | `restart 1`, `up-for-a-while 1` | starts it again with what is on its disk; lets it grant votes again |
//! | `promises-nothing 2` | from now on it answers heartbeats as a version did that promised nothing by that |
//! | `tick 1 10` | lets ticks pass |
//! | `timeout 1` | lets ticks pass until it asks for votes |
//! | `elect 1` | `timeout` and `deliver`, without showing how it wins |
//! | `deliver`, `deliver 1->2` | delivers everything until all is silent; shows and delivers what is on one link |
//! | `lose`, `lose 1->2` | loses what is on the wire |
//! | `cut 1`, `cut 1->2`, `heal` | loses what will be sent, until healed |
//! | `wire` | shows what is on the wire |
//! | `hold-disk 1`, `sync 1`, `release-disk 1` | lets writes wait; syncs the oldest; syncs all from now on |
//! | `hold-apply 1`, `release-apply 1` | lets the state machine wait |
//! | `propose 1 x y` | proposes commands at a member |
//! | `add-learner 1 4`, `promote 1 4`, `remove 1 4` | proposes a membership change at the first about the second |
//! | `read 2`, `lease-read 2` | asks for a linearizable read, or one for which the lease will do |
//! | `transfer 1 2` | asks the first to hand leadership to the second |
//! | `truncate 1 5` | forgets the log up to an entry |
//! | `deliver-snapshot 1->2`, `lose-snapshot 1->2` | lets the snapshot on its way arrive, or get lost |
//! | `count-held 1` | says how many messages wait for its disk |
//! | `heard 1` | says whom a leader heard from lately |
//! | `state`, `state 1` | shows where members stand |

use super::cluster::{Cluster, Link, describe_state};
use super::member::{Disk, Machine};
use super::wire;
use crate::consensus::{ConsensusConfig, Event, Role};
use bytes::Bytes;
use dengine_types::{Entry, EntryKind, HardState, Index, MemberId, Term};
use expect_test::Expect;
use std::collections::VecDeque;
use std::fmt::Write as _;

/// With this seed no member of an early term stands for election in the first tick in which it may, so
/// that `tick 3 10` makes member 3 miss its leader and no more.
pub(super) const SEED: u64 = 7704;

pub(super) fn check(script: &str, expected: &Expect) {
    check_with(|_| {}, script, expected);
}

/// Like [`check`], with members configured otherwise.
pub(super) fn check_with(configure: fn(&mut ConsensusConfig), script: &str, expected: &Expect) {
    let cluster = Cluster {
        seed: SEED,
        configure: Some(configure),
        ..Cluster::default()
    };
    expected.assert_eq(&run(cluster, script).transcript);
}

pub(super) fn run(mut cluster: Cluster, script: &str) -> Cluster {
    for line in script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        let mark = if line.starts_with('#') { "" } else { "> " };
        writeln!(cluster.transcript, "{mark}{line}").unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        if mark == "> " {
            command(&mut cluster, words[0], &words[1..]);
        }
    }
    cluster
}

fn command(cluster: &mut Cluster, name: &str, args: &[&str]) {
    let id = || number(args[0]);
    match (name, args) {
        ("start", ids) => start(cluster, ids),
        ("member", args) => member(cluster, args),
        ("bootstrap", [_]) => bootstrap(cluster, id()),
        ("join", [_]) => cluster.start(id(), Disk::default(), Machine::default()),
        ("restart", [_]) => cluster.restart(id()),
        ("tick", [_, ticks]) => (0..number(ticks)).for_each(|_| cluster.tick(id())),
        ("timeout", [_]) => timeout(cluster, id()),
        ("elect", [_]) => elect(cluster, id()),
        ("deliver", []) => cluster.deliver_all(),
        ("deliver", [link]) => {
            let link = parse_link(link);
            let count = cluster.links.get(&link).map_or(0, VecDeque::len);
            (0..count).for_each(|_| assert!(cluster.deliver_one(link, true)));
        }
        ("lose", []) => cluster.links.clear(),
        ("lose", [link]) => drop(cluster.links.remove(&parse_link(link))),
        ("cut", [what]) => cut(cluster, what),
        ("heal", []) => cluster.cut.clear(),
        ("wire", []) => show_wire(cluster),
        ("hold-disk", [_]) => cluster.member(id()).disk.held = true,
        ("sync", [_]) => assert!(cluster.sync_one(id()), "nothing waits to be synced"),
        ("release-disk", [_]) => {
            cluster.member(id()).disk.held = false;
            while cluster.sync_one(id()) {}
        }
        ("hold-apply", [_]) => cluster.member(id()).machine.held = true,
        ("release-apply", [_]) => {
            cluster.member(id()).machine.held = false;
            cluster.apply_waiting(id());
        }
        ("propose", [_, texts @ ..]) => cluster.propose(id(), texts),
        ("add-learner" | "promote" | "remove", [_, about]) => {
            cluster.propose_change(id(), &format!("{name} {about}"));
        }
        ("read", [_]) => cluster.read(id()),
        ("lease-read", [_]) => cluster.lease_read(id()),
        ("promises-nothing", [_]) => drop(cluster.promise_nothing.insert(id())),
        ("up-for-a-while", [_]) => cluster.member(id()).consensus.grant_votes(),
        ("truncate", [_, index]) => cluster.truncate(id(), Index(number(index))),
        ("deliver-snapshot", [link]) => cluster.deliver_snapshot(parse_link(link), true),
        ("lose-snapshot", [link]) => cluster.deliver_snapshot(parse_link(link), false),
        ("transfer", [_, to]) => {
            cluster.step(id(), Event::TransferLeader(MemberId(number(to))));
        }
        ("count-held", [_]) => {
            let held = cluster.member(id()).consensus.held_messages();
            cluster.note(id(), format_args!("holds {held} messages"));
        }
        ("heard", [_]) => {
            let mut progress = cluster.member(id()).consensus.progress();
            progress.retain(|member| member.recently_active);
            let heard: Vec<_> = progress.iter().map(|p| p.member.to_string()).collect();
            cluster.note(id(), format_args!("heard from {}", heard.join(", ")));
        }
        ("state", args) => show_state(cluster, args),
        _ => panic!("no command {name} {args:?}"),
    }
}

fn number(text: &str) -> u64 {
    text.parse()
        .unwrap_or_else(|_| panic!("no number: {text:?}"))
}

fn parse_link(text: &str) -> Link {
    let (from, to) = text.split_once("->").expect("a link is written 1->2");
    (number(from), number(to))
}

fn start(cluster: &mut Cluster, ids: &[&str]) {
    let voters: Vec<_> = ids.iter().map(|id| MemberId(number(id))).collect();
    for id in &voters {
        let machine = Machine {
            voters: voters.clone(),
            ..Machine::default()
        };
        cluster.start(id.0, Disk::default(), machine);
    }
}

fn member(cluster: &mut Cluster, args: &[&str]) {
    let (mut disk, mut machine) = (Disk::default(), Machine::default());
    for arg in &args[1..] {
        let (key, value) = arg.split_once('=').expect("written key=value");
        let list = || value.split(',').map(number);
        match key {
            "voters" => machine.voters = list().map(MemberId).collect(),
            "learners" => machine.learners = list().map(MemberId).collect(),
            "applied" => machine.applied = Index(number(value)),
            "term" => disk.hard_state.term = Term(number(value)),
            "vote" => disk.hard_state.vote = MemberId(number(value)),
            "commit" => disk.hard_state.commit = Index(number(value)),
            "log" => {
                let entries: Vec<_> = list()
                    .zip(1..)
                    .map(|(term, i)| past_entry(i, term))
                    .collect();
                disk.log.write(&entries);
            }
            other => panic!("a member has no {other}"),
        }
    }
    cluster.start(number(args[0]), disk, machine);
}

/// Its data names both index and term, so that two different entries never look the same.
fn past_entry(index: u64, term: u64) -> Entry {
    Entry {
        index: Index(index),
        term: Term(term),
        kind: EntryKind::Command,
        context: Bytes::new(),
        data: Bytes::from(format!("past-{index}@{term}")),
    }
}

fn bootstrap(cluster: &mut Cluster, id: u64) {
    let disk = Disk {
        hard_state: HardState {
            term: Term(1),
            vote: MemberId(0),
            commit: Index(1),
        },
        ..Disk::default()
    };
    disk.log.write(&[Entry {
        kind: EntryKind::Membership,
        data: Bytes::from(format!("add-voter {id}")),
        ..past_entry(1, 1)
    }]);
    cluster.start(id, disk, Machine::default());
}

fn timeout(cluster: &mut Cluster, id: u64) {
    let asked = |cluster: &Cluster| -> usize {
        let links = cluster.links.iter().filter(|((from, _), _)| *from == id);
        let messages = links.flat_map(|(_, queue)| queue);
        messages
            .filter(|bytes| wire::describe(bytes).contains("Vote: "))
            .count()
    };
    let before = (asked(cluster), cluster.members[&id].consensus.state().role);
    for _ in 0..2 * cluster.config(id).election_ticks {
        cluster.step(id, Event::Tick);
        let role = cluster.members[&id].consensus.state().role;
        if (asked(cluster), role) != before && role != Role::Follower {
            return;
        }
    }
}

fn elect(cluster: &mut Cluster, id: u64) {
    let shown = cluster.transcript.len();
    timeout(cluster, id);
    cluster.deliver_all();
    cluster.transcript.truncate(shown);
    let state = cluster.members[&id].consensus.state();
    cluster.note(id, describe_state(state));
}

fn cut(cluster: &mut Cluster, what: &str) {
    if what.contains("->") {
        cluster.cut.insert(parse_link(what));
        return;
    }
    let id = number(what);
    let others: Vec<_> = cluster.members.keys().copied().collect();
    for other in others.into_iter().filter(|other| *other != id) {
        cluster.cut.extend([(id, other), (other, id)]);
    }
}

fn show_wire(cluster: &mut Cluster) {
    let messages: Vec<_> = cluster
        .links
        .values()
        .flatten()
        .map(|m| wire::describe(m))
        .collect();
    for message in messages {
        writeln!(cluster.transcript, "  {message}").unwrap();
    }
}

fn show_state(cluster: &mut Cluster, args: &[&str]) {
    let all: Vec<_> = cluster.members.keys().copied().collect();
    let ids = if args.is_empty() {
        all
    } else {
        args.iter().map(|id| number(id)).collect()
    };
    for id in ids {
        let status = cluster.status(id);
        cluster.note(id, status);
    }
}
