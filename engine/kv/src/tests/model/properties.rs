//! Properties of every history.

use bytes::Bytes;
use dengine_types::{Entry, EntryKind, Index, LeaseId, Revision, SessionId};
use proptest::prelude::*;

use super::generate::{Draft, Step, at_revisions, draft, step};
use super::{Model, VISIT_BOUNDS};
use crate::store::{MemoryStore, WriteBatch};
use crate::tests::{all_collected, entry};
use crate::{
    Batch, ChangesQuery, Command, CommandVersion, Event, KeyRange, LeaseInfo, LogicalHash, Outcome,
    PageLimits, RangeQuery, ReadError, Refusal, Stamp, StateMachine, Store, Want,
};

type Machine = StateMachine<MemoryStore>;
type Records = Vec<(Bytes, Bytes)>;

fn open(store: &MemoryStore) -> Machine {
    let mut machine = StateMachine::open(store.clone()).expect("open");
    machine.bound_visits(VISIT_BOUNDS);
    // What is new is kept from now on.
    let end = Stamp::end_of(machine.revision());
    let nothing = machine
        .reader()
        .changes_followed(end, PageLimits::NONE, |_, _| Want::Nothing);
    assert!(nothing.expect("read").events.is_empty());
    machine
}

/// Checks that a read of a revision is refused unless the model may answer.
fn check_refused<T: std::fmt::Debug>(
    model: &Model,
    at: u64,
    result: &Result<T, ReadError>,
) -> bool {
    let future = at > model.revision;
    let compacted = at < model.compacted;
    match result {
        Err(ReadError::Future { .. }) => assert!(future, "{at} is not in the future"),
        Err(ReadError::Compacted { .. }) => assert!(compacted && !future, "{at} is kept"),
        Err(error) => panic!("{error}"),
        Ok(_) => assert!(!future && !compacted, "{at} was read"),
    }
    future || compacted
}

fn check_get(model: &Model, machine: &Machine, key: &Bytes, at: u64) {
    let found = machine.reader().get(key, Some(Revision(at)));
    if !check_refused(model, at, &found) {
        let expected = (Revision(model.revision), model.get(key, at));
        assert_eq!(found.expect("get"), expected);
    }
}

/// Compares a range with the model, except for `max_bytes`, of which it checks only that at least
/// one pair is returned.
fn check_range(model: &Model, machine: &Machine, query: &RangeQuery) {
    let result = machine.reader().range(query);
    let at = query.revision.map_or(model.revision, |at| at.0);
    if check_refused(model, at, &result) {
        return;
    }
    let result = result.expect("readable revision");
    let mut expected = model.range(&query.keys, at);
    assert_eq!(result.revision.0, model.revision);
    let count = expected.len() as u64;
    let limit = if query.count_only { 0 } else { query.limit };
    expected.truncate(limit);
    if query.max_bytes == usize::MAX {
        assert_eq!(result.kvs.len(), expected.len());
    } else {
        assert!(result.kvs.len() <= expected.len());
        assert_eq!(result.kvs.is_empty(), expected.is_empty());
        expected.truncate(result.kvs.len());
    }
    assert_eq!(
        result.more,
        !query.count_only && count > expected.len() as u64
    );
    assert_eq!(result.count, (!result.more).then_some(count));
    if query.keys_only {
        expected.iter_mut().for_each(|kv| kv.value = Bytes::new());
    }
    assert_eq!(result.kvs, expected);
}

/// A batch that changes nothing is answered without an entry as it would be with one, except for
/// the limits of visits, which the model has smaller.
fn check_batch(model: &Model, machine: &Machine, batch: &Batch) {
    let found = machine.reader().batch(batch).expect("read");
    let mut model = model.clone();
    let expected = model.apply(0, &Command::Batch(batch.clone()).into());
    match expected {
        _ if !batch.reads_only() => assert_eq!(found, None),
        Outcome::Refused(Refusal::RangesTooLarge { .. }) => {}
        expected => assert_eq!(found, Some(expected)),
    }
}

/// A watch that continues from the end of each result sees all of history, whatever the limits.
fn check_changes(model: &Model, machine: &Machine, query: &ChangesQuery) {
    let mut query = query.clone();
    let mut seen = Vec::new();
    let expected = model.events(&query);
    loop {
        let result = machine.reader().changes(&query);
        let wants = |key: &[u8], deletes| query.want(key, deletes);
        let reader = machine.reader();
        let followed = reader.changes_followed(query.from, query.limits, wants);
        assert_eq!(followed, result, "whoever follows reads the same");
        if query.from.revision.0 < model.compacted {
            assert!(matches!(result, Err(ReadError::Compacted { .. })));
            return;
        }
        let result = result.expect("history is there");
        assert_eq!(result.revision.0, model.revision);
        let within = |at: Stamp| at >= query.from && at < result.next;
        assert!(result.events.iter().all(|it| within(it.stamp())));
        let bytes = result.events.iter().rev().skip(1).map(Event::size_bytes);
        assert!(
            bytes.sum::<usize>() <= query.limits.bytes,
            "one event too many at most"
        );
        seen.extend(result.events);
        if result.next.sub > 0 && result.next > query.from {
            let wanted = expected.get(seen.len());
            assert_eq!(
                wanted.map(Event::stamp),
                Some(result.next),
                "more of it is wanted"
            );
        }
        if result.next.revision > result.revision {
            break;
        }
        assert!(result.next > query.from, "it got no further");
        query.from = result.next;
    }
    assert_eq!(seen, expected);
}

/// Checks what a leader reads for expiry.
fn check_expiring(model: &Model, machine: &Machine) {
    let reader = machine.reader();
    let mut found = Vec::new();
    loop {
        let page = reader.expiring_keys(found.last(), 2).expect("read");
        found.extend(page.iter().cloned());
        if page.len() < 2 {
            break;
        }
    }
    assert_eq!(found, model.expiring());
    let sessions = reader.sessions(SessionId(0), usize::MAX).expect("read");
    let found: Vec<_> = sessions
        .iter()
        .map(|it| (it.id.0, it.last_used.0, it.acknowledged, it.replies))
        .collect();
    let expected = model.sessions.iter().map(|(id, it)| {
        let kept = it.kept().count() as u64;
        (*id, it.last_used, it.acknowledged, kept)
    });
    assert_eq!(found, expected.collect::<Vec<_>>());
}

/// Checks that leases, their records and the pairs agree about what is attached to what.
fn check_leases(model: &Model, machine: &Machine) {
    let reader = machine.reader();
    let mut found = Vec::new();
    loop {
        let after = found.last().map(|it: &LeaseInfo| it.id);
        let page = reader.leases(after, 2).expect("read");
        found.extend(page.iter().copied());
        if page.len() < 2 {
            break;
        }
    }
    let mut expected: Vec<_> = model.leases.iter().map(|(id, it)| it.info(*id)).collect();
    expected.sort_by_key(|it| it.id.0.cast_unsigned());
    assert_eq!(found, expected);
    for id in [LeaseId(-1), LeaseId(1), LeaseId(2)] {
        let known = found.iter().find(|it| it.id == id).copied();
        assert_eq!(reader.lease(id).expect("read"), known);
        let mut keys = Vec::new();
        while let Some((info, page)) = reader
            .lease_with_keys(id, keys.last().map(|key: &Bytes| &key[..]), 2)
            .expect("read")
        {
            assert_eq!(Some(info), known);
            keys.extend(page.iter().cloned());
            if page.len() < 2 {
                break;
            }
        }
        assert_eq!(keys, model.attached(id), "of lease {id}");
    }
}

/// Resolves `drafts` to entries after entry `last`, with their outcomes in the model.
pub(super) fn resolve(
    model: &mut Model,
    last: u64,
    drafts: &[Draft],
) -> (Vec<Entry>, Vec<Outcome>) {
    let entries = (last + 1..).zip(drafts).map(|(index, draft)| {
        let request = draft.resolve(model);
        let outcome = model.apply(index, &request);
        (
            entry(
                index,
                EntryKind::Command,
                request.encode(CommandVersion::CURRENT),
            ),
            outcome,
        )
    });
    entries.unzip()
}

fn check(steps: Vec<Step>) {
    let store = MemoryStore::default();
    let mut machine = open(&store);
    let mut collector = machine.collector().removing_together(3);
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Apply(drafts) => {
                let last = machine.applied().0.0;
                let (entries, expected) = resolve(&mut model, last, &drafts);
                let applied = machine.apply(&entries).expect("apply");
                for (entry, applied) in entries.iter().zip(&applied) {
                    let found = (applied.index, &applied.context);
                    assert_eq!(found, (entry.index, &entry.context));
                }
                let found: Vec<_> = applied.into_iter().map(|it| it.outcome).collect();
                assert_eq!(found, expected);
                check_expiring(&model, &machine);
                check_leases(&model, &machine);
            }
            Step::Get(key, at) => check_get(&model, &machine, &key, model.revision_at(at)),
            Step::Range(mut query) => {
                query.revision = query.revision.map(|at| Revision(model.revision_at(at.0)));
                check_range(&model, &machine, &query);
            }
            Step::Batch(mut batch) => {
                at_revisions(&mut batch, &|number| model.revision_at(number));
                check_batch(&model, &machine, &batch);
            }
            Step::Changes(mut query) => {
                query.from.revision = Revision(model.revision_at(query.from.revision.0));
                check_changes(&model, &machine, &query);
            }
            Step::Collect(steps, max) => {
                let before = hash(&machine);
                for _ in 0..steps {
                    collector.step(max).expect("collect");
                }
                assert_eq!(hash(&machine), before, "garbage means nothing");
            }
            Step::Reopen => {
                let before = (machine.applied(), machine.membership(), hash(&machine));
                drop(machine);
                machine = open(&store);
                collector = machine.collector().removing_together(3);
                let after = (machine.applied(), machine.membership(), hash(&machine));
                assert_eq!(after, before);
            }
        }
        assert_eq!(machine.revision().0, model.revision);
    }
}

fn hash(machine: &Machine) -> LogicalHash {
    machine.reader().logical_hash().expect("hash")
}

/// Applies `entries`, cut into batches at `cuts`; opens the store again after each batch if
/// `reopen`.
fn run(entries: &[Entry], cuts: &[bool], reopen: bool) -> (Records, Vec<Outcome>, LogicalHash) {
    let store = MemoryStore::default();
    let mut machine = open(&store);
    let mut outcomes = Vec::new();
    let mut start = 0;
    for end in 1..=entries.len() {
        if end < entries.len() && !cuts.get(end).copied().unwrap_or(true) {
            continue;
        }
        let applied = machine.apply(&entries[start..end]).expect("apply");
        outcomes.extend(applied.into_iter().map(|it| it.outcome));
        start = end;
        if reopen {
            machine = open(&store);
        }
    }
    let hash = hash(&machine);
    (store.dump(), outcomes, hash)
}

/// What comes of entries that are applied one by one.
pub(super) fn records_and_outcomes(entries: &[Entry]) -> (Records, Vec<Outcome>) {
    let (records, outcomes, _) = run(entries, &[], false);
    (records, outcomes)
}

fn store_of(records: &Records) -> MemoryStore {
    let store = MemoryStore::default();
    let mut batch = WriteBatch::default();
    for (key, value) in records {
        batch.put(key, value);
    }
    store.write(&batch).expect("write");
    store
}

proptest! {
    #[test]
    fn outcomes_equal_those_of_the_model(steps in prop::collection::vec(step(), 1..40)) {
        check(steps);
    }

    #[test]
    fn batches_and_restarts_leave_no_trace(
        drafts in prop::collection::vec(draft(), 1..60),
        cuts in prop::collection::vec(any::<bool>(), 60),
    ) {
        let (entries, expected) = resolve(&mut Model::new(), 0, &drafts);
        let one_by_one = run(&entries, &[], false);
        prop_assert_eq!(&one_by_one.1, &expected);
        prop_assert_eq!(&run(&entries, &cuts, false), &one_by_one);
        prop_assert_eq!(&run(&entries, &cuts, true), &one_by_one);
        prop_assert_eq!(&run(&entries, &[false; 60], false), &one_by_one);
    }

    /// The store is as it was after some write; the log supplies the rest.
    #[test]
    fn replay_after_a_lost_tail_leaves_no_trace(
        drafts in prop::collection::vec(draft(), 1..60),
        collect in prop::collection::vec(0..4_usize, 60),
        lost_from in any::<prop::sample::Index>(),
    ) {
        let (entries, expected) = resolve(&mut Model::new(), 0, &drafts);
        let (records, _, hash_before) = run(&entries, &[], false);
        let store = MemoryStore::default();
        let mut machine = open(&store);
        let mut collector = machine.collector().removing_together(2);
        let mut moments = vec![store.dump()];
        for (at, entry) in entries.iter().enumerate() {
            machine.apply(std::slice::from_ref(entry)).expect("apply");
            moments.push(store.dump());
            collector.step(collect[at]).expect("collect");
            moments.push(store.dump());
        }
        let left = store_of(lost_from.get(&moments));
        let mut machine = open(&left);
        let Index(applied) = machine.applied().0;
        let again = machine.apply(&entries).expect("replay");
        let outcomes = again.into_iter().map(|it| it.outcome);
        prop_assert_eq!(outcomes.collect::<Vec<_>>(), &expected[applied as usize..]);
        prop_assert_eq!(hash(&machine), hash_before);
        let all = store_of(&records);
        prop_assert_eq!(all_collected(&left), all_collected(&all));
    }

    /// The store contains what the newest revision and all allowed reads need, and no record more.
    #[test]
    fn collected_stores_hold_no_garbage(drafts in prop::collection::vec(draft(), 1..60)) {
        let mut model = Model::new();
        let (entries, _) = resolve(&mut model, 0, &drafts);
        let (records, _, hash_before) = run(&entries, &[], false);
        let left = store_of(&records);
        let dump = all_collected(&left);
        let machine = StateMachine::open(left).expect("open");
        prop_assert_eq!(hash(&machine), hash_before);
        let history = model.log.iter().filter(|(at, _)| *at >= model.compacted);
        let count = |space| dump.iter().filter(|(key, _)| key[0] == space).count();
        prop_assert_eq!(count(b's'), model.sessions.len());
        let kept = model.sessions.values().map(|it| it.kept().count());
        prop_assert_eq!(count(b'r'), kept.sum::<usize>());
        prop_assert_eq!(count(b't'), model.expiring().len());
        prop_assert_eq!(count(b'l'), model.leases.len());
        let attached = model.leases.keys().map(|lease| model.attached(*lease).len());
        prop_assert_eq!(count(b'a'), attached.sum::<usize>());
        // Besides the versions in history, those that were live at its beginning.
        let everything = KeyRange::From(Bytes::new());
        let live = model.range(&everything, model.compacted);
        let older = live.iter().filter(|kv| kv.mod_revision.0 < model.compacted);
        prop_assert_eq!(count(b'c'), history.clone().count());
        prop_assert_eq!(count(b'd'), history.count() + older.count());
    }
}
