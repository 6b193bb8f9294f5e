//! The thread that makes the log's next segment while the present one is written, for that takes
//! far longer than an append.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use dengine_log::{Filled, Piece, RealDisk};

use crate::error::StartError;

/// The log's thread's side of it. The other thread ends when this is dropped, which waits for it:
/// so no other thread uses the log's directory when it is opened next.
pub(super) struct LogFiller {
    /// `None` only while it is dropped.
    pieces: Option<Sender<Piece<RealDisk>>>,
    filled: Receiver<Filled<RealDisk>>,
    thread: Option<JoinHandle<()>>,
}

impl LogFiller {
    /// # Errors
    /// The system gives no more threads.
    pub(super) fn start() -> Result<Self, StartError> {
        let (pieces, due) = mpsc::channel::<Piece<RealDisk>>();
        let (done, filled) = mpsc::channel();
        let work = move || {
            // If the log's thread is gone, the file is cleared away when the log is opened next.
            due.iter().all(|piece| done.send(piece.fill()).is_ok());
        };
        let thread = std::thread::Builder::new()
            .name("dengine-filler".to_owned())
            .spawn(work)
            .map_err(StartError::Thread)?;
        Ok(Self {
            pieces: Some(pieces),
            filled,
            thread: Some(thread),
        })
    }

    /// Hands a piece out.
    pub(super) fn fill(&self, piece: Piece<RealDisk>) {
        if let Some(pieces) = &self.pieces {
            // If that thread is gone, the next segment is made when it is needed.
            let _ = pieces.send(piece);
        }
    }

    /// What is filled.
    pub(super) fn filled(&self) -> Option<Filled<RealDisk>> {
        self.filled.try_recv().ok()
    }

    /// Waits for what is being filled; there is nothing to wait for if that thread is gone.
    pub(super) fn wait(&self) -> Option<Filled<RealDisk>> {
        self.filled.recv().ok()
    }
}

impl Drop for LogFiller {
    fn drop(&mut self) {
        self.pieces = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
