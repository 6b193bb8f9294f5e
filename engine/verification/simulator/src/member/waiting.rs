//! What has to wait for a peer, by what the documentation of
//! [`PeerQueue`](dengine_raft::peer_queue::PeerQueue) says and not by its source.

use std::collections::VecDeque;

use bytes::Bytes;
use dengine_raft::Outbound;
use dengine_raft::peer_queue::frame_bytes;

/// Messages without log that are kept while a stream is down.
const KEPT_WHILE_DOWN: usize = 64;

/// See [the module](self).
#[derive(Default)]
pub(super) struct Waiting {
    /// What carries no log.
    urgent: VecDeque<Bytes>,
    log: VecDeque<Bytes>,
}

impl Waiting {
    /// A message is to be queued while the stream is down: of those with log only the newest is
    /// kept.
    pub(super) fn make_room_while_down(&mut self, carries_log: bool) {
        match carries_log {
            true => self.log.clear(),
            false => self.keep_newest(KEPT_WHILE_DOWN - 1),
        }
    }

    /// It was queued.
    pub(super) fn pushed(&mut self, message: Outbound) {
        match message.carries_log {
            true => self.log.push_back(message.bytes),
            false => self.urgent.push_back(message.bytes),
        }
    }

    /// The stream broke.
    pub(super) fn broke(&mut self) {
        self.log.clear();
        self.keep_newest(KEPT_WHILE_DOWN);
    }

    fn keep_newest(&mut self, most: usize) {
        let excess = self.urgent.len().saturating_sub(most);
        self.urgent.drain(..excess);
    }

    /// These messages are the next frame. It begins with what carries no log, of which nothing is
    /// lost.
    ///
    /// # Errors
    /// They are not.
    pub(super) fn framed(&mut self, frame: &[Bytes]) -> Result<(), String> {
        if !self.urgent.is_empty() && frame.first() != self.urgent.front() {
            let left = self.urgent.len();
            return Err(format!(
                "{left} messages without log are lost, or wait for others"
            ));
        }
        for message in frame {
            let mut queues = [&mut self.urgent, &mut self.log].into_iter();
            let from = queues.find(|queue| queue.front() == Some(message));
            let next = from.and_then(VecDeque::pop_front);
            next.ok_or("a message is sent that was not next")?;
        }
        Ok(())
    }

    /// How many bytes wait in how many messages.
    ///
    /// # Errors
    /// More than `most`, in several.
    pub(super) fn check_bytes(&self, most: usize) -> Result<(), String> {
        let of = |queue: &VecDeque<Bytes>| {
            queue
                .iter()
                .map(|it| frame_bytes(std::slice::from_ref(it)))
                .sum::<usize>()
        };
        let (messages, bytes) = (
            self.urgent.len() + self.log.len(),
            of(&self.urgent) + of(&self.log),
        );
        match messages > 1 && bytes > most {
            true => Err(format!(
                "{bytes} bytes of {messages} messages wait; {most} are the bound"
            )),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dengine_raft::peer_queue::{PeerQueue, QueueLimits};
    use dengine_types::MemberId;
    use proptest::prelude::*;

    use super::*;

    const LIMITS: QueueLimits = QueueLimits {
        frame_bytes: 100,
        frame_bytes_max: 200,
        queue_bytes: 1000,
        queue_messages: 100,
        retry_min: Duration::from_millis(1),
        retry_max: Duration::from_millis(5),
    };

    proptest! {
        #[test]
        fn a_queue_holds_what_has_to_wait(
            steps in prop::collection::vec((1_usize..180, any::<bool>(), 0_u8..20), 0..300)
        ) {
            let (mut queue, mut waiting) = (PeerQueue::new(LIMITS), Waiting::default());
            for (number, (bytes, carries_log, step)) in (0..).zip(steps) {
                match step {
                    0 => { queue.broke(); waiting.broke(); }
                    1 => queue.opened(),
                    2 if queue.is_open() => prop_assert_eq!(waiting.framed(&queue.next_frame()),
                                                            Ok(())),
                    _ => {
                        let mut content = vec![0; bytes];
                        content[0] = number as u8;
                        let message = Outbound { to: MemberId(2), bytes: content.into(),
                                                carries_log };
                        if !queue.is_open() {
                            waiting.make_room_while_down(carries_log);
                        }
                        if queue.push(message.clone()).is_ok() {
                            waiting.pushed(message);
                        }
                    }
                }
                prop_assert_eq!(waiting.check_bytes(1000), Ok(()));
            }
        }
    }
}
