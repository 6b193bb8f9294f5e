//! The messages of a stream on their way to its body, several together.
//!
//! Whatever is handed over wakes the task of the connection, which makes a frame of HTTP/2 of what
//! it finds and writes it to the socket. A page that a hundred watches of a stream want is a
//! hundred messages, and would be nearly as many of those.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::super::backlog::{Backlog, Held};
use super::super::dialect::End;

/// What goes together: messages of so many bytes in all, and less than one message more.
const TOGETHER_BYTES: usize = 32 << 10;
/// How often messages that went together wait for a client to read them.
const QUEUED: usize = 2;

/// Messages that are told, of which the last are not handed over.
pub(super) struct Outbox<R> {
    queue: mpsc::Sender<Together<R>>,
    messages: Vec<R>,
    bytes: usize,
}

/// Messages that go together.
pub(super) struct Together<R> {
    messages: Vec<R>,
    /// Counts them until the last is taken.
    held: Held,
}

/// Where they go.
pub(super) type Queue<R> = mpsc::Receiver<Together<R>>;

impl<R> Outbox<R> {
    /// An empty one, and the queue that it hands over to.
    pub(super) fn new() -> (Self, Queue<R>) {
        let (queue, queued) = mpsc::channel(QUEUED);
        let outbox = Self {
            queue,
            messages: Vec::new(),
            bytes: 0,
        };
        (outbox, queued)
    }

    /// Adds a message of so many bytes. Returns whether it is time to hand over.
    pub(super) fn put(&mut self, message: R, bytes: usize) -> bool {
        self.messages.push(message);
        // A message of no event is something too.
        self.bytes += bytes.max(size_of::<R>());
        self.bytes >= TOGETHER_BYTES
    }

    /// Hands over what there is as soon as there is room, which depends on the client alone, and on
    /// a slow link takes longer.
    ///
    /// # Errors
    /// The stream ends instead, and what is not handed over is never told.
    pub(super) async fn hand_over(
        &mut self,
        backlog: &Arc<Backlog>,
        patience: Duration,
    ) -> Result<(), End> {
        if self.messages.is_empty() {
            return Ok(());
        }
        let held = backlog.unread(self.bytes);
        let room = tokio::select! {
            biased;
            room = self.queue.reserve() => room.map_err(|_| End::Gone)?,
            () = backlog.given_up() => return Err(End::InTheWay),
            () = backlog.overdue(patience) => return Err(End::TooSlow(patience)),
        };
        self.bytes = 0;
        let messages = std::mem::take(&mut self.messages);
        room.send(Together { messages, held });
        Ok(())
    }

    /// Waits until nobody reads what it hands over.
    pub(super) async fn closed(&self) {
        self.queue.closed().await;
    }

    /// How many messages are not handed over.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }
}

/// The messages one after the other, until the outbox is gone. Each counts until it is taken.
pub(super) fn each<R: Send + 'static>(queue: Queue<R>) -> impl Stream<Item = R> + Send {
    ReceiverStream::new(queue).flat_map(|Together { messages, held }| {
        stream::iter(messages).inspect(move |_| {
            let _ = &held;
        })
    })
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::connections::{Connection, Source};
    use crate::server::watch::backlog::Backlogs;

    const ADDRESS: [u8; 4] = [10, 0, 0, 1];
    const PATIENCE: Duration = Duration::from_secs(60);

    fn backlog(backlogs: &Backlogs) -> Arc<Backlog> {
        let source = Source::new(ADDRESS.into());
        backlogs.begin(&Arc::new(Connection::of(Arc::new(source))))
    }

    #[tokio::test]
    async fn what_is_told_goes_together_in_order_and_counts_until_it_is_taken() {
        let backlogs = Backlogs::new(1 << 20);
        let backlog = backlog(&backlogs);
        let (mut outbox, queued) = Outbox::new();
        let queued = each(queued);
        tokio::pin!(queued);
        for message in 0..3 {
            assert!(!outbox.put(message, 100));
        }
        assert!(queued.next().now_or_never().is_none());
        assert!(outbox.hand_over(&backlog, PATIENCE).await.is_ok());
        assert!(
            outbox.hand_over(&backlog, PATIENCE).await.is_ok(),
            "nothing"
        );
        assert!(outbox.put(3, TOGETHER_BYTES));
        assert!(outbox.hand_over(&backlog, PATIENCE).await.is_ok());
        assert_eq!(backlogs.held_by(ADDRESS.into()), 300 + TOGETHER_BYTES);
        drop(outbox);
        let told: Vec<_> = queued.by_ref().collect().await;
        assert_eq!(told, [0, 1, 2, 3]);
        assert_eq!(backlogs.held_by(ADDRESS.into()), 0);
    }

    /// It took memory that nothing counted, as long as its client was there.
    #[tokio::test]
    async fn what_has_no_room_goes_when_the_stream_ends() {
        let backlogs = Backlogs::new(1 << 20);
        let backlog = backlog(&backlogs);
        let (mut outbox, unread) = Outbox::new();
        for message in 0..QUEUED {
            outbox.put(message, 1);
            assert!(outbox.hand_over(&backlog, PATIENCE).await.is_ok());
        }
        outbox.put(7, 1);
        outbox.put(8, 1);
        let ended = outbox.hand_over(&backlog, Duration::ZERO).await;
        assert!(matches!(ended, Err(End::TooSlow(_))));
        drop(outbox);
        let told: Vec<_> = each(unread).collect().await;
        assert_eq!(told, Vec::from_iter(0..QUEUED));
        assert_eq!(backlogs.held_by(ADDRESS.into()), 0);
    }
}
