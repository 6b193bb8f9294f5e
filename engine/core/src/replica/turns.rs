//! Whose write is proposed next.
//!
//! Entries have one order, and each waits for all before it, as every linearizable read does: whoever has thousands of writes
//! under way has everybody else wait for thousands. So while several clients write, no more entries are under way than
//! keep the member busy ([`super::pace`]). The writes that are left wait here, and are proposed round by client.

use super::{Caller, Env, Replica};
use crate::consensus::{LogRead, Role};
use crate::types::Moment;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

/// For so long after its last write a client counts as one that writes: other clients' writes would be under way by the
/// thousand when its next one comes.
const REMEMBERED: Duration = Duration::from_secs(1);

/// Writes that wait to be proposed, of each client in their order.
pub(super) struct Turns<T> {
    clients: BTreeMap<IpAddr, Client<T>>,
    /// Those with writes that wait, each once; the next first.
    round: VecDeque<IpAddr>,
}

struct Client<T> {
    waiting: VecDeque<T>,
    last_wrote: Moment,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            clients: BTreeMap::new(),
            round: VecDeque::new(),
        }
    }
}

impl<T> Turns<T> {
    /// A client's write waits.
    pub(super) fn wait(&mut self, from: IpAddr, write: T, now: Moment) {
        let client = self.clients.entry(from).or_insert_with(|| Client {
            waiting: VecDeque::new(),
            last_wrote: now,
        });
        client.last_wrote = now;
        if client.waiting.is_empty() {
            self.round.push_back(from);
        }
        client.waiting.push_back(write);
    }

    /// The write whose turn it is.
    pub(super) fn next(&mut self) -> Option<T> {
        let from = self.round.pop_front()?;
        let client = self.clients.get_mut(&from)?;
        let write = client.waiting.pop_front();
        if !client.waiting.is_empty() {
            self.round.push_back(from);
        }
        write
    }

    /// Whether more than one client writes.
    pub(super) fn are_shared(&self) -> bool {
        self.clients.len() > 1
    }

    /// Forgets writes that nobody waits for, which would gather behind a disk that hangs, and those who wrote last long
    /// ago. Called once a tick.
    pub(super) fn forget(&mut self, now: Moment, is_gone: impl Fn(&T) -> bool) {
        for client in self.clients.values_mut() {
            client.waiting.retain(|write| !is_gone(write));
        }
        self.clients.retain(|_, client| {
            !client.waiting.is_empty() || now.since(client.last_wrote) < REMEMBERED
        });
        let waits = |from: &IpAddr| self.clients.get(from).map(|it| !it.waiting.is_empty());
        self.round.retain(|from| waits(from) == Some(true));
    }
}

/// A write that waits to be proposed.
pub(super) struct QueuedWrite<C> {
    data: Bytes,
    caller: C,
}

impl<L: LogRead, E: Env> Replica<L, E> {
    pub(super) fn on_write(&mut self, data: Bytes, caller: E::Write, from: Option<IpAddr>) {
        let queued = QueuedWrite { data, caller };
        match from {
            Some(from) => self.turns.wait(from, queued, self.now),
            None => self.begin(queued),
        }
    }

    /// Of the writes that wait, begins as many as may be under way. A lone client's are, all of them; and whoever does not
    /// lead refuses them all at once.
    pub(super) fn take_turns(&mut self) {
        let leads = self.consensus.state().role == Role::Leader;
        if !leads {
            self.pace.lost_lead();
        }
        let most = match leads && self.turns.are_shared() {
            true => self.pace.entries().max(self.config.shared_entries_min),
            false => usize::MAX,
        };
        let under_way = self.consensus.last_index().0.saturating_sub(self.applied.0);
        let under_way = usize::try_from(under_way).unwrap_or(usize::MAX);
        while self.proposals.len().saturating_add(under_way) < most {
            let Some(queued) = self.turns.next() else {
                return;
            };
            self.begin(queued);
        }
    }

    pub(super) fn forget_writes(&mut self) {
        self.turns.forget(self.now, |write| write.caller.is_gone());
    }

    /// Proposes a write, unless nobody waits for it any more.
    fn begin(&mut self, write: QueuedWrite<E::Write>) {
        if write.caller.is_gone() {
            return;
        }
        let proposal = self.proposal(write.data, Some(write.caller));
        self.proposals.push(proposal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{Command, CommandVersion, Request};
    use crate::replica::lone::{LoneLeader, Somebody};
    use crate::replica::{Effect, Input, LogJob, Request as Asked};
    use crate::types::{Entry, Revision};

    fn from(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    const SECOND: Moment = Moment(1_000_000_000);

    #[test]
    fn the_writes_of_a_client_keep_their_order_and_clients_take_turns() {
        let mut turns = Turns::default();
        for (client, write) in [(1, "a"), (1, "b"), (1, "c"), (2, "x"), (3, "y"), (2, "z")] {
            turns.wait(from(client), write, SECOND);
        }
        let order: Vec<_> = std::iter::from_fn(|| turns.next()).collect();
        assert_eq!(order, ["a", "x", "y", "b", "z", "c"]);
        turns.wait(from(2), "again", SECOND);
        assert_eq!(turns.next(), Some("again"));
    }

    #[test]
    fn a_client_counts_for_a_second_and_while_its_writes_wait() {
        let mut turns = Turns::default();
        turns.wait(from(1), (), Moment(0));
        assert!(!turns.are_shared());
        turns.wait(from(2), (), SECOND);
        turns.next();
        turns.next();
        turns.forget(Moment(999_999_999), |()| false);
        assert!(turns.are_shared());
        turns.forget(SECOND, |()| false);
        assert!(!turns.are_shared(), "the first one is silent");
        turns.wait(from(1), (), SECOND);
        turns.forget(Moment(SECOND.0 * 9), |()| false);
        assert_eq!(turns.next(), Some(()));
        turns.forget(Moment(SECOND.0 * 9), |()| false);
        assert!(turns.clients.is_empty());
    }

    /// A leader whose disk hangs proposes none of them for minutes, and its clients try again and again.
    #[test]
    fn writes_that_nobody_waits_for_are_not_kept() {
        let mut turns = Turns::default();
        for (client, write) in [
            (1, "gone"),
            (1, "awaited"),
            (2, "gone"),
            (3, "gone"),
            (3, "gone"),
        ] {
            turns.wait(from(client), write, SECOND);
        }
        turns.forget(SECOND, |write| *write == "gone");
        assert_eq!((turns.round.len(), turns.clients.len()), (1, 3));
        turns.wait(from(2), "again", SECOND);
        let order: Vec<_> = std::iter::from_fn(|| turns.next()).collect();
        assert_eq!(order, ["awaited", "again"]);
    }

    /// A member of whose entries one at a time may be under way while clients share.
    struct Alone(LoneLeader);

    impl Alone {
        fn new() -> Self {
            let mut leader = LoneLeader::new(CommandVersion::CURRENT);
            leader.elect();
            leader.settle();
            Self(leader)
        }

        /// A client queues so many writes; each is known by its number.
        fn write(&mut self, client: u8, numbers: impl IntoIterator<Item = u64>) {
            for number in numbers {
                let revision = Revision(number);
                let command = Command::Compact { revision };
                let write = Asked::Write {
                    data: Request::from(command).encode(CommandVersion::CURRENT),
                    caller: Somebody,
                    from: Some(from(client)),
                };
                self.0.replica.handle(Input::Request(write), self.0.now);
            }
        }

        /// The writes that are proposed together next.
        fn next(&mut self) -> Vec<u64> {
            let effects = self.0.replica.effects(self.0.now);
            let entries = effects.iter().flat_map(|effect| match effect {
                Effect::Log(LogJob::Append { entries, .. }) => entries.as_slice(),
                _ => &[],
            });
            // Without that with which a leader begins its term.
            let entries = entries.filter(|it| !it.data.is_empty());
            let proposed = entries.map(number).collect();
            for effect in effects {
                self.0.carry_out(effect);
            }
            proposed
        }
    }

    fn number(entry: &Entry) -> u64 {
        let logged = Request::decode(entry.data.clone()).unwrap().unwrap();
        match logged.request.command {
            Command::Compact { revision } => revision.0,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_client_alone_has_all_its_writes_under_way() {
        let mut leader = Alone::new();
        leader.write(1, 100..1_100);
        assert_eq!(leader.next().len(), 1_000);
    }

    /// It waited for all of them.
    #[test]
    fn behind_thousands_of_writes_another_client_waits_for_few() {
        let mut leader = Alone::new();
        leader.write(2, [1]);
        assert_eq!(leader.next(), [1]);
        leader.0.settle();
        leader.write(1, 100..5_100);
        assert_eq!(leader.next(), [100], "the other one may come back");
        leader.write(2, [2]);
        let mut proposed: Vec<_> = (0..20).flat_map(|_| leader.next()).collect();
        proposed.truncate(3);
        assert_eq!(proposed, [101, 2, 102]);
        // Nobody has come back for a second.
        for _ in 0..11 {
            leader.0.tick();
        }
        let proposed: Vec<_> = (0..20).flat_map(|_| leader.next()).collect();
        assert!(proposed.len() > 4_000, "{}", proposed.len());
    }

    #[test]
    fn who_does_not_lead_keeps_nobody_waiting() {
        let mut member = Alone(LoneLeader::learner());
        for client in [1, 2] {
            member.write(client, 100..1_100);
        }
        member.next();
        assert!(member.0.replica.turns.next().is_none());
    }
}
