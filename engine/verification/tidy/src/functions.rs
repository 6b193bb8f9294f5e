//! No function is longer than 70 lines, from `fn` to its closing brace, tests included.
//!
//! A function that fits on a screen is read as one thing. What is longer has parts, and parts have
//! names.

use proc_macro2::{Delimiter, TokenTree};

use crate::source::{each, group, ident, is_punct, line, scopes};
use crate::{Offence, Tree};

const MAX_LINES: usize = 70;

pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    each(tree, |file, tokens| {
        let mut found = Vec::new();
        scopes(tokens, &mut |scope| {
            for (name, first, last) in functions(scope) {
                let lines = last - first + 1;
                if lines > MAX_LINES {
                    found.push(Offence {
                        path: file.path.clone(),
                        line: first,
                        message: format!(
                            "`{name}` has {lines} lines, {MAX_LINES} are allowed: give its parts \
                             names"
                        ),
                    });
                }
            }
        });
        found
    })
}

/// The functions with a body that stand in this scope itself: name, first and last line.
fn functions(scope: &[TokenTree]) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for (at, token) in scope.iter().enumerate() {
        let Some(keyword) = ident(Some(token)).filter(|it| *it == "fn") else {
            continue;
        };
        let Some(name) = ident(scope.get(at + 1)) else {
            continue;
        };
        let rest = scope[at + 2..]
            .iter()
            .take_while(|it| !is_punct(Some(it), ';'));
        let body = rest.map(Some).find_map(|it| group(it, Delimiter::Brace));
        if let Some(body) = body {
            found.push((
                name.to_string(),
                line(keyword.span()),
                line(body.span_close()),
            ));
        }
    }
    found
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
    fn long_functions_are_named_also_in_macros_and_other_functions() {
        let long = "\n".repeat(69);
        let short = "\n".repeat(68);
        assert_eq!(offences(&format!("fn short() {{{short}\n}}")), [""; 0]);
        assert_eq!(
            offences(&format!("\nfn f() -> [u8; 1] {{{long}\n}}")),
            ["a.rs:2: `f` has 71 lines, 70 are allowed: give its parts names"]
        );
        assert_eq!(
            offences(&format!("proptest! {{ fn g(a in 1..2) {{{long}\n}} }}")).len(),
            1
        );
        assert_eq!(
            offences(&format!("trait T {{ fn h(); const A: [u8; 1];{long}\n}}")).len(),
            0
        );
        assert_eq!(
            offences(&format!("type F = fn(u8);{long}\nstruct S {{}}")).len(),
            0
        );
    }
}
