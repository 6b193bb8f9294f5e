//! What waits to be sent to one peer: how messages are put into frames, what is dropped when there
//! is too much, and when a stream that broke is opened again.
//!
//! The transport of `dengine` and the simulator's network run the same queue; each brings its own
//! streams and clocks. Raft bears any loss and any order, but some losses cost more: a leader whose
//! heartbeats wait behind megabytes of log is deposed. So what carries no log goes first and is
//! kept while a stream is down, and what carries log is bounded in bytes, dropped when a stream
//! breaks, and sent again by consensus.
//!
//! What may not live here: clocks, sockets, and what messages mean.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use dengine_planted::planted;

use crate::output::Outbound;

/// Messages without log that are kept while a stream is down. The oldest go first: a later one of a
/// kind says all that an earlier one did.
const KEPT_WHILE_DOWN: usize = 64;
/// What the frame's encoding adds to each of its messages, at most.
const OVERHEAD_BYTES: usize = 8;

/// Bounds of a [`PeerQueue`].
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Bytes of one frame. One that is larger holds a single message.
    pub frame_bytes: usize,
    /// The largest frame that a peer takes: a larger one would end the stream, so the message is
    /// dropped instead.
    pub frame_bytes_max: usize,
    /// Bytes of messages that wait.
    pub queue_bytes: usize,
    /// How many of them.
    pub queue_messages: usize,
    /// How long to wait before a stream that broke is opened again, at first; twice as long each
    /// time after.
    pub retry_min: Duration,
    /// The longest of these waits.
    pub retry_max: Duration,
}

/// Why a message was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// As much waits for this peer as may; consensus must be told that it is unreachable.
    #[error("the queue to this peer is full")]
    Full,
    /// No peer takes a message of this size.
    #[error("no peer takes a message of {bytes} bytes; the largest may have {max}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The bound.
        max: usize,
    },
}

/// See [the module](self).
#[derive(Debug)]
pub struct PeerQueue {
    limits: QueueLimits,
    /// What carries no log.
    urgent: VecDeque<Bytes>,
    /// What carries log, in order: an append that overtook another would be refused.
    log: VecDeque<Bytes>,
    bytes: usize,
    /// Whether the peer has answered on the stream that there is.
    open: bool,
    retry: Duration,
}

impl PeerQueue {
    /// An empty one, whose stream has yet to be opened.
    #[must_use]
    pub fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            urgent: VecDeque::new(),
            log: VecDeque::new(),
            bytes: 0,
            open: false,
            retry: limits.retry_min,
        }
    }

    /// Queues a message.
    ///
    /// # Errors
    /// It was dropped.
    pub fn push(&mut self, message: Outbound) -> Result<(), Dropped> {
        let (bytes, max) = (cost(&message.bytes), self.limits.frame_bytes_max);
        if bytes > max {
            return Err(Dropped::TooLarge { bytes, max });
        }
        if !self.open {
            self.make_room_while_down(message.carries_log);
        }
        let messages = self.urgent.len() + self.log.len();
        let full = self.bytes + bytes > self.limits.queue_bytes;
        let full = full && !planted!(QueueBoundedInNumberOnly);
        if messages >= self.limits.queue_messages || (full && messages > 0) {
            return Err(Dropped::Full);
        }
        self.bytes += bytes;
        match message.carries_log {
            true => self.log.push_back(message.bytes),
            false => self.urgent.push_back(message.bytes),
        }
        Ok(())
    }

    /// Of appends only the newest is kept: consensus sends one at a time to whom it cannot reach.
    fn make_room_while_down(&mut self, carries_log: bool) {
        if carries_log {
            self.drop_log();
        } else if self.urgent.len() >= KEPT_WHILE_DOWN {
            let oldest = self.urgent.pop_front();
            self.bytes -= oldest.as_ref().map_or(0, cost);
        }
    }

    fn drop_log(&mut self) {
        let dropped = self.log.drain(..).map(|message| cost(&message));
        self.bytes -= dropped.sum::<usize>();
    }

    /// The messages of the next frame; none if nothing waits.
    pub fn next_frame(&mut self) -> Vec<Bytes> {
        let (mut frame, mut bytes) = (Vec::new(), 0);
        for queue in [&mut self.urgent, &mut self.log] {
            while let Some(next) = queue.front() {
                let sum = bytes + cost(next);
                if !frame.is_empty() && sum > self.limits.frame_bytes {
                    break;
                }
                bytes = sum;
                frame.extend(queue.pop_front());
            }
        }
        self.bytes -= bytes;
        frame
    }

    /// How many bytes wait.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the peer has answered on the stream that there is.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// The peer has answered: it takes frames from now on.
    pub fn opened(&mut self) {
        self.open = true;
        if !planted!(PauseNeverReset) {
            self.retry = self.limits.retry_min;
        }
    }

    /// The stream broke, or could not be opened. Returns how long to wait before the next try;
    /// consensus must be told that the peer is unreachable.
    pub fn broke(&mut self) -> Duration {
        self.open = false;
        self.drop_log();
        if planted!(QueueThrownAwayWithHeartbeats) {
            self.urgent.clear();
            self.bytes = 0;
        }
        while self.urgent.len() > KEPT_WHILE_DOWN {
            self.make_room_while_down(false);
        }
        let wait = self.retry;
        self.retry = (2 * wait).min(self.limits.retry_max);
        wait
    }
}

/// What a message takes of a frame.
fn cost(message: &Bytes) -> usize {
    message.len() + OVERHEAD_BYTES
}

/// What a frame of these messages takes, at most.
#[must_use]
pub fn frame_bytes(messages: &[Bytes]) -> usize {
    messages.iter().map(cost).sum()
}

#[cfg(test)]
mod tests {
    use dengine_types::MemberId;
    use proptest::prelude::*;

    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const LIMITS: QueueLimits = QueueLimits {
        frame_bytes: 100,
        frame_bytes_max: 200,
        queue_bytes: 1000,
        queue_messages: 100,
        retry_min: MILLI,
        retry_max: Duration::from_millis(5),
    };

    fn message(bytes: usize, carries_log: bool) -> Outbound {
        Outbound {
            to: MemberId(2),
            bytes: Bytes::from(vec![u8::from(carries_log); bytes - OVERHEAD_BYTES]),
            carries_log,
        }
    }

    fn open() -> PeerQueue {
        let mut queue = PeerQueue::new(LIMITS);
        queue.opened();
        queue
    }

    fn frames(queue: &mut PeerQueue) -> Vec<Vec<usize>> {
        let next = || Some(queue.next_frame()).filter(|frame| !frame.is_empty());
        let frames = std::iter::from_fn(next);
        frames.map(|f| f.iter().map(cost).collect()).collect()
    }

    fn push(queue: &mut PeerQueue, sizes: &[(usize, bool)]) {
        for (bytes, carries_log) in sizes {
            queue.push(message(*bytes, *carries_log)).unwrap();
        }
    }

    #[test]
    fn a_frame_is_filled_and_no_more() {
        let mut queue = open();
        push(
            &mut queue,
            &[(60, true), (40, true), (41, true), (60, true)],
        );
        push(&mut queue, &[(150, true), (20, true)]);
        assert_eq!(
            frames(&mut queue),
            [vec![60, 40], vec![41], vec![60], vec![150], vec![20]]
        );
        assert_eq!(queue.bytes, 0);
    }

    #[test]
    fn a_frame_takes_what_its_messages_have_and_a_little_for_each() {
        let messages = [0, 5, 70].map(|bytes| Bytes::from(vec![0; bytes]));
        assert_eq!(frame_bytes(&messages), 75 + 3 * OVERHEAD_BYTES);
        assert_eq!(frame_bytes(&[]), 0);
    }

    #[test]
    fn heartbeats_do_not_wait_behind_the_log() {
        let mut queue = open();
        push(
            &mut queue,
            &[(90, true), (95, true), (20, false), (30, false)],
        );
        assert_eq!(frames(&mut queue), [vec![20, 30], vec![90], vec![95]]);
    }

    #[test]
    fn what_no_peer_takes_is_dropped_and_ends_no_stream() {
        let mut queue = open();
        assert_eq!(queue.push(message(200, true)), Ok(()));
        let too_large = Dropped::TooLarge {
            bytes: 201,
            max: 200,
        };
        assert_eq!(queue.push(message(201, true)), Err(too_large));
        assert_eq!(frames(&mut queue), [vec![200]]);
    }

    #[test]
    fn a_queue_is_bounded_in_bytes_and_messages() {
        let mut queue = open();
        push(&mut queue, &[(200, true); 5]);
        assert_eq!(queue.push(message(9, false)), Err(Dropped::Full));
        let mut queue = open();
        push(&mut queue, &[(9, false); 100]);
        assert_eq!(queue.push(message(9, false)), Err(Dropped::Full));
    }

    #[test]
    fn when_a_stream_breaks_heartbeats_are_kept_and_the_log_is_not() {
        let mut queue = open();
        push(&mut queue, &[(90, true), (20, false), (90, true)]);
        queue.broke();
        // Of what is said meanwhile, the newest append.
        push(&mut queue, &[(50, true), (21, false), (60, true)]);
        queue.opened();
        assert_eq!(frames(&mut queue), [vec![20, 21], vec![60]]);
        assert_eq!(queue.bytes, 0);
    }

    #[test]
    fn a_peer_that_is_down_for_long_costs_little() {
        let mut queue = PeerQueue::new(LIMITS);
        for _ in 0..1000 {
            push(&mut queue, &[(10, false), (150, true)]);
        }
        assert_eq!(queue.bytes, 64 * 10 + 150);
    }

    #[test]
    fn a_stream_is_open_from_the_peers_answer_until_it_breaks() {
        let mut queue = PeerQueue::new(LIMITS);
        assert!(!queue.is_open());
        queue.opened();
        assert!(queue.is_open());
        queue.broke();
        assert!(!queue.is_open());
    }

    #[test]
    fn the_pauses_grow_until_the_peer_answers() {
        let mut queue = PeerQueue::new(LIMITS);
        let waits: Vec<_> = (0..5).map(|_| queue.broke().as_millis()).collect();
        assert_eq!(waits, [1, 2, 4, 5, 5]);
        queue.opened();
        assert_eq!(queue.broke(), MILLI);
        assert_eq!(queue.broke(), 2 * MILLI);
    }

    proptest! {
        #[test]
        fn no_frame_is_larger_than_its_bound_or_its_only_message(
            steps in prop::collection::vec((9_usize..260, any::<bool>(), 0_u8..10), 0..200)
        ) {
            let mut queue = PeerQueue::new(LIMITS);
            for (bytes, carries_log, step) in steps {
                match step {
                    0 => drop(queue.broke()),
                    1 | 2 => queue.opened(),
                    3 => {
                        let frame = queue.next_frame();
                        let bytes = frame_bytes(&frame);
                        prop_assert!(bytes <= 100 || frame.len() == 1 && bytes <= 200);
                    }
                    _ => drop(queue.push(message(bytes, carries_log))),
                }
                let waiting = queue.urgent.iter().chain(&queue.log).map(cost);
                prop_assert_eq!(queue.bytes, waiting.sum::<usize>());
                prop_assert!(queue.bytes <= 1000);
            }
        }
    }
}
