//! Fair turns among many callers: round-robin by address, and no address gets all free turns. An
//! address that delayed all others for long may have to pause.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::connections::Share;

/// The client address that wants one; `None`: this member itself, or its operators.
pub(super) type Whose = Option<IpAddr>;

/// So many turns at a time.
pub(super) struct Turns(Arc<TurnsShared>);

struct TurnsShared {
    bounds: Bounds,
    lines: Mutex<Lines>,
}

#[derive(Clone, Copy)]
struct Bounds {
    limit: usize,
    /// What one address may have of the turns that no other has.
    share: Share,
}

#[derive(Default)]
struct Lines {
    taken: usize,
    by_address: HashMap<Whose, Line>,
    /// Addresses that wait, each once; the next first.
    round: VecDeque<Whose>,
}

/// Those of one address.
#[derive(Default)]
struct Line {
    taken: usize,
    waiting: VecDeque<oneshot::Sender<Turn>>,
    /// Until then it has no further turn.
    rests: Option<Instant>,
    /// Until then it has one at a time: two that all others wait for, one after the other, are
    /// twice as long.
    single: Option<Instant>,
}

/// A turn, until it is dropped.
pub(super) struct Turn {
    shared: Arc<TurnsShared>,
    whose: Whose,
}

impl Turns {
    /// So many, of which one address may have that share of those that no other has.
    pub(super) fn new(limit: usize, share: Share) -> Self {
        Self(Arc::new(TurnsShared {
            bounds: Bounds { limit, share },
            lines: Mutex::default(),
        }))
    }

    /// How many there are at a time.
    pub(super) fn limit(&self) -> usize {
        self.0.bounds.limit
    }

    /// Waits for one.
    pub(super) async fn take(&self, whose: Whose) -> Turn {
        loop {
            let waits = {
                let mut lines = self.0.lines();
                if lines.may_take(self.0.bounds, whose) && lines.is_first(whose) {
                    lines.begin(whose);
                    return self.0.turn(whose);
                }
                lines.wait(whose)
            };
            // It is given, or dropped where it could not be given.
            if let Ok(turn) = waits.await {
                return turn;
            }
        }
    }

    /// Waits for a turn on `threads`, and reads in it where `blocking` may block. However long it
    /// takes until the caller is polled again, which on threads of lower priority may be
    /// long: neither is a turn kept that was given, nor one in which all was read.
    ///
    /// # Errors
    /// It panicked, or those threads have ended.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        (threads, blocking): (&Handle, &Handle),
        whose: Whose,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let (turns, blocking) = (Self(Arc::clone(&self.0)), blocking.clone());
        let reading = threads.spawn(async move {
            let turn = turns.take(whose).await;
            let read = move || {
                let _turn = turn;
                read()
            };
            blocking.spawn_blocking(read).await
        });
        // A caller that left before its turn wants it no more.
        AbortOnDropHandle::new(reading).await.flatten()
    }
}

impl Turn {
    /// Gives it back; those of the same address have the next one only after so long, and for as
    /// long after that one at a time.
    pub(super) fn rest(self, time: Duration) {
        let until = Instant::now() + time;
        let longer = {
            let mut lines = self.shared.lines();
            let line = lines.by_address.entry(self.whose).or_default();
            // Several may end at once: the one that makes it longer looks after its end.
            let longer = line.rests.is_none_or(|rests| rests < until);
            if longer {
                (line.rests, line.single) = (Some(until), Some(until + time));
            }
            longer
        };
        if longer {
            let (shared, whose) = (Arc::clone(&self.shared), self.whose);
            tokio::spawn(async move {
                for at in [until, until + time] {
                    sleep_until(at).await;
                    shared.lines().rested(whose);
                    shared.give();
                }
            });
        }
    }
}

impl TurnsShared {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(self: &Arc<Self>, whose: Whose) -> Turn {
        Turn {
            shared: Arc::clone(self),
            whose,
        }
    }

    /// Gives turns to those who wait, as far as there are some.
    fn give(self: &Arc<Self>) {
        loop {
            let next = self.lines().next(self.bounds);
            let Some((whose, waiting)) = next else {
                return;
            };
            // If who waited has left in this moment, it is given to the next.
            let _ = waiting.send(self.turn(whose));
        }
    }
}

impl Lines {
    fn may_take(&self, bounds: Bounds, whose: Whose) -> bool {
        let line = self.by_address.get(&whose);
        let rests = line.is_some_and(|line| line.rests.is_some());
        let own = line.map_or(0, |line| line.taken);
        let has_one = own > 0 && line.is_some_and(|line| line.single.is_some());
        !rests && !has_one && bounds.share.more(bounds.limit, self.taken, own) > 0
    }

    /// Ends a rest, unless it has become longer.
    fn rested(&mut self, whose: Whose) {
        if let Some(line) = self.by_address.get_mut(&whose) {
            let now = Instant::now();
            line.rests = line.rests.filter(|until| *until > now);
            line.single = line.single.filter(|until| *until > now);
            self.forget_idle(whose);
        }
    }

    /// Forgets an address that has, wants and waits for nothing.
    fn forget_idle(&mut self, whose: Whose) {
        let rested = |line: &Line| line.rests.is_none() && line.single.is_none();
        let idle = |line: &Line| line.taken == 0 && line.waiting.is_empty() && rested(line);
        if self.by_address.get(&whose).is_some_and(idle) {
            self.by_address.remove(&whose);
        }
    }

    /// Whether no caller of that address waits.
    fn is_first(&self, whose: Whose) -> bool {
        let line = self.by_address.get(&whose);
        line.is_none_or(|line| line.waiting.is_empty())
    }

    fn begin(&mut self, whose: Whose) {
        self.taken += 1;
        self.by_address.entry(whose).or_default().taken += 1;
    }

    fn end(&mut self, whose: Whose) {
        self.taken -= 1;
        if let Some(line) = self.by_address.get_mut(&whose) {
            line.taken -= 1;
        }
        self.forget_idle(whose);
    }

    fn wait(&mut self, whose: Whose) -> oneshot::Receiver<Turn> {
        let (give, waits) = oneshot::channel();
        let line = self.by_address.entry(whose).or_default();
        if line.waiting.is_empty() {
            self.round.push_back(whose);
        }
        // Those that left, now and then: none has a turn while its address rests.
        if line.waiting.len().is_power_of_two() {
            line.waiting.retain(|waiting| !waiting.is_closed());
        }
        line.waiting.push_back(give);
        waits
    }

    /// Takes a turn for the first in the round who may have one and still waits; its address goes
    /// to the end.
    fn next(&mut self, bounds: Bounds) -> Option<(Whose, oneshot::Sender<Turn>)> {
        let mut passed = 0;
        while passed < self.round.len() && self.taken < bounds.limit {
            let whose = self.round.pop_front()?;
            let may_take = self.may_take(bounds, whose);
            let Some(line) = self.by_address.get_mut(&whose) else {
                continue;
            };
            while line.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                line.waiting.pop_front();
            }
            let next = may_take.then(|| line.waiting.pop_front()).flatten();
            if !line.waiting.is_empty() {
                self.round.push_back(whose);
                passed += 1;
            }
            if let Some(next) = next {
                self.begin(whose);
                return Some((whose, next));
            }
            self.forget_idle(whose);
        }
        None
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.shared.lines().end(self.whose);
        self.shared.give();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt;
    use tokio::time::timeout;

    use super::*;

    fn from(last: u8) -> Whose {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    fn now(turns: &Turns, whose: Whose) -> Option<Turn> {
        turns.take(whose).now_or_never()
    }

    #[test]
    fn who_asks_for_much_leaves_turns_to_others() {
        let turns = Turns::new(4, Share::THREE_QUARTERS);
        let greedy: Vec<_> = std::iter::from_fn(|| now(&turns, from(1))).collect();
        assert_eq!(greedy.len(), 3);
        let other = now(&turns, from(2)).expect("one is left");
        assert!(now(&turns, from(3)).is_none());
        drop((greedy, other));
        let lines = turns.0.lines();
        assert!(lines.taken == 0 && lines.by_address.is_empty(), "all back");
    }

    /// Else a client that asks for one range would wait behind a thousand of another.
    #[tokio::test]
    async fn turns_go_round_by_address_however_many_wait() {
        let turns = Arc::new(Turns::new(1, Share::HALF));
        let first = turns.take(from(1)).await;
        let (told, mut order) = tokio::sync::mpsc::unbounded_channel();
        for last in [1, 1, 1, 2] {
            let (turns, told) = (Arc::clone(&turns), told.clone());
            tokio::spawn(async move {
                let _turn = turns.take(from(last)).await;
                told.send(last).unwrap();
            });
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(first);
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(order.recv().await.unwrap());
        }
        assert_eq!(seen, [1, 2, 1, 1]);
    }

    #[tokio::test]
    async fn who_rests_waits_and_others_do_not() {
        let turns = Turns::new(4, Share::HALF);
        let (first, second) = (turns.take(from(1)).await, turns.take(from(1)).await);
        second.rest(Duration::from_millis(60));
        first.rest(Duration::from_millis(20));
        let begun = Instant::now();
        assert!(now(&turns, from(2)).is_some(), "others have it at once");
        let rested = turns.take(from(1)).await;
        assert!(begun.elapsed() >= Duration::from_millis(59));
        assert!(now(&turns, from(1)).is_none(), "one at a time");
        let second = turns.take(from(1)).await;
        assert!(begun.elapsed() >= Duration::from_millis(119));
        drop((rested, second));
        let lines = turns.0.lines();
        assert!(lines.taken == 0 && lines.by_address.is_empty() && lines.round.is_empty());
    }

    /// Everybody's watches of the past waited until threads of lower priority polled a heavy
    /// client's.
    #[tokio::test]
    async fn who_is_not_polled_keeps_no_turn() {
        let (turns, threads) = (Turns::new(1, Share::HALF), Handle::current());
        let read = |last| turns.read((&threads, &threads), from(last), move || last);
        let held = turns.take(from(9)).await;
        let mut heavy = pin!(read(1));
        assert!((&mut heavy).now_or_never().is_none());
        let other = async {
            tokio::task::yield_now().await;
            drop(held);
            timeout(Duration::from_secs(10), read(2)).await
        };
        assert_eq!(other.await.unwrap().unwrap(), 2);
        assert_eq!(heavy.await.unwrap(), 1);
    }

    #[tokio::test]
    async fn who_has_left_before_its_turn_has_nothing_read() {
        let (turns, threads) = (Turns::new(1, Share::HALF), Handle::current());
        let held = turns.take(from(1)).await;
        let read = || panic!("for nobody");
        let mut waits = Box::pin(turns.read::<()>((&threads, &threads), from(2), read));
        assert!((&mut waits).now_or_never().is_none());
        tokio::task::yield_now().await;
        assert_eq!(turns.0.lines().round, [from(2)]);
        drop(waits);
        drop(held);
        turns
            .read((&threads, &threads), from(3), || ())
            .await
            .unwrap();
        assert!(turns.0.lines().by_address.is_empty());
    }

    #[tokio::test]
    async fn who_has_left_holds_up_nobody() {
        let turns = Turns::new(1, Share::HALF);
        let first = turns.take(from(1)).await;
        for last in [1, 2, 2] {
            assert!(now(&turns, from(last)).is_none());
        }
        drop(first);
        assert!(now(&turns, from(3)).is_some());
        let lines = turns.0.lines();
        assert!(lines.taken == 0 && lines.by_address.is_empty() && lines.round.is_empty());
    }
}
