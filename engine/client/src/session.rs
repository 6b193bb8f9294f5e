//! A session of the cluster: its writes may be repeated, so unknown outcomes are found out instead
//! of told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use dengine_protocol::v1;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout_at};

use crate::call::{Call, ClientShared};
use crate::error::{Error, Result};
use crate::policy::{Lease, Operation, Pace, Sequencer, Stamp, WINDOW};
use crate::types::ttl_ms;

/// Pause after a keep-alive that failed beyond its own retries.
const KEEP_ALIVE_PAUSE: Duration = Duration::from_millis(100);

/// How a session is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// The cluster may end the session when it was not used for this long. If this is shorter than
    /// a pause of this process or a change of leader, the session is lost; if it is long, the
    /// cluster keeps the answers of a client that is gone for as long. The cluster bounds it.
    /// Default 60 s.
    pub ttl: Duration,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            ttl: Duration::from_secs(60),
        }
    }
}

/// An open session. Kept alive in the background until it is dropped; from then on it expires by
/// itself.
#[derive(Debug)]
pub(crate) struct Session {
    sequencer: Mutex<Sequencer>,
    /// Those that wait for a place in the window stand in line here, and only the first of them is
    /// woken.
    line: tokio::sync::Mutex<()>,
    /// Told when a write has ended.
    ended: Notify,
    lost: AtomicBool,
    keeper: Mutex<Option<AbortHandle>>,
}

impl Session {
    /// Opens a session of the cluster.
    pub(crate) async fn open(
        shared: &Arc<ClientShared>,
        options: SessionOptions,
    ) -> Result<Arc<Self>> {
        let sent = shared.pool.now();
        let request = v1::OpenSessionRequest {
            ttl_ms: ttl_ms(Some(options.ttl)),
        };
        // Were it opened twice, one of the two would expire unused: no harm.
        let call = background(shared, shared.options.request_timeout);
        let opened = shared.call(call, &request).await?;
        let session = Arc::new(Session {
            sequencer: Mutex::new(Sequencer::new(opened.session_id, WINDOW)),
            line: tokio::sync::Mutex::default(),
            ended: Notify::new(),
            lost: AtomicBool::new(false),
            keeper: Mutex::new(None),
        });
        let lease = Lease {
            ttl: Duration::from_millis(opened.ttl_ms),
        };
        let keeper = tokio::spawn(keep_alive(
            Arc::downgrade(&session),
            Arc::clone(shared),
            Pace::new(lease, sent),
        ));
        *lock(&session.keeper) = Some(keeper.abort_handle());
        Ok(session)
    }

    /// Ends the session in the cluster.
    pub(crate) async fn close(&self, shared: &Arc<ClientShared>) -> Result<()> {
        self.stop_keeping();
        self.lost.store(true, Ordering::Relaxed);
        let request = v1::CloseSessionRequest {
            session_id: self.id(),
        };
        let call = background(shared, shared.options.request_timeout);
        shared.call(call, &request).await.map(drop)
    }

    /// The cluster's name for it.
    pub(crate) fn id(&self) -> u64 {
        lock(&self.sequencer).session_id()
    }

    /// A place for one write, as soon as the window has one, but not after `deadline`.
    pub(crate) async fn ticket(
        self: &Arc<Self>,
        shared: &ClientShared,
        deadline: Duration,
    ) -> Result<Ticket> {
        let deadline = shared.pool.instant(deadline);
        let place = async {
            let _first = self.line.lock().await;
            self.next_stamp().await
        };
        let stamp = timeout_at(deadline, place).await.unwrap_or_else(|_| {
            Err(Error::Overloaded {
                message: format!("{WINDOW} writes of this session are under way already"),
            })
        })?;
        Ok(Ticket {
            session: Arc::clone(self),
            stamp,
        })
    }

    /// A stamp, as soon as the window has room. One caller at a time.
    async fn next_stamp(&self) -> Result<Stamp> {
        loop {
            if self.lost.load(Ordering::Relaxed) {
                return Err(Error::SessionLost {
                    message: "it was closed, or expired before this call".to_owned(),
                });
            }
            let stamp = lock(&self.sequencer).stamp();
            match stamp {
                Some(stamp) => return Ok(stamp),
                // Told of an end before it waits, it does not wait.
                None => self.ended.notified().await,
            }
        }
    }

    /// What a write came to may say that the session is gone.
    pub(crate) fn note<T>(&self, result: &Result<T>) {
        if let Err(Error::SessionLost { .. }) = result {
            self.lost.store(true, Ordering::Relaxed);
            self.ended.notify_one();
        }
    }

    fn stop_keeping(&self) {
        if let Some(keeper) = lock(&self.keeper).take() {
            keeper.abort();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop_keeping();
    }
}

/// The place of one write in its session; given back when the caller has its answer or waits no
/// more.
pub(crate) struct Ticket {
    session: Arc<Session>,
    stamp: Stamp,
}

impl Ticket {
    /// The stamp for the next attempt.
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp {
            acknowledged: lock(&self.session.sequencer).acknowledged(),
            ..self.stamp
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        lock(&self.session.sequencer).end(self.stamp.sequence);
        self.session.ended.notify_one();
    }
}

/// Opening twice, keeping alive twice and closing twice do no harm, so these are repeated like
/// reads.
fn background(shared: &ClientShared, patience: Duration) -> Call<'static> {
    let patience = patience.min(shared.options.request_timeout);
    Call {
        operation: Operation::Read,
        lane: shared.pool.start(),
        deadline: shared.pool.now() + patience,
        // A member that is silent leaves time for two others.
        attempt_max: patience / 3,
        ticket: None,
    }
}

/// Keeps a session alive until it is dropped or gone.
async fn keep_alive(session: Weak<Session>, shared: Arc<ClientShared>, mut pace: Pace) {
    loop {
        sleep(pace.wait(shared.pool.now())).await;
        let Some(session_id) = session.upgrade().map(|session| session.id()) else {
            return;
        };
        let sent = shared.pool.now();
        let request = v1::KeepAliveSessionRequest { session_id };
        match shared
            .call(background(&shared, pace.patience()), &request)
            .await
        {
            Ok(_) => pace.kept(sent),
            Err(Error::Refused { message, .. }) => {
                tracing::warn!(session_id, message, "the session is gone");
                if let Some(session) = session.upgrade() {
                    session.note::<()>(&Err(Error::SessionLost { message }));
                }
                return;
            }
            Err(error) => {
                tracing::debug!(session_id, %error, "the session was not kept alive, will retry");
                sleep(KEEP_ALIVE_PAUSE).await;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
