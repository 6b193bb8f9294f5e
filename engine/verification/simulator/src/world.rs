//! The whole of a run: its members, its clients and whoever runs the cluster, through its phases.
//!
//! *Storm*: faults happen; whatever is answered must be right. *Calm*: they stop, every process is
//! started again; within a bound a write succeeds, and within another all members agree. *Rest*:
//! clients ask for nothing new. Then everything that was seen is judged.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use dengine_checker::{Answer, Level, Recorder};
use dengine_kv::CommandVersion;
use dengine_raft::replica::FIRST_MEMBER;
use dengine_raft::{Confirm, EncodedCommand, Input, Write};
use dengine_types::{Index, MemberId, Revision};

use super::client::{self, Ask, Client, ClientEvent, Outcome};
use super::clock::Clock;
use super::displaced::Displacement;
use super::forgiven::Losses;
use super::holder::{self, Holder};
use super::invariants::{Broken, End, Seen};
use super::load_wave::LoadWave;
use super::member::{Actor, DRIFT_PERCENT_MAX, Member};
use super::network::{Link, Network};
use super::operator::{Operator, newest_leader};
use super::plan::{Fault, Plan};
use super::queue::{MILLI, Nanos, SECOND};
use super::random::Random;
use super::roll::{self, Programs};
use super::surroundings::{Event, Surroundings};
use super::ticket::{Answered, Asker, Request, Ticket};
use super::trace::{Keep, Trace};
use super::watcher::Watcher;
use super::{Report, Violation};

pub(super) type Members = BTreeMap<MemberId, Member>;

/// Once faults stopped, a write succeeds within this time.
const WRITE_WITHIN: Nanos = 30 * SECOND;
/// Once faults stopped, all members agree within this time.
const AGREE_WITHIN: Nanos = 120 * SECOND;
/// Bounds the search of the linearizability checker, for each set of keys. Where it never goes back
/// it takes a step for each key that an operation reads or writes: tens of thousands.
const CHECK_STEPS: usize = 300_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Storm,
    /// Since when, and whether a write that began after that was acknowledged.
    Calm(Nanos),
    /// Since when it was calm.
    Rest(Nanos),
    Over,
    /// An accepted loss has left a cluster that nobody can bring back
    /// ([`World::loss_took_the_quorum`]): there is no end to judge.
    Lost,
}

pub(super) struct World {
    pub(super) sim: Surroundings,
    pub(super) members: Members,
    pub(super) operator: Operator,
    pub(super) clients: BTreeMap<u64, Client>,
    pub(super) watchers: Vec<Watcher>,
    holders: Vec<Holder>,
    recorder: Recorder,
    pub(super) losses: Losses,
    undecided: usize,
    /// A leader whose clock stands still unnoticed has a lease that is too long, and nobody reads
    /// by it then; that lease may outlast the faults.
    leases_hold: bool,
    /// Streams break, and nothing else goes wrong.
    flaps_only: bool,
    /// Somebody was elected.
    elected: bool,
    phase: Phase,
    pub(super) displacement: Option<Displacement>,
}

impl World {
    pub(super) fn new(seed: u64, keep: Keep) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::of(seed, &mut random);
        let network = Network::new(random.fork(), plan.weather);
        let operator = Operator::new(random.fork(), plan.members);
        let watcher = |id| Watcher::new(id, plan.keys, random.fork());
        let watchers = (0..plan.watchers).map(watcher).collect();
        let client = |id| (id, Client::new(id, id <= plan.sessions, random.fork()));
        let clients = (1..=plan.clients).map(client).collect();
        let holders = holder::of(seed, &plan);
        // What holders write, and what goes with their leases, is in no client's history.
        let alone_since = holders.is_empty().then_some(1);
        let leases_hold = !plan.has(Fault::StoppedClock) || plan.load.reads_by_lease();
        let programs = Programs::new(seed, plan.slow_roll);
        let flaps_only = plan.is_only(Fault::Flapping) && !programs.rolls();
        let mut world = Self {
            sim: Surroundings::new(random, Trace::new(keep), network, plan, programs),
            members: Members::new(),
            operator,
            clients,
            watchers,
            holders,
            recorder: Recorder::new(alone_since),
            losses: Losses::default(),
            undecided: 0,
            leases_hold,
            flaps_only,
            elected: false,
            phase: Phase::Storm,
            displacement: None,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let plan = self.sim.plan.clone();
        self.sim.note(format_args!("{plan:?}"));
        let record = self.operator.new_member().under(FIRST_MEMBER);
        let clock = Clock::draw(&mut self.sim.random, DRIFT_PERCENT_MAX);
        let mut first = Member::new(record, clock, self.sim.programs.installed);
        roll::plan(&mut self.sim);
        first.found(&mut self.sim, true);
        first.start(&mut self.sim);
        self.members.insert(FIRST_MEMBER, first);
        self.sim.after(plan.grows_from, Event::Operator);
        self.sim.after(0, Event::Watch);
        for watcher in 0..plan.watchers {
            self.sim.after(SECOND, Event::Watcher(watcher));
        }
        for holder in 0..self.holders.len() as u64 {
            self.sim.after(SECOND, Event::Holder(holder + 1));
        }
        for client in self.clients.keys() {
            let event = ClientEvent::Next(*client);
            self.sim.queue.push(500 * MILLI, Event::Client(event));
        }
        for (fault, mean) in plan.faults {
            let first = SECOND + self.sim.random.below(2 * mean);
            self.sim.after(first, Event::Strike(fault));
        }
    }

    /// Runs to the end, or to the first thing that is wrong.
    pub(super) fn run(mut self, seed: u64) -> Report {
        while self.sim.broken.is_none() && !matches!(self.phase, Phase::Over | Phase::Lost) {
            let (at, event) = self.sim.queue.pop().expect("the watch goes on");
            self.sim.now = at;
            self.on(event);
        }
        if self.sim.broken.is_none() && self.phase == Phase::Over {
            self.judge();
        }
        self.report(seed)
    }

    /// Whether faults happen.
    pub(super) fn is_stormy(&self) -> bool {
        self.phase == Phase::Storm
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Act {
                member,
                boot,
                actor,
            } => self.act(member, boot, actor),
            Event::Deliver {
                link,
                stream,
                reads_max,
                bytes,
            } => self.deliver(link, stream, reads_max, bytes),
            Event::Parcel {
                link: (from, to),
                stream,
                id,
                parcel,
            } => {
                let whole = stream == self.sim.network.stream((from, to));
                if let Some(member) = self.members.get_mut(&to).filter(|m| whole && m.is_up()) {
                    member.on_parcel(&mut self.sim, from, id, parcel);
                }
            }
            Event::Unreachable((from, to)) => {
                if let Some(member) = self.members.get_mut(&from) {
                    member.stream_broke(&mut self.sim, to);
                }
            }
            Event::Client(event) => self.on_client(event),
            Event::Restart(member) => {
                if let Some(member) = self.members.get_mut(&member) {
                    member.start(&mut self.sim);
                }
            }
            Event::Strike(fault) => self.strike(fault),
            Event::Then(next) => next.0(self),
            Event::Mend(links) => self.sim.network.mend(links),
            Event::Space(member) => {
                if let Some(member) = self.members.get_mut(&member) {
                    member.disk().set_space_bytes(None);
                    member.look_at_space(&mut self.sim, false);
                }
            }
            Event::Watcher(id) => {
                let storm = self.is_stormy();
                self.watchers[id as usize].look(&mut self.sim, &mut self.members, storm);
            }
            Event::Holder(id) => {
                let rests = matches!(self.phase, Phase::Rest(_));
                let holder = &mut self.holders[id as usize - 1];
                holder.next(&mut self.sim, &mut self.members, rests);
            }
            Event::Operator => self.operator.look(&mut self.sim, &mut self.members),
            Event::Watch => self.watch(),
        }
    }

    fn act(&mut self, id: MemberId, boot: u64, actor: Actor) {
        let member = self
            .members
            .get_mut(&id)
            .filter(|member| member.boot() == boot);
        if let Some(member) = member {
            let (led, had_lease) = (member.is_leader(), member.holds_lease(self.sim.now));
            member.act(&mut self.sim, actor);
            let has_lease = member.holds_lease(self.sim.now);
            if member.is_leader() && !led {
                self.note_election(id);
                self.displacement_goes_on(id);
            }
            if has_lease && !had_lease {
                self.note_lease(id);
            }
            self.hand_out_answers(id);
        }
    }

    fn note_election(&mut self, elected: MemberId) {
        let Some(term) = self.members[&elected].state().map(|state| state.term) else {
            return;
        };
        if std::mem::replace(&mut self.elected, true) && self.flaps_only {
            let what = format!("{elected} was elected, although all hear the first leader");
            self.sim.fail(("streams that break depose nobody", what));
        }
        let now = self.sim.now;
        // Votes may come late: whoever is elected in an earlier term can commit nothing any more.
        let leads_before = |it: &Member| it.state().is_some_and(|state| state.term < term);
        let mut others = self.members.values().filter(|other| other.id != elected);
        let lease_of = others.find(|other| leads_before(other) && other.holds_lease(now));
        let lease_of = lease_of.map(|it| it.id).filter(|_| self.leases_hold);
        self.sim.see(&Seen::Elected {
            member: elected,
            term,
            lease_of,
        });
    }

    fn note_lease(&mut self, holder: MemberId) {
        if !self.leases_hold {
            return;
        }
        let term = |member: &Member| member.state().map(|state| state.term);
        let own = term(&self.members[&holder]);
        let mut others = self.members.values();
        let newer = others.find(|other| other.is_leader() && term(other) > own);
        let newer = newer.map(|other| other.id);
        self.sim.see(&Seen::Leased { holder, newer });
    }

    fn give(&mut self, id: MemberId, input: Input) {
        if let Some(member) = self.members.get_mut(&id) {
            member.give(&mut self.sim, input);
        }
    }

    fn deliver(
        &mut self,
        link: Link,
        stream: Option<u64>,
        reads_max: CommandVersion,
        bytes: Bytes,
    ) {
        let (from, to) = link;
        let broken = stream.is_some_and(|stream| stream != self.sim.network.stream(link));
        if broken || self.sim.network.is_cut(link) {
            return;
        }
        let up = self.members.get(&to).is_some_and(Member::is_up);
        if up {
            // A stray was said in an older stream, whose Hello is long forgotten.
            if let Some(member) = self.members.get_mut(&to).filter(|_| stream.is_some()) {
                member.greet(from, reads_max);
            }
            self.give(to, Input::Message { from, bytes });
        } else if self.sim.random.chance(300_000) {
            self.sim.after(MILLI, Event::Unreachable(link));
        }
    }

    /// Takes the answers that a member has just given to where they belong.
    fn hand_out_answers(&mut self, id: MemberId) {
        let member = self.members.get_mut(&id);
        for (asker, answered) in member.map(Member::take_answers).unwrap_or_default() {
            match asker {
                Asker::Nobody => {}
                Asker::Operator(request) => {
                    let Self { sim, members, .. } = self;
                    let answer = (request, answered);
                    if let Err(broken) = self.operator.on_answer(sim, members, answer) {
                        sim.fail(broken);
                    }
                }
                Asker::Holder(holder, request) => {
                    let holder = &mut self.holders[holder as usize - 1];
                    holder.on_answer(&mut self.sim, request, answered);
                }
                Asker::Client(client, attempt) => self.answer_client(id, client, attempt, answered),
            }
        }
    }

    fn answer_client(&mut self, id: MemberId, client: u64, attempt: u64, answered: Answered) {
        let outcome = match answered {
            Answered::Written(result) => Outcome::Written(result),
            Answered::MayRead(Err(error)) => Outcome::ReadRefused(error),
            Answered::MayRead(Ok(())) => return self.read(id, client, attempt),
            Answered::Lease(_) | Answered::Leads => return,
        };
        client::reply(&mut self.sim, id, (client, attempt), outcome);
    }

    /// Lets a caller that may read do so, in a thread of its own.
    fn read(&mut self, member: MemberId, client: u64, attempt: u64) {
        let job = self
            .clients
            .get(&client)
            .and_then(|client| client.read_job(attempt));
        let boot = self.members.get(&member).map(Member::boot);
        if let (Some(job), Some(boot)) = (job, boot) {
            let delay = self.sim.random.spread(MILLI / 20);
            let actor = Actor::Serve(job);
            self.sim.after(
                delay,
                Event::Act {
                    member,
                    boot,
                    actor,
                },
            );
        }
    }

    fn on_client(&mut self, event: ClientEvent) {
        let Self {
            sim,
            recorder,
            clients,
            members,
            ..
        } = self;
        match event {
            ClientEvent::Next(client) => {
                if let (Phase::Storm | Phase::Calm(_), Some(client)) =
                    (self.phase, clients.get_mut(&client))
                {
                    client.next(sim, recorder, members);
                }
            }
            ClientEvent::Again { client, attempt } => {
                if let Some(client) = clients.get_mut(&client) {
                    client.again(sim, members, attempt);
                }
            }
            ClientEvent::Arrive {
                client,
                attempt,
                member,
                ask,
                deadline,
            } => self.arrive((client, attempt), member, ask, deadline),
            ClientEvent::Answer {
                client,
                attempt,
                member,
                outcome,
            } => {
                if let Some(client) = clients.get_mut(&client) {
                    client.on_answer(sim, recorder, attempt, member, &outcome);
                }
            }
            ClientEvent::Lost { client, attempt } => {
                if let Some(client) = clients.get_mut(&client) {
                    client.on_lost(sim, recorder, attempt);
                }
            }
        }
    }

    fn arrive(&mut self, from: (u64, u64), member: MemberId, ask: Ask, deadline: Nanos) {
        let (client, attempt) = from;
        if !self.members.get(&member).is_some_and(Member::is_up) {
            return client::reply(&mut self.sim, member, from, Outcome::Unreachable);
        }
        let request = match ask {
            Ask::Write(request) => Request::Write(Write::Command {
                command: EncodedCommand::new(request, self.command_version(member)),
                // Some clients share an address.
                from: Some([10, 0, 0, (client % 5) as u8].into()),
                // The others ask whoever leads, as before there was another way.
                passes: client % 3 != 0,
            }),
            Ask::Read(Level::Linearizable) => Request::Read(Confirm::Quorum),
            Ask::Read(Level::Lease) if self.lease_covers(member) => {
                return self.read(member, client, attempt);
            }
            Ask::Read(Level::Lease) => Request::Read(Confirm::Lease),
            // What is told of a history that may have been given up does not count.
            Ask::Read(Level::Session { .. } | Level::Eventual)
                if self.sim.restored.holds(member) =>
            {
                return client::reply(&mut self.sim, member, from, Outcome::Unreachable);
            }
            Ask::Read(Level::Session { .. } | Level::Eventual) => {
                return self.read(member, client, attempt);
            }
        };
        let asker = Asker::Client(client, attempt);
        let ticket = Ticket { asker, deadline };
        if let Some(member) = self.members.get_mut(&member) {
            member.ask(&mut self.sim, request, ticket);
        }
    }

    /// In which version a member's callers encode what they write.
    fn command_version(&self, member: MemberId) -> CommandVersion {
        let replica = self.members.get(&member).and_then(Member::replica);
        replica.map_or(CommandVersion::OLDEST, |it| it.command_gate().version())
    }

    fn lease_covers(&self, member: MemberId) -> bool {
        let member = self.members.get(&member);
        member.is_some_and(|it| it.lease_covers(self.sim.now))
    }

    fn watch(&mut self) {
        self.sim.after(250 * MILLI, Event::Watch);
        let now = self.sim.now;
        self.look_at_leases();
        match self.phase {
            Phase::Storm if now >= self.sim.plan.safety => self.calm_down(),
            Phase::Calm(since) if self.was_written_since(since) => self.phase = Phase::Rest(since),
            Phase::Calm(since) if now > since + WRITE_WITHIN => {
                self.wait_no_longer("no write succeeds after the faults ended".to_owned());
            }
            Phase::Rest(_) if self.disagreement().is_none() => self.phase = Phase::Over,
            Phase::Rest(since) if now > since + AGREE_WITHIN => {
                let why = self.disagreement().unwrap_or_default();
                self.wait_no_longer(format!("the members do not come to agree: {why}"));
            }
            _ => {}
        }
    }

    /// Shows what is left of leases once nobody keeps any alive.
    fn look_at_leases(&mut self) {
        if let (Phase::Rest(_), Some(leases)) = (self.phase, self.leases()) {
            let now = self.sim.now;
            self.sim.see(&Seen::Rests { now, leases });
        }
    }

    /// How many the leader knows.
    fn leases(&self) -> Option<usize> {
        let (leader, _) = newest_leader(&self.members)?;
        let leases = self.members[&leader].reader()?.leases(None, usize::MAX);
        Some(leases.expect("memory can be read").len())
    }

    fn wait_no_longer(&mut self, why: String) {
        if self.loss_took_the_quorum() {
            self.sim.count("clusters that an accepted loss has ended");
            self.phase = Phase::Lost;
        } else {
            self.sim.fail(("liveness", why));
        }
    }

    /// The faults end, and every process that can be is started.
    fn calm_down(&mut self) {
        self.sim.note(format_args!("the faults end"));
        self.phase = Phase::Calm(self.sim.now);
        self.sim.network.calm();
        self.sim.plan.faults.clear();
        self.sim.plan.weather = super::plan::Weather::CALM;
        // Somebody has to try, or it could not succeed.
        self.sim.plan.load.writes = self.sim.plan.load.writes.max(500);
        self.sim.plan.load.roles = false;
        self.sim.load_wave = LoadWave::default();
        self.displacement = None;
        for member in self.members.values_mut() {
            member.repair(self.sim.plan.stays_full);
            let id = member.id;
            self.sim.after(MILLI, Event::Restart(id));
        }
    }

    fn was_written_since(&self, since: Nanos) -> bool {
        let mut operations = self.recorder.history().operations.iter().rev();
        operations
            .by_ref()
            .take_while(|operation| operation.invoked.nanos >= since)
            .any(|operation| matches!(operation.answer, Answer::Put { .. }))
    }

    /// Why the run cannot end yet.
    fn disagreement(&self) -> Option<String> {
        let Some((leader, membership)) = newest_leader(&self.members) else {
            return Some("nobody leads".to_owned());
        };
        if !self.operator.is_content(&membership, &self.members) {
            return Some("the cluster is not yet as it shall be".to_owned());
        }
        let last = self.members[&leader].replica()?.consensus().last_index();
        let behind = membership
            .members
            .keys()
            .find(|id| self.applied(**id) != Some(last));
        if let Some(id) = behind {
            let applied = self.applied(*id);
            return Some(format!("member {id} has applied {applied:?} of {last}"));
        }
        if self.leases() != Some(0) {
            return Some("there are leases".to_owned());
        }
        let revision = self.members[&leader].reader()?.revision();
        let behind = self.watchers.iter().any(|it| !it.has_come_to(revision));
        behind.then(|| format!("a watch was not told up to {revision}"))
    }

    fn applied(&self, id: MemberId) -> Option<Index> {
        self.members.get(&id).and_then(Member::applied)
    }

    /// Everything that can only be judged in the end.
    fn judge(&mut self) {
        let changes = self.sim.progress.changes();
        let history = &self.losses.forgive(self.recorder.history(), changes);
        let judged = dengine_checker::check(history, CHECK_STEPS);
        let reader = newest_leader(&self.members).and_then(|(id, _)| self.members[&id].reader());
        let reader = reader.expect("a run ends with a leader");
        let value_at = |key: &str, revision: u64| {
            let read = reader.get(
                &Bytes::copy_from_slice(key.as_bytes()),
                Some(Revision(revision)),
            );
            let found = read.ok()?.1;
            Some(found.map(|pair| String::from_utf8_lossy(&pair.value).into_owned()))
        };
        let end = End {
            history,
            judged: &judged,
            value_at: &value_at,
        };
        let broken: Result<(), Broken> = self.sim.invariants().end(&end);
        if let Err(broken) = broken {
            self.sim.fail(broken);
        }
        self.undecided = judged.map_or(0, |summary| summary.undecided);
    }

    fn report(self, seed: u64) -> Report {
        let violation = self
            .sim
            .broken
            .map(|(invariant, what)| Violation { invariant, what });
        Report {
            seed,
            simulated: Duration::from_nanos(self.sim.now),
            counts: self.sim.counts,
            trace_hash: self.sim.trace.hash(),
            history: (self.sim.trace.keep() == Keep::Everything)
                .then(|| self.recorder.into_history()),
            undecided: self.undecided,
            lines: self.sim.trace.into_lines(),
            violation,
        }
    }
}
