//! What attackers did, and what they were told.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Answers that are told apart; attackers may be told anything.
const KINDS_MAX: usize = 64;
/// Of the words of an answer.
const WORDS_MAX: usize = 110;

/// Counts. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(Arc<Mutex<Counts>>);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Calls, connections or frames, whatever the attacker makes.
    pub(crate) done: u64,
    /// How often each answer came.
    pub(crate) told: BTreeMap<String, u64>,
}

impl Tally {
    /// The attacker did so much more.
    pub(crate) fn did(&self, more: u64) {
        self.with(|counts| counts.done += more);
    }

    /// It was told this, or was broken off.
    pub(crate) fn told(&self, what: &str) {
        let kind = kind(what);
        self.with(|counts| {
            let known = counts.told.contains_key(&kind);
            let kind = if known || counts.told.len() < KINDS_MAX {
                kind
            } else {
                "other answers".to_owned()
            };
            *counts.told.entry(kind).or_default() += 1;
        });
    }

    fn with(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// For the process that reads them.
    pub(crate) fn write(&self, file: &Path) {
        self.with(|counts| fs_err::write(file, serde_json::to_vec(counts).unwrap()).unwrap());
    }
}

impl Counts {
    /// Of the attackers' process; nothing if it left none.
    pub(crate) fn read(file: &Path) -> Self {
        let bytes = fs_err::read(file).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// What was told most.
    pub(crate) fn most_told(&self, kinds: usize) -> Vec<(&str, u64)> {
        let mut told: Vec<_> = self.told.iter().map(|(it, n)| (it.as_str(), *n)).collect();
        told.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        told.truncate(kinds);
        told
    }
}

/// Answers that differ in numbers alone are of one kind.
pub(crate) fn kind(words: &str) -> String {
    let mut kind = String::new();
    let mut in_number = false;
    for character in words.lines().next().unwrap_or("").chars().take(WORDS_MAX) {
        let digit = character.is_ascii_digit();
        if !(digit && in_number) {
            kind.push(if digit { 'N' } else { character });
        }
        in_number = digit;
    }
    kind
}
