//! The thread that makes the log durable: one write and one `fdatasync` for all that queued
//! meanwhile. [`LogWriter`] decides what is done when.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use dengine_data_dir::PowerGuard;
use dengine_log::{Filled, Log, LogError, RealDisk};
use dengine_raft::channel::Receiver;
use dengine_raft::replica::{LogStep, LogWriter, SyncRule};
use dengine_raft::{AppendId, Input, LogJob};
use tokio::sync::watch;

use super::clock;
use super::inbox::{Inbox, ToReplica};
use super::log_filler::LogFiller;
use super::metrics::TurnMetrics;
use super::own_turns::{Takes, take_turns_in_this_thread};
use super::space::Space;
use super::syncs::Syncs;
use crate::config::{Config, Durability};
use crate::error::{Fatal, StartError};

/// Nobody wakes it when space becomes low.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

pub(super) struct LogThread {
    log: Log<RealDisk>,
    writer: LogWriter,
    filler: LogFiller,
    replica: Inbox,
    fatal: watch::Sender<Option<Fatal>>,
    /// Remembers over the end of the process that acknowledged writes may be missing on the disk.
    power: PowerGuard,
    space: Arc<Space>,
    /// Of the last sync, for the traces of writes.
    last_sync: Option<(Instant, Instant)>,
    syncs: Syncs,
    /// It was told that the disk is full.
    told_full: bool,
    metrics: TurnMetrics,
}

impl LogThread {
    pub(super) fn new(
        log: Log<RealDisk>,
        replica: Inbox,
        fatal: watch::Sender<Option<Fatal>>,
        power: PowerGuard,
        (space, syncs): (Arc<Space>, Syncs),
        metrics: TurnMetrics,
        config: &Config,
    ) -> Result<Self, StartError> {
        Ok(Self {
            writer: LogWriter::new(sync_rule(config), &log),
            log,
            filler: LogFiller::start()?,
            replica,
            fatal,
            power,
            space,
            last_sync: None,
            syncs,
            told_full: false,
            metrics,
        })
    }

    /// Works until the replica thread lets go of the queue. A failure is reported once and ends the
    /// thread: after a failed sync nothing can be known about what is on the disk.
    pub(super) fn run(mut self, jobs: &Receiver<LogJob>) {
        // What is on disk is acknowledged by this thread, while little is under way.
        take_turns_in_this_thread(Takes::Replica);
        if let Err(error) = self.work(jobs) {
            self.remember_loss();
            let fatal = Fatal::Log(Arc::new(error));
            // Not only to the replica, which is gone before the last sync when the member stops.
            self.fatal.send_replace(Some(fatal.clone()));
            let _ = self.replica.send(ToReplica::Failed(fatal));
        }
    }

    fn remember_loss(&self) {
        if self.writer.may_have_lost(&self.log)
            && let Err(error) = self.power.mark_suspect()
        {
            tracing::error!(%error, "the data directory could not be marked as suspect: do not \
                start this member again, replace it");
        }
    }

    fn work(&mut self, jobs: &Receiver<LogJob>) -> Result<(), LogError> {
        loop {
            self.take_back(self.filler.filled())?;
            self.writer.save_space(self.space.is_low());
            match self.writer.step(&mut self.log, clock::now())? {
                LogStep::Sync => self.sync()?,
                LogStep::Persisted { id, entries } => self.tell(id, entries),
                LogStep::Fill(piece) => self.filler.fill(piece),
                LogStep::AwaitPiece => self.take_back(self.filler.wait())?,
                LogStep::Wait { longest, full } => {
                    self.tell_full(full.as_ref());
                    if !self.take_jobs(jobs, longest) {
                        return self.log.sync();
                    }
                }
            }
        }
    }

    fn take_back(&mut self, filled: Option<Filled<RealDisk>>) -> Result<(), LogError> {
        match filled {
            Some(filled) => self.writer.take_back(&mut self.log, filled, clock::now()),
            None => Ok(()),
        }
    }

    fn sync(&mut self) -> Result<(), LogError> {
        let start = Instant::now();
        self.log.sync()?;
        let end = Instant::now();
        self.metrics.log_sync.record(end - start);
        self.last_sync = Some((start, end));
        Ok(())
    }

    fn tell(&self, id: AppendId, entries: usize) {
        self.metrics.log_batch_entries.record(entries as f64);
        if let Some(synced) = self.last_sync {
            self.syncs.note(id, synced);
        }
        // If the replica is gone, nobody needs to know.
        let _ = self.replica.send(Input::Persisted(id));
    }

    /// Logs it once, until it has written something.
    fn tell_full(&mut self, full: Option<&LogError>) {
        let told = std::mem::replace(&mut self.told_full, full.is_some());
        let Some(error) = full else {
            return;
        };
        if !told {
            tracing::error!(%error, "the disk is full; this member waits for space");
        }
        let _ = self.replica.send(Input::LogFull);
    }

    /// Takes what queued, or waits for it, so long at most. Says whether more may come: a member
    /// that stops has promised nothing of what could not be written, but what came before it.
    fn take_jobs(&mut self, jobs: &Receiver<LogJob>, longest: Option<Duration>) -> bool {
        let first = jobs.recv_timeout(longest.unwrap_or(LONGEST_WAIT));
        if matches!(first, Err(RecvTimeoutError::Disconnected)) {
            return false;
        }
        for job in first.into_iter().chain(jobs.try_iter()) {
            self.writer.add(job);
        }
        true
    }
}

fn sync_rule(config: &Config) -> SyncRule {
    match config.durability {
        Durability::Fsync => SyncRule::AtOnce,
        Durability::MemoryFirst => SyncRule::Later {
            bytes: config.log.sync_bytes,
            interval: Duration::from_millis(config.log.sync_interval_ms),
        },
    }
}
