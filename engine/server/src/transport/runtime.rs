//! The thread on which members speak to each other. It is nobody else's: a heartbeat that waited
//! behind clients' work would cost an election.

use tokio::runtime::Handle;

use crate::error::StartError;
use crate::node::Takes;
use crate::single_thread::SingleThread;

/// Ends what runs there when it is dropped. One thread receives, takes the replica's turn for it,
/// sends what came of that, and applies it while little is under way, so that none of these waits
/// to be handed over.
pub(crate) struct PeerRuntime(SingleThread);

impl PeerRuntime {
    pub(crate) fn start() -> Result<Self, StartError> {
        let thread =
            SingleThread::start("dengine-peers", Takes::All).map_err(StartError::Thread)?;
        Ok(Self(thread))
    }

    pub(crate) fn handle(&self) -> Handle {
        self.0.handle().clone()
    }
}
