//! The callers of calls that are made together; each has its own deadline and may cancel earlier.
//!
//! A call whose caller is gone is not begun: a write is not proposed, a key is not read.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use dengine_raft::Written;
use dengine_raft::replica::WriteReply;

use crate::error::RequestError;
use crate::telemetry::traces::TracedWrite;
use crate::write_bytes::Counting;

/// The callers of one group of calls, in their order.
#[derive(Debug)]
pub(crate) struct Waiters(Box<[Waiter]>);

#[derive(Debug)]
struct Waiter {
    id: u64,
    until: Instant,
    cancelled: AtomicBool,
}

impl Waiters {
    /// Each with the id of its call, and until when it waits.
    pub(crate) fn new(each: impl IntoIterator<Item = (u64, Instant)>) -> Self {
        let waiter = |(id, until)| Waiter {
            id,
            until,
            cancelled: AtomicBool::new(false),
        };
        Self(each.into_iter().map(waiter).collect())
    }

    /// How many there were in the beginning.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Until when at least one of them waits; `None` if there is none.
    pub(crate) fn latest(&self) -> Option<Instant> {
        self.0.iter().map(|it| it.until).max()
    }

    /// Those of these ids wait no more.
    pub(crate) fn cancel(&self, ids: &HashSet<u64>) {
        for waiter in self.0.iter().filter(|it| ids.contains(&it.id)) {
            waiter.cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Whether this one has said that it waits no more.
    pub(crate) fn is_cancelled(&self, place: usize) -> bool {
        self.0[place].cancelled.load(Ordering::Relaxed)
    }

    /// Whether this one waits no more at `now`.
    pub(crate) fn has_left(&self, place: usize, now: Instant) -> bool {
        self.is_cancelled(place) || self.0[place].until <= now
    }
}

/// Answers one of several writes, which may each be waited for in its own way.
pub(crate) struct Awaited {
    reply: WriteReply,
    /// The group that its caller is in, and its place there.
    waiter: Option<(Arc<Waiters>, usize)>,
    /// Counts its bytes with those of the others: it may lie in a queue for longer than anybody
    /// waits for it.
    _counted: Option<Arc<Counting>>,
    /// When it was handed over, if the time that it waits for its turn is measured.
    since: Option<Instant>,
    /// Notes when its stages begin, if it is one of the few that are traced.
    trace: Option<Arc<TracedWrite>>,
}

impl Awaited {
    /// It is waited for only as long as that one of `waiters` waits.
    pub(super) fn by(mut self, waiters: &Arc<Waiters>, place: usize) -> Self {
        self.waiter = Some((Arc::clone(waiters), place));
        self
    }

    /// The time from then until its turn is measured.
    pub(super) fn handed_over(mut self, since: Option<Instant>) -> Self {
        self.since = since;
        self
    }

    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// It is handed over now, and traced if there is a trace.
    pub(super) fn traced(mut self, trace: Option<&Arc<TracedWrite>>) -> Self {
        if let Some(trace) = trace {
            trace.handed_over(Instant::now());
            self.trace = Some(Arc::clone(trace));
        }
        self
    }

    pub(super) fn trace(&self) -> Option<&TracedWrite> {
        self.trace.as_deref()
    }

    /// That is kept with it.
    pub(super) fn counted(mut self, counting: &Arc<Counting>) -> Self {
        self._counted = Some(Arc::clone(counting));
        self
    }

    /// Whether its caller waits no more.
    pub(super) fn is_gone(&self) -> bool {
        let waiter = self.waiter.as_ref();
        waiter.is_some_and(|(waiters, place)| waiters.has_left(*place, Instant::now()))
            || self.reply.is_gone()
    }

    pub(super) fn answer(self, answer: Result<Written, RequestError>) {
        self.reply.answer(answer);
    }
}

/// It is waited for as long as all the others.
impl From<WriteReply> for Awaited {
    fn from(reply: WriteReply) -> Self {
        Self {
            reply,
            waiter: None,
            _counted: None,
            since: None,
            trace: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dengine_raft::replica::WriteAnswers;

    use super::*;
    use crate::config::Limits;
    use crate::write_bytes::WriteBytes;

    /// One of several may give up, or wait for less long: the others are written.
    #[test]
    fn a_reply_knows_when_its_own_waiter_has_left() {
        let (now, long) = (Instant::now(), Duration::from_secs(60));
        let waiters = Arc::new(Waiters::new([(1, now + long), (2, now), (3, now + long)]));
        let (replies, _answers) = WriteAnswers::of(3, None);
        let replies = replies.map(Awaited::from).enumerate();
        let replies: Vec<_> = replies.map(|(n, it)| it.by(&waiters, n)).collect();
        let gone = || replies.iter().map(Awaited::is_gone).collect::<Vec<_>>();
        assert_eq!(gone(), [false, true, false]);
        waiters.cancel(&[3, 9].into());
        assert_eq!(gone(), [false, true, true]);
    }

    /// Their bytes were given back when their callers left, and others could queue as many again.
    #[test]
    fn what_nobody_waits_for_is_counted_until_it_is_gone() {
        let all = WriteBytes::to_be_acknowledged(&Limits::default());
        let mut counting = all.count(None);
        assert!(counting.more(5));
        let counting = Arc::new(counting);
        let (mut replies, answers) = WriteAnswers::of(1, None);
        let queued = replies.next().map(Awaited::from).unwrap();
        let queued = queued.counted(&counting);
        let counted = Arc::downgrade(&counting);
        drop((counting, answers, replies));
        assert!(queued.is_gone() && counted.upgrade().is_some());
        drop(queued);
        assert!(counted.upgrade().is_none());
    }

    #[test]
    fn each_waits_until_its_own_time_or_until_it_leaves() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let waiters = Waiters::new([(7, now + second), (8, now + 2 * second)]);
        assert_eq!(waiters.latest(), Some(now + 2 * second));
        let left = |at| [0, 1].map(|place| waiters.has_left(place, at));
        assert_eq!(left(now), [false, false]);
        assert_eq!(left(now + second), [true, false]);
        waiters.cancel(&[8, 9].into());
        assert_eq!(left(now), [false, true]);
        assert!(!waiters.is_cancelled(0));
    }

    /// A write whose waiter has left when its turn comes takes no place in the log.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_nobody_waits_for_is_not_proposed() {
        use dengine_kv::Outcome;

        use crate::node::WriteGroup;
        use crate::node::testing::{leading, put};

        let dir = tempfile::tempdir().unwrap();
        let node = leading(dir.path()).await;
        let now = Instant::now();
        let long = now + Duration::from_secs(60);
        let waiters = Arc::new(Waiters::new([(1, now), (2, long), (3, long)]));
        waiters.cancel(&[3].into());
        let writes = ["late", "awaited", "cancelled"].map(|key| put(key).into());
        let group = WriteGroup {
            requests: writes.to_vec(),
            waiters: Some(waiters),
            ..WriteGroup::default()
        };
        let (written, _) = node.write_held(group).await;
        assert!(written[0].is_err() && written[2].is_err(), "{written:?}");
        let outcome = &written[1].as_ref().unwrap().outcome;
        assert!(matches!(outcome, Outcome::Put { .. }), "{outcome:?}");
        let reader = node.reader().unwrap();
        for (key, there) in [("late", false), ("awaited", true), ("cancelled", false)] {
            let (_, found) = reader.get(&key.into(), None).unwrap();
            assert_eq!(found.is_some(), there, "{key}");
        }
        drop(reader);
        node.shutdown().await.unwrap();
    }
}
