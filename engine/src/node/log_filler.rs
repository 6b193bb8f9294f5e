//! The thread that makes the log's next segment while the present one is written, for that takes far longer than an append.

use crate::error::StartError;
use dengine_core::log::{Filled, Log, LogError, Piece, RealDisk};
use dengine_core::replica::unless_usable;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

/// The log's thread's side of it. The other thread ends when this is dropped, which waits for it: whoever opens the log
/// next finds nobody else in its folder.
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
            // If the log's thread is gone, the file is cleared away by whoever opens the log next.
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

    /// Takes back what is filled, and hands out what is due. Waits only where there might be no next segment in time.
    ///
    /// # Errors
    /// The log can no longer be used.
    pub(super) fn work(&self, log: &mut Log<RealDisk>) -> Result<(), LogError> {
        while let Ok(filled) = self.filled.try_recv() {
            unless_usable(log.take_back(filled))?;
        }
        if log.awaits_piece() {
            self.take_back(log)?;
        }
        let next = log.next_piece().map(|piece| {
            if let (Some(piece), Some(pieces)) = (piece, &self.pieces) {
                // If that thread is gone, the next segment is made when it is needed.
                let _ = pieces.send(piece);
            }
        });
        unless_usable(next)
    }

    /// Waits for the piece that is away, if one is, and takes it back. Says whether there was one.
    ///
    /// # Errors
    /// The log can no longer be used.
    pub(super) fn take_back(&self, log: &mut Log<RealDisk>) -> Result<bool, LogError> {
        if !log.is_piece_away() {
            return Ok(false);
        }
        let Ok(filled) = self.filled.recv() else {
            return Ok(false);
        };
        unless_usable(log.take_back(filled)).map(|()| true)
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
