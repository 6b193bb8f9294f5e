//! Whose write is proposed next.
//!
//! Entries have one order, and each waits for all before it, as every linearizable read does: whoever has thousands of writes
//! under way has everybody else wait for thousands, or for as many MiB. So while several clients write, no more is under way than
//! keeps the member busy ([`super::pace`]). The writes that are left wait here. Clients that wait have equal shares, by what their
//! writes ask of the member: of two, one with entries of 16 KiB and one with small ones, the second has some sixteen for each of the first
//! (start-time fair queueing: Goyal, Vin, Cheng, 1996).

use super::pace::load;
use super::{Caller, Env, Replica};
use crate::consensus::{LogRead, Proposal, Role};
use crate::types::Moment;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

/// For so long after its last write a client counts as one that writes: other clients' writes would be under way by the
/// thousand when its next one comes.
const REMEMBERED: Duration = Duration::from_secs(1);

/// The load that may be under way of a client that writes alone: more than any disk or network needs to be busy, and
/// what whoever writes less than once in [`REMEMBERED`] has before it.
const LONE_LOAD_MAX: u64 = 16 << 20;

/// Writes that wait to be proposed, of each client in their order.
pub(super) struct Turns<T> {
    clients: BTreeMap<IpAddr, Client<T>>,
    /// Those with writes that wait, each once; the next first.
    round: BTreeMap<Place, IpAddr>,
    /// What the writer had had whose turn was last. Whoever begins to wait is as far, at least: what it did not
    /// ask for is nobody's debt.
    had: u64,
    /// The most that any client has had.
    most_had: u64,
    places: u64,
}

/// Where a client stands among those that wait: by what it has had, then by when it took the place.
type Place = (u64, u64);

struct Client<T> {
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
            clients: BTreeMap::new(),
            round: BTreeMap::new(),
            had: 0,
            most_had: 0,
            places: 0,
        }
    }
}

impl<T> Turns<T> {
    /// A client's write waits, which asks so much of a member ([`super::pace::load`]).
    pub(super) fn wait(&mut self, from: IpAddr, load: u64, write: T, now: Moment) {
        let client = self.clients.entry(from).or_insert_with(|| Client {
            waiting: VecDeque::new(),
            had: 0,
            last_wrote: now,
        });
        client.last_wrote = now;
        let begins = client.waiting.is_empty();
        client.waiting.push_back(Write { load, write });
        if begins {
            client.had = client.had.max(self.had);
            let had = client.had;
            self.stand(from, had);
        }
    }

    /// The write whose turn it is, and its load. Those that nobody waits for are dropped, and their clients have had
    /// nothing.
    pub(super) fn next(&mut self, now: Moment, is_gone: impl Fn(&T) -> bool) -> Option<(u64, T)> {
        while let Some(((had, _), from)) = self.round.pop_first() {
            self.had = had;
            let Some(client) = self.clients.get_mut(&from) else {
                continue;
            };
            let awaited = client.waiting.iter().position(|it| !is_gone(&it.write));
            client
                .waiting
                .drain(..awaited.unwrap_or(client.waiting.len()));
            let Some(Write { load, write }) = client.waiting.pop_front() else {
                continue;
            };
            client.had = had.saturating_add(load);
            client.last_wrote = now;
            self.most_had = self.most_had.max(client.had);
            if !client.waiting.is_empty() {
                let had = client.had;
                self.stand(from, had);
            }
            return Some((load, write));
        }
        // There is enough for all that write, so nobody has had anything at the expense of others.
        self.had = self.most_had;
        None
    }

    fn stand(&mut self, from: IpAddr, had: u64) {
        self.places += 1;
        self.round.insert((had, self.places), from);
    }

    /// Whether more than one client writes.
    pub(super) fn are_shared(&self) -> bool {
        self.clients.len() > 1
    }

    /// Forgets writes that nobody waits for, which would gather behind a disk that hangs, and those who wrote last long
    /// ago. Called once a tick.
    ///
    /// Who has had more than those that wait stays: else each of many who write much, but seldom, would be before them every time.
    pub(super) fn forget(&mut self, now: Moment, is_gone: impl Fn(&T) -> bool) {
        for client in self.clients.values_mut() {
            client.waiting.retain(|it| !is_gone(&it.write));
        }
        let had = self.had;
        self.clients.retain(|_, client| {
            let lately = now.since(client.last_wrote) < REMEMBERED;
            !client.waiting.is_empty() || lately || client.had > had
        });
        let waits = |from: &IpAddr| self.clients.get(from).map(|it| !it.waiting.is_empty());
        self.round.retain(|_, from| waits(from) == Some(true));
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
            Some(from) => {
                let load = load(1, queued.data.len() as u64);
                self.turns.wait(from, load, queued, self.now);
            }
            None if queued.caller.is_gone() => {}
            None => self.begin(queued),
        }
    }

    /// Of the writes that wait, begins as many as may be under way. Whoever does not lead refuses them all at once.
    pub(super) fn take_turns(&mut self) {
        let leads = self.consensus.state().role == Role::Leader;
        if !leads {
            self.pace.lost_lead();
        }
        let most = match self.turns.are_shared() {
            _ if !leads => u64::MAX,
            true => {
                let least = load(self.config.shared_entries_min, 0);
                self.pace.load(self.now).max(least)
            }
            false => LONE_LOAD_MAX,
        };
        let mut under_way = self.under_way();
        while under_way < most {
            let next = self.turns.next(self.now, |it| it.caller.is_gone());
            let Some((load, queued)) = next else {
                return;
            };
            self.begin(queued);
            under_way = under_way.saturating_add(load);
        }
    }

    /// The load of what is proposed or will be with the next effects, and is not applied.
    fn under_way(&self) -> u64 {
        let logged = self.consensus.last_index().0.saturating_sub(self.applied.0);
        let entries = usize::try_from(logged).unwrap_or(usize::MAX);
        let entries = entries.saturating_add(self.proposals.len());
        let bytes = self.pace.unapplied_bytes() + bytes_of(&self.proposals);
        load(entries, bytes)
    }

    pub(super) fn forget_writes(&mut self) {
        self.turns.forget(self.now, |it| it.caller.is_gone());
    }

    /// Proposes a write.
    fn begin(&mut self, write: QueuedWrite<E::Write>) {
        let proposal = self.proposal(write.data, Some(write.caller));
        self.proposals.push(proposal);
    }
}

/// What they hold together.
pub(super) fn bytes_of(proposals: &[Proposal]) -> u64 {
    proposals.iter().map(|it| it.data.len() as u64).sum()
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

    fn next<T>(turns: &mut Turns<T>) -> Option<T> {
        turns.next(SECOND, |_| false).map(|it| it.1)
    }

    fn all<T>(turns: &mut Turns<T>) -> Vec<T> {
        std::iter::from_fn(|| next(turns)).collect()
    }

    #[test]
    fn the_writes_of_a_client_keep_their_order_and_clients_take_turns() {
        let mut turns = Turns::default();
        for (client, write) in [(1, "a"), (1, "b"), (1, "c"), (2, "x"), (3, "y"), (2, "z")] {
            turns.wait(from(client), 1, write, SECOND);
        }
        assert_eq!(all(&mut turns), ["a", "x", "y", "b", "z", "c"]);
        turns.wait(from(2), 7, "again", SECOND);
        assert_eq!(turns.next(SECOND, |_| false), Some((7, "again")));
    }

    /// Behind thirty-two of 16 KiB it would have waited for half a MiB.
    #[test]
    fn clients_have_equal_shares_by_what_their_writes_ask_for() {
        let mut turns = Turns::default();
        for write in ["large 1", "large 2", "large 3"] {
            turns.wait(from(1), 4, write, SECOND);
        }
        for write in ["a", "b", "c", "d", "e", "f"] {
            turns.wait(from(2), 1, write, SECOND);
        }
        let order: Vec<_> = (0..7).filter_map(|_| next(&mut turns)).collect();
        assert_eq!(order, ["large 1", "a", "b", "c", "d", "large 2", "e"]);
        // Who comes has saved nothing.
        turns.wait(from(3), 1, "new", SECOND);
        assert_eq!(all(&mut turns), ["new", "f", "large 3"]);
        // Nobody waited, so nobody has had too much.
        turns.wait(from(1), 4, "large 4", SECOND);
        turns.wait(from(3), 1, "later", SECOND);
        assert_eq!(next(&mut turns), Some("large 4"));
        // Since then somebody waits, and who had much is not forgiven.
        turns.wait(from(1), 4, "large 5", SECOND);
        turns.wait(from(3), 1, "latest", SECOND);
        assert_eq!(all(&mut turns), ["later", "latest", "large 5"]);
    }

    /// Each was before all that waited, for what it had had was forgotten when its next write came.
    #[test]
    fn who_writes_much_but_seldom_is_not_always_first() {
        let milli = |at: u64| Moment(at * 1_000_000);
        let (small, mut small_had) = (from(0), 0);
        let mut turns = Turns::default();
        // When the next write comes of each of the forty: a little more than a second after the last one was proposed.
        let mut due: Vec<_> = (1_000..1_040).map(Some).collect();
        for at in 1_000..11_000 {
            if at % 100 == 0 {
                turns.forget(milli(at), |_| false);
            }
            for (client, due) in (1..).zip(&mut due) {
                if due.take_if(|due| *due <= at).is_some() {
                    turns.wait(from(client), 1_024, client, milli(at));
                }
            }
            // A member that proposes a load of 32 in a millisecond.
            let mut proposed = 0;
            while proposed < 32 {
                turns.wait(small, 1, 0, milli(at));
                let (load, client) = turns.next(milli(at), |_| false).unwrap();
                proposed += load;
                match client {
                    0 => small_had += load,
                    _ => due[usize::from(client) - 1] = Some(at + 1_100),
                }
            }
        }
        let fair = 10_000 * 32 / 41;
        assert!(small_had > fair / 2, "{small_had} of {fair}");
    }

    #[test]
    fn a_client_counts_for_a_second_and_while_its_writes_wait() {
        let mut turns = Turns::default();
        turns.wait(from(1), 1, (), Moment(0));
        assert!(!turns.are_shared());
        turns.wait(from(2), 1, (), SECOND);
        for at in [Moment(0), SECOND] {
            turns.next(at, |()| false);
        }
        turns.forget(Moment(999_999_999), |()| false);
        assert!(turns.are_shared());
        turns.forget(SECOND, |()| false);
        assert!(turns.are_shared(), "it has had what others have not");
        assert_eq!(next(&mut turns), None);
        turns.forget(SECOND, |()| false);
        assert!(!turns.are_shared(), "the first one is silent");
        turns.wait(from(1), 1, (), SECOND);
        let late = Moment(SECOND.0 * 9);
        turns.forget(late, |()| false);
        // A disk hung; whoever's write is proposed at last writes.
        assert!(turns.next(late, |()| false).is_some());
        assert!(turns.next(late, |()| false).is_none());
        turns.forget(late, |()| false);
        assert_eq!(turns.clients.len(), 1);
        turns.forget(Moment(SECOND.0 * 10), |()| false);
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
            turns.wait(from(client), 1, write, SECOND);
        }
        turns.forget(SECOND, |write| *write == "gone");
        assert_eq!((turns.round.len(), turns.clients.len()), (1, 3));
        turns.wait(from(2), 1, "again", SECOND);
        assert_eq!(all(&mut turns), ["awaited", "again"]);
    }

    /// Of a client whose writes are late because it waits, ever more were gone when their turn came, and it waited longer
    /// because of them.
    #[test]
    fn what_nobody_waits_for_is_on_no_clients_account() {
        let mut turns = Turns::default();
        for (client, write) in [
            (1, "gone"),
            (1, "gone"),
            (1, "a"),
            (1, "b"),
            (2, "x"),
            (3, "gone"),
            (2, "y"),
        ] {
            turns.wait(from(client), 1, write, SECOND);
        }
        let awaited = || turns.next(SECOND, |it| *it == "gone").map(|it| it.1);
        let order: Vec<_> = std::iter::from_fn(awaited).collect();
        assert_eq!(order, ["a", "x", "b", "y"]);
    }

    /// A member of whose entries one at a time may be under way while clients share.
    struct Alone(LoneLeader);

    impl Alone {
        fn new() -> Self {
            Self::sharing(1)
        }

        /// Of whose entries without bytes so many may.
        fn sharing(entries: usize) -> Self {
            let mut leader = LoneLeader::sharing(entries);
            leader.elect();
            leader.settle();
            Self(leader)
        }

        /// A client queues so many writes; each is known by its number.
        fn write(&mut self, client: u8, numbers: impl IntoIterator<Item = u64>) {
            for number in numbers {
                let revision = Revision(number);
                let command = Command::Compact { revision };
                let data = Request::from(command).encode(CommandVersion::CURRENT);
                self.write_data(client, data);
            }
        }

        fn write_data(&mut self, client: u8, data: Bytes) {
            let write = Asked::Write {
                data,
                caller: Somebody,
                from: Some(from(client)),
            };
            self.0.replica.handle(Input::Request(write), self.0.now);
        }

        /// How many bytes the entries have that are proposed together next.
        fn next_bytes(&mut self) -> Vec<usize> {
            let effects = self.0.replica.effects(self.0.now);
            let entries = effects.iter().flat_map(|effect| match effect {
                Effect::Log(LogJob::Append { entries, .. }) => entries.as_slice(),
                _ => &[],
            });
            entries.map(|it| it.data.len()).collect()
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

    /// Who wrote once in two seconds waited for a hundred MiB of it each time.
    #[test]
    fn a_client_alone_has_no_more_under_way_than_keeps_a_member_busy() {
        let mut leader = Alone::new();
        for _ in 0..64 {
            leader.write_data(1, Bytes::from(vec![0; 1 << 20]));
        }
        assert_eq!(leader.next_bytes().len(), 16);
        leader.write_data(2, Bytes::from_static(b"small"));
        assert!(leader.next_bytes().is_empty());
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
        assert_eq!(proposed, [2, 101, 102]);
        // Nobody has come back for a second.
        for _ in 0..11 {
            leader.0.tick();
        }
        let proposed: Vec<_> = (0..20).flat_map(|_| leader.next()).collect();
        assert!(proposed.len() > 4_000, "{}", proposed.len());
    }

    /// Sixty-four of them were a MiB, and took fifteen milliseconds.
    #[test]
    fn of_large_entries_fewer_are_under_way() {
        let mut leader = Alone::sharing(64);
        leader.write(2, [1]);
        leader.next();
        leader.0.settle();
        let large = 16 << 10;
        for _ in 0..64 {
            leader.write_data(1, Bytes::from(vec![0; large]));
        }
        leader.write_data(2, Bytes::from_static(b"small"));
        // Until there are 64 KiB, with a KiB for each entry; what is not on the disk keeps the rest waiting.
        assert_eq!(leader.next_bytes(), [large, 5, large, large, large]);
        assert!(leader.next_bytes().is_empty());
    }

    #[test]
    fn who_does_not_lead_keeps_nobody_waiting() {
        let mut member = Alone(LoneLeader::learner());
        for client in [1, 2] {
            member.write(client, 100..1_100);
        }
        member.next();
        assert!(next(&mut member.0.replica.turns).is_none());
    }
}
