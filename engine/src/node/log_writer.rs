//! The thread that makes the log durable: one write and one `fdatasync` for all that queued meanwhile.

use super::input::Input;
use super::metrics;
use crate::error::Fatal;
use dengine_core::log::{Log, LogError, RealDisk};
use dengine_core::replica::{self, LogJob, LogWork};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

/// Works until the replica thread lets go of the queue. A failure is reported once and ends the
/// thread: after a failed sync nothing can be known about what is on the disk.
pub(super) fn run(mut log: Log<RealDisk>, jobs: &Receiver<LogJob>, replica: &Sender<Input>) {
    while let Ok(first) = jobs.recv() {
        let queued = std::iter::from_fn(|| jobs.try_recv().ok());
        let work = LogWork::collect(std::iter::once(first).chain(queued));
        if let Err(error) = perform(&work, &mut log, replica) {
            // If the replica is gone, somebody reported before us.
            let _ = replica.send(Input::Failed(Fatal::Log(error.to_string())));
            return;
        }
    }
}

fn perform(
    work: &LogWork,
    log: &mut Log<RealDisk>,
    replica: &Sender<Input>,
) -> Result<(), LogError> {
    if let Some(id) = work.persisted() {
        ::metrics::histogram!(metrics::LOG_BATCH_ENTRIES).record(work.entries() as f64);
        work.write(log)?;
        let start = Instant::now();
        log.sync()?;
        ::metrics::histogram!(metrics::LOG_SYNC_SECONDS).record(start.elapsed().as_secs_f64());
        // If the replica is gone, nobody needs to know.
        let _ = replica.send(replica::Input::Persisted(id).into());
    }
    work.tidy(log)
}
