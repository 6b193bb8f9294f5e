//! The threads on which members speak to each other. They are nobody else's: a heartbeat that
//! waited behind clients' work would cost an election.

use crate::connections::TASKS_BETWEEN_EVENTS;
use crate::error::StartError;
use crate::node::take_turns_in_this_thread;
use tokio::runtime::{Builder, Handle, Runtime};

/// One thread to send while the other receives; what they do is short, turns of the replica too.
const THREADS: usize = 2;

/// Ends what runs there when it is dropped.
pub(crate) struct PeerRuntime(Option<Runtime>);

impl PeerRuntime {
    pub(crate) fn start() -> Result<Self, StartError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("dengine-peers")
            .on_thread_start(take_turns_in_this_thread)
            .enable_all()
            .event_interval(TASKS_BETWEEN_EVENTS)
            .build()
            .map_err(StartError::Thread)?;
        Ok(Self(Some(runtime)))
    }

    pub(crate) fn handle(&self) -> Handle {
        let runtime = self.0.as_ref().expect("it is there until it is dropped");
        runtime.handle().clone()
    }
}

impl Drop for PeerRuntime {
    /// Without waiting: the last handle of a member may be dropped where nothing may block.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
