//! What happened, one readable line each, and a running hash of it all: equal seeds must come to
//! equal hashes.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};

use super::queue::{MILLI, Nanos, SECOND};

/// How much of the trace is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Not even its hash: for who asks only whether anything is broken.
    Nothing,
    /// Only its hash.
    #[default]
    Hash,
    /// The last so many lines.
    Last(usize),
    Everything,
}

/// A hash that needs no speed records and no dependency: FNV-1a, 64 bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hash(pub(super) u64);

impl Hash {
    pub(super) const EMPTY: Self = Self(0xcbf2_9ce4_8422_2325);

    pub(super) fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(super) fn of(parts: &[&[u8]]) -> Self {
        let mut hash = Self::EMPTY;
        for part in parts {
            hash.add(&(part.len() as u64).to_be_bytes());
            hash.add(part);
        }
        hash
    }
}

pub(super) struct Trace {
    keep: Keep,
    hash: Hash,
    line: String,
    lines: VecDeque<String>,
}

impl Trace {
    pub(super) fn new(keep: Keep) -> Self {
        Self {
            keep,
            hash: Hash::EMPTY,
            line: String::new(),
            lines: VecDeque::new(),
        }
    }

    /// Takes one line down.
    pub(super) fn note(&mut self, now: Nanos, what: fmt::Arguments<'_>) {
        if self.keep == Keep::Nothing {
            return;
        }
        self.line.clear();
        let (seconds, micros) = (now / SECOND, now % SECOND / (MILLI / 1_000));
        write!(self.line, "{seconds:4}.{micros:06} {what}").expect("strings take every line");
        self.hash.add(self.line.as_bytes());
        let lines_max = match self.keep {
            Keep::Nothing | Keep::Hash => return,
            Keep::Last(lines) => lines,
            Keep::Everything => usize::MAX,
        };
        if self.lines.len() >= lines_max {
            self.lines.pop_front();
        }
        self.lines.push_back(self.line.clone());
    }

    /// Adds to the last line what is for reading only: it is not part of the hash.
    pub(super) fn explain(&mut self, what: Option<String>) {
        if let (Some(line), Some(what)) = (self.lines.back_mut(), what) {
            line.push_str(": ");
            line.push_str(&what);
        }
    }

    pub(super) fn keep(&self) -> Keep {
        self.keep
    }

    /// Whether somebody is going to read it.
    pub(super) fn is_read(&self) -> bool {
        !matches!(self.keep, Keep::Nothing | Keep::Hash)
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash.0
    }

    pub(super) fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }
}
