//! One `use` for each module: braces hold names of that module, never paths into others. And three
//! groups of them: `std`, then other crates, then the crate's own, with an empty line between.
//!
//! `use a::b::{C, D};` and not `use a::{b::C, b::D}`, nor `use a::b::C; use a::b::D;`. This is what
//! most of the tree had; a name's path can be searched for, and a new import changes one line. It
//! is rustfmt's `imports_granularity = "Module"`, which is for nightly only. One who has a nightly:
//! `cargo +nightly fmt -- --config imports_granularity=Module`.
//!
//! The groups show at a glance what a module depends on; within one rustfmt sorts. They are its
//! `group_imports = "StdExternalCrate"`, except that a module declared beside the `use` counts as
//! the crate's own. A paragraph of nothing but `pub use` may stand anywhere: it says what the
//! module offers, not what it needs.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenTree};

use crate::source::{attributes_before, each, group, ident, is_punct, line, scopes};
use crate::tree::File;
use crate::{Offence, Tree};

const OUT_OF_ORDER: &str = "`std` comes first, then other crates, then the crate's own: move it up";
const NOT_PARTED: &str =
    "an empty line parts `std`, other crates and the crate's own: put one before";

pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    each(tree, |file, tokens| {
        let mut found = Vec::new();
        scopes(tokens, &mut |scope| {
            let imports = imports(scope);
            check_modules(file, &imports, &mut found);
            check_order(file, &imports, &declared(scope), &mut found);
        });
        found
    })
}

fn check_modules(file: &File, imports: &[Import<'_>], found: &mut Vec<Offence>) {
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
    for import in imports {
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

/// Looks at what stands together: other items part a scope's imports, and each part begins again.
fn check_order(
    file: &File,
    imports: &[Import<'_>],
    declared: &BTreeSet<String>,
    found: &mut Vec<Offence>,
) {
    let lines: Vec<&str> = file.text.lines().collect();
    let is_next = |a: &Import<'_>, b: &Import<'_>| b.begin == a.end + 1;
    let is_joined = |a: &Import<'_>, b: &Import<'_>| {
        let between = lines.get(a.last..b.begins_on - 1).unwrap_or_default();
        between.iter().all(|it| !it.trim().is_empty())
    };
    let mut say = |import: &Import<'_>, message: &str| {
        found.push(Offence {
            path: file.path.clone(),
            line: import.first,
            message: message.to_owned(),
        });
    };
    for block in imports.chunk_by(is_next) {
        let mut last = Origin::Std;
        for paragraph in block.chunk_by(is_joined) {
            if paragraph.iter().all(|it| !it.visibility.is_empty()) {
                last = Origin::Std;
                continue;
            }
            for (at, import) in paragraph.iter().enumerate() {
                let origin = import.origin(declared);
                if origin < last {
                    say(import, OUT_OF_ORDER);
                } else if origin > last && at > 0 {
                    say(import, NOT_PARTED);
                }
                last = last.max(origin);
            }
        }
    }
}

/// Where imported names are from, in the order of the groups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Std,
    Crates,
    Own,
}

/// The modules declared in this scope: a path may begin with one of them.
fn declared(scope: &[TokenTree]) -> BTreeSet<String> {
    let names = scope.windows(2).filter_map(|pair| {
        let is_module = ident(pair.first()).is_some_and(|it| *it == "mod");
        ident(pair.get(1)).filter(|_| is_module)
    });
    names.map(ToString::to_string).collect()
}

/// The tokens of one `use`, between the keyword and the semicolon.
struct Import<'a> {
    /// Where its tokens are in the scope, those of its attributes included.
    begin: usize,
    end: usize,
    /// The line of the first of them.
    begins_on: usize,
    /// The line of the keyword.
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
        let begin = begin(scope, at);
        found.push(Import {
            begin,
            end: at + length,
            begins_on: line(scope[begin].span()),
            first: line(keyword.span()),
            last: line(scope[at + length].span()),
            visibility,
            has_attributes: !attributes_before(scope, at).is_empty(),
            tree,
        });
    }
    found
}

/// Where the item begins whose keyword is at this place: before its attributes and its visibility.
fn begin(scope: &[TokenTree], at: usize) -> usize {
    let is_part = |token: &&TokenTree| match token {
        TokenTree::Ident(it) => *it == "pub",
        TokenTree::Punct(it) => it.as_char() == '#',
        TokenTree::Group(it) => {
            matches!(it.delimiter(), Delimiter::Parenthesis | Delimiter::Bracket)
        }
        TokenTree::Literal(_) => false,
    };
    at - scope[..at].iter().rev().take_while(is_part).count()
}

impl Import<'_> {
    fn origin(&self, declared: &BTreeSet<String>) -> Origin {
        let first = self.tree.iter().find(|it| !is_punct(Some(it), ':'));
        let name = ident(first).map(ToString::to_string).unwrap_or_default();
        match name.as_str() {
            "std" | "core" | "alloc" => Origin::Std,
            _ if is_punct(self.tree.first(), ':') => Origin::Crates,
            "crate" | "self" | "super" => Origin::Own,
            // A type or a module that is known here without being imported.
            it if it.starts_with(char::is_uppercase) || declared.contains(it) => Origin::Own,
            _ => Origin::Crates,
        }
    }

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
        let text = "use std::fmt;\nuse std::sync::{Arc, Mutex as Lock};\n\nuse a::b::{self, C};\n\
                    use a::b;\nuse c;\nfn f() -> impl T + use<'a> {}\npub use d::E;\nuse d::F;\n\
                    #[cfg(test)]\nuse d::G;\nuse d::*;\n\nuse d::H;\nmod m { use std::io; }\n\
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

    #[test]
    fn groups_in_order_are_left_alone() {
        for text in [
            "use std::io;\n\nuse a::B;\nuse ::c::D;\n\nuse crate::e;\nuse super::f;\nuse self::g;",
            "mod a;\n\nuse std::io;\n\nuse b::C;\n\nuse a::D;\nuse E::*;",
            "use a::B;\nuse c::D;\n",
            // Attributes and comments belong to what is below them.
            "use std::io;\n\n// Why.\n#[cfg(unix)]\nuse a::B;\n// Why.\nuse c::D;",
            // A paragraph of what is exported may stand anywhere.
            "pub use crate::a;\npub(crate) use b::C;\n\nuse std::io;\n\nuse d::E;",
            "use std::io;\n\nuse a::B;\n\npub use crate::c;\n\nuse std::fmt;",
            // What other items part begins again.
            "use crate::a;\nfn f() { use std::io; }\nuse std::fmt;\n",
        ] {
            assert_eq!(offences(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn imports_out_of_order_are_named() {
        for text in [
            "use a::B;\n\nuse std::io;",
            "use crate::a;\n\nuse std::io;",
            "use super::a;\n\nuse core::fmt;",
            "use crate::a;\n\nuse b::C;",
            "mod a;\n\nuse a::B;\n\nuse c::D;",
            "use self::a::B;\n\n#[cfg(unix)]\nuse ::a::B;",
            "use a::B;\n\n// Why.\nuse std::io;",
            "use crate::a;\npub use b::C;",
        ] {
            let found = offences(text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].ends_with(OUT_OF_ORDER), "{text}: {found:?}");
        }
        let says = format!("a.rs:3: {OUT_OF_ORDER}");
        assert_eq!(
            offences("mod tests {\n    use super::*;\n    use std::io;\n}"),
            [says.as_str()]
        );
        assert_eq!(
            offences("fn f() {\n    use a::B;\n    use std::io;\n}"),
            [says.as_str()]
        );
    }

    #[test]
    fn groups_without_a_line_between_are_named() {
        let says = |line| format!("a.rs:{line}: {NOT_PARTED}");
        assert_eq!(
            offences("use std::io;\nuse a::B;\nuse crate::c;"),
            [says(2), says(3)]
        );
        assert_eq!(
            offences("use a::B;\n// Why.\n#[cfg(test)]\nuse crate::c;"),
            [says(4)]
        );
    }
}
