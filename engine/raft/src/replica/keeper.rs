//! What a leader does of its own accord: gives up old history, and ends what has outlived its time.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::time::Duration;

use dengine_kv::{
    Command, CommandVersion, DueSession, EXPIRY_RETRY, ExpiredKey, Expiry, ReadError, Reader,
    Request, Retention, RetentionSetting, Store,
};
use dengine_types::{Moment, Revision, Term};

use crate::input::{EncodedCommand, OwnCommands};

/// Keys that one command expires at most: whatever is behind it waits while it is applied.
const EXPIRED_KEYS_MAX: usize = 96;
/// Records that end with sessions in one turn, at most, or one session: each ends by a command of
/// its own, which takes no turns.
const SESSION_RECORDS_PER_TURN: usize = 256;
/// How long such a turn is at least.
const SESSIONS_EVERY: Duration = Duration::from_millis(10);
/// Commands that expire keys in one turn, at most: a burst of them holds up everything else
/// together.
const EXPIRIES_PER_TURN: usize = 2;
/// Such commands under way at least and at most: one more for every [`LATER_BY`] that keys have
/// been due, so that it keeps up even where a commit takes long, but no more than were applied
/// in [`APPLIED_WITHIN`]: others would wait for their turn until they are given up
/// ([`EXPIRY_RETRY`]). What is left follows as they are applied.
const EXPIRIES_UNDER_WAY: RangeInclusive<usize> = 4..=128;
const LATER_BY: Duration = Duration::from_millis(100);
const APPLIED_WITHIN: Duration = Duration::from_secs(2);
/// How late an expiry may be noticed.
const PAUSE: Duration = Duration::from_millis(100);
/// The same while keys wait for those before them: soon enough for many times the rate at which
/// they can be put.
const PAUSE_WHILE_BEHIND: Duration = Duration::from_millis(2);

/// Proposes compactions and expiries. Every member has one, so that a new leader knows how old its
/// history is; only the leader's proposes.
pub struct Keeper<S> {
    reader: Reader<S>,
    retention: Retention,
    /// Of the term in which this member leads: each leader starts all clocks again, so nothing ends
    /// early.
    expiry: Option<(Term, Expiry)>,
    /// The commands that expire keys and are under way: they are applied in this order.
    under_way: VecDeque<UnderWay>,
    /// The first of those that got lost and were not made up for.
    lost: Option<UnderWay>,
    applied: Applied,
    /// When sessions were looked at, and the last of those that end.
    sessions_at: Option<Moment>,
    /// The compaction that was proposed last, and when.
    compacting: Option<(Revision, Moment)>,
    ending: Option<(Command, Moment)>,
    /// For how long keys have waited that are due and not proposed.
    waiting: Option<Duration>,
    /// For how long keys have waited that are due.
    behind: Option<Duration>,
}

/// A command that expires keys.
#[derive(Clone, Debug)]
struct UnderWay {
    last: ExpiredKey,
    proposed: Moment,
    /// For how long the first of them had been due then.
    late: Duration,
}

impl UnderWay {
    fn late(&self, now: Moment) -> Duration {
        self.late.saturating_add(now.since(self.proposed))
    }
}

impl<S: Store> Keeper<S> {
    /// Looks after the store that `reader` reads.
    #[must_use]
    pub fn new(reader: Reader<S>, retention: RetentionSetting) -> Self {
        Self {
            reader,
            retention: Retention::new(retention),
            expiry: None,
            under_way: VecDeque::new(),
            lost: None,
            applied: Applied::default(),
            sessions_at: None,
            compacting: None,
            ending: None,
            waiting: None,
            behind: None,
        }
    }

    /// When to call [`Self::work`] again.
    #[must_use]
    pub fn pause(&self) -> Duration {
        match self.waiting {
            Some(_) => PAUSE_WHILE_BEHIND,
            None if self.ending.is_some() => SESSIONS_EVERY,
            None => PAUSE,
        }
    }

    /// For how long the key that was due first has been waiting after the last call, if it had to:
    /// expiry does not keep up then, and readers still see what should be gone.
    #[must_use]
    pub fn behind(&self) -> Option<Duration> {
        self.behind
    }

    /// The commands to propose now ([`Input::Propose`](crate::Input::Propose)); none unless this
    /// member leads, in the term of `leads`; in `version`. Call it again after [`Self::pause`].
    /// `clock` is asked again and again, for it takes a while to read a large state.
    ///
    /// # Errors
    /// The store failed.
    pub fn work(
        &mut self,
        leads: Option<Term>,
        version: CommandVersion,
        mut clock: impl FnMut() -> Moment,
    ) -> Result<OwnCommands, ReadError> {
        // In this order: what comes later than a moment must not count as seen at it.
        let written_bytes = self.reader.written_bytes();
        let revision = self.reader.revision();
        let now = clock();
        self.retention.observe(now, revision, written_bytes);
        if self.expiry.as_ref().map(|(known, _)| *known) != leads {
            self.forget();
        }
        let Some(term) = leads else {
            return Ok(OwnCommands::default());
        };
        let (_, mut expiry) = self.expiry.take().unwrap_or((term, Expiry::default()));
        expiry.observe(&self.reader, &mut clock)?;
        let own = |command| EncodedCommand::new(Request::from(command), version);
        let sessions = self.end_sessions(&mut expiry, now, &mut clock)?;
        let sessions = sessions.into_iter().map(|due| EncodedCommand {
            records: due.records,
            ..own(due.command)
        });
        let mut commands = OwnCommands {
            at_once: sessions.collect(),
            in_turn: Vec::new(),
        };
        let keys = self.expire_keys(&mut expiry, now, &mut clock)?;
        let keys = keys.into_iter().map(|keys| Command::ExpireKeys { keys });
        commands.in_turn.extend(keys.map(own));
        self.expiry = Some((term, expiry));
        let compact_to = self.compact(now, revision, written_bytes);
        let compact = compact_to.map(|revision| own(Command::Compact { revision }));
        commands.at_once.extend(compact);
        Ok(commands)
    }

    /// Up to where to compact now. None while a compaction is under way: one that is not applied
    /// would be proposed without end.
    fn compact(&mut self, now: Moment, revision: Revision, written_bytes: u64) -> Option<Revision> {
        let compacted = self.reader.compact_revision();
        let is_under_way = |(to, proposed): (Revision, Moment)| {
            compacted < to && now.since(proposed) < EXPIRY_RETRY
        };
        if self.compacting.is_some_and(is_under_way) {
            return None;
        }
        let to = self
            .retention
            .proposal(now, revision, compacted, written_bytes);
        self.compacting = to.map(|to| (to, now));
        to
    }

    /// What is under way of another term may have got lost, and a new
    /// leader counts all times again.
    fn forget(&mut self) {
        self.expiry = None;
        self.under_way.clear();
        self.lost = None;
        self.compacting = None;
        self.ending = None;
        self.waiting = None;
        self.behind = None;
    }

    /// The sessions to end now: none before the last ones have ended, or clients' writes would wait
    /// for all that are due.
    fn end_sessions(
        &mut self,
        expiry: &mut Expiry,
        now: Moment,
        clock: &mut impl FnMut() -> Moment,
    ) -> Result<Vec<DueSession>, ReadError> {
        let are_known = self
            .sessions_at
            .is_some_and(|at| now.since(at) < SESSIONS_EVERY);
        if are_known || self.is_ending(now)? {
            return Ok(Vec::new());
        }
        self.sessions_at = Some(now);
        let due = expiry.due_sessions(&self.reader, clock, SESSION_RECORDS_PER_TURN)?;
        self.ending = due.last().map(|last| (last.command.clone(), now));
        Ok(due)
    }

    fn is_ending(&self, now: Moment) -> Result<bool, ReadError> {
        let Some((Command::ExpireSession { session, last_used }, proposed)) = &self.ending else {
            return Ok(false);
        };
        let is_there = self.reader.session(*session)?;
        // Or it was used since, and does not end.
        let is_the_same = is_there.is_some_and(|it| it.last_used == *last_used);
        Ok(is_the_same && now.since(*proposed) < EXPIRY_RETRY)
    }

    /// The keys to expire now, a list for each command.
    fn expire_keys(
        &mut self,
        expiry: &mut Expiry,
        now: Moment,
        clock: &mut impl FnMut() -> Moment,
    ) -> Result<Vec<Vec<ExpiredKey>>, ReadError> {
        while let Some(first) = self.under_way.front() {
            let waits = self.waits(first)?;
            if waits && now.since(first.proposed) < EXPIRY_RETRY {
                break;
            }
            self.applied.note(now, usize::from(!waits));
            let first = self.under_way.pop_front();
            self.lost = self.lost.take().or(first.filter(|_| waits));
        }
        let most = under_way_max(expiry.overdue(now), self.applied.lately(now));
        let room = most.saturating_sub(self.under_way.len());
        let mut commands = Vec::new();
        for _ in 0..room.min(EXPIRIES_PER_TURN) {
            let late = expiry.overdue(now).unwrap_or_default();
            let keys = expiry.due_keys(&self.reader, clock, EXPIRED_KEYS_MAX)?;
            let Some(last) = keys.last() else {
                break;
            };
            self.under_way.push_back(UnderWay {
                last: last.clone(),
                proposed: now,
                late,
            });
            commands.push(keys);
        }
        self.waiting = expiry.overdue(now);
        self.behind = self.longest_waiting(now)?;
        Ok(commands)
    }

    fn waits(&self, command: &UnderWay) -> Result<bool, ReadError> {
        let ExpiredKey { key, mod_revision } = &command.last;
        self.reader.may_expire(key, *mod_revision)
    }

    /// For how long what is due has waited: what was not proposed, what has been under way for
    /// long, and what got lost, which counts as due later.
    fn longest_waiting(&mut self, now: Moment) -> Result<Option<Duration>, ReadError> {
        if let Some(lost) = &self.lost
            && !self.waits(lost)?
        {
            self.lost = None;
        }
        let slow = self.under_way.front();
        let slow = slow.filter(|it| now.since(it.proposed) >= PAUSE);
        let late = self.lost.iter().chain(slow).map(|it| it.late(now));
        Ok(late.chain(self.waiting).max())
    }
}

/// For how many commands there is room while keys have been due for so long, and so many were
/// applied lately.
fn under_way_max(late: Option<Duration>, applied: usize) -> usize {
    let more = late.unwrap_or_default().as_millis() / LATER_BY.as_millis();
    let more = usize::try_from(more).unwrap_or(usize::MAX);
    let (least, most) = EXPIRIES_UNDER_WAY.into_inner();
    least.saturating_add(more).min(most).min(applied.max(least))
}

/// How many commands that expire keys were applied: in the present time of [`APPLIED_WITHIN`], and
/// in the one before.
#[derive(Debug, Default)]
struct Applied {
    since: Moment,
    present: usize,
    before: usize,
}

impl Applied {
    fn note(&mut self, now: Moment, more: usize) {
        self.go_on(now);
        self.present += more;
    }

    /// In whichever of the two it was more.
    fn lately(&mut self, now: Moment) -> usize {
        self.go_on(now);
        self.present.max(self.before)
    }

    fn go_on(&mut self, now: Moment) {
        let past = now.since(self.since);
        if past >= APPLIED_WITHIN {
            let before = if past < 2 * APPLIED_WITHIN {
                self.present
            } else {
                0
            };
            (self.since, self.present, self.before) = (now, 0, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dengine_kv::store::MemoryStore;
    use dengine_kv::{Put, SessionStamp, StateMachine};
    use dengine_types::{Entry, EntryKind, SessionId};

    use super::*;

    type Machine = StateMachine<MemoryStore>;

    /// The puts that README.md measures, in a second: a cluster can make so many keys due.
    const PUTS_PER_SECOND: u64 = 48_461;

    fn apply(machine: &mut Machine, commands: impl IntoIterator<Item = Bytes>) {
        let first = machine.applied().0.next();
        let entries = commands
            .into_iter()
            .zip(first.0..)
            .map(|(data, index)| Entry {
                index: dengine_types::Index(index),
                term: Term(1),
                kind: EntryKind::Command,
                context: Bytes::new(),
                data,
            });
        machine.apply(&entries.collect::<Vec<_>>()).expect("apply");
    }

    fn data_of(commands: Vec<EncodedCommand>) -> impl Iterator<Item = Bytes> {
        commands.into_iter().map(|it| it.data)
    }

    /// With so many keys of such a length, all of which live for a millisecond.
    fn filled(keys: usize, key_bytes: usize) -> (Machine, Keeper<MemoryStore>) {
        let mut machine = StateMachine::open(MemoryStore::default()).expect("open");
        let put = |number| put(&format!("{number:0key_bytes$}"));
        apply(&mut machine, (0..keys).map(put));
        let keeper = Keeper::new(machine.reader(), RetentionSetting::default());
        (machine, keeper)
    }

    fn put(key: &str) -> Bytes {
        Request::from(Command::Put(Put {
            ttl_ms: 1,
            ..Put::new(key.to_owned(), Bytes::new())
        }))
        .encode(CommandVersion::CURRENT)
    }

    /// A member that waits for space applies none, and its log took hundreds of them a second.
    #[test]
    fn one_compaction_is_under_way_until_it_is_applied_or_lost() {
        let (mut machine, _) = filled(2_000, 8);
        let setting = RetentionSetting {
            revisions: Some(10),
            ..RetentionSetting::default()
        };
        let mut keeper = Keeper::new(machine.reader(), setting);
        let mut compactions = |ms| {
            let now = Moment(0).after(Duration::from_millis(ms));
            let own = keeper.work(Some(Term(1)), CommandVersion::CURRENT, || now);
            own.expect("work").at_once
        };
        let first = compactions(0);
        assert_eq!(first.len(), 1);
        let retry = EXPIRY_RETRY.as_millis() as u64;
        assert!((1..retry).step_by(2).all(|ms| compactions(ms).is_empty()));
        assert_eq!(compactions(retry).len(), 1, "it got lost");
        apply(&mut machine, first.into_iter().map(|it| it.data));
        apply(&mut machine, (0..20).map(|_| put("k")));
        assert_eq!(
            compactions(retry + 2).len(),
            1,
            "and there is more to give up"
        );
    }

    fn work(keeper: &mut Keeper<MemoryStore>, now: Moment) -> Vec<EncodedCommand> {
        let commands = keeper.work(Some(Term(1)), CommandVersion::CURRENT, || now);
        let commands = commands.expect("work");
        commands
            .at_once
            .into_iter()
            .chain(commands.in_turn)
            .collect()
    }

    /// How many keys of such a length expire in a second of turns, if each command takes so many
    /// milliseconds until it is applied.
    fn expired_per_second(keys: usize, key_bytes: usize, to_apply: u64) -> u64 {
        let (mut machine, mut keeper) = filled(keys, key_bytes);
        let mut now = Moment(0);
        assert!(work(&mut keeper, now).is_empty(), "never early");
        now = now.after(keeper.pause());
        let begun = now;
        let reader = machine.reader();
        let left = || reader.expiring_keys(None, 1).expect("read").len();
        let mut under_way = VecDeque::new();
        while left() > 0 {
            while under_way
                .front()
                .is_some_and(|it: &(Moment, _)| it.0 <= now)
            {
                let (_, commands) = under_way.pop_front().expect("it was just seen");
                apply(&mut machine, data_of(commands));
            }
            let commands = work(&mut keeper, now);
            for command in &commands {
                assert!(command.data.len() <= (256 << 10) + key_bytes + 64 * 1024);
            }
            under_way.push_back((now.after(Duration::from_millis(to_apply)), commands));
            // Not `pause`: in the end it waits for nothing but these.
            now = now.after(PAUSE_WHILE_BEHIND);
        }
        assert_eq!(keeper.behind(), None);
        keys as u64 * 1_000 / now.since(begun).as_millis() as u64
    }

    #[test]
    fn expiry_keeps_up_with_the_writes_whatever_the_length_of_keys() {
        for (keys, key_bytes, to_apply, per_second) in [
            (60_000, 20, 10, PUTS_PER_SECOND),
            (12_000, 1 << 10, 10, PUTS_PER_SECOND),
            // Keys alone of 32 MiB a second.
            (600, 32 << 10, 10, 1_000),
            // On a slow disk. 12,000 a second of those that are put in batches were accepted on
            // such a one.
            (60_000, 20, 150, 12_000),
        ] {
            let reached = expired_per_second(keys, key_bytes, to_apply);
            assert!(
                reached >= per_second,
                "{reached} keys of {key_bytes} bytes a second"
            );
        }
    }

    /// Others write as much as the member takes, and expiry's share is small. Of what waited for
    /// its turn for too long nothing was known any more: keys were twenty seconds late, and it said
    /// that they were in time.
    #[test]
    fn whose_share_is_small_offers_no_more_than_it_gets_and_knows_how_late_it_is() {
        // In keys of 96 a command, one every third of a second.
        let (mut machine, mut keeper) = filled(6_000, 8);
        assert!(work(&mut keeper, Moment(0)).is_empty());
        let (mut queue, mut offered, mut dropped) = (VecDeque::new(), 0, 0);
        for milli in (10..18_000).step_by(10) {
            let now = Moment(0).after(Duration::from_millis(milli));
            let commands = work(&mut keeper, now);
            offered += commands.len();
            queue.extend(commands.into_iter().map(|it| (now, it)));
            let old = |it: &(Moment, _)| now.since(it.0) >= EXPIRY_RETRY * 3 / 4;
            while queue.front().is_some_and(old) {
                queue.pop_front();
                dropped += 1;
            }
            if milli % 330 == 0
                && let Some((_, command)) = queue.pop_front()
            {
                apply(&mut machine, data_of(vec![command]));
            }
            let late = keeper.behind().unwrap_or_default();
            assert!(
                late + EXPIRY_RETRY >= now.since(Moment(0)),
                "{late:?} at {milli}"
            );
        }
        assert_eq!(dropped, 0, "of {offered}");
    }

    /// Hundreds of sessions that end together, each with hundreds of answers, counted as so many
    /// small writes.
    #[test]
    fn of_sessions_with_many_answers_few_end_at_once() {
        let mut machine = StateMachine::open(MemoryStore::default()).expect("open");
        let open =
            |_| Request::from(Command::OpenSession { ttl_ms: 1 }).encode(CommandVersion::CURRENT);
        apply(&mut machine, (0..10).map(open));
        for session in 1..=10 {
            let stamped = |sequence| {
                let stamp = SessionStamp {
                    id: SessionId(session),
                    sequence,
                    acknowledged: 0,
                };
                let request = Request {
                    session: Some(stamp),
                    command: Command::Compact {
                        revision: dengine_types::Revision(0),
                    },
                };
                request.encode(CommandVersion::CURRENT)
            };
            apply(&mut machine, (1..=99).map(stamped));
        }
        let mut keeper = Keeper::new(machine.reader(), RetentionSetting::default());
        assert!(work(&mut keeper, Moment(0)).is_empty());
        let at = |ms| Moment(0).after(Duration::from_millis(ms));
        let mut ended = 0;
        for ms in [100, 120, 140, 160, 180] {
            let commands = work(&mut keeper, at(ms));
            assert!(commands.iter().all(|it| it.records == 100));
            assert!(work(&mut keeper, at(ms + 5)).is_empty(), "too soon");
            let more = work(&mut keeper, at(ms + 15));
            assert!(more.is_empty(), "those before have not ended");
            assert_eq!(keeper.pause(), SESSIONS_EVERY);
            ended += commands.len();
            apply(&mut machine, data_of(commands));
        }
        assert_eq!(ended, 10, "two a turn");
        assert!(work(&mut keeper, at(200)).is_empty());
        assert_eq!(keeper.pause(), PAUSE);
    }

    /// Its predecessor may have seen the change long before a clock that stopped.
    #[test]
    fn who_leads_anew_counts_times_to_live_anew() {
        let (_, mut keeper) = filled(1, 8);
        assert!(work(&mut keeper, Moment(0)).is_empty());
        let later = Moment(60_000_000_000);
        let commands = keeper.work(Some(Term(2)), CommandVersion::CURRENT, || later);
        assert_eq!(
            commands.expect("work"),
            OwnCommands::default(),
            "never early"
        );
    }

    #[test]
    fn few_commands_are_under_way_and_more_the_later_it_is() {
        let (mut machine, mut keeper) = filled(20_000, 8);
        assert!(work(&mut keeper, Moment(0)).is_empty());
        assert_eq!((keeper.pause(), keeper.behind()), (PAUSE, None));
        let at = |ms| Moment(0).after(Duration::from_millis(ms));
        let mut turns: Vec<_> = (0..3)
            .map(|turn| work(&mut keeper, at(50 + 2 * turn)))
            .collect();
        assert!(keeper.behind().is_some_and(|late| late >= PAUSE / 3));
        assert_eq!(keeper.pause(), PAUSE_WHILE_BEHIND);
        let commands: Vec<_> = turns.iter().map(Vec::len).collect();
        assert_eq!(commands, [2, 2, 0], "none is applied");
        assert!(turns[0].iter().all(|it| it.records == EXPIRED_KEYS_MAX));
        apply(&mut machine, data_of(turns.remove(0)));
        assert_eq!(work(&mut keeper, at(56)).len(), 2);
        assert!(work(&mut keeper, at(58)).is_empty());
        assert!(
            work(&mut keeper, at(158)).is_empty(),
            "late, and few are applied"
        );
        (0..20).for_each(|_| keeper.applied.note(at(158), 1));
        assert_eq!(work(&mut keeper, at(158)).len(), 1);
        let commands = (0..20).map(|turn| work(&mut keeper, at(4_900 + 2 * turn)).len());
        assert_eq!(commands.sum::<usize>(), 4, "the earlier ones got lost");
        // Who does not lead waits for nothing.
        let idle = keeper.work(None, CommandVersion::CURRENT, || at(1_130));
        assert!(idle.expect("work").is_empty());
        assert_eq!((keeper.pause(), keeper.behind()), (PAUSE, None));
    }
}
