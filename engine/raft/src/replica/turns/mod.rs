//! Whose write is proposed next.
//!
//! Entries have one order, and each waits for all before it, as every linearizable read does: a
//! client with thousands of writes in flight would delay all others by thousands of writes, or as
//! many MiB. So while several clients write, no more is under way than keeps the member busy
//! ([`super::pace`]). The writes that are left wait here. Clients that wait have equal shares, by
//! what their writes ask of the member: of two, one with entries of 16 KiB and one with small ones,
//! the second has some sixteen for each of the first (start-time fair queueing: Goyal, Vin, Cheng,
//! 1996).
//!
//! What the leader itself has to do for keys to expire has as much as all clients together: a
//! client that puts keys that live a millisecond would otherwise make expiry fall behind, or every
//! other client wait for it.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use dengine_kv::EXPIRY_RETRY;
use dengine_types::Moment;

use super::Replica;
use super::pace::load;
use super::passing::AskedByPeer;
use crate::consensus::{LogRead, Role};
use crate::input::{EncodedCommand, OwnCommands, Token};

/// For so long after its last write a client counts as one that writes: other clients' writes would
/// be under way by the thousand when its next one comes.
const REMEMBERED: Duration = Duration::from_secs(1);

/// The load that may be under way of a client that writes alone: more than any disk or network
/// needs to be busy, and what a client that writes less than once in [`REMEMBERED`] has before it.
const LONE_LOAD_MAX: u64 = 16 << 20;

/// Of entries that are as large as that two may be under way: with one, batches of a hundred would
/// be applied and committed in turns.
const TWO: Range<u64> = 64 << 10..256 << 10;

/// Whose writes they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Writer {
    /// The leader's own.
    Leader,
    /// Of a client behind this address.
    Client(IpAddr),
}

/// What the leader's own work waits for its turn at most. It is proposed again after
/// [`EXPIRY_RETRY`], and should not be in the log twice.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(EXPIRY_RETRY.as_secs() * 3 / 4);

/// Writes that wait to be proposed, of each writer in their order.
pub(super) struct Turns<T> {
    writers: BTreeMap<Writer, Queue<T>>,
    /// Those with writes that wait, each once; the next first.
    round: BTreeMap<Place, Writer>,
    /// What the writer had had whose turn was last. A writer that begins to wait is as far, at
    /// least: no other owes it what it did not ask for.
    had: u64,
    /// The most that any of them has had.
    most_had: u64,
    places: u64,
    /// When some of the leader's own work was given up, unless some was proposed since: it comes
    /// again, and must find room.
    given_up: Option<Moment>,
    /// Those whose callers are gone, until they are taken.
    gone: Vec<T>,
}

/// Where a writer stands among those that wait: by what it has had, then by when it took the place.
type Place = (u64, u64);

struct Queue<T> {
    waiting: VecDeque<Write<T>>,
    /// What it has had: the loads of its writes, from where it began.
    had: u64,
    /// When a write of it came, or was proposed, whichever was later.
    last_wrote: Moment,
}

struct Write<T> {
    load: u64,
    write: T,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            writers: BTreeMap::new(),
            round: BTreeMap::new(),
            had: 0,
            most_had: 0,
            places: 0,
            given_up: None,
            gone: Vec::new(),
        }
    }
}

impl<T> Turns<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.round.is_empty()
    }

    /// A write waits, which asks so much of a member ([`super::pace::load`]).
    pub(super) fn wait(&mut self, writer: Writer, load: u64, write: T, now: Moment) {
        let queue = self.writers.entry(writer).or_insert_with(|| Queue {
            waiting: VecDeque::new(),
            had: 0,
            last_wrote: now,
        });
        queue.last_wrote = now;
        let begins = queue.waiting.is_empty();
        queue.waiting.push_back(Write { load, write });
        if begins {
            queue.had = queue.had.max(self.had);
            let had = queue.had;
            self.stand(writer, had);
        }
    }

    /// The write whose turn it is, and its load. Those whose callers are gone are left out, and
    /// their writers have had nothing.
    pub(super) fn next(&mut self, now: Moment, is_gone: impl Fn(&T) -> bool) -> Option<(u64, T)> {
        while let Some(((had, _), writer)) = self.round.pop_first() {
            self.had = had;
            let shares = self.shares_of(writer);
            let Some(queue) = self.writers.get_mut(&writer) else {
                continue;
            };
            let awaited = queue.waiting.iter().position(|it| !is_gone(&it.write));
            let gone = awaited.unwrap_or(queue.waiting.len());
            self.gone
                .extend(queue.waiting.drain(..gone).map(|it| it.write));
            if writer == Writer::Leader {
                self.given_up = Some(now).filter(|_| awaited.is_none() && gone > 0);
            }
            let Some(Write { load, write }) = queue.waiting.pop_front() else {
                continue;
            };
            queue.had = had.saturating_add(load.div_ceil(shares));
            queue.last_wrote = now;
            self.most_had = self.most_had.max(queue.had);
            if !queue.waiting.is_empty() {
                let had = queue.had;
                self.stand(writer, had);
            }
            return Some((load, write));
        }
        // There is enough for all that write, so no writer has had anything at others' expense.
        self.had = self.most_had;
        None
    }

    /// Those that were left out since the last call.
    pub(super) fn take_gone(&mut self) -> Vec<T> {
        std::mem::take(&mut self.gone)
    }

    fn stand(&mut self, writer: Writer, had: u64) {
        self.places += 1;
        self.round.insert((had, self.places), writer);
    }

    /// How many clients' shares it has: the leader's own work as many as there are clients that
    /// wait.
    fn shares_of(&self, writer: Writer) -> u64 {
        match writer {
            Writer::Client(_) => 1,
            // Itself it is not among them, for its turn has come.
            Writer::Leader => u64::try_from(self.round.len()).map_or(u64::MAX, |it| it.max(1)),
        }
    }

    /// Whether more than one client writes, or work of the leader's own waits, or is to come again.
    pub(super) fn are_shared(&self, now: Moment) -> bool {
        let own = self.writers.get(&Writer::Leader);
        let clients = self.writers.len() - usize::from(own.is_some());
        let comes_again = |given_up: Moment| now.since(given_up) < EXPIRY_RETRY;
        clients > 1
            || own.is_some_and(|it| !it.waiting.is_empty())
            || self.given_up.is_some_and(comes_again)
    }

    /// Forgets writes whose callers are gone, which would gather behind a disk that hangs, and
    /// writers that wrote last long ago. Called once a tick.
    ///
    /// A writer that has had more than those that wait stays: else each of many that write much,
    /// but seldom, would be before them every time.
    pub(super) fn forget(&mut self, now: Moment, is_gone: impl Fn(&T) -> bool) {
        for (writer, queue) in &mut self.writers {
            let waited = queue.waiting.len();
            if queue.waiting.iter().any(|it| is_gone(&it.write)) {
                let all = std::mem::take(&mut queue.waiting).into_iter();
                let (gone, left): (VecDeque<_>, _) = all.partition(|it| is_gone(&it.write));
                self.gone.extend(gone.into_iter().map(|it| it.write));
                queue.waiting = left;
            }
            if *writer == Writer::Leader && queue.waiting.is_empty() && waited > 0 {
                self.given_up = Some(now);
            }
        }
        let had = self.had;
        self.writers.retain(|_, queue| {
            let lately = now.since(queue.last_wrote) < REMEMBERED;
            !queue.waiting.is_empty() || lately || queue.had > had
        });
        let waits = |writer: &Writer| self.writers.get(writer).map(|it| !it.waiting.is_empty());
        self.round.retain(|_, writer| waits(writer) == Some(true));
    }
}

/// A write that waits to be proposed.
#[derive(Debug)]
pub(super) struct QueuedWrite {
    pub(super) command: EncodedCommand,
    pub(super) proposer: Proposer,
}

/// Where a write comes from.
#[derive(Debug)]
pub(super) enum Proposer {
    /// A caller that waits for it.
    Caller {
        token: Token,
        /// Whose it is, if it may be passed on to the leader.
        passes: Option<IpAddr>,
    },
    /// A caller of another member, which has passed it on.
    Peer(AskedByPeer),
    /// The leader itself. It proposes it again if it is not applied for long after this.
    Leader { since: Moment },
}

impl QueuedWrite {
    fn is_gone(&self, now: Moment, is_gone: &dyn Fn(Token) -> bool) -> bool {
        match &self.proposer {
            Proposer::Caller { token, .. } => is_gone(*token),
            Proposer::Peer(asked) => asked.is_gone(now),
            Proposer::Leader { since } => now.since(*since) >= GIVEN_UP_AFTER,
        }
    }
}

impl<L: LogRead> Replica<L> {
    pub(super) fn on_write(
        &mut self,
        token: Token,
        command: EncodedCommand,
        from: Option<IpAddr>,
        passes: bool,
    ) {
        let passes = from.filter(|_| passes);
        let queued = QueuedWrite {
            command,
            proposer: Proposer::Caller { token, passes },
        };
        match from {
            Some(from) => self.wait(Writer::Client(from), queued),
            None => self.at_once.push(queued),
        }
    }

    pub(super) fn on_propose(&mut self, own: OwnCommands) {
        let since = self.now;
        let queued = |command| QueuedWrite {
            command,
            proposer: Proposer::Leader { since },
        };
        self.at_once.extend(own.at_once.into_iter().map(queued));
        for command in own.in_turn {
            self.wait(Writer::Leader, queued(command));
        }
    }

    pub(super) fn wait(&mut self, writer: Writer, queued: QueuedWrite) {
        let EncodedCommand { data, records } = &queued.command;
        let load = load(*records, data.len() as u64);
        self.turns.wait(writer, load, queued, self.now);
    }

    /// Begins what takes no turns.
    pub(super) fn begin_at_once(&mut self, is_gone: &dyn Fn(Token) -> bool) {
        for write in std::mem::take(&mut self.at_once) {
            if !write.is_gone(self.now, is_gone) {
                self.begin(write);
            }
        }
    }

    /// Of the writes that wait, begins as many as may be under way. A member that does not lead
    /// refuses them all at once.
    pub(super) fn take_turns(&mut self, is_gone: &dyn Fn(Token) -> bool) {
        let leads = self.consensus.state().role == Role::Leader;
        if !leads {
            self.pace.lost_lead();
        }
        let most = match self.turns.are_shared(self.now) {
            _ if !leads => u64::MAX,
            true => {
                let least = load(self.config.shared_entries_min, 0);
                self.pace.load(self.now).max(least)
            }
            false => LONE_LOAD_MAX,
        };
        let mut under_way = self.under_way();
        let mut newest = self.pace.newest();
        // One that is large itself does not keep the next from being committed while it is applied.
        let takes_second = |under_way, newest| {
            newest > TWO.start && TWO.contains(&under_way) && under_way - newest < most
        };
        while under_way < most || takes_second(under_way, newest) {
            let now = self.now;
            let next = self.turns.next(now, |it| it.is_gone(now, is_gone));
            let Some((load, queued)) = next else {
                return;
            };
            self.begin(queued);
            under_way = under_way.saturating_add(load);
            newest = load;
        }
    }

    /// The load of what is proposed or will be with the next outputs, and is not applied.
    fn under_way(&self) -> u64 {
        let logged = self.consensus.last_index().0.saturating_sub(self.applied.0);
        let logged = usize::try_from(logged).unwrap_or(usize::MAX);
        let (proposed, load_of_them) = self.pace.unapplied();
        // Of those before its term the leader knows only how many there are.
        let others = load(logged.saturating_sub(proposed), 0);
        let next = self.proposals.loads().sum::<u64>();
        others.saturating_add(load_of_them).saturating_add(next)
    }

    pub(super) fn forget_writes(&mut self, is_gone: &dyn Fn(Token) -> bool) {
        let now = self.now;
        self.turns.forget(now, |it| it.is_gone(now, is_gone));
    }
}

#[cfg(test)]
mod tests;
