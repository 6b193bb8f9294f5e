//! Searches an order of all operations that agrees with real time and explains every answer.
//!
//! Keys that no batch connects are independent (Herlihy & Wing 1990, locality), so each set is searched alone.
//! Reads of several keys are taken apart: that they see one revision is for
//! [`revisions`](super::revisions) to judge. Reads below lease level have no place in the order and are
//! left out; so are operations that are known not to have happened.
//!
//! Revisions narrow the search: what took revision 7 cannot come before what took 6. What remains open is
//! only where operations of unknown outcome go. They are tried last, and of those that do the same only the
//! oldest, so that good histories are followed almost without a step back.

use super::history::History;
use super::model::{State, Undo};
use super::prepare::{Deed, KeyId, Outcome, Prepared, Ready, prepare};
use super::violation::{Rule, Violation};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Steps that decide all but hopeless histories, in seconds.
pub const DEFAULT_STEPS: usize = 2_000_000;

/// How the search ended for histories in which it found nothing wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Searched {
    /// Sets of keys for which an order was found.
    pub explained: usize,
    /// Sets of keys for which it was given up after the allowed number of steps.
    pub undecided: usize,
}

/// Searches each set of keys, with at most `steps` steps.
///
/// # Errors
/// If there is no such order.
pub fn check(history: &History, steps: usize) -> Result<Searched, Violation> {
    let ready = prepare(history)?;
    let mut searched = Searched::default();
    for part in parts(&ready) {
        let mut search = Search::new(&part, history.alone_since.unwrap_or(0), steps);
        match search.run() {
            Verdict::Explained => searched.explained += 1,
            Verdict::Undecided => searched.undecided += 1,
            Verdict::Impossible => {
                let keys: Vec<&str> = part.keys.iter().map(|key| &*ready.keys[*key]).collect();
                let message = format!(
                    "no order of the operations on {} explains the answers; at best {} of {} fit, and none of these \
                     can come next",
                    keys.join(", "),
                    search.best,
                    part.known.len(),
                );
                let stuck = search.stuck.iter().map(|at| &history.operations[*at]);
                return Err(Violation::new(Rule::Linearizable, message, stuck));
            }
        }
    }
    Ok(searched)
}

/// The operations on keys that batches connect.
struct Part {
    keys: Vec<KeyId>,
    /// Answered, in order of their calls.
    known: Vec<Prepared>,
    /// Those of unknown outcome that do the same, each class in order of calls.
    classes: Vec<Vec<Prepared>>,
}

/// Takes a history apart.
fn parts(ready: &Ready) -> Vec<Part> {
    let groups = connect(ready);
    let mut parts: BTreeMap<KeyId, Part> = BTreeMap::new();
    for (key, group) in groups.iter().enumerate() {
        let part = parts.entry(*group).or_insert_with(|| Part {
            keys: Vec::new(),
            known: Vec::new(),
            classes: Vec::new(),
        });
        part.keys.push(key);
    }
    let mut classes: BTreeMap<(KeyId, Deed), Vec<Prepared>> = BTreeMap::new();
    for operation in ready.operations.iter().filter(|it| it.level.is_strong()) {
        for piece in pieces(operation) {
            let Some(group) = piece.keys().first().map(|key| groups[*key]) else {
                continue;
            };
            let part = parts.get_mut(&group).expect("each group has its part");
            let piece = renumbered(piece, &part.keys);
            if piece.outcome.is_some() {
                part.known.push(piece);
            } else if piece.may_change() {
                let class = classes.entry((group, piece.deed.clone()));
                class.or_default().push(piece);
            }
        }
    }
    for ((group, _), class) in classes {
        let part = parts.get_mut(&group).expect("each group has its part");
        part.classes.push(class);
    }
    parts.into_values().collect()
}

/// The least key that each key is connected with.
fn connect(ready: &Ready) -> Vec<KeyId> {
    let mut groups: Vec<KeyId> = (0..ready.keys.len()).collect();
    fn root(groups: &mut [KeyId], mut key: KeyId) -> KeyId {
        while groups[key] != key {
            groups[key] = groups[groups[key]];
            key = groups[key];
        }
        key
    }
    for operation in ready.operations.iter().filter(|it| it.may_change()) {
        let keys = operation.keys();
        for pair in keys.iter().zip(keys.iter().skip(1)) {
            let (one, other) = (root(&mut groups, *pair.0), root(&mut groups, *pair.1));
            groups[one.max(other)] = one.min(other);
        }
    }
    (0..groups.len())
        .map(|key| root(&mut groups, key))
        .collect()
}

/// A read becomes one for each key; everything else stays whole.
fn pieces(operation: &Prepared) -> Vec<Prepared> {
    if operation.may_change() || operation.keys().len() <= 1 {
        return vec![operation.clone()];
    }
    let one = |(action, told)| Prepared {
        deed: Deed {
            compares: Vec::new(),
            then: vec![action],
            otherwise: Vec::new(),
        },
        outcome: operation.outcome.as_ref().map(|outcome| Outcome {
            revision: outcome.revision,
            succeeded: true,
            replies: vec![told],
        }),
        ..*operation
    };
    operation.told().map(one).collect()
}

/// The same with the places of its keys in `keys` for numbers.
fn renumbered(mut operation: Prepared, keys: &[KeyId]) -> Prepared {
    use super::prepare::Action;
    let place = |key: &mut KeyId| {
        *key = keys.binary_search(key).expect("a part knows its keys");
    };
    let deed = &mut operation.deed;
    deed.compares.iter_mut().for_each(|(key, _)| place(key));
    for action in deed.then.iter_mut().chain(&mut deed.otherwise) {
        match action {
            Action::Put { key, .. } | Action::Expire { key, .. } => place(key),
            Action::Delete(key) | Action::Get(key) => place(key),
        }
    }
    operation
}

enum Verdict {
    Explained,
    Impossible,
    Undecided,
}

/// What may come next: an answered operation, or the oldest of a class, with how its compares come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Choice {
    Known(usize, bool),
    Unknown(usize, bool),
}

struct Step {
    choice: Choice,
    undo: Undo,
    /// What else could have come here, next one last.
    others: Vec<Choice>,
}

struct Search<'a> {
    part: &'a Part,
    state: State,
    /// Which answered operations have come.
    done: Vec<bool>,
    /// All before this one have come.
    first: usize,
    come: usize,
    /// How many of each class have come.
    used: Vec<usize>,
    /// Situations that were met before.
    met: HashSet<(u64, u64)>,
    steps: usize,
    /// Most answered operations that fitted, and which could have come next there.
    best: usize,
    stuck: BTreeSet<usize>,
}

impl<'a> Search<'a> {
    fn new(part: &'a Part, revision: u64, steps: usize) -> Self {
        Self {
            part,
            state: State::empty(part.keys.len(), revision),
            done: vec![false; part.known.len()],
            first: 0,
            come: 0,
            used: vec![0; part.classes.len()],
            met: HashSet::new(),
            steps,
            best: 0,
            stuck: BTreeSet::new(),
        }
    }

    fn run(&mut self) -> Verdict {
        let mut way: Vec<Step> = Vec::new();
        let mut choices = self.choices();
        while self.come < self.part.known.len() {
            let Some(choice) = choices.pop() else {
                let Some(last) = way.pop() else {
                    return Verdict::Impossible;
                };
                self.retreat(last.choice, last.undo);
                choices = last.others;
                continue;
            };
            let Some(undo) = self.advance(choice) else {
                continue;
            };
            if self.met.len() >= self.steps {
                return Verdict::Undecided;
            }
            if !self.met.insert(self.situation()) {
                self.retreat(choice, undo);
                continue;
            }
            way.push(Step {
                choice,
                undo,
                others: choices,
            });
            choices = self.choices();
        }
        Verdict::Explained
    }

    /// Everything that real time allows next; what to try first stands last.
    fn choices(&mut self) -> Vec<Choice> {
        let known = &self.part.known;
        let mut end = u64::MAX;
        let mut next = Vec::new();
        for (at, operation) in known.iter().enumerate().skip(self.first) {
            if operation.invoked > end {
                break;
            }
            if !self.done[at] {
                end = end.min(operation.completed);
                next.push(at);
            }
        }
        // Their calls are in order, so those that came after the first answer are at the end.
        while next.last().is_some_and(|at| known[*at].invoked > end) {
            next.pop();
        }
        self.note(&next);
        let mut choices = Vec::new();
        for (class, used) in self.used.iter().enumerate() {
            let Some(oldest) = self.part.classes[class].get(*used) else {
                continue;
            };
            if oldest.invoked <= end {
                choices.push(Choice::Unknown(class, true));
                if !oldest.deed.otherwise.is_empty() {
                    choices.push(Choice::Unknown(class, false));
                }
            }
        }
        // Of those that are known the one with the least revision most likely comes first.
        next.sort_by_key(|at| std::cmp::Reverse(rank(&known[*at])));
        choices.extend(next.into_iter().map(|at| {
            let outcome = known[at].outcome.as_ref();
            Choice::Known(at, outcome.is_some_and(|outcome| outcome.succeeded))
        }));
        choices
    }

    /// Remembers where the search got farthest.
    fn note(&mut self, next: &[usize]) {
        if self.come > self.best || self.stuck.is_empty() {
            self.best = self.come;
            self.stuck = next.iter().map(|at| self.part.known[*at].at).collect();
        }
    }

    fn advance(&mut self, choice: Choice) -> Option<Undo> {
        match choice {
            Choice::Known(at, succeeded) => {
                let undo = self.state.step(&self.part.known[at], succeeded)?;
                self.done[at] = true;
                self.come += 1;
                while self.done.get(self.first) == Some(&true) {
                    self.first += 1;
                }
                Some(undo)
            }
            Choice::Unknown(class, succeeded) => {
                let oldest = &self.part.classes[class][self.used[class]];
                let undo = self.state.step(oldest, succeeded)?;
                self.used[class] += 1;
                Some(undo)
            }
        }
    }

    fn retreat(&mut self, choice: Choice, undo: Undo) {
        self.state.undo(undo);
        match choice {
            Choice::Known(at, _) => {
                self.done[at] = false;
                self.come -= 1;
                self.first = self.first.min(at);
            }
            Choice::Unknown(class, _) => self.used[class] -= 1,
        }
    }

    /// Where the search stands, as 128 bits: two searches that stand there have the same future.
    fn situation(&self) -> (u64, u64) {
        // What came beyond `first` lies within the calls that overlap it, which are few.
        let ahead = self.come - self.first;
        let beyond = (self.first..self.done.len()).filter(|at| self.done[*at]);
        let beyond: Vec<usize> = beyond.take(ahead).collect();
        let hash = |seed: u64| {
            let mut hasher = DefaultHasher::new();
            (seed, self.first, &beyond, &self.used, &self.state).hash(&mut hasher);
            hasher.finish()
        };
        (hash(1), hash(2))
    }
}

/// Sorts changes by their revision, and what was seen at a revision after the change that made it.
fn rank(operation: &Prepared) -> (u64, bool) {
    let revision = operation.outcome.as_ref().map_or(0, |it| it.revision);
    (revision, !operation.changed())
}
