//! The stream of a link, while there is one: whoever has messages for the peer writes them, be it
//! the replica thread that made them or the link's task. A message that a thread had to be woken
//! for would be late by as much.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use dengine_raft::link_queue::LinkQueue;
use dengine_raft::peer_frames::Outgoing;
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// With more than this the link's task sends: a socket takes megabytes, and whoever copies them has
/// time for nothing else meanwhile.
const AT_ONCE_BYTES_MAX: usize = 64 << 10;

/// See [the module](self).
#[derive(Default)]
pub(super) struct Line {
    open: Mutex<Option<Open>>,
    /// The task has something to send, or to see.
    told: Notify,
}

struct Open {
    stream: Arc<TcpStream>,
    /// The frame that is being written.
    outgoing: Outgoing,
}

/// How far a stream took what there was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    All,
    /// A frame, and there may be another one.
    Frame,
    /// It takes no more for now.
    Blocked,
}

impl Line {
    /// What queues from now on goes into this stream.
    pub(super) fn open(&self, stream: Arc<TcpStream>) {
        *self.lock() = Some(Open {
            stream,
            outgoing: Outgoing::default(),
        });
    }

    /// What queues waits for another stream; a frame that was not written whole is lost.
    pub(super) fn close(&self) {
        *self.lock() = None;
    }

    /// Sends what queued, if there is a stream and it takes that at once; otherwise the task does.
    pub(super) fn send_at_once(&self, queue: &LinkQueue) {
        let done = match self.open.try_lock() {
            Ok(mut open) => open.as_mut().is_none_or(|line| line.send_little(queue)),
            // The task is sending much, and would be waited for.
            Err(_) => false,
        };
        if !done {
            // The task comes to the same end, and sees to it.
            self.told.notify_one();
        }
    }

    /// Has the task look whether its link is closed.
    pub(super) fn tell(&self) {
        self.told.notify_one();
    }

    /// Sends what queues and could not be sent at once. Ends once the link is closed and everything
    /// is sent that was queued before.
    ///
    /// # Errors
    /// The stream broke.
    pub(super) async fn send_rest(&self, queue: &LinkQueue) -> io::Result<()> {
        loop {
            // First: what was queued before is sent below.
            let is_closed = queue.is_closed();
            let (sent, stream) = {
                let mut open = self.lock();
                let line = open.as_mut().expect("closed by the task alone");
                (line.send(queue)?, Arc::clone(&line.stream))
            };
            match sent {
                Sent::Blocked => stream.writable().await?,
                // Whoever has little to send finds the line free in between.
                Sent::Frame => tokio::task::consume_budget().await,
                Sent::All if is_closed => return Ok(()),
                Sent::All => self.told.notified().await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().expect("no holder panics")
    }
}

impl Open {
    /// Sends what queued if that is little; whether nothing is left.
    fn send_little(&mut self, queue: &LinkQueue) -> bool {
        while self.outgoing.is_empty() && queue.bytes() <= AT_ONCE_BYTES_MAX {
            match self.send(queue) {
                Ok(Sent::All) => return true,
                Ok(Sent::Frame) => {}
                Ok(Sent::Blocked) | Err(_) => return false,
            }
        }
        false
    }

    /// Sends the frame that is being written, or the next one.
    fn send(&mut self, queue: &LinkQueue) -> io::Result<Sent> {
        if self.outgoing.is_empty() {
            let messages = queue.take_frame();
            if messages.is_empty() {
                return Ok(Sent::All);
            }
            self.outgoing.push_batch(&messages);
        }
        while !self.outgoing.is_empty() {
            match self.stream.try_write_vectored(&self.outgoing.slices()) {
                Ok(bytes) => self.outgoing.advance(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Sent::Blocked);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Sent::Frame)
    }
}
