//! Reads that take a while: on threads where they hold up no other, in turns that no client has all
//! of, and no longer than somebody waits for them.
//!
//! The threads have less of a processor than all others while these want it, so that a thousand
//! scans are slow and nothing else is. There are few, for more would only wait for each other's
//! disk; whose turn is next goes round by address, so that a client that asks for little need not
//! wait behind one that asks for much.
//!
//! A read that went on after its caller left would keep a thread that others need too, and the
//! state open that a snapshot is to replace.
//!
//! What a read works counts as what its source [wants](crate::connections) of the processors.

use std::fmt::{Debug, Formatter};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dengine_kv::{Attendant, ReadError, Reader};
use dengine_protocol::checks::status::{read_status, request_status};
use tokio::runtime::{Builder, Handle};
use tokio::time::sleep;
use tonic::Status;

use super::turns::{Turns, Whose};
use crate::connections::{Share, Source, Sources, time_of_this_thread};
use crate::nicer::Nicer;
use crate::node::Node;
use crate::storage::RocksStore;

/// How often it is looked whether the state is still the one that is being read.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Reads at once, for each processor: one that computes, and one that waits for the disk.
const TURNS_PER_PROCESSOR: usize = 2;

/// Where long reads are made. Clones share it.
#[derive(Clone)]
pub(super) struct Aside(Arc<AsideShared>);

struct AsideShared {
    turns: Turns,
    /// Where turns are waited for: a turn that was given to a task that is not polled, on threads
    /// of lower priority, would be lost.
    usual: Handle,
    threads: Handle,
    sources: Sources,
}

/// Looks after a read.
struct Attended {
    /// Nobody waits for it any more.
    stop: Arc<AtomicBool>,
    /// Whose it is.
    source: Option<Arc<Source>>,
    /// What its thread had worked, in nanoseconds, when the source was last told.
    told: AtomicU64,
}

impl Attended {
    /// The read begins on this thread.
    fn begin(&self) {
        let _before = self.worked();
    }

    /// Tells the source what the read has worked since, on this thread.
    fn tell(&self) {
        let worked = self.worked();
        if let Some(source) = &self.source {
            source.was_served_elsewhere(worked);
        }
    }

    fn worked(&self) -> Duration {
        let now = u64::try_from(time_of_this_thread().as_nanos()).unwrap_or(u64::MAX);
        let before = self.told.swap(now, Ordering::Relaxed);
        Duration::from_nanos(now.saturating_sub(before))
    }
}

impl Attendant for Attended {
    fn goes_on(&self) -> bool {
        self.tell();
        self.stop.goes_on()
    }
}

impl Debug for Attended {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attended").finish_non_exhaustive()
    }
}

/// Ends the read when it is dropped, as it is with the task that waits.
pub(super) struct Waiting(Arc<AtomicBool>);

impl Waiting {
    /// With what it waits for.
    pub(super) fn with<S>(reader: Reader<S>) -> (Self, Reader<S>) {
        let stop = Arc::new(AtomicBool::new(false));
        (Self(Arc::clone(&stop)), reader.attended_by(stop))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads for them. The server ends them, after those that wait for them.
///
/// # Errors
/// The system gives no more threads.
pub(super) fn threads() -> io::Result<Nicer> {
    let mut builder = Builder::new_current_thread();
    builder
        .max_blocking_threads(at_once())
        .thread_name("dengine-aside");
    Nicer::start(&mut builder)
}

fn at_once() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    TURNS_PER_PROCESSOR * processors
}

impl Aside {
    /// On [`threads`], for these; turns are waited for on those of the runtime this is called in. No
    /// more than handles are kept: what they do has this, by its turn.
    pub(super) fn new(threads: &Nicer, sources: &Sources) -> Self {
        Self(Arc::new(AsideShared {
            turns: Turns::new(at_once(), Share::THREE_QUARTERS),
            usual: Handle::current(),
            threads: threads.handle().clone(),
            sources: sources.clone(),
        }))
    }

    /// Reads this member's state for at most `patience`, the wait for a turn included, and until a
    /// snapshot is to replace it.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        node: &Node,
        whose: Whose,
        patience: Duration,
        read: impl FnOnce(&Reader<RocksStore>) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, Status> {
        let reader = node.reader().map_err(|error| request_status(&error))?;
        let stop = Arc::<AtomicBool>::default();
        let waiting = Waiting(Arc::clone(&stop));
        let attended = Arc::new(Attended {
            stop,
            source: whose.and_then(|address| self.0.sources.known(address)),
            told: AtomicU64::default(),
        });
        let reader = reader.attended_by(Arc::clone(&attended));
        let has_turn = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&has_turn);
        let threads = (&self.0.usual, &self.0.threads);
        let reading = self.0.turns.read(threads, whose, move || {
            begins.store(true, Ordering::Relaxed);
            attended.begin();
            let found = read(&reader);
            attended.tell();
            found
        });
        let mut reading = pin!(reading);
        let has_turn = || has_turn.load(Ordering::Relaxed);
        let replaced = async {
            while node.reader().is_ok() {
                sleep(LOOK_EVERY).await;
            }
        };
        let (read, is_replaced) = tokio::select! {
            read = &mut reading => (read, false),
            () = sleep(patience) => {
                if !has_turn() {
                    return Err(self.no_turn());
                }
                drop(waiting);
                // In a moment it says how far it came.
                (reading.await, false)
            }
            () = replaced => {
                if !has_turn() {
                    return Err(given_up(&ReadError::Stopped { records: 0 }, true));
                }
                drop(waiting);
                (reading.await, true)
            }
        };
        read.map_err(|error| Status::internal(format!("the read ended early: {error}")))?
            .map_err(|error| given_up(&error, is_replaced))
    }

    fn no_turn(&self) -> Status {
        let at_once = self.0.turns.limit();
        Status::unavailable(format!(
            "this member reads {at_once} ranges at a time, and fewer for one address; the turn of \
             this one did not come in time, and nothing was changed: ask for fewer at once, try \
             again, or ask another member"
        ))
    }
}

/// What the caller of a read is told that ended without a result.
fn given_up(error: &ReadError, is_replaced: bool) -> Status {
    match error {
        // A smaller range would have met the same.
        ReadError::Stopped { .. } if is_replaced => Status::unavailable(
            "a snapshot replaces the state that was read, or this member stops, and nothing was \
             changed: try again, or ask another member",
        ),
        error => read_status(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use dengine_types::Revision;
    use futures::FutureExt as _;
    use tokio::time::timeout;
    use tonic::Code;

    use super::*;
    use crate::node::testing;
    use crate::server::turns::Turn;

    const LONG: Duration = Duration::from_secs(30);

    /// All turns to read of a member, each had by somebody.
    async fn with_all_turns_taken(dir: &std::path::Path) -> (Node, Nicer, Aside, Vec<Turn>) {
        let node = testing::leading(dir).await;
        let threads = threads().unwrap();
        let aside = Aside::new(&threads, &Sources::default());
        let mut held = Vec::new();
        for other in 0..at_once() {
            held.push(aside.0.turns.take(whose(10 + other)).await);
        }
        (node, threads, aside, held)
    }

    fn whose(last: usize) -> Whose {
        Some(IpAddr::from([10, 0, 0, last as u8]))
    }

    /// Everybody's ranges waited until threads of lower priority polled a heavy client's.
    #[tokio::test(flavor = "multi_thread")]
    async fn who_is_not_polled_keeps_no_turn_to_read() {
        let dir = tempfile::tempdir().unwrap();
        let (node, _threads, aside, mut held) = with_all_turns_taken(dir.path()).await;
        let read = |last| aside.read(&node, whose(last), LONG, move |_| Ok(last));
        let mut heavy = pin!(read(1));
        assert!((&mut heavy).now_or_never().is_none());
        // Until it is in the line.
        sleep(Duration::from_millis(50)).await;
        let other = async {
            held.pop();
            timeout(LONG / 3, read(2)).await
        };
        assert_eq!(other.await.expect("it had its turn").unwrap(), 2);
        assert_eq!(heavy.await.unwrap(), 1);
        node.shutdown().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_has_no_turn_in_time_is_told_so() {
        let dir = tempfile::tempdir().unwrap();
        let (node, _threads, aside, _held) = with_all_turns_taken(dir.path()).await;
        let read = aside.read(&node, None, Duration::from_millis(50), |_| Ok(()));
        let refused = read.await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(refused.message().contains("turn"), "{refused}");
        node.shutdown().await.unwrap();
    }

    /// Lists of one address kept the processors busy; so another one, which called more often, was
    /// heavy, and its calls waited behind these.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_read_for_it_makes_a_source_heavy() {
        let dir = tempfile::tempdir().unwrap();
        let node = testing::leading(dir.path()).await;
        let (threads, sources) = (threads().unwrap(), Sources::default());
        let aside = Aside::new(&threads, &sources);
        let [lists, calls] = [1, 2].map(|last| sources.of(whose(last).unwrap()));
        calls.was_served_elsewhere(Duration::from_millis(1));
        let read = aside.read(&node, whose(1), LONG, |_| {
            let begun = time_of_this_thread();
            while time_of_this_thread() - begun < Duration::from_millis(200) {}
            Ok(())
        });
        read.await.unwrap();
        assert!(lists.is_heavy() && !calls.is_heavy());
        node.shutdown().await.unwrap();
    }

    /// It was told to ask for less, and a batch that only reads that it asked for what cannot be.
    #[test]
    fn a_read_that_an_installation_ended_may_be_tried_again() {
        let stopped = ReadError::Stopped { records: 7 };
        assert_eq!(given_up(&stopped, true).code(), Code::Unavailable);
        assert_eq!(given_up(&stopped, false).code(), Code::DeadlineExceeded);
        let future = ReadError::Compacted {
            requested: Revision(1),
            compacted: Revision(2),
        };
        assert_eq!(given_up(&future, true).code(), Code::OutOfRange);
    }
}
