//! The streams to the other members: what queues for each, in [`PeerQueue`]s as they ship.

use std::time::Duration;

use bytes::Bytes;
use dengine_raft::consensus::without_promise;
use dengine_raft::peer_frames::{self, Decoder, Outgoing};
use dengine_raft::peer_queue::{Dropped, PeerQueue, QueueLimits, frame_bytes};
use dengine_raft::replica::Announcement;
use dengine_raft::{Input, Outbound};
use dengine_types::MemberId;

use super::process::Process;
use super::waiting::Waiting;
use super::{Actor, Machine};
use crate::network::Link;
use crate::queue::{MILLI, Nanos, SECOND};
use crate::settings::{FRAME_BYTES_MAX, MemberSettings};
use crate::surroundings::Surroundings;

const QUEUE_MESSAGES: usize = 1024;

fn limits(settings: &MemberSettings) -> QueueLimits {
    QueueLimits {
        frame_bytes: settings.message_bytes,
        frame_bytes_max: FRAME_BYTES_MAX,
        queue_bytes: settings.queue_bytes,
        queue_messages: QUEUE_MESSAGES,
        retry_min: Duration::from_millis(50),
        retry_max: Duration::from_secs(1),
    }
}

/// The way to one other member.
pub(super) struct Peer {
    queue: PeerQueue,
    /// What has to wait in it.
    waiting: Waiting,
    /// The start of the process that the stream goes to; another one does not know it.
    opened_to: Option<u64>,
    /// A frame is being written, or a stream is about to be opened.
    busy: bool,
}

impl Peer {
    fn new(settings: &MemberSettings) -> Self {
        Self {
            queue: PeerQueue::new(limits(settings)),
            waiting: Waiting::default(),
            opened_to: None,
            busy: false,
        }
    }

    /// The next frame, which is what it has to be.
    fn next_frame(&mut self, sim: &mut Surroundings, (from, to): Link) -> Vec<Bytes> {
        let frame = over_the_wire(&self.queue.next_frame());
        if let Err(how) = self.waiting.framed(&frame) {
            let what = format!("{from} to {to}: {how}");
            sim.fail(("heartbeats outlive their stream", what));
        }
        frame
    }
}

/// What a frame is once it was bytes that arrived in pieces.
fn over_the_wire(messages: &[Bytes]) -> Vec<Bytes> {
    let mut outgoing = Outgoing::default();
    outgoing.push_magic();
    outgoing.push_batch(messages);
    let mut decoder = Decoder::new(FRAME_BYTES_MAX);
    // Of sizes that cut heads in two.
    let mut sizes = [7, 8, 1021].into_iter().chain(std::iter::repeat(4093));
    let mut next = || sizes.next().unwrap_or_default();
    while let Some(first) = outgoing.slices().first() {
        let piece = first[..first.len().min(next())].to_vec();
        outgoing.advance(piece.len());
        decoder.room().extend_from_slice(&piece);
        let arrived = decoder
            .next_frame()
            .expect("nothing was changed on the way");
        if let Some(frame) = arrived {
            let messages = peer_frames::messages(frame.body, QUEUE_MESSAGES);
            return messages.expect("no more than were sent");
        }
    }
    panic!("a frame never ended")
}

impl Process {
    pub(super) fn send(
        &mut self,
        sim: &mut Surroundings,
        machine: Machine,
        messages: Vec<Outbound>,
    ) {
        let mut receivers: Vec<MemberId> = messages.iter().map(|it| it.to).collect();
        receivers.sort_unstable();
        receivers.dedup();
        for mut message in messages {
            if sim.programs.is_older(machine.id) {
                message.bytes = without_promise(&message.bytes);
            }
            let to = message.to;
            let new = || Peer::new(&self.settings);
            let peer = self.peers.entry(to).or_insert_with(new);
            if !peer.queue.is_open() {
                peer.waiting.make_room_while_down(message.carries_log);
            }
            match peer.queue.push(message.clone()) {
                Ok(()) => {
                    peer.waiting.pushed(message);
                    let checked = peer.waiting.check_bytes(self.settings.queue_bytes);
                    if let Err(how) = checked {
                        let what = format!("{} to {to}: {how}", machine.id);
                        sim.fail(("messages are bounded", what));
                    }
                }
                Err(Dropped::Full) => {
                    sim.count("messages without room");
                    self.tell(sim, machine, Input::Unreachable(to));
                }
                Err(dropped @ Dropped::TooLarge { .. }) => {
                    let what = format!("{} to {to}: {dropped}", machine.id);
                    sim.fail(("messages are bounded", what));
                }
            }
        }
        for to in receivers {
            self.transmit(sim, machine, to);
        }
    }

    /// The process of this start has answered the Hello of a stream to it, unless it is gone or
    /// cannot be heard.
    pub(super) fn on_ack(
        &mut self,
        sim: &mut Surroundings,
        machine: Machine,
        by: MemberId,
        start: u64,
    ) {
        let heard = !sim.network.is_cut((by, machine.id)) && !sim.network.is_cut((machine.id, by));
        if heard && sim.programs.start_of(by) == Some(start) {
            sim.count("Hellos answered");
            self.inbox.push_back(Input::Announced {
                member: by,
                by: Announcement::Ack {
                    takes_passed_on: !sim.programs.is_older(by),
                },
                reads_max: sim.programs.announced_by(by),
            });
            self.wake(sim, machine.id, machine.boot);
        }
    }

    /// Goes on sending to a member: opens a stream, if there is none, and writes frames.
    pub(super) fn go_on_sending(&mut self, sim: &mut Surroundings, machine: Machine, to: MemberId) {
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.busy = false;
            self.transmit(sim, machine, to);
        }
    }

    fn transmit(&mut self, sim: &mut Surroundings, machine: Machine, to: MemberId) {
        let link = (machine.id, to);
        let Some(peer) = self.peers.get_mut(&to).filter(|peer| !peer.busy) else {
            return;
        };
        let start = sim.programs.start_of(to);
        if !peer.queue.is_open() {
            if sim.network.is_cut(link) {
                return self.stream_broke(sim, machine, to);
            }
            peer.queue.opened();
            peer.opened_to = start;
            if let Some(start) = start {
                let delay = sim.random.spread(sim.plan.weather.latency);
                machine.plan(sim, delay, Actor::Ack(to, start));
            }
        }
        if start.is_some() && start != peer.opened_to {
            return self.stream_broke(sim, machine, to);
        }
        loop {
            let frame = peer.next_frame(sim, link);
            if frame.is_empty() {
                return;
            }
            // A stream that nobody answers looks well for a while, and then it breaks.
            if frame.iter().any(|message| sim.send(link, message)) {
                return self.stream_broke(sim, machine, to);
            }
            if let Some(rate) = sim.plan.weather.bytes_per_second {
                peer.busy = true;
                let takes = frame_bytes(&frame) as Nanos * SECOND / rate;
                return machine.plan(sim, takes, Actor::Transmit(to));
            }
        }
    }

    /// The stream to a member broke, or could not be opened.
    pub(super) fn stream_broke(&mut self, sim: &mut Surroundings, machine: Machine, to: MemberId) {
        if let Some(peer) = self.peers.get_mut(&to) {
            let pause = peer.queue.broke();
            peer.waiting.broke();
            if !std::mem::replace(&mut peer.busy, true) {
                let pause = 5 * MILLI + pause.as_nanos() as Nanos;
                machine.plan(sim, pause, Actor::Transmit(to));
            }
        }
        self.tell(sim, machine, Input::Disconnected(to));
    }

    fn tell(&mut self, sim: &mut Surroundings, machine: Machine, news: Input) {
        self.inbox.push_back(news);
        self.wake(sim, machine.id, machine.boot);
    }
}
