//! No type is named only `State`, `Step` or `Shared`: its name says whose it is.
//!
//! Half the modules would have one. A search for such a name finds dozens, and an import does not
//! say which is meant. Not looked at are tests, where a name serves one file, and the cluster's
//! plan: `MembershipStep` and `ObjectStep` are parts of its `Step`.

use proc_macro2::{TokenStream, TokenTree};

use crate::source::{attributes_before, each, ident, line};
use crate::tree::File;
use crate::{Offence, Tree};

const BARE: [&str; 3] = ["State", "Step", "Shared"];
const KINDS: [&str; 5] = ["struct", "enum", "union", "trait", "type"];
const EXCEPT: &str = "operator/src/cluster/plan/";

pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    each(tree, |file, tokens| {
        let mut found = Vec::new();
        if !is_test(&file.path) && !file.path.starts_with(EXCEPT) {
            check_scope(file, tokens, &mut found);
        }
        found
    })
}

fn is_test(path: &str) -> bool {
    path.split('/')
        .any(|it| it == "tests" || it == "tests.rs" || it.ends_with("_tests.rs"))
}

fn check_scope(file: &File, tokens: &TokenStream, found: &mut Vec<Offence>) {
    let scope: Vec<TokenTree> = tokens.clone().into_iter().collect();
    for (at, token) in scope.iter().enumerate() {
        match token {
            TokenTree::Group(group) if !is_test_module(&scope, at) => {
                check_scope(file, &group.stream(), found);
            }
            TokenTree::Ident(kind) if KINDS.contains(&kind.to_string().as_str()) => {
                let name = ident(scope.get(at + 1)).map(ToString::to_string);
                if let Some(name) = name.filter(|it| BARE.contains(&it.as_str())) {
                    found.push(Offence {
                        path: file.path.clone(),
                        line: line(kind.span()),
                        message: format!("`{name}` does not say whose: put its owner before it"),
                    });
                }
            }
            _ => {}
        }
    }
}

/// Whether the group at this place is the body of a module that only tests have.
fn is_test_module(scope: &[TokenTree], at: usize) -> bool {
    let keyword = at.checked_sub(2);
    keyword.is_some_and(|keyword| {
        ident(scope.get(keyword)).is_some_and(|it| *it == "mod")
            && attributes_before(scope, keyword)
                .iter()
                .any(|it| it == "cfg(test)" || it.starts_with("cfg(all(test,"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)]))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn types_without_an_owner_are_named() {
        let says = "does not say whose: put its owner before it";
        let text = "struct Shared<T>(T);\npub(crate) enum Step { One }\n\
                    mod m {\n    type State = u8;\n}\n";
        assert_eq!(
            offences("a.rs", text),
            [
                format!("a.rs:1: `Shared` {says}"),
                format!("a.rs:2: `Step` {says}"),
                format!("a.rs:4: `State` {says}"),
            ]
        );
    }

    #[test]
    fn names_with_an_owner_and_variants_are_left_alone() {
        let text = "use axum::extract::State;\nstruct PoolState;\nenum Kind { State, Step }\n\
                    fn f(state: State) -> Shared {}\n";
        assert_eq!(offences("a.rs", text), [""; 0]);
    }

    #[test]
    fn tests_and_the_plan_may_have_them() {
        let text = "struct State;";
        for path in [
            "a/tests/b.rs",
            "a/src/b/tests.rs",
            "a/src/b_tests.rs",
            "operator/src/cluster/plan/mod.rs",
        ] {
            assert_eq!(offences(path, text), [""; 0], "{path}");
        }
        assert_eq!(offences("a/src/latests.rs", text).len(), 1);
        let inside = |attribute: &str| format!("{attribute}\nmod m {{ {text} }}");
        assert_eq!(offences("a.rs", &inside("#[cfg(test)]")), [""; 0]);
        assert_eq!(
            offences("a.rs", &inside("#[cfg(all(test, unix))]")),
            [""; 0]
        );
        assert_eq!(offences("a.rs", &inside("#[cfg(unix)]")).len(), 1);
    }
}
