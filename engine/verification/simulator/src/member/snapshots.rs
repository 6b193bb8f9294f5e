//! Snapshots on their way: the shell around [`Outgoing`] and
//! [`Staging`](dengine_snapshot::Staging), which `dengine` builds from a stream.

use std::collections::BTreeMap;

use bytes::Bytes;
use dengine_log::Position;
use dengine_log::memory::MemoryDisk;
use dengine_raft::consensus::snapshot_position;
use dengine_raft::{Input, SnapshotMeta};
use dengine_snapshot::{
    Checkpoint as _, Chunk, Commit, Manifest, Outgoing, Place, SnapshotError, SnapshotId, commit,
    describe,
};
use dengine_types::{HardState, MemberId};

use super::open::CLUSTER;
use super::process::Process;
use super::{Actor, End, Machine, Member};
use crate::queue::{MILLI, SECOND};
use crate::store::SimStore;
use crate::surroundings::{Event, Surroundings};
use crate::targeted_fault;

/// Small, so that there is much to interrupt.
const CHUNK_BYTES: usize = 1024;

/// What the two ends of a sending tell each other.
#[derive(Clone, Debug)]
pub(crate) enum Parcel {
    /// There is a snapshot for you.
    Offer { manifest: Manifest, message: Bytes },
    /// Go on from here.
    Want(Place),
    /// A piece of it.
    Piece(Chunk),
    /// The last piece was sent.
    Complete,
    /// It is here, or never will be.
    Done(bool),
}

/// The snapshots that a process has to do with.
#[derive(Default)]
pub(super) struct Snapshots {
    outgoing: Option<Outgoing<MemoryDisk>>,
    /// To whom it is on its way, as which sending.
    sending: BTreeMap<MemberId, u64>,
    sendings: u64,
    /// From whom one comes, which one, and what came with it.
    incoming: Option<(MemberId, SnapshotId, Bytes)>,
    /// One is to replace log and state.
    installing: Option<(Position, HardState)>,
}

impl Snapshots {
    pub(super) fn is_installing(&self) -> bool {
        self.installing.is_some()
    }
}

impl Process {
    pub(super) fn make_snapshot(&mut self, sim: &mut Surroundings, machine: Machine) {
        let made = self.checkpoint(sim);
        let meta = made.as_ref().map(|(_, meta)| meta);
        sim.note(format_args!("{} makes a snapshot: {meta:?}", machine.id));
        sim.count("snapshots made");
        let made = made.ok().map(|(outgoing, meta)| {
            self.snapshots.outgoing = Some(outgoing);
            meta
        });
        self.inbox.push_back(Input::SnapshotMade(made));
        self.wake(sim, machine.id, machine.boot);
    }

    fn checkpoint(
        &self,
        sim: &mut Surroundings,
    ) -> Result<(Outgoing<MemoryDisk>, SnapshotMeta), String> {
        let disk = MemoryDisk::new();
        self.flusher
            .with_store(|store| store.checkpoint(&disk))
            .map_err(|e| e.to_string())?;
        let (last, members) = describe::<SimStore, _>(&disk).map_err(|e| e.to_string())?;
        let id = SnapshotId(u128::from(sim.random.next()));
        let outgoing = Outgoing::new(disk, CLUSTER, id, last).map_err(|e| e.to_string())?;
        let meta = SnapshotMeta {
            last,
            voters: members.voters().map(|m| m.id).collect(),
            learners: members.learners().map(|m| m.id).collect(),
        };
        Ok((outgoing, meta))
    }

    pub(super) fn send_snapshot(
        &mut self,
        sim: &mut Surroundings,
        machine: Machine,
        to: MemberId,
        message: Bytes,
    ) {
        let made = self.snapshots.outgoing.as_ref();
        let Some(outgoing) = made.filter(|it| it.answers(snapshot_position(&message))) else {
            self.inbox.push_back(Input::SnapshotSent { to, ok: false });
            return;
        };
        let manifest = outgoing.manifest().clone();
        self.snapshots.sendings += 1;
        let number = self.snapshots.sendings;
        self.snapshots.sending.insert(to, number);
        let patience = sim.random.between(3 * SECOND, 12 * SECOND);
        machine.plan(sim, patience, Actor::GiveUpSending(to, number));
        let id = manifest.id();
        post(
            sim,
            (machine.id, to),
            id,
            Parcel::Offer { manifest, message },
        );
    }

    pub(super) fn give_up_sending(
        &mut self,
        sim: &mut Surroundings,
        machine: Machine,
        to: MemberId,
        number: u64,
    ) {
        if self.snapshots.sending.get(&to) == Some(&number) {
            self.sent(sim, machine, to, false);
        }
    }

    fn sent(&mut self, sim: &mut Surroundings, machine: Machine, to: MemberId, ok: bool) {
        if self.snapshots.sending.remove(&to).is_some() {
            sim.count(if ok {
                "snapshots sent"
            } else {
                "snapshots not sent"
            });
            self.inbox.push_back(Input::SnapshotSent { to, ok });
            self.wake(sim, machine.id, machine.boot);
        }
    }

    /// One of the two ends hears from the other.
    pub(super) fn on_parcel(
        &mut self,
        sim: &mut Surroundings,
        machine: Machine,
        (from, id): (MemberId, SnapshotId),
        parcel: Parcel,
    ) {
        let back = (machine.id, from);
        let answer = match parcel {
            Parcel::Want(place) => match self.next_piece(from, id, place) {
                Some(piece) => piece,
                None => return,
            },
            Parcel::Done(ok) => return self.sent(sim, machine, from, ok),
            Parcel::Offer { manifest, message } => {
                self.snapshots.incoming = Some((from, id, message));
                wanted(self.staging.begin(manifest))
            }
            Parcel::Piece(chunk) if self.comes_from(from, id) => match self.staging.receive(&chunk)
            {
                // One that came twice.
                Err(SnapshotError::Chunk(_)) => return,
                result => wanted(result),
            },
            Parcel::Complete if self.comes_from(from, id) => {
                let look = |disk: &MemoryDisk| describe::<SimStore, _>(disk).map(|(last, _)| last);
                let finished = self.staging.finish(look);
                sim.note(format_args!(
                    "{} has a snapshot of {from}: {finished:?}",
                    machine.id
                ));
                targeted_fault::over_snapshot(sim, machine.id);
                let complete = finished.is_ok() && self.answers_message();
                self.hand_over(sim, machine, complete);
                Parcel::Done(complete)
            }
            Parcel::Piece(_) | Parcel::Complete => return,
        };
        post(sim, back, id, answer);
    }

    fn comes_from(&self, from: MemberId, id: SnapshotId) -> bool {
        let incoming = self.snapshots.incoming.as_ref();
        incoming.is_some_and(|(sender, snapshot, _)| (*sender, *snapshot) == (from, id))
    }

    /// Whether what was staged is the snapshot of which the message speaks that came with it.
    fn answers_message(&self) -> bool {
        let incoming = self.snapshots.incoming.as_ref();
        let manifest = self.staging.manifest();
        let message = incoming.map(|(_, _, message)| message);
        manifest
            .zip(message)
            .is_some_and(|(it, message)| it.answers(snapshot_position(message)))
    }

    fn next_piece(&self, to: MemberId, id: SnapshotId, place: Place) -> Option<Parcel> {
        let outgoing = self.snapshots.outgoing.as_ref()?;
        if outgoing.manifest().id() != id || !self.snapshots.sending.contains_key(&to) {
            return None;
        }
        Some(match outgoing.read(place, CHUNK_BYTES) {
            Ok(Some(chunk)) => Parcel::Piece(chunk),
            Ok(None) => Parcel::Complete,
            Err(_) => return None,
        })
    }

    /// The replica decides what becomes of a complete snapshot.
    fn hand_over(&mut self, sim: &mut Surroundings, machine: Machine, complete: bool) {
        if let Some((from, _, message)) = self.snapshots.incoming.take().filter(|_| complete) {
            self.inbox
                .push_back(Input::SnapshotStaged { from, message });
            self.wake(sim, machine.id, machine.boot);
        }
    }

    pub(super) fn discard_staged(&mut self) -> Result<(), End> {
        self.snapshots.incoming = None;
        self.staging.clear().map_err(|e| End::Failed(e.to_string()))
    }

    pub(super) fn plan_install(
        &mut self,
        sim: &mut Surroundings,
        machine: Machine,
        base: Position,
        hard_state: HardState,
    ) {
        sim.note(format_args!(
            "{} is to begin again after {}",
            machine.id, base.index
        ));
        self.snapshots.installing = Some((base, hard_state));
        self.plan_log(sim, machine);
    }

    /// The log is reset, which is the moment from which the member is another one.
    pub(super) fn install(&mut self, sim: &mut Surroundings, machine: Machine) -> Result<(), End> {
        let Some((base, hard_state)) = self.snapshots.installing else {
            return Ok(());
        };
        let done = commit(Ok(&self.staging), &mut self.log, base, hard_state);
        if let Commit::Unchanged(reason) = done? {
            return Err(End::GoesOn(reason));
        }
        sim.note(format_args!(
            "{} begins again after {}",
            machine.id, base.index
        ));
        sim.count("snapshots installed");
        Err(End::Installed)
    }
}

fn wanted(next: Result<Place, SnapshotError>) -> Parcel {
    next.map_or(Parcel::Done(false), Parcel::Want)
}

/// Sends a parcel. It may be lost; whoever waits gives up in the end.
fn post(sim: &mut Surroundings, link: (MemberId, MemberId), id: SnapshotId, parcel: Parcel) {
    if sim.network.is_cut(link) || sim.random.chance(sim.plan.weather.loss / 10) {
        return;
    }
    let delay = sim.random.spread(sim.plan.weather.latency.min(2 * MILLI));
    let at = sim.network.leaves(sim.now, link) + delay;
    let stream = sim.network.stream(link);
    sim.queue.push(
        at,
        Event::Parcel {
            link,
            stream,
            id,
            parcel,
        },
    );
}

impl Member {
    /// Hands the process what another sent about a snapshot.
    pub(crate) fn on_parcel(
        &mut self,
        sim: &mut Surroundings,
        from: MemberId,
        id: SnapshotId,
        parcel: Parcel,
    ) {
        self.act(sim, Actor::Parcel(from, id, Box::new(parcel)));
    }
}
