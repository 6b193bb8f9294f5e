//! One `use` for each module: braces hold names of that module, never paths into others.
//!
//! `use a::b::{C, D};` and not `use a::{b::C, b::D}`, nor `use a::b::C; use a::b::D;`. This is what
//! most of the tree had; a name's path can be searched for, and a new import changes one line. It
//! is rustfmt's `imports_granularity = "Module"`, which is for nightly only. One who has a nightly:
//! `cargo +nightly fmt -- --config imports_granularity=Module`.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, TokenTree};

use crate::source::{attributes_before, each, group, ident, is_punct, line, scopes};
use crate::tree::File;
use crate::{Offence, Tree};

pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    each(tree, |file, tokens| {
        let mut found = Vec::new();
        scopes(tokens, &mut |scope| check_scope(file, scope, &mut found));
        found
    })
}

fn check_scope(file: &File, scope: &[TokenTree], found: &mut Vec<Offence>) {
    let mut say = |line, message| {
        found.push(Offence {
            path: file.path.clone(),
            line,
            message,
        });
    };
    let mut run = 0;
    let mut run_ends_on = 0;
    // Those with the same visibility that follow each other without a line between them.
    let mut seen = BTreeMap::<(usize, String, String), usize>::new();
    for import in imports(scope) {
        let Some(import) = import.read() else {
            say(
                import.first,
                "braces hold names only: a `use` for each module".to_owned(),
            );
            run_ends_on = import.last;
            continue;
        };
        if import.first > run_ends_on + 1 {
            run += 1;
        }
        run_ends_on = import.last;
        let Some(module) = import.module else {
            continue;
        };
        let key = (run, import.visibility, module.clone());
        if let Some(earlier) = seen.insert(key, import.first) {
            say(
                import.first,
                format!("`{module}` is imported from on line {earlier} too: join them"),
            );
        }
    }
}

/// The tokens of one `use`, between the keyword and the semicolon.
struct Import<'a> {
    first: usize,
    last: usize,
    visibility: String,
    has_attributes: bool,
    tree: &'a [TokenTree],
}

/// What it says.
struct Read {
    first: usize,
    last: usize,
    visibility: String,
    /// The module from which it takes names; none where joining it with others would be wrong.
    module: Option<String>,
}

fn imports(scope: &[TokenTree]) -> Vec<Import<'_>> {
    let mut found = Vec::new();
    for (at, token) in scope.iter().enumerate() {
        let Some(keyword) = ident(Some(token)).filter(|it| *it == "use") else {
            continue;
        };
        let Some(length) = scope[at..].iter().position(|it| is_punct(Some(it), ';')) else {
            continue;
        };
        let tree = &scope[at + 1..at + length];
        // `impl Trait + use<'a>` names lifetimes, and a macro's own `use` has parts that vary.
        if is_punct(tree.first(), '<') || tree.iter().any(|it| is_punct(Some(it), '$')) {
            continue;
        }
        let visibility = match (
            ident(at.checked_sub(1).map(|it| &scope[it])),
            at.checked_sub(2),
        ) {
            (Some(it), _) if *it == "pub" => "pub".to_owned(),
            (None, Some(before)) if ident(Some(&scope[before])).is_some_and(|it| *it == "pub") => {
                format!("pub{}", scope[at - 1])
            }
            _ => String::new(),
        };
        found.push(Import {
            first: line(keyword.span()),
            last: line(scope[at + length].span()),
            visibility,
            has_attributes: !attributes_before(scope, at).is_empty(),
            tree,
        });
    }
    found
}

impl Import<'_> {
    /// None if its braces hold more than names.
    fn read(&self) -> Option<Read> {
        let names = group(self.tree.last(), Delimiter::Brace);
        let in_braces: Vec<TokenTree> = names.iter().flat_map(|it| it.stream()).collect();
        let is_path = |it: &TokenTree| is_punct(Some(it), ':') || matches!(it, TokenTree::Group(_));
        if in_braces.iter().any(is_path) {
            return None;
        }
        // `a::b`, `a::b as c`, `a::{…}` take names from `a`; `a` alone and `a::*` are left alone.
        let path = &self.tree[..self.tree.len() - usize::from(names.is_some())];
        let renamed = path
            .iter()
            .position(|it| ident(Some(it)).is_some_and(|it| *it == "as"));
        let path: String = path[..renamed.unwrap_or(path.len())]
            .iter()
            .map(ToString::to_string)
            .collect();
        let module = match names {
            Some(_) => path.strip_suffix("::"),
            None => path.rsplit_once("::").map(|it| it.0),
        };
        let may_be_joined = !self.has_attributes && !path.ends_with('*');
        Some(Read {
            first: self.first,
            last: self.last,
            visibility: self.visibility.clone(),
            module: module
                .filter(|it| may_be_joined && !it.is_empty())
                .map(ToOwned::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences(text: &str) -> Vec<String> {
        check(&Tree::of(&[("a.rs", text)]))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn names_of_one_module_may_stand_in_braces() {
        let text = "use std::fmt;\nuse std::sync::{Arc, Mutex as Lock};\nuse a::b::{self, C};\n\
                    use a::b;\nuse c;\nfn f() -> impl T + use<'a> {}\npub use d::E;\nuse d::F;\n\
                    #[cfg(test)]\nuse d::G;\nuse d::*;\n\nuse std::io;\nmod m { use std::io; }\n\
                    pub(crate) use h::I;\npub(super) use h::J;\n";
        assert_eq!(offences(text), [""; 0]);
    }

    #[test]
    fn braces_with_paths_are_named() {
        let says = "braces hold names only: a `use` for each module";
        for text in [
            "use a::{b::C, D};",
            "use a::{b, c::{D, E}};",
            "use {a::B, c::D};",
            "use ::{a::b};",
        ] {
            assert_eq!(
                offences(&format!("\n{text}")),
                [format!("a.rs:2: {says}")],
                "{text}"
            );
        }
        assert_eq!(offences("fn f() { use a::{b::C, D}; }").len(), 1);
    }

    #[test]
    fn one_module_is_imported_from_once() {
        let says = "`a::b` is imported from on line 1 too: join them";
        for text in [
            "use a::b::C;\nuse a::b::D;",
            "use a::b::{C, D};\nuse a::b::E as F;",
        ] {
            assert_eq!(offences(text), [format!("a.rs:2: {says}")], "{text}");
        }
        assert_eq!(offences("pub use a::b::C;\npub use a::b::D;").len(), 1);
        assert_eq!(
            offences("pub(super) use a::b::C;\npub(super) use a::b::D;").len(),
            1
        );
    }
}
