//! Searches an order of all operations that agrees with real time and explains every answer.
//!
//! Keys that no batch connects are independent (Herlihy & Wing 1990, locality), so each set is
//! searched alone. Reads of several keys are taken apart: that they see one revision is checked by
//! [`revisions`](super::revisions). Reads below lease level have no place in the order and are left
//! out; so are operations that are known not to have happened.
//!
//! This is the search of Wing & Gong with Lowe's cache of visited states. Revisions leave it few
//! choices: what took revision 7 came after what took 6, and what was seen as of 6 in between. So
//! the search only places operations of unknown outcome and expirations, and of those only the ones
//! whose effect no client saw:
//!
//! - lazily: one is tried where the next operation touches its keys, for otherwise it may as well
//!   come later; of those that do the same, the oldest;
//! - only where it can have taken a revision that no other operation took, if the history has all
//!   revisions;
//! - never where the keys were the same before and no more had been used up: what did not help then
//!   does not help now.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::history::History;
use super::model::{ModelState, Sighted, Undo};
use super::prepare::{Action, Deed, KeyId, Outcome, Prepared, Ready, prepare};
use super::violation::{Rule, Violation};

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
    let free = history
        .alone_since
        .map(|since| free_revisions(&ready, since));
    for part in parts(&ready) {
        let revision = history.alone_since.unwrap_or(0);
        let state = ModelState::empty(
            part.keys.len(),
            revision,
            part.sighted.clone(),
            free.clone(),
        );
        let mut search = Search::new(&part, state, steps);
        match search.run() {
            Verdict::Explained => searched.explained += 1,
            Verdict::Undecided => searched.undecided += 1,
            Verdict::Impossible => {
                let keys: Vec<&str> = part.keys.iter().map(|key| &*ready.keys[*key]).collect();
                let message = format!(
                    "no order of the operations on {} explains the answers; at best {} of {} fit, \
                     and the last of these cannot come next",
                    keys.join(", "),
                    search.best,
                    part.ordered.len(),
                );
                let last = search.best.saturating_sub(1);
                let around = part.ordered[last..=search.best].iter();
                let around = around.map(|it| &history.operations[it.operation.at]);
                return Err(Violation::new(Rule::Linearizable, message, around));
            }
        }
    }
    Ok(searched)
}

/// The revisions that were taken, but by no known operation.
fn free_revisions(ready: &Ready, since: u64) -> Arc<[u64]> {
    let known = ready.operations.iter().filter_map(Prepared::revision).max();
    let took = |it: &&Prepared| it.changed() || it.proven.is_some();
    let taken: BTreeSet<u64> = (ready.operations.iter().filter(took))
        .filter_map(Prepared::revision)
        .collect();
    let all = since + 1..=known.unwrap_or(since);
    all.filter(|revision| !taken.contains(revision)).collect()
}

/// For each operation the highest revision that was answered to any client before it was called:
/// its own is higher.
fn floors(ready: &Ready) -> Vec<u64> {
    let mut answers: Vec<_> = (ready.operations.iter())
        .filter_map(|it| Some((it.completed, it.outcome.as_ref()?.revision)))
        .collect();
    answers.sort_unstable();
    let mut answers = answers.into_iter().peekable();
    let mut floor = 0;
    let floor_of = |operation: &Prepared| {
        while let Some((_, told)) = answers.next_if(|(at, _)| *at < operation.invoked) {
            floor = floor.max(told);
        }
        floor
    };
    // They are in the order of their calls.
    ready.operations.iter().map(floor_of).collect()
}

/// An operation, or the part of a read that one key is.
struct Piece {
    operation: Prepared,
    /// Every key that it touches.
    keys: Vec<KeyId>,
    /// Its revision is higher than this one.
    floor: u64,
}

/// The operations on keys that batches connect.
struct Part {
    keys: Vec<KeyId>,
    /// Those with a revision, answered or proven, in the order of revisions; at each first what
    /// took it, then what was seen as of it.
    ordered: Vec<Piece>,
    /// The other ones; those that do the same are one class, in order of their calls. That a pair
    /// expires is none of them: the state knows when one may.
    classes: Vec<Vec<Piece>>,
    /// What clients saw, by key and revision of the last change.
    sighted: Arc<Sighted>,
}

/// Splits a history by connected keys.
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
    let mut classes: BTreeMap<(KeyId, Deed), Vec<Piece>> = BTreeMap::new();
    for (operation, floor) in ready.operations.iter().zip(floors(ready)) {
        if !operation.level.is_strong() || expires(operation) {
            continue;
        }
        for piece in pieces(operation) {
            let Some(group) = piece.keys().first().map(|key| groups[*key]) else {
                continue;
            };
            let part = parts.get_mut(&group).expect("each group has its part");
            let operation = renumbered(piece, &part.keys);
            let piece = Piece {
                keys: operation.keys().into_iter().collect(),
                operation,
                floor,
            };
            if piece.operation.revision().is_some() {
                part.ordered.push(piece);
            } else if piece.operation.may_change() {
                let class = classes.entry((group, piece.operation.deed.clone()));
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
        part.ordered.sort_by_key(|it| rank(&it.operation));
        // The newest last: it is tried first, for what happened mostly did so soon.
        part.classes.sort_by_key(|class| class[0].operation.invoked);
    }
    parts.into_values().collect()
}

fn expires(operation: &Prepared) -> bool {
    matches!(operation.deed.then[..], [Action::Expire { .. }])
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

/// What may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// The next one in order, with the result of its compares.
    Next(bool),
    /// The oldest of a class, with the result of its compares.
    Unknown(usize, bool),
    /// A pair expires.
    Expire(KeyId),
}

struct SearchStep {
    choice: Choice,
    undo: Undo,
    /// What else could have come here, next one last.
    others: Vec<Choice>,
}

struct Search<'a> {
    part: &'a Part,
    /// For each place in the order, the first answer to what stands there or later.
    first_answer: Vec<u64>,
    state: ModelState,
    /// How many were placed of those whose order is known.
    come: usize,
    /// How many of each class were placed.
    used: Vec<u32>,
    /// Visited states, and what had been used up in each.
    met: HashMap<(u64, u64), Vec<Box<[u32]>>>,
    /// How many steps were made, and how many may be.
    steps: usize,
    steps_max: usize,
    /// The most that were placed at any time.
    best: usize,
}

impl<'a> Search<'a> {
    fn new(part: &'a Part, state: ModelState, steps_max: usize) -> Self {
        let answers = part.ordered.iter().map(|it| it.operation.completed);
        let mut first_answer: Vec<u64> = answers.collect();
        for at in (1..first_answer.len()).rev() {
            first_answer[at - 1] = first_answer[at - 1].min(first_answer[at]);
        }
        Self {
            part,
            first_answer,
            state,
            come: 0,
            used: vec![0; part.classes.len()],
            met: HashMap::new(),
            steps: 0,
            steps_max,
            best: 0,
        }
    }

    fn run(&mut self) -> Verdict {
        if let Some(late) = self.against_real_time() {
            self.best = late;
            return Verdict::Impossible;
        }
        let mut way: Vec<SearchStep> = Vec::new();
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
            if self.steps >= self.steps_max {
                return Verdict::Undecided;
            }
            if self.was_hopeless() {
                self.retreat(choice, undo);
                continue;
            }
            self.steps += 1;
            way.push(SearchStep {
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
        self.part.ordered.iter().position(|piece| {
            let late = piece.operation.completed < last_call;
            last_call = last_call.max(piece.operation.invoked);
            late
        })
    }

    /// What may come next; what to try first stands last.
    fn choices(&mut self) -> Vec<Choice> {
        self.best = self.best.max(self.come);
        let Some(next) = self.part.ordered.get(self.come) else {
            return Vec::new();
        };
        let mut choices = self.helpful(next);
        choices.extend(next.operation.branches().map(Choice::Next));
        choices
    }

    /// What else can come before `next` and can matter to it: what touches a key of it, or of
    /// something else that can. The rest may as well come later.
    fn helpful(&self, next: &Piece) -> Vec<Choice> {
        let limit = limit(&next.operation);
        let mut keys: BTreeSet<KeyId> = next.keys.iter().copied().collect();
        let mut rest: Vec<(usize, &Piece)> = self.possible(limit).collect();
        let mut near = Vec::new();
        loop {
            let (touch, far): (Vec<_>, Vec<_>) = (rest.into_iter())
                .partition(|(_, piece)| piece.keys.iter().any(|key| keys.contains(key)));
            if touch.is_empty() {
                break;
            }
            keys.extend(touch.iter().flat_map(|(_, piece)| &piece.keys));
            near.extend(touch);
            rest = far;
        }
        near.sort_unstable_by_key(|(class, _)| *class);
        let of_class = |(class, oldest): (usize, &Piece)| {
            (oldest.operation.branches())
                .map(|it| Choice::Unknown(class, it))
                .collect::<Vec<_>>()
        };
        let mut choices: Vec<_> = near.into_iter().flat_map(of_class).collect();
        let expiring = keys
            .into_iter()
            .filter(|key| self.state.may_expire(*key, limit));
        choices.extend(expiring.map(Choice::Expire));
        choices
    }

    /// The oldest of each class that real time and revisions allow to come now.
    fn possible(&self, limit: u64) -> impl Iterator<Item = (usize, &'a Piece)> {
        let part = self.part;
        let end = self.first_answer[self.come];
        let left = (part.classes.iter().zip(&self.used).enumerate())
            .filter_map(|(class, (all, used))| Some((class, all.get(*used as usize)?)));
        left.filter(move |(_, oldest)| {
            oldest.operation.invoked <= end
                && (self.state.free_revision(&oldest.keys, oldest.floor, limit)).is_some()
        })
    }

    fn advance(&mut self, choice: Choice) -> Option<Undo> {
        let part = self.part;
        let next = &part.ordered[self.come];
        let limit = limit(&next.operation);
        match choice {
            Choice::Next(succeeded) => {
                let undo = self.state.step(&next.operation, &next.keys, succeeded)?;
                self.come += 1;
                Some(undo)
            }
            Choice::Unknown(class, succeeded) => {
                let oldest = &part.classes[class][self.used[class] as usize];
                let revision = self
                    .state
                    .free_revision(&oldest.keys, oldest.floor, limit)?;
                let undo =
                    (self.state).guess(&oldest.operation, &oldest.keys, succeeded, revision)?;
                self.used[class] += 1;
                Some(undo)
            }
            Choice::Expire(key) => self.state.expire(key, limit),
        }
    }

    fn retreat(&mut self, choice: Choice, undo: Undo) {
        self.state.undo(undo);
        match choice {
            Choice::Next(_) => self.come -= 1,
            Choice::Unknown(class, _) => self.used[class] -= 1,
            Choice::Expire(_) => {}
        }
    }

    /// Whether the search was in this state before, with no less left to use. If not, the state is
    /// added.
    fn was_hopeless(&mut self) -> bool {
        // 128 bits of it: equal states have the same future.
        let hash = |seed: u64| {
            let mut hasher = DefaultHasher::new();
            (seed, self.come, &self.state).hash(&mut hasher);
            hasher.finish()
        };
        let before = self.met.entry((hash(1), hash(2))).or_default();
        let no_more = |other: &[u32]| {
            other
                .iter()
                .zip(&self.used)
                .all(|(other, now)| other <= now)
        };
        if before.iter().any(|other| no_more(other)) {
            return true;
        }
        before.push(self.used.clone().into());
        false
    }
}

/// The highest revision of what comes before an operation whose revision is known.
fn limit(next: &Prepared) -> u64 {
    let changes = next.changed() || next.outcome.is_none();
    next.revision()
        .map_or(u64::MAX, |it| it.saturating_sub(u64::from(changes)))
}
