//! The streams to the other members: what queues for each, in [`PeerQueue`]s as they ship.

use super::process::Process;
use super::{Actor, Machine};
use crate::consensus::Outbound;
use crate::peer_queue::{Dropped, PeerQueue, QueueLimits, frame_bytes};
use crate::replica::Input;
use crate::sim::queue::{MILLI, Nanos, SECOND};
use crate::sim::surroundings::Surroundings;
use crate::types::MemberId;
use std::time::Duration;

/// Bytes of log in one message, unless it is a single entry.
pub(in crate::sim) const MESSAGE_BYTES: usize = 4 << 10;
/// Messages with log that may be on their way to one member.
pub(in crate::sim) const MESSAGES_IN_FLIGHT: usize = 8;
/// The largest frame that members take: one message with the largest entry, and little more.
const FRAME_BYTES_MAX: usize = 12 << 10;

const LIMITS: QueueLimits = QueueLimits {
    frame_bytes: MESSAGE_BYTES,
    frame_bytes_max: FRAME_BYTES_MAX,
    queue_bytes: MESSAGES_IN_FLIGHT * FRAME_BYTES_MAX,
    queue_messages: 1024,
    retry_min: Duration::from_millis(50),
    retry_max: Duration::from_secs(1),
};

/// The way to one other member.
pub(super) struct Peer {
    queue: PeerQueue,
    /// A frame is being written, or a stream is about to be opened.
    busy: bool,
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
        for message in messages {
            let to = message.to;
            let peer = self.peers.entry(to).or_insert_with(|| Peer {
                queue: PeerQueue::new(LIMITS),
                busy: false,
            });
            match peer.queue.push(message) {
                Ok(()) => {}
                Err(Dropped::Full) => {
                    sim.count("messages without room");
                    self.tell_unreachable(sim, machine, to);
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
        if !peer.queue.is_open() {
            if sim.network.is_cut(link) {
                return self.stream_broke(sim, machine, to);
            }
            peer.queue.opened();
        }
        loop {
            let frame = peer.queue.next_frame();
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
            if !std::mem::replace(&mut peer.busy, true) {
                let pause = 5 * MILLI + pause.as_nanos() as Nanos;
                machine.plan(sim, pause, Actor::Transmit(to));
            }
        }
        self.tell_unreachable(sim, machine, to);
    }

    fn tell_unreachable(&mut self, sim: &mut Surroundings, machine: Machine, to: MemberId) {
        self.inbox.push_back(Input::Unreachable(to));
        self.wake(sim, machine.id, machine.boot);
    }
}
