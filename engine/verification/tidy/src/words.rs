//! Words that are not of the field, in comments, messages and pages: each has a plain one.
//!
//! Only what has one replacement everywhere is here. A list is of use to nobody who has to guess.

use crate::tree::File;
use crate::{Offence, Tree};

/// Words that may not be used, and what is written instead.
const WORDS: [(&str, &str); 6] = [
    ("anew", "again"),
    ("can not", "cannot"),
    ("for ever", "forever"),
    ("is no text", "is not text"),
    ("whomsoever", "whoever"),
    ("whosever", "whoever's"),
];

/// It names them itself.
const EXCEPT: [&str; 1] = ["engine/verification/tidy/src/words.rs"];

pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let mut found = Vec::new();
    for ending in [".rs", ".md", ".proto", ".toml"] {
        let files = tree.ending(ending);
        let files = files.filter(|it| !EXCEPT.contains(&it.path.as_str()));
        found.extend(files.flat_map(of_file));
    }
    found
}

fn of_file(file: &File) -> Vec<Offence> {
    let mut found = Vec::new();
    for (at, line) in file.text.lines().enumerate() {
        let low = line.to_lowercase();
        for (word, better) in WORDS {
            if has_word(&low, word) {
                found.push(Offence {
                    path: file.path.clone(),
                    line: at + 1,
                    message: format!("\"{word}\" is written \"{better}\""),
                });
            }
        }
    }
    found
}

/// Whether it is there as a word, and not as a part of one or of a name.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let behind = line[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !behind.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_named_with_what_is_written_instead() {
        let text = "// It begins Anew.\nfn anew_one() {}\n// can not\n// it renews, cannot\n";
        let found = check(&Tree::of(&[("a.rs", text)]));
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "a.rs:1: \"anew\" is written \"again\"",
                "a.rs:3: \"can not\" is written \"cannot\"",
            ]
        );
    }
}
