//! The thread that makes the log durable: one write and one `fdatasync` for all that queued meanwhile.

use super::input::Input;
use super::log_filler::LogFiller;
use super::metrics;
use crate::config::{Config, Durability};
use crate::error::{Fatal, StartError};
use dengine_core::log::{Log, LogError, RealDisk};
use dengine_core::replica::{self, LogJob, LogWork, SPACE_RETRY};
use dengine_folder::PowerGuard;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use tokio::sync::watch;

pub(super) struct LogThread {
    log: Log<RealDisk>,
    filler: LogFiller,
    replica: Sender<Input>,
    fatal: watch::Sender<Option<Fatal>>,
    /// Remembers over the end of the process that acknowledged writes may be missing on the disk.
    power: PowerGuard,
    durability: Durability,
    sync_interval: Duration,
    sync_bytes: u64,
    /// What was written and not synced, which only `memory-first` leaves behind.
    unsynced_bytes: u64,
    /// When it must be synced.
    sync_at: Option<Instant>,
}

impl LogThread {
    pub(super) fn new(
        log: Log<RealDisk>,
        replica: Sender<Input>,
        fatal: watch::Sender<Option<Fatal>>,
        power: PowerGuard,
        config: &Config,
    ) -> Result<Self, StartError> {
        Ok(Self {
            log,
            filler: LogFiller::start()?,
            replica,
            fatal,
            power,
            durability: config.durability,
            sync_interval: Duration::from_millis(config.log.sync_interval_ms),
            sync_bytes: config.log.sync_bytes,
            unsynced_bytes: 0,
            sync_at: None,
        })
    }

    /// Works until the replica thread lets go of the queue. A failure is reported once and ends the
    /// thread: after a failed sync nothing can be known about what is on the disk.
    pub(super) fn run(mut self, jobs: &Receiver<LogJob>) {
        if let Err(error) = self.work(jobs) {
            self.remember_loss();
            let fatal = Fatal::Log(error.to_string());
            // Not only to the replica, which is gone before the last sync when the member stops.
            self.fatal.send_replace(Some(fatal.clone()));
            let _ = self.replica.send(Input::Failed(fatal));
        }
    }

    /// The kernel may drop pages that it could not write, so that "same boot, so nothing is lost" holds no more.
    fn remember_loss(&self) {
        if self.unsynced_bytes > 0
            && let Err(error) = self.power.mark_suspect()
        {
            tracing::error!(%error, "the folder could not be marked as suspect: do not start this member \
                again, replace it");
        }
    }

    fn work(&mut self, jobs: &Receiver<LogJob>) -> Result<(), LogError> {
        loop {
            match self.next(jobs) {
                Ok(first) => {
                    let queued = std::iter::from_fn(|| jobs.try_recv().ok());
                    let work = LogWork::collect(std::iter::once(first).chain(queued));
                    self.perform(work, jobs)?;
                }
                Err(RecvTimeoutError::Timeout) => self.sync()?,
                Err(RecvTimeoutError::Disconnected) => return self.log.sync(),
            }
        }
    }

    fn next(&self, jobs: &Receiver<LogJob>) -> Result<LogJob, RecvTimeoutError> {
        match self.sync_at {
            Some(at) => jobs.recv_timeout(at.saturating_duration_since(Instant::now())),
            None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn perform(&mut self, mut work: LogWork, jobs: &Receiver<LogJob>) -> Result<(), LogError> {
        if work.persisted().is_some() {
            self.write(&mut work, jobs)?;
        }
        work.tidy(&mut self.log)?;
        self.filler.work(&mut self.log)
    }

    /// Makes it durable, and says so.
    fn write(&mut self, work: &mut LogWork, jobs: &Receiver<LogJob>) -> Result<(), LogError> {
        let known = self.log.hard_state();
        self.append(work, jobs)?;
        if let Some(id) = work.persisted() {
            ::metrics::histogram!(metrics::LOG_BATCH_ENTRIES).record(work.entries() as f64);
            if work.must_sync(known) || self.durability == Durability::Fsync {
                self.sync()?;
            } else {
                self.sync_later(work.bytes())?;
            }
            // If the replica is gone, nobody needs to know.
            let _ = self.replica.send(replica::Input::Persisted(id).into());
        }
        Ok(())
    }

    /// Writes it, and what queues meanwhile, as soon as the disk has space. Until then this member acknowledges
    /// nothing, so that nothing depends on it, and the others go on without it.
    fn append(&mut self, work: &mut LogWork, jobs: &Receiver<LogJob>) -> Result<(), LogError> {
        let mut told = false;
        loop {
            let full = match work.write(&mut self.log) {
                // The next segment's file has space that this may have.
                Err(error) if error.is_no_space() && self.filler.take_back(&mut self.log)? => {
                    continue;
                }
                Err(error) if error.is_no_space() => error,
                result => return result,
            };
            if !std::mem::replace(&mut told, true) {
                tracing::error!(error = %full, "the disk is full; this member waits for space");
            }
            match jobs.recv_timeout(SPACE_RETRY) {
                Ok(job) => work.add(job),
                Err(RecvTimeoutError::Timeout) => {}
                // The member stops. Nobody was promised what could not be written, but what came before it.
                Err(RecvTimeoutError::Disconnected) => return self.log.sync(),
            }
        }
    }

    fn sync_later(&mut self, bytes: u64) -> Result<(), LogError> {
        self.unsynced_bytes += bytes;
        self.sync_at
            .get_or_insert_with(|| Instant::now() + self.sync_interval);
        let due = self.sync_at.is_some_and(|at| at <= Instant::now());
        if due || self.unsynced_bytes >= self.sync_bytes {
            self.sync()?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), LogError> {
        let start = Instant::now();
        self.log.sync()?;
        ::metrics::histogram!(metrics::LOG_SYNC_SECONDS).record(start.elapsed().as_secs_f64());
        self.unsynced_bytes = 0;
        self.sync_at = None;
        Ok(())
    }
}
