//! What the store would be if operations took effect one after the other. Where the outcome of an
//! operation is unknown, so is its revision, and only bounds of it are kept.

use super::prepare::{Action, KeyId, Outcome, Pair, Prepared, Told, ValueId, Wanted};

/// The store, for the keys that are looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    /// The store's revision is this or higher.
    revision: u64,
    registers: Vec<Option<Register>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Register {
    value: ValueId,
    created: Stamp,
    modified: Stamp,
    version: u64,
    /// Not 0: which put it was, as it may expire.
    expiring: u32,
}

/// A revision, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stamp {
    Exactly(u64),
    AtLeast(u64),
}

impl Stamp {
    fn may_be(self, revision: u64) -> bool {
        match self {
            Self::Exactly(it) => it == revision,
            Self::AtLeast(it) => it <= revision,
        }
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
    pub(super) fn empty(keys: usize, revision: u64) -> Self {
        Self {
            revision,
            registers: vec![None; keys],
        }
    }

    /// Lets an operation take effect, doing its `then` or its `otherwise`. `None`, and nothing changed: it
    /// cannot have come here, or, if nobody knows its outcome, it would change nothing.
    pub(super) fn step(&mut self, operation: &Prepared, succeeded: bool) -> Option<Undo> {
        let mut undo = Undo {
            revision: self.revision,
            changed: Vec::new(),
        };
        let fits = self.fits(operation, succeeded)
            && match &operation.outcome {
                Some(outcome) => self.take(operation, outcome, &mut undo),
                None => self.guess(operation, succeeded, &mut undo),
            };
        if !fits {
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
    fn fits(&self, operation: &Prepared, succeeded: bool) -> bool {
        if let Some(outcome) = &operation.outcome
            && outcome.succeeded != succeeded
        {
            return false;
        }
        let mut compares = operation.deed.compares.iter();
        if succeeded {
            compares.all(|(key, wanted)| self.may_hold(*key, *wanted))
        } else {
            compares.any(|(key, wanted)| !self.must_hold(*key, *wanted))
        }
    }

    fn may_hold(&self, key: KeyId, wanted: Wanted) -> bool {
        match (wanted, &self.registers[key]) {
            (Wanted::ModRevision(0), register) => register.is_none(),
            (_, None) => false,
            (Wanted::ModRevision(wanted), Some(it)) => it.modified.may_be(wanted),
            (Wanted::Value(wanted), Some(it)) => it.value == wanted,
        }
    }

    fn must_hold(&self, key: KeyId, wanted: Wanted) -> bool {
        let uncertain = match (wanted, &self.registers[key]) {
            (Wanted::ModRevision(wanted), Some(it)) => it.modified != Stamp::Exactly(wanted),
            _ => false,
        };
        self.may_hold(key, wanted) && !uncertain
    }

    /// An operation that was answered.
    fn take(&mut self, operation: &Prepared, outcome: &Outcome, undo: &mut Undo) -> bool {
        let changes = operation.changed();
        let least = self.revision + u64::from(changes);
        if outcome.revision < least {
            return false;
        }
        self.revision = outcome.revision;
        let stamp = Stamp::Exactly(outcome.revision);
        operation.told().all(|(action, told)| match (action, told) {
            (Action::Get(key), Told::Got(seen)) => self.see(key, seen, undo),
            (action, Told::Deleted(deleted)) => self.act(action, stamp, undo) == deleted,
            (action, _) => self.act(action, stamp, undo),
        })
    }

    /// An operation of which only its client's wish is known.
    fn guess(&mut self, operation: &Prepared, succeeded: bool, undo: &mut Undo) -> bool {
        self.revision += 1;
        let stamp = Stamp::AtLeast(self.revision);
        let mut changed = false;
        for action in operation.actions(succeeded) {
            changed |= self.act(*action, stamp, undo);
        }
        changed
    }

    /// Whether it changed anything.
    fn act(&mut self, action: Action, stamp: Stamp, undo: &mut Undo) -> bool {
        let before = self.registers[action.key()];
        let after = match action {
            Action::Get(_) => return false,
            Action::Put {
                value, expiring, ..
            } => Some(Register {
                value,
                created: before.map_or(stamp, |before| before.created),
                modified: stamp,
                version: before.map_or(1, |before| before.version + 1),
                expiring,
            }),
            Action::Delete(_) if before.is_some() => None,
            Action::Expire { expiring, .. } if before.is_some_and(|it| it.expiring == expiring) => {
                None
            }
            Action::Delete(_) | Action::Expire { .. } => return false,
        };
        self.set(action.key(), after, undo);
        true
    }

    /// Whether a key may be what a client saw. If so, its revisions are known from now on.
    fn see(&mut self, key: KeyId, seen: Option<Pair>, undo: &mut Undo) -> bool {
        let (seen, register) = match (seen, self.registers[key]) {
            (None, None) => return true,
            (Some(seen), Some(register)) => (seen, register),
            _ => return false,
        };
        let fits = seen.value == register.value
            && seen.version == register.version
            && register.created.may_be(seen.created)
            && register.modified.may_be(seen.modified)
            && seen.modified <= self.revision;
        if fits {
            let known = Register {
                created: Stamp::Exactly(seen.created),
                modified: Stamp::Exactly(seen.modified),
                ..register
            };
            self.set(key, Some(known), undo);
        }
        fits
    }

    fn set(&mut self, key: KeyId, register: Option<Register>, undo: &mut Undo) {
        if self.registers[key] != register {
            undo.changed.push((key, self.registers[key]));
            self.registers[key] = register;
        }
    }
}
