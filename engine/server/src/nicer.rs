//! Threads with a lower scheduling priority (nice), for work that may wait.

use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

/// By so much they are nicer: others get nine times as much of a processor.
const NICER: i32 = 10;

/// A runtime of such threads. What runs there must not keep this: it would keep itself. Whoever
/// ends it waits for that ([`end`](Self::end)); what runs there when this is dropped ends as well,
/// and is not waited for, for that may be where nothing may block.
#[derive(Debug)]
pub(crate) struct Nicer(Option<Runtime>);

impl Nicer {
    /// # Errors
    /// The system gives no more threads.
    pub(crate) fn start(builder: &mut Builder) -> io::Result<Self> {
        let runtime = builder.on_thread_start(step_back).build()?;
        Ok(Self(Some(runtime)))
    }

    pub(crate) fn handle(&self) -> &Handle {
        let runtime = self.0.as_ref();
        runtime.expect("it is there until this is dropped").handle()
    }

    /// Ends what runs there, and waits for that, so long at most.
    pub(crate) fn end(mut self, patience: Duration) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_timeout(patience);
        }
    }
}

impl Drop for Nicer {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Only on systems with priorities per thread. Elsewhere, or if it is refused, these threads run
/// with normal priority.
fn step_back() {
    if cfg!(target_os = "linux") {
        let _ = rustix::process::nice(NICER);
    }
}
