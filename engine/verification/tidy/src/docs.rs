//! No doc comment of at most three words that says only the name of what it stands at: nothing is
//! better than the name once more.
//!
//! Not looked at is what a doc comment is asked for by others: crates with `missing_docs`, and
//! files where comments become the help of a command line or the description in a schema.

use crate::tree::File;
use crate::{Offence, Tree};

/// So few words can hardly say more than a name.
const WORDS_MAX: usize = 3;
/// What shows comments to people.
const SHOWN_BY: [&str; 3] = ["use clap::", "JsonSchema", "clap::Args"];
/// Words that say nothing by themselves.
const EMPTY: [&str; 34] = [
    "a", "all", "an", "and", "are", "as", "for", "from", "how", "in", "is", "it", "its", "of",
    "one", "ones", "said", "so", "that", "the", "them", "they", "this", "to", "was", "were",
    "what", "when", "where", "which", "who", "whom", "why", "with",
];

pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let asked: Vec<&str> = tree
        .ending("/src/lib.rs")
        .filter(|it| it.text.contains("#![warn(missing_docs)]"))
        .filter_map(|it| it.path.strip_suffix("lib.rs"))
        .collect();
    let is_asked = |file: &File| {
        let of_crate = asked.iter().any(|it| file.path.starts_with(it));
        of_crate || SHOWN_BY.iter().any(|it| file.text.contains(it))
    };
    let files = tree.ending(".rs").filter(|it| !is_asked(it));
    files.flat_map(of_file).collect()
}

fn of_file(file: &File) -> Vec<Offence> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(doc) = line.trim_start().strip_prefix("/// ") else {
            continue;
        };
        let is_doc =
            |line: Option<&&str>| line.is_some_and(|it| it.trim_start().starts_with("///"));
        let is_alone =
            !is_doc(at.checked_sub(1).map(|it| &lines[it])) && !is_doc(lines.get(at + 1));
        if !is_alone || doc.split_whitespace().count() > WORDS_MAX {
            continue;
        }
        let below = lines[at + 1..].iter();
        let Some(item) = below
            .map(|it| it.trim_start())
            .find(|it| !it.starts_with("#["))
        else {
            continue;
        };
        if repeats(doc, item) {
            found.push(Offence {
                path: file.path.clone(),
                line: at + 1,
                message: format!("{doc:?} says the name only: leave it out, or say more"),
            });
        }
    }
    found
}

/// Whether the doc has no word that the item's name does not have.
fn repeats(doc: &str, item: &str) -> bool {
    let name = words_of_name(name(item));
    let words = doc.split(|c: char| !c.is_alphanumeric());
    let mut words = words.map(str::to_lowercase).filter(|it| !it.is_empty());
    !name.is_empty()
        && words.all(|word| EMPTY.contains(&word.as_str()) || name.contains(&singular(&word)))
}

/// What the item is called.
fn name(item: &str) -> &str {
    const BEFORE: [&str; 11] = [
        "pub", "async", "const", "unsafe", "static", "fn", "struct", "enum", "trait", "type", "mod",
    ];
    let is_before = |it: &&str| BEFORE.contains(it) || it.starts_with("pub(");
    let name = item.split_whitespace().find(|it| !is_before(it));
    let name = name.unwrap_or_default();
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    &name[..end.unwrap_or(name.len())]
}

/// `dataDir`, `DataDir`, `data_dir` and `DATA_DIR` as `data`, `dir`.
fn words_of_name(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = c.is_lowercase();
        if let Some(word) = words.last_mut().filter(|_| c != '_') {
            word.extend(c.to_lowercase());
        }
    }
    let words = words.into_iter().filter(|it| !it.is_empty());
    words.map(|it| singular(&it)).collect()
}

fn singular(word: &str) -> String {
    word.strip_suffix('s').unwrap_or(word).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(files: &[(&str, &str)]) -> Vec<usize> {
        check(&Tree::of(files)).iter().map(|it| it.line).collect()
    }

    #[test]
    fn a_doc_that_says_the_name_only_is_named() {
        let text = "/// The data dir.\nstruct DataDir {\n    /// Path.\n    path: PathBuf,\n    \
                    /// Its keys.\n    #[serde]\n    key: Key,\n}\nenum E {\n    /// Which \
                    one.\n    One,\n}\n";
        assert_eq!(lines(&[("a/src/a.rs", text)]), [1, 3, 5, 10]);
    }

    #[test]
    fn words_that_only_ask_or_point_say_nothing_beside_a_name() {
        let text = "struct Refused {\n    /// Why.\n    reason: String,\n    /// In which \
                    term.\n    term: Term,\n    /// Who said so.\n    from: Id,\n}\n/// All \
                    of them.\nfn all() {}\n/// It failed; why.\nstruct Failed(String);\n";
        assert_eq!(lines(&[("a/src/a.rs", text)]), [2, 4, 6, 9, 11]);
    }

    #[test]
    fn a_doc_that_says_more_or_is_asked_for_may_stay() {
        let text = "/// Of the leader.\nstruct Term {\n    /// In seconds.\n    time: u64,\n}\n\
                    /// The key.\n/// It is long.\nfn key() {}\n";
        let shown = "use clap::Args;\n/// The key.\nstruct Key;\n";
        let asked = "#![warn(missing_docs)]\n/// The key.\npub struct Key;\n";
        let files = [
            ("a/src/a.rs", text),
            ("a/src/b.rs", shown),
            ("b/src/lib.rs", asked),
        ];
        assert_eq!(lines(&files), [0; 0]);
    }
}
