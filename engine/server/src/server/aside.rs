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

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dengine_kv::{Attendant, ReadError, Reader};
use dengine_protocol::checks::status::{read_status, request_status};
use tokio::runtime::{Builder, Handle};
use tokio::time::sleep;
use tonic::Status;

use super::turns::{Turns, Whose};
use crate::connections::{Share, Source, WorkElsewhere, time_of_this_thread};
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
}

/// Looks after a read.
#[derive(Debug)]
struct Attended {
    /// Nobody waits for it any more.
    stop: Arc<AtomicBool>,
    /// What is done for its source.
    elsewhere: Option<Arc<WorkElsewhere>>,
    /// When that was last told, by the clock and by the processor's time of its thread.
    told: Mutex<(Instant, Duration)>,
}

impl Attended {
    fn new(stop: &Arc<AtomicBool>, source: Option<&Source>) -> Self {
        Self {
            stop: Arc::clone(stop),
            elsewhere: source.map(|it| Arc::clone(it.work_elsewhere())),
            told: Mutex::new((Instant::now(), Duration::ZERO)),
        }
    }

    /// The read begins on this thread.
    fn begin(&self) {
        let _before = self.since_told();
    }

    /// Tells what the read has taken since, on this thread.
    fn tell(&self) {
        let (lasted, worked) = self.since_told();
        if let Some(elsewhere) = &self.elsewhere {
            elsewhere.add(worked, lasted);
        }
    }

    fn since_told(&self) -> (Duration, Duration) {
        let now = (Instant::now(), time_of_this_thread());
        // Of one thread at a time.
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let then = std::mem::replace(&mut *told, now);
        (now.0 - then.0, now.1.saturating_sub(then.1))
    }
}

impl Attendant for Attended {
    fn goes_on(&self) -> bool {
        self.tell();
        self.stop.goes_on()
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
    /// On [`threads`]; turns are waited for on those of the runtime this is called in. No more than
    /// handles are kept: what they do has this, by its turn.
    pub(super) fn new(threads: &Nicer) -> Self {
        Self(Arc::new(AsideShared {
            turns: Turns::new(at_once(), Share::THREE_QUARTERS),
            usual: Handle::current(),
            threads: threads.handle().clone(),
        }))
    }

    /// Reads this member's state for at most `patience`, the wait for a turn included, and until a
    /// snapshot is to replace it. Without a source it is this member's own read, or an operator's.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        node: &Node,
        source: Option<&Source>,
        patience: Duration,
        read: impl FnOnce(&Reader<RocksStore>) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, Status> {
        let line = source.map(Source::address);
        self.read_in_line(node, (line, source), patience, read)
            .await
    }

    /// The same in a line for turns that may be another than the source's.
    pub(super) async fn read_in_line<T: Send + 'static>(
        &self,
        node: &Node,
        (line, source): (Whose, Option<&Source>),
        patience: Duration,
        read: impl FnOnce(&Reader<RocksStore>) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, Status> {
        let reader = node.reader().map_err(|error| request_status(&error))?;
        let stop = Arc::<AtomicBool>::default();
        let waiting = Waiting(Arc::clone(&stop));
        let attended = Arc::new(Attended::new(&stop, source));
        let reader = reader.attended_by(Arc::clone(&attended));
        let has_turn = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&has_turn);
        let threads = (&self.0.usual, &self.0.threads);
        let reading = self.0.turns.read(threads, line, move || {
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
        let aside = Aside::new(&threads);
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
        let sources = [1, 2].map(|last| Source::new(whose(last).unwrap()));
        let read = |last: usize| {
            let source = Some(&sources[last - 1]);
            aside.read(&node, source, LONG, move |_| Ok(last))
        };
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

    /// While it lasts, and no more than it: the thread may have read for another before.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_read_works_counts_for_whose_it_is() {
        const LONG_WORK: Duration = Duration::from_millis(200);
        let dir = tempfile::tempdir().unwrap();
        let node = testing::leading(dir.path()).await;
        let mut builder = Builder::new_current_thread();
        let threads = Nicer::start(builder.max_blocking_threads(1)).unwrap();
        let aside = Aside::new(&threads);
        let [one, other] = [1, 2].map(|last| Source::new(whose(last).unwrap()));
        let works = Arc::clone(one.work_elsewhere());
        let read = aside.read(&node, Some(&one), LONG, move |reader| {
            let begun = time_of_this_thread();
            while time_of_this_thread() - begun < LONG_WORK {}
            // It looks before the first record.
            reader.logical_hash()?;
            Ok(works.take())
        });
        let (worked, lasted) = read.await.unwrap();
        assert!(worked >= LONG_WORK && lasted >= worked, "{worked:?}");
        aside
            .read(&node, Some(&other), LONG, |_| Ok(()))
            .await
            .unwrap();
        for little in [one, other].map(|it| it.work_elsewhere().take().0) {
            assert!(little < LONG_WORK / 2, "{little:?}");
        }
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
