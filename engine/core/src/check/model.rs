//! What the store would be if operations took effect one after the other. Where the outcome of an
//! operation is unknown, so is its revision.

use super::prepare::{Action, KeyId, Outcome, Pair, Prepared, Told, ValueId, Wanted};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Pairs that were seen, by key and by the revision that last changed it.
pub(super) type Sighted = BTreeMap<(KeyId, u64), Pair>;

/// The store, for the keys that are looked at.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// The store's revision is this or higher.
    revision: u64,
    registers: Vec<Option<Register>>,
    /// What becomes of a key must be what will be seen of it.
    sighted: Arc<Sighted>,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.revision, &self.registers).hash(hasher);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Register {
    value: ValueId,
    /// `None`: by a revision that nobody knows.
    created: Option<u64>,
    /// As `created`.
    modified: Option<u64>,
    version: u64,
    /// Not 0: which put it was, as it may expire.
    expiring: u32,
}

impl Register {
    /// What it is if it is what was seen.
    fn seen(self, pair: Pair) -> Option<Self> {
        let may_be = |known: Option<u64>, seen| known.is_none_or(|known| known == seen);
        let fits = pair.value == self.value
            && pair.version == self.version
            && may_be(self.created, pair.created)
            && may_be(self.modified, pair.modified);
        fits.then_some(Self {
            created: Some(pair.created),
            modified: Some(pair.modified),
            ..self
        })
    }
}

/// What a step changed; taken back in reverse order.
#[derive(Debug)]
pub(super) struct Undo {
    revision: u64,
    changed: Vec<(KeyId, Option<Register>)>,
}

impl State {
    /// No keys, at `revision` or later.
    pub(super) fn empty(keys: usize, revision: u64, sighted: Arc<Sighted>) -> Self {
        Self {
            revision,
            registers: vec![None; keys],
            sighted,
        }
    }

    /// Lets an operation take effect, doing its `then` or its `otherwise`. `None`, and nothing changed: it
    /// cannot have come here, or, if nobody knows its outcome, it would change nothing.
    pub(super) fn step(&mut self, operation: &Prepared, succeeded: bool) -> Option<Undo> {
        let mut undo = Undo {
            revision: self.revision,
            changed: Vec::new(),
        };
        let came = match &operation.outcome {
            _ if !self.may_decide(operation, succeeded) => None,
            Some(outcome) => self.take(operation, outcome, &mut undo),
            None => self.guess(operation, succeeded, &mut undo),
        };
        if came.is_none() {
            self.undo(undo);
            return None;
        }
        Some(undo)
    }

    /// Takes a step back.
    pub(super) fn undo(&mut self, undo: Undo) {
        self.revision = undo.revision;
        for (key, register) in undo.changed.into_iter().rev() {
            self.registers[key] = register;
        }
    }

    /// Whether the compares may come out like this.
    fn may_decide(&self, operation: &Prepared, succeeded: bool) -> bool {
        let mut compares = operation.deed.compares.iter();
        if succeeded {
            compares.all(|(key, wanted)| self.holds(*key, *wanted).unwrap_or(true))
        } else {
            compares.any(|(key, wanted)| !self.holds(*key, *wanted).unwrap_or(false))
        }
    }

    /// `None`: that depends on a revision that nobody knows.
    fn holds(&self, key: KeyId, wanted: Wanted) -> Option<bool> {
        match (wanted, &self.registers[key]) {
            (Wanted::ModRevision(0), register) => Some(register.is_none()),
            (_, None) => Some(false),
            (Wanted::ModRevision(wanted), Some(it)) => it.modified.map(|it| it == wanted),
            (Wanted::Value(wanted), Some(it)) => Some(it.value == wanted),
        }
    }

    /// An operation that was answered.
    fn take(&mut self, operation: &Prepared, outcome: &Outcome, undo: &mut Undo) -> Option<()> {
        self.reach(outcome.revision, operation.changed())?;
        for (key, wanted) in &operation.deed.compares {
            if let (true, Wanted::ModRevision(revision)) = (outcome.succeeded, *wanted) {
                self.pin(*key, revision, undo);
            }
        }
        for (action, told) in operation.told() {
            match (action, told) {
                (Action::Get(key), Told::Got(seen)) => self.see(key, seen, undo)?,
                (action, told) => {
                    let changed = self.act(action, Some(outcome.revision), undo)?;
                    let fits = match told {
                        Told::Deleted(deleted) => changed == deleted,
                        Told::Nothing | Told::Got(_) => true,
                    };
                    fits.then_some(())?;
                }
            }
        }
        Some(())
    }

    /// An operation of which only its client's wish is known, and perhaps its revision.
    fn guess(&mut self, operation: &Prepared, succeeded: bool, undo: &mut Undo) -> Option<()> {
        if let Some(revision) = operation.proven {
            self.reach(revision, true)?;
        }
        let mut changed = false;
        for action in operation.actions(succeeded) {
            changed |= self.act(*action, operation.proven, undo)?;
        }
        changed.then_some(())
    }

    /// The store comes to a revision, by a change or not.
    fn reach(&mut self, revision: u64, change: bool) -> Option<()> {
        let least = self.revision + u64::from(change);
        self.revision = revision;
        (revision >= least).then_some(())
    }

    /// Notes the revision that a compare has proved.
    fn pin(&mut self, key: KeyId, revision: u64, undo: &mut Undo) {
        if let Some(register) = self.registers[key] {
            let modified = Some(revision);
            self.set(
                key,
                Some(Register {
                    modified,
                    ..register
                }),
                undo,
            );
        }
    }

    /// Whether it changed anything; `None`: not to what was seen later.
    fn act(&mut self, action: Action, revision: Option<u64>, undo: &mut Undo) -> Option<bool> {
        let before = self.registers[action.key()];
        let after = match action {
            Action::Put {
                key,
                value,
                expiring,
            } => Some(self.put(key, value, expiring, revision)?),
            Action::Delete(_) if before.is_some() => None,
            Action::Expire { expiring, .. } if before.is_some_and(|it| it.expiring == expiring) => {
                None
            }
            Action::Get(_) | Action::Delete(_) | Action::Expire { .. } => return Some(false),
        };
        self.set(action.key(), after, undo);
        Some(true)
    }

    /// What a put makes of its key; `None`: something else was seen.
    fn put(
        &self,
        key: KeyId,
        value: ValueId,
        expiring: u32,
        revision: Option<u64>,
    ) -> Option<Register> {
        let before = self.registers[key];
        let after = Register {
            value,
            created: before.map_or(revision, |before| before.created),
            modified: revision,
            version: before.map_or(1, |before| before.version + 1),
            expiring,
        };
        match revision.and_then(|revision| self.sighted.get(&(key, revision))) {
            Some(pair) => after.seen(*pair),
            None => Some(after),
        }
    }

    /// A key is what a client saw. Its revisions are known from now on.
    fn see(&mut self, key: KeyId, seen: Option<Pair>, undo: &mut Undo) -> Option<()> {
        match (seen, self.registers[key]) {
            (None, None) => Some(()),
            (Some(seen), Some(register)) => {
                let known = register.seen(seen)?;
                self.set(key, Some(known), undo);
                Some(())
            }
            _ => None,
        }
    }

    fn set(&mut self, key: KeyId, register: Option<Register>, undo: &mut Undo) {
        if self.registers[key] != register {
            undo.changed.push((key, self.registers[key]));
            self.registers[key] = register;
        }
    }
}
