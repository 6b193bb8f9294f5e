//! Searches an order of all operations that agrees with real time and explains every answer.
//!
//! Keys that no batch connects are independent (Herlihy & Wing 1990, locality), so each set is searched alone.
//! Reads of several keys are taken apart: that they see one revision is for
//! [`revisions`](super::revisions) to judge. Reads below lease level have no place in the order and are
//! left out; so are operations that are known not to have happened.
//!
//! This is the search of Wing & Gong with Lowe's memory of what was tried. Revisions spare it most of its choices:
//! what took revision 7 came after what took 6, and what was seen as of 6 in between. So only operations of unknown
//! outcome are looked for a place, and of those only the ones whose work nobody saw. One is tried where what comes next does
//! not fit without it; of those that do the same, the oldest.

use super::history::History;
use super::model::{Sighted, State, Undo};
use super::prepare::{Deed, KeyId, Outcome, Prepared, Ready, prepare};
use super::violation::{Rule, Violation};
use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

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
                    "no order of the operations on {} explains the answers; at best {} of {} fit, and the last of \
                     these cannot come next",
                    keys.join(", "),
                    search.best,
                    part.ordered.len(),
                );
                let last = search.best.saturating_sub(1);
                let around = part.ordered[last..=search.best].iter();
                let around = around.map(|it| &history.operations[it.at]);
                return Err(Violation::new(Rule::Linearizable, message, around));
            }
        }
    }
    Ok(searched)
}

/// The operations on keys that batches connect.
struct Part {
    keys: Vec<KeyId>,
    /// Those with a revision, answered or proven, in the order of revisions; at each first what took it, then
    /// what was seen as of it.
    ordered: Vec<Prepared>,
    /// The other ones; those that do the same are one class, in order of their calls.
    classes: Vec<Vec<Prepared>>,
    /// What anybody saw, by key and revision of the last change.
    sighted: Arc<Sighted>,
}

/// Takes a history apart.
fn parts(ready: &Ready) -> Vec<Part> {
    let groups = connect(ready);
    let mut parts: BTreeMap<KeyId, Part> = BTreeMap::new();
    for (key, group) in groups.iter().enumerate() {
        let part = parts.entry(*group).or_insert_with(|| Part {
            keys: Vec::new(),
            ordered: Vec::new(),
            classes: Vec::new(),
            sighted: Arc::default(),
        });
        part.keys.push(key);
    }
    for (key, pair) in ready.sighted() {
        let part = parts
            .get_mut(&groups[key])
            .expect("each group has its part");
        let place = part
            .keys
            .binary_search(&key)
            .expect("a part knows its keys");
        Arc::make_mut(&mut part.sighted).insert((place, pair.modified), pair);
    }
    let mut classes: BTreeMap<(KeyId, Deed), Vec<Prepared>> = BTreeMap::new();
    for operation in ready.operations.iter().filter(|it| it.level.is_strong()) {
        for piece in pieces(operation) {
            let Some(group) = piece.keys().first().map(|key| groups[*key]) else {
                continue;
            };
            let part = parts.get_mut(&group).expect("each group has its part");
            let piece = renumbered(piece, &part.keys);
            if piece.revision().is_some() {
                part.ordered.push(piece);
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
    for part in parts.values_mut() {
        let rank = |it: &Prepared| (it.revision(), it.outcome.is_some() && !it.changed());
        part.ordered.sort_by_key(rank);
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

/// What may come next, with how its compares come out: the next one in order, or the oldest of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Next(bool),
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
    /// For each place in the order, the first answer to what stands there or later.
    first_answer: Vec<u64>,
    state: State,
    /// How many have come of those whose order is known.
    come: usize,
    /// How many of each class have come.
    used: Vec<usize>,
    /// Situations that were met before.
    met: HashSet<(u64, u64)>,
    steps: usize,
    /// The most that ever came.
    best: usize,
}

impl<'a> Search<'a> {
    fn new(part: &'a Part, revision: u64, steps: usize) -> Self {
        let mut first_answer: Vec<u64> = part.ordered.iter().map(|it| it.completed).collect();
        for at in (1..first_answer.len()).rev() {
            first_answer[at - 1] = first_answer[at - 1].min(first_answer[at]);
        }
        Self {
            part,
            first_answer,
            state: State::empty(part.keys.len(), revision, part.sighted.clone()),
            come: 0,
            used: vec![0; part.classes.len()],
            met: HashSet::new(),
            steps,
            best: 0,
        }
    }

    fn run(&mut self) -> Verdict {
        if let Some(late) = self.against_real_time() {
            self.best = late;
            return Verdict::Impossible;
        }
        let mut way: Vec<Step> = Vec::new();
        let mut choices = self.choices();
        while self.come < self.part.ordered.len() {
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

    /// The first one in order that was answered before an earlier one was called.
    fn against_real_time(&self) -> Option<usize> {
        let mut last_call = 0;
        self.part.ordered.iter().position(|operation| {
            let late = operation.completed < last_call;
            last_call = last_call.max(operation.invoked);
            late
        })
    }

    /// What may come next; what to try first stands last.
    fn choices(&mut self) -> Vec<Choice> {
        self.best = self.best.max(self.come);
        let Some(next) = self.part.ordered.get(self.come) else {
            return Vec::new();
        };
        let mut choices = Vec::new();
        for (class, oldest) in self.helpful(next) {
            choices.extend(branches(oldest).map(|it| Choice::Unknown(class, it)));
        }
        choices.extend(branches(next).map(Choice::Next));
        choices
    }

    /// The oldest of each class that can come before `next` and can matter to it: it touches a key of it, or of another
    /// one that can. The rest may as well come later.
    fn helpful(&self, next: &Prepared) -> Vec<(usize, &'a Prepared)> {
        let end = self.first_answer[self.come];
        let part = self.part;
        let mut keys = next.keys();
        let mut rest: Vec<_> = (self.used.iter().enumerate())
            .filter_map(|(class, used)| Some((class, part.classes[class].get(*used)?)))
            .filter(|(_, oldest)| oldest.invoked <= end)
            .collect();
        let mut helpful = Vec::new();
        loop {
            let (near, far): (Vec<_>, Vec<_>) =
                (rest.into_iter()).partition(|(_, it)| !it.keys().is_disjoint(&keys));
            if near.is_empty() {
                return helpful;
            }
            keys.extend(near.iter().flat_map(|(_, it)| it.keys()));
            helpful.extend(near);
            rest = far;
        }
    }

    fn advance(&mut self, choice: Choice) -> Option<Undo> {
        let part = self.part;
        match choice {
            Choice::Next(succeeded) => {
                let undo = self.state.step(&part.ordered[self.come], succeeded)?;
                self.come += 1;
                Some(undo)
            }
            Choice::Unknown(class, succeeded) => {
                let oldest = &part.classes[class][self.used[class]];
                let undo = self.state.step(oldest, succeeded)?;
                self.used[class] += 1;
                Some(undo)
            }
        }
    }

    fn retreat(&mut self, choice: Choice, undo: Undo) {
        self.state.undo(undo);
        match choice {
            Choice::Next(_) => self.come -= 1,
            Choice::Unknown(class, _) => self.used[class] -= 1,
        }
    }

    /// Where the search stands, as 128 bits: two searches that stand there have the same future.
    fn situation(&self) -> (u64, u64) {
        let hash = |seed: u64| {
            let mut hasher = DefaultHasher::new();
            (seed, self.come, &self.used, &self.state).hash(&mut hasher);
            hasher.finish()
        };
        (hash(1), hash(2))
    }
}

/// How the compares of an operation may come out.
fn branches(operation: &Prepared) -> impl Iterator<Item = bool> {
    let known = operation.outcome.as_ref().map(|it| it.succeeded);
    [false, true].into_iter().filter(move |branch| match known {
        Some(known) => known == *branch,
        None => !operation.actions(*branch).is_empty(),
    })
}
