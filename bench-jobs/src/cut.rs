//! Why a run ends before it is done: its time is up, or somebody ends it. Heeded in every phase, so
//! that even a run that is cut short delivers a result. (As the first process of a container, it
//! would not even be ended by a signal that it has no handler for.)

use std::future::Future;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

/// Starts the time of a run.
#[derive(Debug)]
pub struct Clock(oneshot::Sender<()>);

impl Clock {
    /// Now.
    pub fn start(self) {
        let _ = self.0.send(());
    }
}

/// Tells every phase of a run when to end; cheap to clone.
#[derive(Clone, Debug)]
pub struct Cut(watch::Receiver<Option<String>>);

impl Cut {
    /// Starts the clock and listens for SIGINT and SIGTERM.
    ///
    /// # Errors
    /// If the signals cannot be listened for.
    pub fn after(limit: Duration) -> std::io::Result<Self> {
        let (cut, clock) = Self::once_started(limit)?;
        clock.start();
        Ok(cut)
    }

    /// Listens for the signals; the time begins with the clock.
    ///
    /// # Errors
    /// If the signals cannot be listened for.
    pub fn once_started(limit: Duration) -> std::io::Result<(Self, Clock)> {
        let mut interrupts = signal(SignalKind::interrupt())?;
        let mut terminations = signal(SignalKind::terminate())?;
        let (cut, watched) = watch::channel(None);
        let (clock, started) = oneshot::channel();
        let time_is_up = async move {
            match started.await {
                Ok(()) => sleep(limit).await,
                // Nobody will start it.
                Err(_) => std::future::pending().await,
            }
        };
        tokio::spawn(async move {
            let reason = tokio::select! {
                () = time_is_up => format!("the run was not done within --timeout {limit:?}"),
                _ = interrupts.recv() => "the run was interrupted".to_owned(),
                _ = terminations.recv() => "the run was terminated".to_owned(),
            };
            cut.send_replace(Some(reason));
            // The channel stays open, and later signals stay handled: the result is to be
            // delivered.
            cut.closed().await;
        });
        Ok((Cut(watched), Clock(clock)))
    }

    /// Resolves with the reason once the run must end.
    pub async fn reason(&self) -> String {
        let mut watched = self.0.clone();
        match watched.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            // Only when the runtime shuts down.
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether the run must end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// A phase of the run, unless the run must end before it is done.
    ///
    /// # Errors
    /// The phase's own, or the reason why the run must end.
    pub async fn unless<T>(
        &self,
        phase: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        tokio::select! {
            done = phase => done,
            reason = self.reason() => Err(anyhow::Error::msg(reason)),
        }
    }
}
