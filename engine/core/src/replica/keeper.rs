//! What a leader does of its own accord: gives up old history, and ends what has outlived its time.

use crate::kv::{
    Command, CommandVersion, ExpiredKey, Expiry, ReadError, Reader, Request, Retention,
    RetentionSetting, Store,
};
use crate::types::{Moment, Term};
use bytes::Bytes;
use std::time::Duration;

/// Keys that one command expires at most: whatever is behind it waits while it is applied.
const EXPIRED_KEYS_MAX: usize = 256;
/// Commands that expire keys in one turn, at most; what is left follows as soon as they are applied. With them a turn
/// expires 2,048 keys.
const EXPIRIES_PER_TURN: usize = 8;
/// How late an expiry may be noticed.
const PAUSE: Duration = Duration::from_millis(100);
/// The same while keys wait for those before them: soon enough for many times the rate at which they can be put.
const PAUSE_WHILE_BEHIND: Duration = Duration::from_millis(10);
/// So long a turn waits for what the one before proposed. Then it got lost, with a leader's log or a queue.
const PATIENCE: Duration = Duration::from_secs(1);

/// Proposes compactions and expiries. Every member has one, so that a new leader knows how old its
/// history is; only the leader's proposes.
pub struct Keeper<S> {
    reader: Reader<S>,
    retention: Retention,
    /// Of the term in which this member leads: each leader starts all clocks anew, so nothing ends early.
    expiry: Option<(Term, Expiry)>,
    /// The last key whose expiry was proposed, and when: they are applied in this order.
    proposed: Option<(ExpiredKey, Moment)>,
    /// For how long keys have waited that are due and not proposed.
    behind: Option<Duration>,
}

impl<S: Store> Keeper<S> {
    /// Looks after the store that `reader` reads.
    #[must_use]
    pub fn new(reader: Reader<S>, retention: RetentionSetting) -> Self {
        Self {
            reader,
            retention: Retention::new(retention),
            expiry: None,
            proposed: None,
            behind: None,
        }
    }

    /// When to call [`Self::work`] again.
    #[must_use]
    pub fn pause(&self) -> Duration {
        match self.behind {
            Some(_) => PAUSE_WHILE_BEHIND,
            None => PAUSE,
        }
    }

    /// For how long the key that was due first has been waiting after the last call, if it had to: expiry does not keep up
    /// then, and readers still see what should be gone.
    #[must_use]
    pub fn behind(&self) -> Option<Duration> {
        self.behind
    }

    /// The encoded commands to propose now ([`super::Input::Propose`]); none unless this member leads, in
    /// the term of `leads`; in `version`. Call it again after [`Self::pause`]. `clock` is asked again and again, for it takes a while to
    /// read a large state.
    ///
    /// # Errors
    /// The store failed.
    pub fn work(
        &mut self,
        leads: Option<Term>,
        version: CommandVersion,
        mut clock: impl FnMut() -> Moment,
    ) -> Result<Vec<Bytes>, ReadError> {
        // In this order: what comes later than a moment must not count as seen at it.
        let written_bytes = self.reader.written_bytes();
        let revision = self.reader.revision();
        let now = clock();
        self.retention.observe(now, revision, written_bytes);
        let Some(term) = leads else {
            self.expiry = None;
            self.proposed = None;
            self.behind = None;
            return Ok(Vec::new());
        };
        let expiry = match &mut self.expiry {
            Some((known, expiry)) if *known == term => expiry,
            other => &mut other.insert((term, Expiry::default())).1,
        };
        expiry.observe(&self.reader, &mut clock)?;
        let mut commands = expiry.due_sessions(&self.reader, &mut clock, EXPIRED_KEYS_MAX)?;
        let waits = match &self.proposed {
            Some((last, at)) => {
                now.since(*at) < PATIENCE && self.reader.may_expire(&last.key, last.mod_revision)?
            }
            None => false,
        };
        let turns = if waits { 0 } else { EXPIRIES_PER_TURN };
        for _ in 0..turns {
            let keys = expiry.due_keys(&self.reader, &mut clock, EXPIRED_KEYS_MAX)?;
            let Some(last) = keys.last() else {
                break;
            };
            self.proposed = Some((last.clone(), now));
            commands.push(Command::ExpireKeys { keys });
        }
        self.behind = expiry.overdue(now);
        let compacted = self.reader.compact_revision();
        let compact_to = self
            .retention
            .proposal(now, revision, compacted, written_bytes);
        commands.extend(compact_to.map(|revision| Command::Compact { revision }));
        let encode = |command| {
            Request {
                session: None,
                command,
            }
            .encode(version)
        };
        Ok(commands.into_iter().map(encode).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::StateMachine;
    use crate::kv::store::MemoryStore;
    use crate::types::{Entry, EntryKind};

    type Machine = StateMachine<MemoryStore>;

    /// The puts that README.md measures, in a second: a cluster can make so many keys due.
    const PUTS_PER_SECOND: u64 = 48_461;
    /// From a proposal until it is applied.
    const COMMIT: Duration = Duration::from_millis(10);

    fn apply(machine: &mut Machine, commands: impl IntoIterator<Item = Bytes>) {
        let first = machine.applied().0.next();
        let entries = commands
            .into_iter()
            .zip(first.0..)
            .map(|(data, index)| Entry {
                index: crate::types::Index(index),
                term: Term(1),
                kind: EntryKind::Command,
                context: Bytes::new(),
                data,
            });
        machine.apply(&entries.collect::<Vec<_>>()).expect("apply");
    }

    /// With so many keys of such a length, all of which live for a millisecond.
    fn filled(keys: usize, key_bytes: usize) -> (Machine, Keeper<MemoryStore>) {
        let mut machine = StateMachine::open(MemoryStore::default()).expect("open");
        let put = |number: usize| {
            Request::from(Command::Put {
                key: format!("{number:0key_bytes$}").into(),
                value: Bytes::new(),
                prev_kv: false,
                ttl_ms: 1,
            })
            .encode(CommandVersion::CURRENT)
        };
        apply(&mut machine, (0..keys).map(put));
        let keeper = Keeper::new(machine.reader(), RetentionSetting::default());
        (machine, keeper)
    }

    fn work(keeper: &mut Keeper<MemoryStore>, now: Moment) -> Vec<Bytes> {
        let commands = keeper.work(Some(Term(1)), CommandVersion::CURRENT, || now);
        commands.expect("work")
    }

    /// How many keys of such a length expire in a second of turns.
    fn expired_per_second(keys: usize, key_bytes: usize) -> u64 {
        let (mut machine, mut keeper) = filled(keys, key_bytes);
        let mut now = Moment(0);
        assert!(work(&mut keeper, now).is_empty(), "never early");
        now = now.after(keeper.pause());
        let begun = now;
        let reader = machine.reader();
        let left = || reader.expiring_keys(None, 1).expect("read").len();
        while left() > 0 {
            let commands = work(&mut keeper, now);
            for command in &commands {
                assert!(command.len() <= (256 << 10) + key_bytes + 64 * 1024);
            }
            apply(&mut machine, commands);
            now = now.after(COMMIT + keeper.pause());
        }
        assert_eq!(keeper.behind(), None);
        keys as u64 * 1_000 / now.since(begun).as_millis() as u64
    }

    #[test]
    fn expiry_keeps_up_with_the_writes_whatever_the_length_of_keys() {
        for (keys, key_bytes, per_second) in [
            (60_000, 20, PUTS_PER_SECOND),
            (12_000, 1 << 10, PUTS_PER_SECOND),
            // Keys alone of 32 MiB a second.
            (600, 32 << 10, 1_000),
        ] {
            let reached = expired_per_second(keys, key_bytes);
            assert!(
                reached >= per_second,
                "{reached} keys of {key_bytes} bytes a second"
            );
        }
    }

    #[test]
    fn the_next_turn_waits_for_what_was_proposed_and_says_so() {
        let (mut machine, mut keeper) = filled(20_000, 8);
        assert!(work(&mut keeper, Moment(0)).is_empty());
        assert_eq!((keeper.pause(), keeper.behind()), (PAUSE, None));
        let at = |ms| Moment(0).after(Duration::from_millis(ms));
        let first = work(&mut keeper, at(101));
        assert_eq!(first.len(), EXPIRIES_PER_TURN);
        assert!(keeper.behind().is_some_and(|late| late >= PAUSE));
        assert_eq!(keeper.pause(), PAUSE_WHILE_BEHIND);
        assert!(work(&mut keeper, at(111)).is_empty(), "nothing is applied");
        apply(&mut machine, first);
        assert_eq!(work(&mut keeper, at(121)).len(), EXPIRIES_PER_TURN);
        // That got lost: it is not waited for forever.
        assert!(work(&mut keeper, at(1_100)).is_empty());
        assert!(!work(&mut keeper, at(1_121)).is_empty());
        // Who does not lead waits for nothing.
        let idle = keeper.work(None, CommandVersion::CURRENT, || at(1_130));
        assert!(idle.expect("work").is_empty());
        assert_eq!((keeper.pause(), keeper.behind()), (PAUSE, None));
    }
}
