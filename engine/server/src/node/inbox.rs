//! Everything that reaches the replica, through one queue.
//!
//! The queue itself has no bound; what enters it has. A request or a peer's message carries permits
//! of a semaphore that it gives back when it was handled, and the log writer and the applier answer
//! once for what they were given. So the replica never waits for the threads that it feeds, and
//! they never for it.
//!
//! A turn of the replica costs about as much for one request as for ten. So what a thread has for
//! it while it serves what has arrived on its connections is handed over at the end of that, all of
//! it as one ([`SendsTogether`]).

use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use dengine_raft::channel::Sender;
use dengine_raft::{Confirm, Input, LeaseAnswer, LeaseAsk, Successor, Write};
use dengine_types::{LeaseId, MemberId, Term};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};

use super::snapshots::Made;
use super::status::MembersView;
use super::waiters::Awaited;
use super::worker::Worker;
use crate::error::{Fatal, RequestError};

/// Answers one caller.
pub(crate) struct Reply<T>(oneshot::Sender<Result<T, RequestError>>);

/// Where the answer comes out.
pub(crate) type Answer<T> = oneshot::Receiver<Result<T, RequestError>>;

impl<T> Reply<T> {
    pub(super) fn channel() -> (Self, Answer<T>) {
        let (reply, answer) = oneshot::channel();
        (Self(reply), answer)
    }

    /// Whether the caller waits no more.
    pub(super) fn is_gone(&self) -> bool {
        self.0.is_closed()
    }

    pub(super) fn answer(self, answer: Result<T, RequestError>) {
        // The caller may have given up.
        let _ = self.0.send(answer);
    }
}

/// A stream of a peer's messages, as the replica sees it.
#[derive(Default)]
pub(crate) struct PeerStream {
    refused: AtomicBool,
    told: Notify,
}

impl PeerStream {
    /// A message was refused, which no member sends: there is no sense in reading more of them, for
    /// each costs the replica as much as one of a member.
    pub(super) fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
        self.told.notify_one();
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Until it is refused.
    pub(crate) async fn refused(&self) {
        self.told.notified().await;
    }
}

/// What reaches the replica thread: what its replica takes in, and what this shell adds to it,
/// which is the callers, and what a message holds while it is queued.
pub(crate) enum ToReplica {
    /// For the replica as it is.
    Input(Input),
    /// Replicate this, and answer once it is applied.
    Write(Write, Awaited),
    /// Answer once a read sees every write that was acknowledged before.
    Read(Confirm, Reply<()>),
    /// Answer a question about a lease.
    Lease(LeaseId, LeaseAsk, Reply<LeaseAnswer>),
    /// Hand leadership over, and answer once that is done.
    Transfer(Successor, Reply<Term>),
    /// From a peer's stream. The permit counts its bytes.
    Message {
        from: MemberId,
        bytes: Bytes,
        permit: OwnedSemaphorePermit,
        stream: Arc<PeerStream>,
    },
    /// Who the members are, as the leader sees them.
    Members(Reply<MembersView>),
    /// A snapshot was made for followers, or could not be.
    SnapshotMade(Option<Made>),
    /// A thread failed; nothing may be acknowledged any more.
    Failed(Fatal),
    /// End the thread.
    Stop,
}

impl From<Input> for ToReplica {
    fn from(input: Input) -> Self {
        Self::Input(input)
    }
}

/// The way to the replica. What would reach it too late, for it has ended, is refused.
#[derive(Clone)]
pub(crate) struct Inbox(Arc<Worker<ToReplica>>);

/// The replica has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended;

impl Inbox {
    pub(super) fn to(replica: Worker<ToReplica>) -> Self {
        Self(Arc::new(replica))
    }

    /// Hands it over, now or with what else this thread sends ([`SendsTogether`]): that it went
    /// well is no promise then.
    ///
    /// # Errors
    /// It is known now that nobody takes it.
    pub(crate) fn send(&self, item: impl Into<ToReplica>) -> Result<(), Ended> {
        match put_aside(self, item.into(), Vec::push) {
            Some(item) => self.0.send(item).map_err(|unsent| refuse(unsent.0)),
            None => Ok(()),
        }
    }

    /// The same with all of them, which it takes in side by side.
    ///
    /// # Errors
    /// It is known now that nobody takes them.
    pub(crate) fn send_all(&self, items: Vec<ToReplica>) -> Result<(), Ended> {
        match put_aside(self, items, Extend::extend) {
            Some(items) => self.hand_over(items),
            None => Ok(()),
        }
    }

    /// Hands it over now, to the replica's thread: for what is waited for at once, or said to be
    /// there.
    ///
    /// # Errors
    /// Nobody takes it any more.
    pub(crate) fn send_now(&self, item: impl Into<ToReplica>) -> Result<(), Ended> {
        let sent = self.queue().send(item.into());
        sent.map_err(|unsent| refuse(unsent.0))
    }

    fn hand_over(&self, items: Vec<ToReplica>) -> Result<(), Ended> {
        self.0.send_all(items).map_err(|unsent| {
            unsent.0.into_iter().for_each(|item| {
                refuse(item);
            });
            Ended
        })
    }

    /// For what only sends, and leaves the work to the replica's thread.
    pub(super) fn queue(&self) -> Sender<ToReplica> {
        self.0.queue()
    }
}

/// Answers what never reached the replica.
fn refuse(unsent: ToReplica) -> Ended {
    if let ToReplica::Write(_, caller) = unsent {
        caller.answer(Err(RequestError::ShuttingDown));
    }
    Ended
}

/// By replica: a process has one, but for tests.
type Outbox = Vec<(Inbox, Vec<ToReplica>)>;

thread_local! {
    /// What this thread has put aside.
    static OUTBOX: RefCell<Option<Outbox>> = const { RefCell::new(None) };
}

/// What this thread sends to replicas while this is there reaches each of them when it is dropped,
/// as one. Nothing may be waited for meanwhile.
pub(crate) struct SendsTogether(PhantomData<Rc<()>>);

impl SendsTogether {
    pub(crate) fn begin() -> Self {
        OUTBOX.set(Some(Vec::new()));
        Self(PhantomData)
    }
}

impl Drop for SendsTogether {
    fn drop(&mut self) {
        for (inbox, items) in OUTBOX.take().into_iter().flatten() {
            // What is refused knows it.
            let _ = inbox.hand_over(items);
        }
    }
}

/// Keeps what is sent for the end, or gives it back if it is to be sent now.
fn put_aside<T>(inbox: &Inbox, sent: T, keep: fn(&mut Vec<ToReplica>, T)) -> Option<T> {
    OUTBOX.with_borrow_mut(|outbox| match outbox {
        Some(outbox) => {
            keep(of(outbox, inbox), sent);
            None
        }
        None => Some(sent),
    })
}

fn of<'a>(outbox: &'a mut Outbox, inbox: &Inbox) -> &'a mut Vec<ToReplica> {
    let known = outbox
        .iter()
        .position(|(it, _)| Arc::ptr_eq(&it.0, &inbox.0));
    let place = known.unwrap_or_else(|| {
        outbox.push((inbox.clone(), Vec::new()));
        outbox.len() - 1
    });
    &mut outbox[place].1
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::watch;

    use super::super::replica;
    use super::super::worker::{By, Next, Work, worker};
    use super::*;

    /// Tells how many it is given at a time.
    struct Counts(mpsc::Sender<usize>);

    impl Work<ToReplica> for Counts {
        fn work(&mut self, items: &mut dyn Iterator<Item = ToReplica>, _: By) -> Next {
            let (mut count, mut ends) = (0, false);
            for item in items {
                count += 1;
                ends |= matches!(item, ToReplica::Stop);
            }
            // It was woken for something.
            if count > 0 {
                self.0.send(count).unwrap();
            }
            match ends {
                true => Next::End,
                false => Next::Wait {
                    until: None,
                    deep: false,
                },
            }
        }
    }

    #[test]
    fn what_is_sent_together_arrives_as_one_and_what_comes_too_late_is_refused() {
        let (fatal, _) = watch::channel(None);
        let (replica, thread) = worker("replica", replica::PACE, fatal);
        let (counts, counted) = mpsc::channel();
        let thread = std::thread::spawn(move || thread.run(Counts(counts)));
        let inbox = Inbox::to(replica);
        inbox.send(Input::LogFull).unwrap();
        assert_eq!(counted.recv(), Ok(1));
        {
            let _together = SendsTogether::begin();
            inbox.send(Input::LogFull).unwrap();
            inbox.send_all(vec![Input::LogFull.into()]).unwrap();
            let early = counted.recv_timeout(std::time::Duration::from_millis(20));
            assert!(early.is_err(), "{early:?}");
        }
        assert_eq!(counted.recv(), Ok(2));
        inbox.send(ToReplica::Stop).unwrap();
        thread.join().unwrap();
        let (reply, mut answer) = Reply::channel();
        {
            let _together = SendsTogether::begin();
            inbox.send(ToReplica::Members(reply)).unwrap();
            assert!(answer.try_recv().is_err());
        }
        assert!(answer.blocking_recv().is_err(), "it was dropped");
        assert!(inbox.send(Input::LogFull).is_err());
    }

    /// It put aside what it waited for.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_member_whose_last_handle_goes_within_a_turn_stops() {
        let dir = tempfile::tempdir().unwrap();
        let node = super::super::testing::leading(dir.path()).await;
        let dropped = tokio::task::spawn_blocking(move || {
            let _together = SendsTogether::begin();
            drop(node);
        });
        let dropped = tokio::time::timeout(std::time::Duration::from_secs(60), dropped);
        dropped
            .await
            .expect("it waits for what it put aside")
            .unwrap();
    }
}
