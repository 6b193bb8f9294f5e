//! How many keys a range has, from a number that is known.
//!
//! To count a range is to visit all its keys, and lists ask for it with each page: a list of
//! 100,000 objects in pages of 500, as Kubernetes makes them, visited ten million keys. So what was
//! counted is remembered with its revision, and two things follow from it:
//!
//! - The state of a revision never changes, so the next page has as many keys as the last one, less
//!   those in between.
//! - Every change is in history, with whether its key existed before. So at a later revision the
//!   range has as many keys as before, and those that were created since, less the deleted ones.
//!
//! Where either would take much longer than to count, the keys are counted.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use dengine_types::Revision;

use super::{RangeQuery, RangeResult, ReadError, Reader};
use crate::KeyRange;
use crate::layout::{Stamp, change, change_range, split_change_key};
use crate::scan::{Scan, Seen};
use crate::store::{Cursor, Scope, Store};

/// How many counts are remembered.
const KNOWN_MAX: usize = 64;
/// Of ranges whose bounds are longer, none is: so all of them take no more than 128 KiB.
const BOUNDS_BYTES_MAX: usize = 2 << 10;
/// A range of fewer keys is counted as soon as a known one is adjusted. Tests are of few keys.
const KEYS_MIN: u64 = if cfg!(test) { 1 } else { 128 };
/// After so many records of one way to a number the other way is tried: about a page and what may
/// lie between two of them.
const RECORDS_FIRST: u64 = 1024;
/// By how much further each way is followed when its turn comes again.
const RECORDS_TIMES: u64 = 4;

/// Numbers of keys that were counted lately.
#[derive(Debug, Default)]
pub(crate) struct KnownCounts {
    /// The one that was used last is the last.
    known: Mutex<VecDeque<Known>>,
}

/// How many keys were in a range at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    keys: KeyRange,
    at: Revision,
    count: u64,
    /// A list has come to here: its next page takes the place of this.
    is_rest: bool,
}

impl Known {
    fn start(&self) -> &Bytes {
        self.keys.start()
    }

    /// Whether the ranges end alike, so that one is the rest of the other.
    fn ends_as(&self, keys: &KeyRange) -> bool {
        match (&self.keys, keys) {
            (KeyRange::Between { end: one, .. }, KeyRange::Between { end: other, .. }) => {
                one == other
            }
            (KeyRange::From(_), KeyRange::From(_)) => true,
            _ => false,
        }
    }

    /// Whether it is of no use once `other` is known that follows from it.
    fn gives_way_to(&self, other: &Self) -> bool {
        match self.is_rest {
            true => self.at == other.at && other.is_rest,
            // Whoever reads on at the older revision has the rest of it.
            false => self.start() == other.start() && !other.is_rest,
        }
    }
}

impl KnownCounts {
    /// That from which the number at `at` follows soonest, as far as one can tell: if possible of
    /// the same range, or else of one that begins before it, at the last revision.
    fn nearest(&self, keys: &KeyRange, at: Revision) -> Option<Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let start = keys.start();
        // Each revision has a change at least.
        let is_near = |it: &Known| it.at <= at && at.0 - it.at.0 <= it.count;
        let usable = (known.iter().enumerate()).filter(|(_, it)| is_near(it) && it.ends_as(keys));
        let (place, _) = usable.min_by(|(_, one), (_, other)| {
            let far = |it: &Known| (it.start() > start, it.start() != start, at.0 - it.at.0);
            let by_start = one.start().cmp(other.start());
            far(one).cmp(&far(other)).then(match one.start() > start {
                true => by_start,
                false => by_start.reverse(),
            })
        })?;
        let found = known.remove(place)?;
        known.push_back(found.clone());
        Some(found)
    }

    /// Remembers a number, and no longer that of these keys at that revision, from which it
    /// follows, if that gives way to it.
    fn remember(&self, found: Known, from: Option<(&KeyRange, Revision)>) {
        if found.count < KEYS_MIN || found.keys.bytes() > BOUNDS_BYTES_MAX {
            return;
        }
        let is = |it: &Known, (keys, at): (&KeyRange, Revision)| it.at == at && it.keys == *keys;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|it| !(from.is_some_and(|from| is(it, from)) && it.gives_way_to(&found)));
        if known.iter().any(|it| is(it, (&found.keys, found.at))) {
            return;
        }
        if known.len() >= KNOWN_MAX {
            known.pop_front();
        }
        known.push_back(found);
    }
}

impl<S: Store> Reader<S> {
    /// Notes how many keys are left of a range that was read in part, at the revision at which it
    /// was counted: what the next page of a list asks for.
    pub fn note_rest(&self, keys: &KeyRange, rest: &KeyRange, at: Revision, count: u64) {
        let rest = Known {
            keys: rest.clone(),
            at,
            count,
            is_rest: true,
        };
        self.shared.counts.remember(rest, Some((keys, at)));
    }

    /// How many keys a range has; a `query` for no pairs.
    pub(super) fn count(&self, query: &RangeQuery) -> Result<RangeResult, ReadError> {
        loop {
            let ((), revision, at) = self.begin(query.revision, || ())?;
            match self.count_at(query, at) {
                Ok(count) => {
                    return Ok(RangeResult {
                        revision,
                        kvs: Vec::new(),
                        more: false,
                        count: Some(count),
                    });
                }
                // What was the newest revision was compacted meanwhile.
                Err(ReadError::Compacted { .. }) if query.revision.is_none() => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn count_at(&self, query: &RangeQuery, at: Revision) -> Result<u64, ReadError> {
        let keys = &query.keys;
        let counts = &self.shared.counts;
        let known = counts.nearest(keys, at);
        let followed = known.as_ref().map(|known| self.sooner(known, keys, at));
        let (count, from) = match followed.transpose()?.flatten() {
            Some(count) => (count, known),
            None => (
                self.count_some(keys, at, u64::MAX)?.unwrap_or_default(),
                None,
            ),
        };
        let is_rest = from.as_ref().is_some_and(|from| {
            let goes_on = from.is_rest && from.at == at;
            goes_on || from.start() != keys.start()
        });
        let found = Known {
            keys: keys.clone(),
            at,
            count,
            is_rest,
        };
        counts.remember(found, from.as_ref().map(|from| (&from.keys, from.at)));
        Ok(count)
    }

    /// The number of keys by what is known or by counting them, whichever is over first: both in
    /// turns, each further than before, so that it takes a few times as long as the shorter way
    /// alone at most. `None`: all are to be counted.
    fn sooner(
        &self,
        known: &Known,
        keys: &KeyRange,
        at: Revision,
    ) -> Result<Option<u64>, ReadError> {
        let mut most = RECORDS_FIRST;
        loop {
            if at.0 - known.at.0 <= most
                && let Some(count) = self.follow(known, keys, at, most)?
            {
                return Ok(Some(count));
            }
            if let Some(count) = self.count_some(keys, at, most)? {
                return Ok(Some(count));
            }
            if most >= known.count {
                return Ok(None);
            }
            most *= RECORDS_TIMES;
        }
    }

    /// The number of keys of a range that follows from a known one; `None` if that takes more than
    /// `most` records, or some of the changes are compacted.
    fn follow(
        &self,
        known: &Known,
        keys: &KeyRange,
        at: Revision,
        most: u64,
    ) -> Result<Option<u64>, ReadError> {
        let Some(count) = self.with_changes(known, at, most)? else {
            return Ok(None);
        };
        let [first, second] = match known.start() <= keys.start() {
            true => [known.start(), keys.start()],
            false => [keys.start(), known.start()],
        };
        let between = KeyRange::Between {
            start: first.clone(),
            end: second.clone(),
        };
        let between = self.count_some(&between, at, most)?;
        Ok(match known.start() <= keys.start() {
            true => between.and_then(|between| count.checked_sub(between)),
            false => between.map(|between| count + between),
        })
    }

    /// How many keys the known range has at a revision that is not before its own.
    fn with_changes(
        &self,
        known: &Known,
        at: Revision,
        most: u64,
    ) -> Result<Option<u64>, ReadError> {
        if at == known.at {
            return Ok(Some(known.count));
        }
        let from = Stamp::start_of(Revision(known.at.0 + 1));
        let range = change_range(from, at);
        let mut changes = self.shared.store.cursor(Scope::Between(range.clone()));
        if self.check_compacted(known.at).is_err() {
            return Ok(None);
        }
        let mut count = known.count;
        let mut looked_at = 0;
        self.shared.reported(changes.seek(&range.start))?;
        while let Some((key, record)) = changes.record() {
            if looked_at >= most {
                return Ok(None);
            }
            if !self.goes_on(looked_at) {
                return Err(ReadError::Stopped { records: looked_at });
            }
            looked_at += 1;
            self.shared.reported(split_change_key(key))?;
            let change = self.shared.reported(change(record))?;
            if known.keys.contains(change.key) {
                match (change.deletes, change.replaces) {
                    (true, _) => count = count.saturating_sub(1),
                    (false, None) => count += 1,
                    (false, Some(_)) => {}
                }
            }
            self.shared.reported(changes.next())?;
        }
        Ok(Some(count))
    }

    /// Counts keys, if that takes no more than `most` records.
    fn count_some(
        &self,
        keys: &KeyRange,
        at: Revision,
        most: u64,
    ) -> Result<Option<u64>, ReadError> {
        if matches!(keys, KeyRange::Between { start, end } if start >= end) {
            return Ok(Some(0));
        }
        let scan = Scan::of_one_pass(&self.shared.store, keys);
        self.check_compacted(at)?;
        let (mut count, mut records, mut stopped) = (0, 0, false);
        let run = scan.run(at, |seen| {
            stopped = !self.goes_on(records);
            records += 1;
            count += u64::from(matches!(seen, Seen::Live(_)));
            Ok(match stopped || records > most {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            })
        });
        self.shared.reported(run)?;
        match stopped {
            true => Err(ReadError::Stopped { records }),
            false => Ok((records <= most).then_some(count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::store::MemoryStore;
    use crate::tests::command_entry;
    use crate::tests::counting::Counting;
    use crate::{Command, StateMachine};

    /// What happens to a store of a few keys, and what is asked.
    #[derive(Clone, Debug)]
    enum Step {
        Put(u8),
        Delete(u8, u8),
        Compact(u64),
        /// A count of a range, so many revisions ago.
        Count(u8, u8, u64),
        /// A list in pages of so many, of which this reader serves those that are set.
        List(u8, u8, usize, [bool; 4]),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let key = || 0..40_u8;
        let step = prop_oneof![
            6 => key().prop_map(Step::Put),
            2 => (key(), key()).prop_map(|(start, end)| Step::Delete(start, end)),
            1 => (0..8_u64).prop_map(Step::Compact),
            4 => (key(), key(), 0..6_u64)
                .prop_map(|(start, end, ago)| Step::Count(start, end, ago)),
            2 => (key(), key(), 1..8_usize, any::<[bool; 4]>())
                .prop_map(|(start, end, page, served)| Step::List(start, end, page, served)),
        ];
        proptest::collection::vec(step, 1..80)
    }

    fn key(at: u8) -> Bytes {
        format!("k{at:02}").into()
    }

    /// To the end of all for an end that is before the start.
    fn range(start: u8, end: u8) -> KeyRange {
        match start < end {
            true => KeyRange::Between {
                start: key(start),
                end: key(end),
            },
            false => KeyRange::From(key(start)),
        }
    }

    fn count_of(keys: &KeyRange, revision: Option<Revision>) -> RangeQuery {
        RangeQuery {
            count_only: true,
            revision,
            ..RangeQuery::new(keys.clone())
        }
    }

    fn check(reader: &Reader<MemoryStore>, query: &RangeQuery) {
        assert_eq!(reader.range(query), reader.visit(query), "{query:?}");
    }

    /// Pages as a member sees them that serves only some.
    fn list(reader: &Reader<MemoryStore>, keys: &KeyRange, page: usize, served: [bool; 4]) {
        let at = reader.revision();
        let mut rest = keys.clone();
        for number in 0.. {
            let query = RangeQuery {
                limit: page,
                revision: Some(at),
                ..RangeQuery::new(rest.clone())
            };
            let found = reader.visit(&query).expect("it is not compacted");
            let counted = count_of(&rest, Some(at));
            let Some(last) = found.kvs.last().filter(|_| found.more) else {
                return check(reader, &counted);
            };
            let after = rest.after(&last.key);
            if served[number % served.len()] {
                check(reader, &counted);
                let count = reader.range(&counted).unwrap().count.unwrap();
                reader.note_rest(&rest, &after, at, count - page as u64);
            }
            rest = after;
        }
    }

    /// A state machine, and the index of its next entry.
    struct Applied<S> {
        machine: StateMachine<S>,
        index: u64,
    }

    impl<S: Store> Applied<S> {
        fn of(store: S, keys: u64) -> Self {
            let machine = StateMachine::open(store).unwrap();
            let mut applied = Self { machine, index: 0 };
            for at in 0..keys {
                applied.apply(Command::put(format!("k{at:02}"), "first"));
            }
            applied
        }

        fn apply(&mut self, command: Command) {
            self.index += 1;
            let entry = command_entry(self.index, command);
            self.machine.apply(&[entry]).unwrap();
        }

        fn delete(&mut self, at: u8) {
            self.apply(Command::Delete {
                keys: KeyRange::One(key(at)),
                prev_kv: false,
            });
        }

        fn compact(&mut self, revision: Revision) {
            self.apply(Command::Compact { revision });
            self.machine.collector().step(usize::MAX).unwrap();
        }
    }

    /// It is told a number that no visit would find, and goes on from there.
    #[test]
    fn of_a_known_number_only_what_has_changed_is_visited() {
        let mut applied = Applied::of(MemoryStore::default(), 40);
        let reader = applied.machine.reader();
        let counted = |start| {
            let query = count_of(&range(start, 0), None);
            reader.range(&query).unwrap().count
        };
        reader.note_rest(&range(0, 0), &range(10, 0), reader.revision(), 5_000);
        assert_eq!(counted(10), Some(5_000));
        assert_eq!(counted(13), Some(4_997), "the rest of it");
        assert_eq!(counted(8), Some(5_002), "a larger one");
        applied.apply(Command::put(key(20), "again"));
        applied.apply(Command::put(key(50), "first"));
        applied.apply(Command::put(key(51), "first"));
        applied.delete(5);
        assert_eq!(counted(13), Some(4_999));
        applied.delete(50);
        assert_eq!(counted(13), Some(4_998));
        // Once some of what has changed is compacted, all is visited.
        applied.apply(Command::put(key(52), "first"));
        applied.compact(applied.machine.revision());
        assert_eq!(counted(13), Some(27 + 2));
    }

    /// As the pages of etcd's clients are read: what the first list cost to count, the second does
    /// not, and other ranges stay known, however many pages there are.
    #[test]
    fn a_list_leaves_what_all_of_it_has_for_the_next_one() {
        const KEYS: u64 = 20_000;
        const PAGE: usize = 50;
        let store = Counting::default();
        let applied = Applied::of(store.clone(), KEYS);
        let reader = applied.machine.reader();
        let (all, other) = (range(0, 90), range(0, 0));
        let list = || {
            let (mut rest, mut first) = (all.clone(), None);
            let at = Some(reader.revision());
            let (of_all, ()) = store.moves_of(|| {
                loop {
                    let query = RangeQuery {
                        limit: PAGE,
                        revision: at,
                        ..RangeQuery::new(rest.clone())
                    };
                    let counts = || reader.range(&count_of(&rest, at)).unwrap().count;
                    let (cost, count) = store.moves_of(counts);
                    first.get_or_insert(cost);
                    let page = reader.range(&query).unwrap();
                    let Some(last) = page.kvs.last().filter(|_| page.more) else {
                        break;
                    };
                    let after = rest.after(&last.key);
                    let count = count.unwrap() - PAGE as u64;
                    reader.note_rest(&rest, &after, reader.revision(), count);
                    rest = after;
                }
            });
            (first.unwrap(), of_all)
        };
        reader.range(&count_of(&other, None)).unwrap();
        let (first, of_all) = list();
        assert!(first > KEYS / 2 && of_all < 3 * KEYS, "{first}, {of_all}");
        let (first, of_all) = list();
        assert!(first <= 1 && of_all < 2 * KEYS, "{first}, {of_all}");
        let (again, _) = store.moves_of(|| reader.range(&count_of(&other, None)).unwrap());
        assert!(again <= 1, "{again}");
    }

    /// What is known of many keys does not make a few of them dear.
    #[test]
    fn no_count_takes_much_longer_than_a_visit_or_what_has_changed() {
        const KEYS: u64 = 20_000;
        let store = Counting::default();
        let mut applied = Applied::of(store.clone(), KEYS);
        let reader = applied.machine.reader();
        let counted = |keys: &KeyRange| reader.range(&count_of(keys, None)).unwrap();
        let cost = |keys: &KeyRange| store.moves_of(|| counted(keys)).0;
        assert!(cost(&KeyRange::From("a".into())) >= KEYS);
        let tail = KeyRange::From("z".into());
        let inverted = KeyRange::Between {
            start: "z".into(),
            end: "a".into(),
        };
        let check = |changes: u64| {
            for keys in [&tail, &inverted] {
                let cost = cost(keys);
                assert!(
                    cost <= 2 * RECORDS_FIRST + 10,
                    "{cost} after {changes} changes"
                );
            }
        };
        check(0);
        for _ in 0..KEYS / 2 {
            applied.apply(Command::put("0", "other"));
        }
        check(KEYS / 2);
        // Of all of it what has changed is less.
        let all = cost(&KeyRange::From("a".into()));
        assert!(all < KEYS * 3 / 2, "{all}");
        assert!(cost(&KeyRange::From("a".into())) <= 1);
    }

    /// A version that a count would need is collected before it looks.
    #[test]
    fn what_is_compacted_meanwhile_is_not_counted_wrongly() {
        let store = Counting::default();
        let applied = Applied::of(store.clone(), 40);
        let reader = applied.machine.reader();
        let then = reader.revision();
        let applied = Arc::new(Mutex::new(applied));
        let old = |start| reader.range(&count_of(&range(start, 0), Some(then)));
        assert_eq!(old(0).unwrap().count, Some(40));
        let (compacts, current) = (Arc::clone(&applied), reader.clone());
        let meanwhile = move || {
            let mut applied = compacts.lock().unwrap();
            applied.delete(3);
            applied.apply(Command::put(key(3), "again"));
            applied.compact(current.revision());
        };
        store.meanwhile(meanwhile);
        let found = old(10);
        assert!(
            matches!(found, Err(ReadError::Compacted { .. })),
            "{found:?}"
        );
        // Of what was the newest it counts again.
        applied.lock().unwrap().delete(4);
        let compacts = Arc::clone(&applied);
        let meanwhile = move || {
            let mut applied = compacts.lock().unwrap();
            applied.delete(5);
            let revision = applied.machine.revision();
            applied.compact(revision);
        };
        store.meanwhile(meanwhile);
        let newest = reader.range(&count_of(&range(0, 0), None)).unwrap();
        assert_eq!(
            (newest.revision, newest.count),
            (reader.revision(), Some(38))
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn a_count_that_follows_is_that_of_a_visit(steps in steps()) {
            let mut applied = Applied::of(MemoryStore::default(), 40);
            let reader = applied.machine.reader();
            for step in steps {
                let now = reader.revision().0;
                match step {
                    Step::Put(at) => applied.apply(Command::put(key(at), "again")),
                    Step::Delete(start, end) => applied.apply(Command::Delete {
                        keys: range(start, end),
                        prev_kv: false,
                    }),
                    Step::Compact(ago) => applied.compact(Revision(now.saturating_sub(ago))),
                    Step::Count(start, end, 0) => {
                        check(&reader, &count_of(&range(start, end), None));
                    }
                    Step::Count(start, end, ago) => {
                        let at = Some(Revision(now.saturating_sub(ago)));
                        check(&reader, &count_of(&range(start, end), at));
                    }
                    Step::List(start, end, page, served) => {
                        list(&reader, &range(start, end), page, served);
                    }
                }
            }
        }
    }
}
