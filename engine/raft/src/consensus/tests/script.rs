//! Runs scripts against a [`Cluster`]: those of `testdata`, and pieces of Rust tests.
//!
//! A file is comments (`#`), scenarios and commands, one a line. Behind a command that prints
//! something is `----`, what it printed, and an empty line; a command without that prints nothing.
//! `scenario NAME` begins again without members.
//!
//! Members are numbers, links are written `1->2`.
//!
//! | command | what it does |
//! |---|---|
//! | `seed 0` | another one, which decides election timeouts |
//! | `configure tick_ms=10 members=2,3` | settings of members, or of these, that start from now on |
//! | `start 1 2 3` | starts these voters with empty logs |
//! | `member 1 voters=1,2 learners=3 log=1,1,2 term=2 vote=1 commit=1 applied=1` | starts a member with a past; `log` lists its entries' terms |
//! | `bootstrap 1` | starts the first member of a cluster: a log of one membership entry, and nothing applied |
//! | `join 4` | starts a member that knows nothing |
//! | `restart 1`, `up-for-a-while 1` | starts it again with what is on its disk; lets it grant votes again |
//! | `promises-nothing 2` | from now on it answers heartbeats as a version did that promised nothing by that |
//! | `tick 1 10` | lets ticks pass |
//! | `wait 1 5` | lets milliseconds pass, and no tick |
//! | `timeout 1` | lets ticks pass until it asks for votes |
//! | `elect 1` | `timeout` and `deliver`, without showing how it wins |
//! | `deliver`, `deliver 1->2` | delivers everything until all is silent; shows and delivers what is on one link |
//! | `lose`, `lose 1->2` | loses what is on the wire |
//! | `delay 1->2`, `arrive 1->2` | takes the oldest message off the wire; puts it back, behind the others |
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

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use bytes::Bytes;
use dengine_types::{Entry, EntryKind, HardState, Index, MemberId, Term};

use super::cluster::{Cluster, Link};
use super::member::{Disk, Machine, describe_state};
use crate::consensus::describe::describe;
use crate::consensus::{ConsensusConfig, Role};

/// With this seed no member of an early term stands for election in the first tick in which it may,
/// so that `tick 3 10` makes member 3 miss its leader and no more.
pub(super) const SEED: u64 = 7704;

fn seeded() -> Cluster {
    Cluster {
        seed: SEED,
        ..Cluster::default()
    }
}

/// A file of `testdata` as it is when everything printed is what the commands print now.
pub(super) fn rerun(file: &str) -> String {
    let mut cluster = seeded();
    let mut rewritten = String::new();
    let mut lines = (1..).zip(file.lines());
    while let Some((at, line)) = lines.next() {
        if line == "----" {
            lines.find(|(_, printed)| printed.is_empty());
            continue;
        }
        writeln!(rewritten, "{line}").unwrap();
        if line.starts_with("scenario ") {
            cluster = seeded();
        } else {
            let ran = catch_unwind(AssertUnwindSafe(|| command(&mut cluster, line)));
            assert!(ran.is_ok(), "line {at} of the file: {line}");
        }
        if !cluster.transcript.is_empty() {
            writeln!(rewritten, "----\n{}", cluster.transcript).unwrap();
            cluster.transcript.clear();
        }
    }
    format!("{}\n", rewritten.trim_end())
}

/// Runs commands, one a line, and leaves what they print in the transcript.
pub(super) fn run(mut cluster: Cluster, script: &str) -> Cluster {
    for line in script.lines() {
        command(&mut cluster, line.trim());
    }
    cluster
}

fn command(cluster: &mut Cluster, line: &str) {
    let words: Vec<_> = line.split_whitespace().collect();
    let Some((name, args)) = words.split_first() else {
        return;
    };
    let id = || number(args[0]);
    match (*name, args) {
        ("#", _) => {}
        ("seed", [_]) => cluster.seed = id(),
        ("configure", settings) => configure(cluster, settings),
        ("start", ids) => start(cluster, ids),
        ("member", args) => member(cluster, args),
        ("bootstrap", [_]) => bootstrap(cluster, id()),
        ("join", [_]) => cluster.start(id(), Disk::default(), Machine::default()),
        ("restart", [_]) => cluster.restart(id()),
        ("wait", [_, millis]) => cluster.wait(id(), Duration::from_millis(number(millis))),
        ("tick", [_, ticks]) => (0..number(ticks)).for_each(|_| cluster.tick(id())),
        ("timeout", [_]) => timeout(cluster, id()),
        ("elect", [_]) => elect(cluster, id()),
        ("deliver", []) => cluster.deliver_all(),
        ("deliver", [link]) => deliver(cluster, parse_link(link)),
        ("lose", []) => cluster.links.clear(),
        ("lose", [link]) => drop(cluster.links.remove(&parse_link(link))),
        ("delay", [link]) => delay(cluster, parse_link(link)),
        ("arrive", [link]) => arrive(cluster, parse_link(link)),
        ("cut", [what]) => cut(cluster, what),
        ("heal", []) => cluster.cut.clear(),
        ("wire", []) => show_wire(cluster),
        ("hold-disk", [_]) => cluster.hold_disk(id(), true),
        ("sync", [_]) => assert!(cluster.sync_one(id()), "nothing waits to be synced"),
        ("release-disk", [_]) => cluster.hold_disk(id(), false),
        ("hold-apply", [_]) => cluster.hold_apply(id(), true),
        ("release-apply", [_]) => cluster.hold_apply(id(), false),
        ("propose", [_, texts @ ..]) => cluster.propose(id(), texts),
        ("add-learner" | "promote" | "remove", [_, about]) => {
            cluster.propose_change(id(), &format!("{name} {about}"));
        }
        ("read", [_]) => cluster.read(id()),
        ("lease-read", [_]) => cluster.lease_read(id()),
        ("promises-nothing", [_]) => drop(cluster.promise_nothing.insert(id())),
        ("await-commits", [_]) => cluster.member(id()).consensus.await_commits(),
        ("up-for-a-while", [_]) => cluster.member(id()).consensus.grant_votes(),
        ("truncate", [_, index]) => cluster.truncate(id(), Index(number(index))),
        ("deliver-snapshot", [link]) => cluster.deliver_snapshot(parse_link(link), true),
        ("lose-snapshot", [link]) => cluster.deliver_snapshot(parse_link(link), false),
        ("transfer", [_, to]) => cluster.transfer(id(), number(to)),
        ("count-held", [_]) => {
            let held = cluster.member(id()).consensus.held_messages();
            cluster.note(id(), format_args!("holds {held} messages"));
        }
        ("heard", [_]) => show_heard(cluster, id()),
        ("state", args) => show_state(cluster, args),
        _ => panic!("no command {line:?}"),
    }
}

fn configure(cluster: &mut Cluster, settings: &[&str]) {
    let settings = settings.iter().map(|setting| {
        let (name, value) = setting.split_once('=').expect("written name=value");
        (name.to_owned(), value.to_owned())
    });
    let (members, settings): (Vec<_>, Vec<_>) = settings.partition(|(name, _)| name == "members");
    let members: Vec<u64> = members
        .iter()
        .flat_map(|(_, ids)| ids.split(',').map(number))
        .collect();
    cluster.settings.push(Box::new(move |config| {
        if members.is_empty() || members.contains(&config.id.0) {
            for (name, value) in &settings {
                set(config, name, number(value));
            }
        }
    }));
}

fn set(config: &mut ConsensusConfig, name: &str, value: u64) {
    let count = usize::try_from(value).expect("so many fit");
    match name {
        "acknowledges_unsynced" => config.acknowledges_unsynced = value != 0,
        "cache_bytes" => config.cache_bytes = value,
        "commit_news_delay_ms" => config.commit_news_delay = Duration::from_millis(value),
        "heartbeat_ticks" => config.heartbeat_ticks = count,
        "lost_writes_accepted" => config.lost_writes_accepted = value != 0,
        "max_apply_bytes" => config.max_apply_bytes = value,
        "max_inflight_messages" => config.max_inflight_messages = count,
        "max_message_bytes" => config.max_message_bytes = value,
        "max_uncommitted_bytes" => config.max_uncommitted_bytes = value,
        "max_waiting_reads" => config.max_waiting_reads = count,
        "tick_ms" => config.tick = Duration::from_millis(value),
        other => panic!("no setting {other}"),
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
            .filter(|bytes| describe(bytes).contains("Vote: "))
            .count()
    };
    let before = (asked(cluster), cluster.members[&id].consensus.state().role);
    for _ in 0..2 * cluster.config(id).election_ticks {
        cluster.tick_without_clock(id);
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

/// All that is on this link now.
fn deliver(cluster: &mut Cluster, link: Link) {
    let count = cluster.links.get(&link).map_or(0, VecDeque::len);
    (0..count).for_each(|_| assert!(cluster.deliver_one(link, true)));
}

fn delay(cluster: &mut Cluster, link: Link) {
    let oldest = cluster.links.get_mut(&link).and_then(VecDeque::pop_front);
    let oldest = oldest.expect("a message is on the link");
    cluster.held.insert(link, oldest);
}

fn arrive(cluster: &mut Cluster, link: Link) {
    let held = cluster.held.remove(&link).expect("a message was delayed");
    cluster.links.entry(link).or_default().push_back(held);
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
        .map(|m| describe(m))
        .collect();
    if messages.is_empty() {
        cluster.transcript.push_str("nothing\n");
    }
    for message in messages {
        writeln!(cluster.transcript, "{message}").unwrap();
    }
}

fn show_heard(cluster: &mut Cluster, id: u64) {
    let mut progress = cluster.member(id).consensus.progress();
    progress.retain(|member| member.recently_active);
    let heard: Vec<_> = progress.iter().map(|p| p.member.to_string()).collect();
    cluster.note(id, format_args!("heard from {}", heard.join(", ")));
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
