//! Runtimes of one thread each.
//!
//! A runtime of several threads wakes another one whenever it has more than one thing to do, in
//! case it can help: for calls that take microseconds that costs more than it brings, and a
//! connection changes from one thread's cache to another's. What is given to one of these stays
//! there.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use crate::connections::TASKS_BETWEEN_EVENTS;
use crate::node::{Takes, take_turns_in_this_thread};
use crate::preemption;

/// Every so many turns are of what other threads wake, while those that this thread wakes itself
/// are many: answers are not to wait behind what is read. tokio's own choice, 31, is for tasks that
/// take less than the 200 µs that a lane may.
const TASKS_BETWEEN_WAKES: u32 = 2;

/// One thread with a runtime of its own: tasks, sockets and timers. It takes turns of the replica
/// for which it has something ([`take_turns_in_this_thread`]). What runs there ends when this is
/// dropped, and is not waited for, for that may be where nothing may block.
#[derive(Debug)]
pub(crate) struct SingleThread {
    handle: Handle,
    /// Ends it.
    end: oneshot::Sender<End>,
}

#[derive(Debug)]
struct End {
    /// For how long its blocking tasks are waited for.
    patience: Duration,
    /// Hung up once all of it has ended.
    ended: mpsc::Sender<()>,
}

impl SingleThread {
    /// # Errors
    /// The system gives no more threads.
    pub(crate) fn start(name: &str, takes: Takes) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .on_thread_park(preemption::sleeps)
            .event_interval(TASKS_BETWEEN_EVENTS)
            .global_queue_interval(TASKS_BETWEEN_WAKES)
            .thread_name(name)
            .build()?;
        let handle = runtime.handle().clone();
        let (end, until_end) = oneshot::channel();
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                take_turns_in_this_thread(takes);
                run(runtime, until_end);
            })?;
        Ok(Self { handle, end })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Ends what runs on all of them, and waits for that, so long at most in all.
    pub(crate) fn end_all(threads: impl IntoIterator<Item = Self>, patience: Duration) {
        let (ended, all_ended) = mpsc::channel();
        for thread in threads {
            let ended = ended.clone();
            let _ = thread.end.send(End { patience, ended });
        }
        drop(ended);
        let _ = all_ended.recv_timeout(patience);
    }
}

fn run(runtime: Runtime, until_end: oneshot::Receiver<End>) {
    match runtime.block_on(until_end) {
        Ok(end) => {
            runtime.shutdown_timeout(end.patience);
            drop(end.ended);
        }
        Err(_) => runtime.shutdown_background(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn what_runs_there_ends_with_it() {
        let thread = SingleThread::start("dengine-test", Takes::Nothing).unwrap();
        let (held, (begin, begun)) = (Arc::new(()), mpsc::channel());
        let own = Arc::clone(&held);
        thread.handle().spawn(async move {
            begin.send(std::thread::current().name().map(str::to_owned))?;
            std::future::pending::<()>().await;
            drop(own);
            Ok::<_, mpsc::SendError<_>>(())
        });
        let name = begun.recv().unwrap();
        assert_eq!(name.as_deref(), Some("dengine-test"));
        SingleThread::end_all([thread], LONG);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    /// The last handle of a member may be dropped by what runs there.
    #[test]
    fn it_may_be_dropped_by_its_own_thread() {
        let thread = SingleThread::start("dengine-test", Takes::Nothing).unwrap();
        let (dropped, waits) = mpsc::channel::<()>();
        let handle = thread.handle().clone();
        handle.spawn(async move {
            drop(thread);
            drop(dropped);
        });
        assert_eq!(
            waits.recv_timeout(LONG),
            Err(mpsc::RecvTimeoutError::Disconnected)
        );
    }
}
