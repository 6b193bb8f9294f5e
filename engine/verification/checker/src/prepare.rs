//! Brings every call into one form: compares, then steps; and its answer into one reply for each
//! step. Keys and values become numbers, so that the search copies and compares little.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{
    Answer, BatchStep, Call, Expected, History, Key, Level, Operation, Reply, Seen,
};
use super::violation::{Rule, Violation};

/// Number of a key.
pub(super) type KeyId = usize;

/// Number of a value. [`UNSEEN`] stands for all values that no client saw or expected: they need
/// not be distinguished.
pub(super) type ValueId = u32;

/// See [`ValueId`].
pub(super) const UNSEEN: ValueId = 0;

/// An operation in the form that the checkers share.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    /// Its place in the history.
    pub(super) at: usize,
    pub(super) invoked: u64,
    /// `u64::MAX` if its outcome is unknown: it may take effect at any time from `invoked` on, or
    /// never.
    pub(super) completed: u64,
    pub(super) level: Level,
    pub(super) deed: Deed,
    pub(super) outcome: Option<Outcome>,
    /// The revision that it took although it was not answered: some client saw what only it can
    /// have written.
    pub(super) proven: Option<u64>,
}

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deed {
    pub(super) compares: Vec<(KeyId, Wanted)>,
    pub(super) then: Vec<Action>,
    pub(super) otherwise: Vec<Action>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wanted {
    ModRevision(u64),
    Value(ValueId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    Put {
        key: KeyId,
        value: ValueId,
        /// Whether the pair may expire.
        expires: bool,
    },
    Delete(KeyId),
    Get(KeyId),
    /// Deletes the pair if it is what the put made that this belongs to.
    Expire {
        key: KeyId,
        /// The revision of that put, if it was answered.
        put_at: Option<u64>,
    },
}

impl Action {
    pub(super) fn key(self) -> KeyId {
        match self {
            Self::Put { key, .. } | Self::Expire { key, .. } => key,
            Self::Delete(key) | Self::Get(key) => key,
        }
    }
}

/// What a client learned of an operation.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) revision: u64,
    pub(super) succeeded: bool,
    /// One for each action of the list that was done.
    pub(super) replies: Vec<Told>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Told {
    Nothing,
    Deleted(bool),
    Got(Option<Pair>),
}

/// A pair as a client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) value: ValueId,
    pub(super) created: u64,
    pub(super) modified: u64,
    pub(super) version: u64,
}

impl Prepared {
    /// The actions that were done, with the reply to each.
    pub(super) fn told(&self) -> impl Iterator<Item = (Action, Told)> {
        let outcome = self.outcome.iter();
        outcome.flat_map(|outcome| {
            let actions = self.actions(outcome.succeeded);
            actions.iter().copied().zip(outcome.replies.iter().copied())
        })
    }

    /// The actions of one of its lists.
    pub(super) fn actions(&self, succeeded: bool) -> &[Action] {
        if succeeded {
            &self.deed.then
        } else {
            &self.deed.otherwise
        }
    }

    /// Which results its compares may have.
    pub(super) fn branches(&self) -> impl Iterator<Item = bool> {
        let known = self.outcome.as_ref().map(|it| it.succeeded);
        [false, true].into_iter().filter(move |branch| match known {
            Some(known) => known == *branch,
            None => !self.actions(*branch).is_empty(),
        })
    }

    /// Whether it took a revision for itself, as far as that is known.
    pub(super) fn changed(&self) -> bool {
        self.told().any(|(action, told)| match action {
            Action::Put { .. } | Action::Expire { .. } => true,
            Action::Delete(_) => matches!(told, Told::Deleted(true)),
            Action::Get(_) => false,
        })
    }

    /// The revision that it took or was answered as of, if there is an answer or a proof.
    pub(super) fn revision(&self) -> Option<u64> {
        let told = self.outcome.as_ref().map(|outcome| outcome.revision);
        told.or(self.proven)
    }

    /// Whether it might ever change something.
    pub(super) fn may_change(&self) -> bool {
        let mut all = self.deed.then.iter().chain(&self.deed.otherwise);
        all.any(|action| !matches!(action, Action::Get(_)))
    }

    /// Every key that it touches.
    pub(super) fn keys(&self) -> BTreeSet<KeyId> {
        let compared = self.deed.compares.iter().map(|(key, _)| *key);
        let actions = self.deed.then.iter().chain(&self.deed.otherwise);
        compared.chain(actions.map(|action| action.key())).collect()
    }
}

/// A history whose operations were brought into the common form.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) operations: Vec<Prepared>,
    pub(super) keys: Vec<Key>,
}

impl Ready {
    /// Every pair that any client saw, by key.
    pub(super) fn sighted(&self) -> impl Iterator<Item = (KeyId, Pair)> {
        let told = self.operations.iter().flat_map(Prepared::told);
        told.filter_map(|(action, told)| match told {
            Told::Got(Some(pair)) => Some((action.key(), pair)),
            _ => None,
        })
    }
}

/// Prepares all operations but those that are known not to have happened, in order of their calls.
pub(super) fn prepare(history: &History) -> Result<Ready, Violation> {
    let names = Names::of(history);
    let mut operations = Vec::with_capacity(history.operations.len());
    for (at, operation) in history.operations.iter().enumerate() {
        if operation.answer == Answer::Refused {
            continue;
        }
        let prepared = names.operation(at, operation).ok_or_else(|| {
            Violation::new(
                Rule::Malformed,
                "the answer is not to this call",
                [operation],
            )
        })?;
        operations.extend(expiries(&prepared));
        operations.push(prepared);
    }
    operations.sort_by_key(|operation| (operation.invoked, operation.at));
    prove(&mut operations);
    Ok(Ready {
        operations,
        keys: names.keys.into_keys().cloned().collect(),
    })
}

/// Finds revisions of operations without an answer: those of values that only they can have
/// written.
fn prove(operations: &mut [Prepared]) {
    let mut writers: BTreeMap<(KeyId, ValueId), Vec<usize>> = BTreeMap::new();
    for (at, operation) in operations.iter().enumerate() {
        for action in operation.deed.then.iter().chain(&operation.deed.otherwise) {
            if let Action::Put { key, value, .. } = *action {
                let writers = writers.entry((key, value)).or_default();
                if writers.last() != Some(&at) {
                    writers.push(at);
                }
            }
        }
    }
    let mut proven = Vec::new();
    for (action, told) in operations.iter().flat_map(Prepared::told) {
        if let Told::Got(Some(pair)) = told
            && let Some([writer]) = writers.get(&(action.key(), pair.value)).map(Vec::as_slice)
            && operations[*writer].outcome.is_none()
        {
            proven.push((*writer, pair.modified));
        }
    }
    for (writer, revision) in proven {
        operations[writer].proven = Some(revision);
    }
}

/// The numbers of keys and values.
struct Names<'a> {
    keys: BTreeMap<&'a Key, KeyId>,
    values: BTreeMap<&'a str, ValueId>,
}

impl<'a> Names<'a> {
    fn of(history: &'a History) -> Self {
        let mut keys = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for operation in &history.operations {
            for key in keys_of(&operation.call) {
                keys.insert(key, 0);
            }
            collect_values(operation, &mut seen);
        }
        for (id, number) in keys.values_mut().enumerate() {
            *number = id;
        }
        let values = seen.into_iter().zip(UNSEEN + 1..).collect();
        Self { keys, values }
    }

    fn key(&self, key: &Key) -> KeyId {
        self.keys[key]
    }

    fn value(&self, value: &str) -> ValueId {
        self.values.get(value).copied().unwrap_or(UNSEEN)
    }

    fn operation(&self, at: usize, operation: &Operation) -> Option<Prepared> {
        let deed = self.deed(&operation.call);
        let outcome = self.outcome(&operation.call, &operation.answer)?;
        let completed = match (&outcome, operation.completed) {
            (None, _) => u64::MAX,
            (Some(_), completed) => completed?.order,
        };
        let level = match operation.call {
            Call::Read { level, .. } => level,
            _ => Level::Linearizable,
        };
        Some(Prepared {
            at,
            invoked: operation.invoked.order,
            completed,
            level,
            deed,
            outcome,
            proven: None,
        })
    }

    fn deed(&self, call: &Call) -> Deed {
        let (compares, then, otherwise) = match call {
            Call::Put {
                key,
                value,
                expires,
            } => {
                let put = self.put(key, value, *expires);
                (Vec::new(), vec![put], Vec::new())
            }
            Call::Delete { key } => (Vec::new(), vec![Action::Delete(self.key(key))], Vec::new()),
            Call::CompareAndSwap {
                key,
                expected,
                value,
                expires,
            } => {
                let get = Action::Get(self.key(key));
                let put = self.put(key, value, *expires);
                let compare = (self.key(key), self.wanted(expected));
                (vec![compare], vec![get, put], vec![get])
            }
            Call::Batch {
                compares,
                then,
                otherwise,
            } => (
                (compares.iter())
                    .map(|(key, expected)| (self.key(key), self.wanted(expected)))
                    .collect(),
                self.actions(then),
                self.actions(otherwise),
            ),
            Call::Read { keys, .. } => {
                let gets = keys.iter().map(|key| Action::Get(self.key(key)));
                (Vec::new(), gets.collect(), Vec::new())
            }
        };
        Deed {
            compares,
            then,
            otherwise,
        }
    }

    fn actions(&self, steps: &[BatchStep]) -> Vec<Action> {
        let action = |step: &BatchStep| match step {
            BatchStep::Put(key, value) => self.put(key, value, false),
            BatchStep::PutExpiring(key, value) => self.put(key, value, true),
            BatchStep::Delete(key) => Action::Delete(self.key(key)),
            BatchStep::Get(key) => Action::Get(self.key(key)),
        };
        steps.iter().map(action).collect()
    }

    fn put(&self, key: &Key, value: &str, expires: bool) -> Action {
        Action::Put {
            key: self.key(key),
            value: self.value(value),
            expires,
        }
    }

    fn wanted(&self, expected: &Expected) -> Wanted {
        match expected {
            Expected::ModRevision(revision) => Wanted::ModRevision(*revision),
            Expected::Value(value) => Wanted::Value(self.value(value)),
        }
    }

    /// The outer `None`: not an answer to this call.
    fn outcome(&self, call: &Call, answer: &Answer) -> Option<Option<Outcome>> {
        let (revision, succeeded, replies) = match (call, answer) {
            (_, Answer::Unknown) => return Some(None),
            (Call::Put { .. }, Answer::Put { revision }) => (revision, true, vec![Told::Nothing]),
            (Call::Delete { .. }, Answer::Delete { revision, deleted }) => {
                (revision, true, vec![Told::Deleted(*deleted)])
            }
            (
                Call::CompareAndSwap { .. },
                Answer::CompareAndSwap {
                    revision,
                    succeeded,
                    previous,
                },
            ) => {
                let mut replies = vec![self.got(previous.as_ref())];
                replies.extend(succeeded.then_some(Told::Nothing));
                (revision, *succeeded, replies)
            }
            (
                Call::Batch {
                    then, otherwise, ..
                },
                Answer::Batch {
                    revision,
                    succeeded,
                    replies,
                },
            ) => {
                let steps = if *succeeded { then } else { otherwise };
                (revision, *succeeded, self.replies(steps, replies)?)
            }
            (Call::Read { keys, .. }, Answer::Read { revision, found }) => {
                let replies = found.iter().map(|found| self.got(found.as_ref()));
                (found.len() == keys.len()).then_some(())?;
                (revision, true, replies.collect())
            }
            _ => return None,
        };
        Some(Some(Outcome {
            revision: *revision,
            succeeded,
            replies,
        }))
    }

    fn replies(&self, steps: &[BatchStep], replies: &[Reply]) -> Option<Vec<Told>> {
        (steps.len() == replies.len()).then_some(())?;
        let pairs = steps.iter().zip(replies);
        pairs
            .map(|pair| match pair {
                (BatchStep::Put(..) | BatchStep::PutExpiring(..), Reply::Put) => {
                    Some(Told::Nothing)
                }
                (BatchStep::Delete(_), Reply::Delete(deleted)) => Some(Told::Deleted(*deleted)),
                (BatchStep::Get(_), Reply::Get(found)) => Some(self.got(found.as_ref())),
                _ => None,
            })
            .collect()
    }

    fn got(&self, found: Option<&Seen>) -> Told {
        Told::Got(found.map(|seen| Pair {
            value: self.value(&seen.value),
            created: seen.create_revision,
            modified: seen.mod_revision,
            version: seen.version,
        }))
    }
}

/// Expirations, which no client calls for: one for each key that the operation may have put to
/// expire.
fn expiries(operation: &Prepared) -> impl Iterator<Item = Prepared> {
    let actions = operation.branches().flat_map(|it| operation.actions(it));
    let keys: BTreeSet<_> = actions
        .filter_map(|action| match *action {
            Action::Put { key, expires, .. } => expires.then_some(key),
            _ => None,
        })
        .collect();
    let put_at = operation.outcome.as_ref().map(|it| it.revision);
    keys.into_iter().map(move |key| Prepared {
        completed: u64::MAX,
        deed: Deed {
            compares: Vec::new(),
            then: vec![Action::Expire { key, put_at }],
            otherwise: Vec::new(),
        },
        outcome: None,
        proven: None,
        ..*operation
    })
}

fn keys_of(call: &Call) -> Vec<&Key> {
    match call {
        Call::Put { key, .. } | Call::Delete { key } | Call::CompareAndSwap { key, .. } => {
            vec![key]
        }
        Call::Read { keys, .. } => keys.iter().collect(),
        Call::Batch {
            compares,
            then,
            otherwise,
        } => {
            let steps = then.iter().chain(otherwise).map(|step| match step {
                BatchStep::Put(key, _)
                | BatchStep::PutExpiring(key, _)
                | BatchStep::Delete(key)
                | BatchStep::Get(key) => key,
            });
            compares.iter().map(|(key, _)| key).chain(steps).collect()
        }
    }
}

/// Adds every value that the operation saw or expected.
fn collect_values<'a>(operation: &'a Operation, values: &mut BTreeSet<&'a str>) {
    let mut expect = |expected: &'a Expected| {
        if let Expected::Value(value) = expected {
            values.insert(value);
        }
    };
    match &operation.call {
        Call::CompareAndSwap { expected, .. } => expect(expected),
        Call::Batch { compares, .. } => compares.iter().for_each(|(_, it)| expect(it)),
        Call::Put { .. } | Call::Delete { .. } | Call::Read { .. } => {}
    }
    let mut see = |seen: &'a Option<Seen>| values.extend(seen.iter().map(|it| it.value.as_str()));
    match &operation.answer {
        Answer::CompareAndSwap { previous, .. } => see(previous),
        Answer::Read { found, .. } => found.iter().for_each(see),
        Answer::Batch { replies, .. } => replies.iter().for_each(|reply| {
            if let Reply::Get(found) = reply {
                see(found);
            }
        }),
        Answer::Unknown | Answer::Refused | Answer::Put { .. } | Answer::Delete { .. } => {}
    }
}
