//! The state machine against the simplest thing that could be right: every version of every key in a
//! map, and each question answered by looking at all of them.

use super::command_entry;
use crate::kv::store::MemoryStore;
use crate::kv::{
    Command, Expected, KeyRange, KeyValue, Outcome, RangeQuery, ReadError, StateMachine,
};
use crate::types::Revision;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Default)]
struct Model {
    revision: u64,
    /// For each key what each revision made of it, oldest first; `None`: deleted.
    history: BTreeMap<Bytes, Vec<(u64, Option<KeyValue>)>>,
}

impl Model {
    fn new() -> Self {
        Self {
            revision: 1,
            ..Self::default()
        }
    }

    fn get(&self, key: &Bytes, at: u64) -> Option<KeyValue> {
        let versions = self.history.get(key)?;
        let seen = versions.iter().rev().find(|(revision, _)| *revision <= at);
        seen.and_then(|(_, kv)| kv.clone())
    }

    fn range(&self, keys: &KeyRange, at: u64) -> Vec<KeyValue> {
        let inside = self.history.keys().filter(|key| keys.contains(key));
        inside.filter_map(|key| self.get(key, at)).collect()
    }

    fn put(&mut self, key: &Bytes, value: &Bytes) {
        let prev = self.get(key, self.revision);
        self.revision += 1;
        let kv = KeyValue {
            key: key.clone(),
            value: value.clone(),
            create_revision: prev
                .as_ref()
                .map_or(Revision(self.revision), |prev| prev.create_revision),
            mod_revision: Revision(self.revision),
            version: prev.map_or(1, |prev| prev.version + 1),
        };
        let versions = self.history.entry(key.clone()).or_default();
        versions.push((self.revision, Some(kv)));
    }

    fn apply(&mut self, command: &Command) -> Outcome {
        match command {
            Command::Put {
                key,
                value,
                prev_kv,
            } => {
                let prev = self.get(key, self.revision).filter(|_| *prev_kv);
                self.put(key, value);
                Outcome::Put {
                    revision: Revision(self.revision),
                    prev,
                }
            }
            Command::Delete { keys, prev_kv } => {
                let prev = self.range(keys, self.revision);
                self.revision += u64::from(!prev.is_empty());
                for kv in &prev {
                    let versions = self.history.entry(kv.key.clone()).or_default();
                    versions.push((self.revision, None));
                }
                Outcome::Delete {
                    revision: Revision(self.revision),
                    deleted: prev.len() as u64,
                    prev: if *prev_kv { prev } else { Vec::new() },
                }
            }
            Command::CompareAndSwap {
                key,
                expected,
                value,
            } => {
                let prev = self.get(key, self.revision);
                let succeeded = match expected {
                    Expected::ModRevision(wanted) => {
                        prev.as_ref().map_or(0, |prev| prev.mod_revision.0) == wanted.0
                    }
                    Expected::Value(wanted) => {
                        prev.as_ref().is_some_and(|prev| prev.value == wanted)
                    }
                };
                if succeeded {
                    self.put(key, value);
                }
                Outcome::CompareAndSwap {
                    revision: Revision(self.revision),
                    succeeded,
                    prev,
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Applied as one batch.
    Apply(Vec<Command>),
    Get(Bytes, u64),
    Range(RangeQuery),
    Reopen,
}

/// Few and short keys, made of the bytes that matter to the layout, so that they meet often.
fn key() -> impl Strategy<Value = Bytes> {
    let byte = prop::sample::select(vec![0_u8, 1, b'a', b'b', 0xfe, 0xff]);
    prop::collection::vec(byte, 0..3).prop_map(Bytes::from)
}

fn value() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(0_u8..3, 0..3).prop_map(Bytes::from)
}

fn keys() -> impl Strategy<Value = KeyRange> {
    prop_oneof![
        key().prop_map(KeyRange::One),
        (key(), key()).prop_map(|(start, end)| KeyRange::Between { start, end }),
        key().prop_map(KeyRange::From),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    let expected = prop_oneof![
        (0..40_u64).prop_map(|number| Expected::ModRevision(Revision(number))),
        value().prop_map(Expected::Value),
    ];
    prop_oneof![
        6 => (key(), value(), any::<bool>())
            .prop_map(|(key, value, prev_kv)| Command::Put { key, value, prev_kv }),
        2 => (keys(), any::<bool>()).prop_map(|(keys, prev_kv)| Command::Delete { keys, prev_kv }),
        2 => (key(), expected, value())
            .prop_map(|(key, expected, value)| Command::CompareAndSwap { key, expected, value }),
    ]
}

fn query() -> impl Strategy<Value = RangeQuery> {
    let bound = || prop_oneof![Just(usize::MAX), 0..6_usize];
    let revision = prop::option::of((0..60_u64).prop_map(Revision));
    (
        keys(),
        bound(),
        bound(),
        any::<bool>(),
        any::<bool>(),
        revision,
    )
        .prop_map(
            |(keys, limit, max_bytes, keys_only, count_only, revision)| RangeQuery {
                keys,
                limit,
                max_bytes,
                keys_only,
                count_only,
                revision,
            },
        )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::collection::vec(command(), 1..6).prop_map(Step::Apply),
        2 => (key(), 0..60_u64).prop_map(|(key, at)| Step::Get(key, at)),
        2 => query().prop_map(Step::Range),
        1 => Just(Step::Reopen),
    ]
}

/// Holds an answer against the model, except for `max_bytes`, of which it knows only that at least
/// one pair fits.
fn check_range(model: &Model, machine: &StateMachine<MemoryStore>, query: &RangeQuery) {
    let result = machine.reader().range(query);
    let at = query.revision.map_or(model.revision, |at| at.0);
    if at > model.revision {
        assert!(matches!(result, Err(ReadError::Future { .. })));
        return;
    }
    let result = result.expect("readable revision");
    let mut expected = model.range(&query.keys, at);
    assert_eq!(result.revision.0, model.revision);
    assert_eq!(result.count, expected.len() as u64);
    let limit = if query.count_only { 0 } else { query.limit };
    expected.truncate(limit);
    if query.max_bytes == usize::MAX {
        assert_eq!(result.kvs.len(), expected.len());
    } else {
        assert!(result.kvs.len() <= expected.len());
        assert_eq!(result.kvs.is_empty(), expected.is_empty());
        expected.truncate(result.kvs.len());
    }
    let more = result.count > expected.len() as u64;
    assert_eq!(result.more, more && !query.count_only);
    if query.keys_only {
        expected.iter_mut().for_each(|kv| kv.value = Bytes::new());
    }
    assert_eq!(result.kvs, expected);
}

fn check(steps: Vec<Step>) {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Apply(commands) => {
                let expected: Vec<_> = commands.iter().map(|it| model.apply(it)).collect();
                let first = machine.applied().0.next().0;
                let entries: Vec<_> = (first..)
                    .zip(commands)
                    .map(|(index, command)| command_entry(index, command))
                    .collect();
                let applied = machine.apply(&entries).expect("apply");
                for (entry, applied) in entries.iter().zip(&applied) {
                    assert_eq!(
                        (entry.index, &entry.context),
                        (applied.index, &applied.context)
                    );
                }
                let found: Vec<_> = applied.into_iter().map(|it| it.outcome).collect();
                assert_eq!(found, expected);
            }
            Step::Get(key, at) => {
                let found = machine.reader().get(&key, Some(Revision(at)));
                if at > model.revision {
                    assert!(matches!(found, Err(ReadError::Future { .. })));
                } else {
                    let expected = (Revision(model.revision), model.get(&key, at));
                    assert_eq!(found.expect("get"), expected);
                }
            }
            Step::Range(query) => check_range(&model, &machine, &query),
            Step::Reopen => {
                let before = (machine.applied(), machine.membership());
                drop(machine);
                machine = StateMachine::open(store.clone()).expect("open again");
                assert_eq!((machine.applied(), machine.membership()), before);
            }
        }
        assert_eq!(machine.revision().0, model.revision);
    }
}

/// Cuts `commands` into batches at `cuts` and returns the bytes they leave in the store.
fn bytes_after(commands: &[Command], cuts: &[bool]) -> Vec<(Bytes, Bytes)> {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    let mut batch = Vec::new();
    for (at, command) in commands.iter().enumerate() {
        batch.push(command_entry(at as u64 + 1, command.clone()));
        if cuts.get(at).copied().unwrap_or(true) {
            machine.apply(&std::mem::take(&mut batch)).expect("apply");
        }
    }
    machine.apply(&batch).expect("apply");
    store.dump()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn answers_as_the_model_does(steps in prop::collection::vec(step(), 1..40)) {
        check(steps);
    }

    #[test]
    fn batches_leave_no_trace(
        commands in prop::collection::vec(command(), 1..40),
        cuts in prop::collection::vec(any::<bool>(), 40),
    ) {
        let one_by_one = bytes_after(&commands, &[]);
        prop_assert_eq!(&bytes_after(&commands, &cuts), &one_by_one);
        prop_assert_eq!(&bytes_after(&commands, &[false; 40]), &one_by_one);
    }
}
