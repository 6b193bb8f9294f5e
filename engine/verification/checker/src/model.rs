//! The state of the store if operations took effect one after the other. Where the outcome of an
//! operation is unknown, so is its revision; it is one that no other operation took.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::prepare::{Action, KeyId, Outcome, Pair, Prepared, Told, ValueId, Wanted};

/// Pairs that were seen, by key and by the revision that last changed it.
pub(super) type Sighted = BTreeMap<(KeyId, u64), Pair>;

/// The store, for the keys that are looked at.
#[derive(Clone, Debug)]
pub(super) struct ModelState {
    /// The store's revision is this or higher.
    revision: u64,
    registers: Vec<Option<Register>>,
    /// For each key, the revision of what touched it last: what comes next there has none below.
    touched: Vec<u64>,
    /// What clients will see of a key; its changes must lead there.
    sighted: Arc<Sighted>,
    /// The revisions that no operation is known to have taken, in order, if all that were taken are
    /// known.
    free: Option<Arc<[u64]>>,
}

impl Hash for ModelState {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.revision, &self.registers, &self.touched).hash(hasher);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Register {
    value: ValueId,
    /// `None`: by an unknown revision.
    created: Option<u64>,
    /// As `created`.
    modified: Option<u64>,
    version: u64,
    /// Whether it was put to expire some time.
    expires: bool,
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

/// What a step changed; undone in reverse order.
#[derive(Debug)]
pub(super) struct Undo {
    revision: u64,
    changed: Vec<(KeyId, Option<Register>)>,
    touched: Vec<(KeyId, u64)>,
}

impl ModelState {
    /// No keys, at `revision` or later.
    pub(super) fn empty(
        keys: usize,
        revision: u64,
        sighted: Arc<Sighted>,
        free: Option<Arc<[u64]>>,
    ) -> Self {
        Self {
            revision,
            registers: vec![None; keys],
            touched: vec![0; keys],
            sighted,
            free,
        }
    }

    /// Lets an operation whose revision is known take effect, doing its `then` or its `otherwise`.
    /// `None`, and nothing changed: it cannot have come here.
    pub(super) fn step(
        &mut self,
        operation: &Prepared,
        keys: &[KeyId],
        succeeded: bool,
    ) -> Option<Undo> {
        self.attempt(|state, undo| {
            state.may_decide(operation, succeeded).then_some(())?;
            match &operation.outcome {
                Some(outcome) => state.take(operation, outcome, undo)?,
                None => {
                    state.reach(operation.proven?, true)?;
                    state.act_all(operation, succeeded, operation.proven, undo)?;
                }
            }
            state.touch(keys, operation.revision()?, undo);
            Some(())
        })
    }

    /// Lets an operation without an answer take effect; `revision` is one that it can have taken.
    /// `None`: it would change nothing.
    pub(super) fn guess(
        &mut self,
        operation: &Prepared,
        keys: &[KeyId],
        succeeded: bool,
        revision: u64,
    ) -> Option<Undo> {
        self.attempt(|state, undo| {
            state.may_decide(operation, succeeded).then_some(())?;
            state.act_all(operation, succeeded, None, undo)?;
            state.touch(keys, revision, undo);
            Some(())
        })
    }

    /// Whether the pair of this key may expire, at a revision up to `limit`.
    pub(super) fn may_expire(&self, key: KeyId, limit: u64) -> bool {
        let expires = self.registers[key].is_some_and(|register| register.expires);
        expires && self.free_revision(&[key], 0, limit).is_some()
    }

    /// Lets it expire.
    pub(super) fn expire(&mut self, key: KeyId, limit: u64) -> Option<Undo> {
        let revision = self.free_revision(&[key], 0, limit)?;
        self.attempt(|state, undo| {
            state.set(key, None, undo);
            state.touch(&[key], revision, undo);
            Some(())
        })
    }

    /// The lowest revision up to `limit` that something can have taken that touches `keys` now, and
    /// whose revision is above `floor`.
    pub(super) fn free_revision(&self, keys: &[KeyId], floor: u64, limit: u64) -> Option<u64> {
        let touched = keys.iter().map(|key| self.touched[*key]).max();
        let after = floor.max(touched.unwrap_or(0));
        let lowest = match &self.free {
            Some(free) => *free.get(free.partition_point(|it| *it <= after))?,
            // Others write too, so any may be free; what touches a key next may have the same for
            // all that is known.
            None => after,
        };
        (lowest <= limit).then_some(lowest)
    }

    /// Does all of it or nothing.
    fn attempt(&mut self, work: impl FnOnce(&mut Self, &mut Undo) -> Option<()>) -> Option<Undo> {
        let mut undo = Undo {
            revision: self.revision,
            changed: Vec::new(),
            touched: Vec::new(),
        };
        if work(self, &mut undo).is_none() {
            self.undo(undo);
            return None;
        }
        Some(undo)
    }

    /// Undoes a step.
    pub(super) fn undo(&mut self, undo: Undo) {
        self.revision = undo.revision;
        for (key, register) in undo.changed.into_iter().rev() {
            self.registers[key] = register;
        }
        for (key, revision) in undo.touched {
            self.touched[key] = revision;
        }
    }

    fn touch(&mut self, keys: &[KeyId], revision: u64, undo: &mut Undo) {
        for key in keys {
            undo.touched.push((*key, self.touched[*key]));
            self.touched[*key] = revision;
        }
    }

    /// Whether the compares may have this result.
    fn may_decide(&self, operation: &Prepared, succeeded: bool) -> bool {
        let mut compares = operation.deed.compares.iter();
        if succeeded {
            compares.all(|(key, wanted)| self.holds(*key, *wanted).unwrap_or(true))
        } else {
            compares.any(|(key, wanted)| !self.holds(*key, *wanted).unwrap_or(false))
        }
    }

    /// `None`: that depends on an unknown revision.
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

    /// Everything that an operation without an answer does; `None`: that is nothing.
    fn act_all(
        &mut self,
        operation: &Prepared,
        succeeded: bool,
        revision: Option<u64>,
        undo: &mut Undo,
    ) -> Option<()> {
        let mut changed = false;
        for action in operation.actions(succeeded) {
            changed |= self.act(*action, revision, undo)?;
        }
        changed.then_some(())
    }

    /// The store reaches a revision, by a change or not.
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
                expires,
            } => Some(self.put(key, value, expires, revision)?),
            Action::Delete(_) if before.is_some() => None,
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
        expires: bool,
        revision: Option<u64>,
    ) -> Option<Register> {
        let before = self.registers[key];
        let after = Register {
            value,
            created: before.map_or(revision, |before| before.created),
            modified: revision,
            version: before.map_or(1, |before| before.version + 1),
            expires,
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
