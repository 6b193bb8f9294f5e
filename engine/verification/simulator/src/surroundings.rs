//! What all parts of the simulation share: time, chance, the network, and those who watch.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use dengine_kv::CommandVersion;
use dengine_snapshot::SnapshotId;
use dengine_types::{MemberId, Revision};

use super::client::ClientEvent;
use super::invariants::{Broken, Invariants, Seen};
use super::load_wave::LoadWave;
use super::loss::Progress;
use super::member::{Actor, Parcel};
use super::network::{Link, Network};
use super::plan::{Fault, Plan};
use super::queue::{Nanos, Queue};
use super::random::Random;
use super::restored::Restored;
use super::roll::Programs;
use super::settings::MemberSettings;
use super::trace::{Hash, Trace};
use super::world::World;

/// Something that is going to happen.
pub(super) enum Event {
    /// A part of a member's process goes on. Void if the process is another one by then.
    Act {
        member: MemberId,
        boot: u64,
        actor: Actor,
    },
    /// A message arrives. `None` for the stream: it does so whatever became of that.
    Deliver {
        link: Link,
        stream: Option<u64>,
        /// What the Hello of its stream announced.
        reads_max: CommandVersion,
        bytes: Bytes,
    },
    /// Something about a snapshot arrives.
    Parcel {
        link: Link,
        stream: u64,
        id: SnapshotId,
        parcel: Parcel,
    },
    /// A member learns that it cannot reach another.
    Unreachable(Link),
    /// Something about a client.
    Client(ClientEvent),
    /// A process that ended is started again.
    Restart(MemberId),
    /// Something goes wrong.
    Strike(Fault),
    /// The next step of a fault that has several.
    Then(Action),
    /// A partition ends.
    Mend(Vec<Link>),
    /// A disk has space again.
    Space(MemberId),
    /// A watcher looks what is new.
    Watcher(u64),
    /// A holder of leases asks for the next thing.
    Holder(u64),
    /// Whoever runs the cluster looks after it.
    Operator,
    /// The world looks whether a phase is over.
    Watch,
}

/// What happens to the world then.
pub(super) struct Action(pub(super) Box<dyn FnOnce(&mut World)>);

pub(super) struct Surroundings {
    pub(super) now: Nanos,
    pub(super) queue: Queue<Event>,
    pub(super) random: Random,
    pub(super) trace: Trace,
    pub(super) network: Network,
    pub(super) plan: Plan,
    pub(super) load_wave: LoadWave,
    pub(super) programs: Programs,
    /// Until when a targeted fault that takes a while goes on; there is one at a time.
    pub(super) targeted_until: Nanos,
    pub(super) progress: Progress,
    pub(super) restored: Restored,
    pub(super) counts: BTreeMap<&'static str, u64>,
    invariants: Invariants,
    /// The newest revision that any member has come to.
    pub(super) history_to: Revision,
    /// The first invariant that was broken; the run ends with it.
    pub(super) broken: Option<Broken>,
}

impl Surroundings {
    pub(super) fn new(
        random: Random,
        trace: Trace,
        network: Network,
        plan: Plan,
        programs: Programs,
    ) -> Self {
        Self {
            now: 0,
            queue: Queue::new(),
            random,
            trace,
            network,
            plan,
            load_wave: LoadWave::default(),
            programs,
            targeted_until: 0,
            progress: Progress::default(),
            restored: Restored::default(),
            counts: BTreeMap::new(),
            invariants: Invariants::new(),
            // The first change takes revision 2.
            history_to: Revision(1),
            broken: None,
        }
    }

    /// Plans an event `delay` from now.
    pub(super) fn after(&mut self, delay: Nanos, event: Event) {
        self.queue.push(self.now + delay, event);
    }

    /// How long it takes until a worker begins whose thread takes about as long to wake.
    pub(super) fn begins_after(&mut self, mean: Nanos) -> Nanos {
        let wakes_in = self.random.spread(mean);
        self.plan.turns_by.begins_after(wakes_in, self.now)
    }

    /// Plans the next step of a fault.
    pub(super) fn then(&mut self, delay: Nanos, step: impl FnOnce(&mut World) + 'static) {
        self.after(delay, Event::Then(Action(Box::new(step))));
    }

    /// What a member is started with now.
    pub(super) fn settings(&mut self) -> MemberSettings {
        let settings = self.random.pick(&self.plan.settings);
        *settings.expect("there is one")
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(super) fn note(&mut self, what: fmt::Arguments<'_>) {
        self.trace.note(self.now, what);
    }

    /// Shows the invariants something.
    pub(super) fn see(&mut self, seen: &Seen<'_>) {
        if let Err(broken) = self.invariants.see(seen) {
            self.fail(broken);
        }
    }

    /// Ends the run.
    pub(super) fn fail(&mut self, broken: Broken) {
        self.trace
            .note(self.now, format_args!("BROKEN {}: {}", broken.0, broken.1));
        self.broken.get_or_insert(broken);
    }

    pub(super) fn invariants(&mut self) -> &mut Invariants {
        &mut self.invariants
    }

    /// Sends a message from one member to another. Returns whether the stream is found to be
    /// broken.
    pub(super) fn send(&mut self, link: Link, bytes: &Bytes) -> bool {
        let fate = self.network.send(self.now, link);
        let hash = Hash::of(&[bytes]).0 as u32;
        let (from, to) = link;
        let copies = fate.arrivals.len() + usize::from(fate.stray.is_some());
        let what = self.trace.is_read().then(|| describe(bytes));
        self.trace.note(
            self.now,
            format_args!("{from} sends {to} message {hash:08x}, {copies} times"),
        );
        self.trace.explain(what);
        let stream = Some(self.network.stream(link));
        let reads_max = self.programs.announced_by(from);
        for at in fate.arrivals {
            let bytes = bytes.clone();
            self.queue.push(
                at,
                Event::Deliver {
                    link,
                    stream,
                    reads_max,
                    bytes,
                },
            );
        }
        if let Some(at) = fate.stray {
            let (stream, bytes) = (None, bytes.clone());
            self.queue.push(
                at,
                Event::Deliver {
                    link,
                    stream,
                    reads_max,
                    bytes,
                },
            );
        }
        fate.refused
    }
}

fn describe(bytes: &Bytes) -> String {
    dengine_raft::consensus::describe(bytes)
}
