//! Every invariant in docs/ARCHITECTURE.md names what fails without it: `Held by:`, and tests or
//! planted bugs in backquotes, all of which exist.
//!
//! A planted bug is proof as well: the simulator, or a model, has to find it in every run of
//! `make test`.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenTree};

use crate::markdown::{self, Kind, Line};
use crate::source::{attributes_before, each, group, ident, scopes};
use crate::{Offence, Tree};

const PAGE: &str = "docs/ARCHITECTURE.md";
const MARK: &str = "Held by:";

pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let invariants = invariants(tree);
    if invariants.is_empty() {
        let message = "there is no list under \"Invariants\"".to_owned();
        return vec![Offence {
            path: PAGE.to_owned(),
            line: 1,
            message,
        }];
    }
    let (proofs, mut found) = proofs(tree);
    for (line, text) in invariants {
        let mut say = |message| {
            found.push(Offence {
                path: PAGE.to_owned(),
                line,
                message,
            });
        };
        let Some((_, named)) = text.split_once(MARK) else {
            say(format!(
                "which test fails without this? Say so, as \"{MARK} `name`.\""
            ));
            continue;
        };
        if markdown::quoted(named).next().is_none() {
            say(format!("name a test after \"{MARK}\""));
        }
        for name in markdown::quoted(named).filter(|it| !proofs.contains(*it)) {
            say(format!(
                "there is neither a test nor a planted bug `{name}`"
            ));
        }
    }
    found
}

/// The items of the list, each with its first line.
fn invariants(tree: &Tree) -> Vec<(usize, String)> {
    let mut items: Vec<(usize, String)> = Vec::new();
    let Some(page) = tree.ending(".md").find(|it| it.path == PAGE) else {
        return items;
    };
    let is_top = |it: &Line<'_>| it.kind == Kind::Heading && it.text.starts_with("## ");
    let section = markdown::lines(page)
        .skip_while(|it| !(is_top(it) && it.text == "## Invariants"))
        .skip(1)
        .take_while(|it| !is_top(it));
    for line in section {
        match line.text.strip_prefix("- ") {
            Some(text) => items.push((line.number, text.to_owned())),
            None => {
                if let Some((_, item)) = items.last_mut() {
                    item.push(' ');
                    item.push_str(line.text);
                }
            }
        }
    }
    items
}

/// The names of all tests and planted bugs, and the files that cannot be read.
fn proofs(tree: &Tree) -> (BTreeSet<String>, Vec<Offence>) {
    let mut proofs = BTreeSet::new();
    let found = each(tree, |_, tokens| {
        scopes(tokens, &mut |scope| {
            for (at, token) in scope.iter().enumerate() {
                let Some(name) = ident(scope.get(at + 1)) else {
                    continue;
                };
                if ident(Some(token)).is_some_and(|it| *it == "fn") {
                    let attributes = attributes_before(scope, at);
                    if attributes
                        .iter()
                        .any(|it| it == "test" || it.contains("::test"))
                    {
                        proofs.insert(name.to_string());
                    }
                } else if ident(Some(token)).is_some_and(|it| *it == "enum") && *name == "Bug" {
                    let body = group(scope.get(at + 2), Delimiter::Brace);
                    let variants = body.iter().flat_map(|it| it.stream());
                    proofs.extend(variants.filter_map(|it| match it {
                        TokenTree::Ident(variant) => Some(kebab(&variant.to_string())),
                        _ => None,
                    }));
                }
            }
        });
        Vec::new()
    });
    (proofs, found)
}

/// `AckBeforeSync` as `ack-before-sync`.
fn kebab(name: &str) -> String {
    let mut words = String::new();
    for (at, c) in name.char_indices() {
        if c.is_uppercase() && at > 0 {
            words.push('-');
        }
        words.extend(c.to_lowercase());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "pub enum Bug { /// Doc.\n AckBeforeSync, Other }\n#[test]\nfn one() {}\n\
                          #[tokio::test(flavor = \"multi_thread\")]\nasync fn two() {}\nfn no() \
                          {}\n\
                          proptest! { #[test] fn three(a in 0..1) {} }\n";

    fn offences(items: &str) -> Vec<String> {
        let page = format!("# A\n- other\n## Invariants\n\n{items}\n## Next\n- other\n");
        let tree = Tree::of(&[("docs/ARCHITECTURE.md", &page), ("a.rs", SOURCE)]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn tests_and_planted_bugs_are_proof() {
        let items =
            "- A. Held by: `one`,\n  `two`, `three`.\n- B, `no`. Held by: `ack-before-sync`.";
        assert_eq!(offences(items), [""; 0]);
    }

    #[test]
    fn an_invariant_without_proof_is_named() {
        assert_eq!(
            offences("- A.\n- B. Held by: nothing.\n- C. Held by: `no`, `one`."),
            [
                "docs/ARCHITECTURE.md:5: which test fails without this? Say so, as \"Held by: \
                 `name`.\"",
                "docs/ARCHITECTURE.md:6: name a test after \"Held by:\"",
                "docs/ARCHITECTURE.md:7: there is neither a test nor a planted bug `no`",
            ]
        );
        assert_eq!(offences("").len(), 1);
    }
}
