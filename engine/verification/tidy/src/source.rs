//! Rust as tokens, which know their place. What is inside of a macro's call counts as well: there
//! are functions and imports in it, and the compiler's grammar would not see them.

use proc_macro2::{Delimiter, Group, Ident, Literal, Span, TokenStream, TokenTree};

use crate::tree::File;
use crate::{Offence, Tree};

/// The tokens of each Rust file, or the offence that it has none.
pub(crate) fn each(
    tree: &Tree,
    mut rule: impl FnMut(&File, &TokenStream) -> Vec<Offence>,
) -> Vec<Offence> {
    let mut found = Vec::new();
    for file in tree.ending(".rs") {
        match file.text.parse::<TokenStream>() {
            Ok(tokens) => found.extend(rule(file, &tokens)),
            Err(error) => found.push(Offence {
                path: file.path.clone(),
                line: error.span().start().line,
                message: format!("no Rust: {error}"),
            }),
        }
    }
    found
}

/// Calls `visit` with the tokens of the file and of every group in it.
pub(crate) fn scopes(tokens: &TokenStream, visit: &mut impl FnMut(&[TokenTree])) {
    let here: Vec<TokenTree> = tokens.clone().into_iter().collect();
    visit(&here);
    for token in &here {
        if let TokenTree::Group(group) = token {
            scopes(&group.stream(), visit);
        }
    }
}

/// Every literal of the file. Those of doc comments, which are literals to the compiler, are left
/// out: their text in the file is none.
pub(crate) fn literals(tokens: &TokenStream, visit: &mut impl FnMut(&Literal)) {
    for token in tokens.clone() {
        match token {
            TokenTree::Group(group) => literals(&group.stream(), visit),
            TokenTree::Literal(literal) => visit(&literal),
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// The token as a name.
pub(crate) fn ident(token: Option<&TokenTree>) -> Option<&Ident> {
    match token {
        Some(TokenTree::Ident(ident)) => Some(ident),
        _ => None,
    }
}

/// The token as a group with these around it.
pub(crate) fn group(token: Option<&TokenTree>, delimiter: Delimiter) -> Option<&Group> {
    match token {
        Some(TokenTree::Group(group)) if group.delimiter() == delimiter => Some(group),
        _ => None,
    }
}

/// Whether the token is this sign.
pub(crate) fn is_punct(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

/// The line on which something begins.
pub(crate) fn line(span: Span) -> usize {
    span.start().line
}

/// The attributes right before `at`, as text without spaces: `#[tokio::test]` is `tokio::test`.
/// What may stand between them and an item, such as `pub(crate) async`, is passed over.
pub(crate) fn attributes_before(scope: &[TokenTree], at: usize) -> Vec<String> {
    const BETWEEN: [&str; 6] = ["pub", "async", "const", "unsafe", "extern", "default"];
    let mut found = Vec::new();
    let mut next = at;
    while next > 0 {
        next -= 1;
        match &scope[next] {
            TokenTree::Ident(it) if BETWEEN.contains(&it.to_string().as_str()) => {}
            TokenTree::Literal(_) => {}
            TokenTree::Group(it) if it.delimiter() == Delimiter::Parenthesis => {}
            TokenTree::Group(it)
                if it.delimiter() == Delimiter::Bracket
                    && next > 0
                    && is_punct(scope.get(next - 1), '#') =>
            {
                found.push(it.stream().to_string().replace(' ', ""));
                next -= 1;
            }
            _ => break,
        }
    }
    found
}
