//! Rules of style for the whole tree that neither the compiler nor the linter check.
//!
//! Every rule is a function of a [`Tree`] that returns its [`Offence`]s, each with file and line.
//! `tests/tidy` runs all of them over this repository. A rule that rustfmt or clippy can check on
//! the stable toolchain does not belong here.

mod code_map;
mod docs;
mod functions;
mod imports;
mod invariants;
mod markdown;
mod modules;
mod names;
mod numbers;
mod paths;
mod source;
mod tree;
mod versions;
mod width;
mod words;

use std::fmt;

pub use crate::tree::{File, Tree};

/// What a rule found: where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offence {
    /// Relative to the root of the tree.
    pub path: String,
    /// Counted from 1.
    pub line: usize,
    /// What is wrong there, and how it is put right.
    pub message: String,
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// A rule: its name, and the function that finds what breaks it.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// As in the list of exceptions.
    pub name: &'static str,
    /// Looks at the whole tree.
    pub check: fn(&Tree) -> Vec<Offence>,
}

/// Every rule there is.
pub const RULES: [Rule; 14] = [
    Rule {
        name: "rust-width",
        check: width::rust,
    },
    Rule {
        name: "markdown-width",
        check: width::markdown,
    },
    Rule {
        name: "comment-width",
        check: width::comments,
    },
    Rule {
        name: "imports",
        check: imports::check,
    },
    Rule {
        name: "modules",
        check: modules::check,
    },
    Rule {
        name: "names",
        check: names::check,
    },
    Rule {
        name: "functions",
        check: functions::check,
    },
    Rule {
        name: "code-map",
        check: code_map::check,
    },
    Rule {
        name: "paths",
        check: paths::check,
    },
    Rule {
        name: "invariants",
        check: invariants::check,
    },
    Rule {
        name: "versions",
        check: versions::check,
    },
    Rule {
        name: "numbers",
        check: numbers::check,
    },
    Rule {
        name: "docs",
        check: docs::check,
    },
    Rule {
        name: "words",
        check: words::check,
    },
];
