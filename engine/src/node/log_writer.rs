//! The thread that makes the log durable: one write and one `fdatasync` for all that queued meanwhile.

use super::input::Input;
use super::metrics;
use crate::error::Fatal;
use dengine_core::consensus::AppendId;
use dengine_core::log::{Batch, Log, LogError, RealDisk};
use dengine_core::types::{Entry, HardState};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

/// One append, as consensus handed it out.
pub(super) struct AppendJob {
    pub(super) id: AppendId,
    pub(super) hard_state: Option<HardState>,
    pub(super) entries: Vec<Entry>,
}

/// Works until the replica thread lets go of the queue. A failure is reported once and ends the
/// thread: after a failed sync nothing can be known about what is on the disk.
pub(super) fn run(mut log: Log<RealDisk>, jobs: &Receiver<AppendJob>, replica: &Sender<Input>) {
    while let Ok(first) = jobs.recv() {
        let (id, batches) = collect(first, jobs);
        if let Err(error) = write(&mut log, &batches) {
            return fail(&error, replica);
        }
        if replica.send(Input::Persisted(id)).is_err() {
            return;
        }
        // The callers have their answers; no space for the next segment is not yet a failure.
        match log.prepare() {
            Err(error) if !error.is_usable() => return fail(&error, replica),
            _ => {}
        }
    }
}

fn fail(error: &LogError, replica: &Sender<Input>) {
    // If the replica is gone, somebody reported before us.
    let _ = replica.send(Input::Failed(Fatal::Log(error.to_string())));
}

/// Everything that queued while the last sync ran. More than one batch only if entries are overwritten.
fn collect(first: AppendJob, jobs: &Receiver<AppendJob>) -> (AppendId, Vec<Batch>) {
    let mut id = first.id;
    let mut batches = vec![batch(first)];
    while let Ok(job) = jobs.try_recv() {
        id = job.id;
        let last = batches.last_mut().expect("it holds the first one");
        if follows(last, &job) {
            last.hard_state = job.hard_state.or(last.hard_state);
            last.entries.extend(job.entries);
        } else {
            batches.push(batch(job));
        }
    }
    (id, batches)
}

fn follows(batch: &Batch, job: &AppendJob) -> bool {
    match (batch.entries.last(), job.entries.first()) {
        (Some(last), Some(next)) => next.index == last.index.next(),
        _ => true,
    }
}

fn batch(job: AppendJob) -> Batch {
    Batch {
        hard_state: job.hard_state,
        entries: job.entries,
    }
}

fn write(log: &mut Log<RealDisk>, batches: &[Batch]) -> Result<(), LogError> {
    for batch in batches {
        ::metrics::histogram!(metrics::LOG_BATCH_ENTRIES).record(batch.entries.len() as f64);
        log.append(batch)?;
    }
    let start = Instant::now();
    log.sync()?;
    ::metrics::histogram!(metrics::LOG_SYNC_SECONDS).record(start.elapsed().as_secs_f64());
    Ok(())
}
