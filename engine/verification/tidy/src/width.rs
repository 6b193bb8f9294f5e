//! No line of Rust is longer than 100 columns, comments included, no comment in a .proto or .toml
//! file either, and no line of prose in Markdown is longer than 120.
//!
//! rustfmt holds code at 100, but leaves comments and long string literals alone, and with one of
//! the latter the whole expression around it. A longer line is right only where it cannot be
//! broken:
//! - the word that passes the last column begins the line, or has no room in a line of its own, as
//!   a long URL;
//! - it is inside of a raw string, or of a plain one that has no space before that column, and has
//!   no room in a line of its own; others go on after a `\` at the end of the line;
//! - it is a row of a table in a comment, or stands under `#[rustfmt::skip]`.
//!
//! In Markdown tables, code and headings are as long as they need to be, and links and URLs are
//! words of their own. Its limit is another one because most pages were written to it, and a page
//! is read beside others less often than code is.

use std::ops::RangeInclusive;

use proc_macro2::{Delimiter, Literal, TokenStream};

use crate::markdown::{self, Kind};
use crate::source::{each, group, is_punct, line, literals, scopes};
use crate::tree::File;
use crate::{Offence, Tree};

const RUST_COLUMNS: usize = 100;
const MARKDOWN_COLUMNS: usize = 120;

pub(crate) fn rust(tree: &Tree) -> Vec<Offence> {
    each(tree, |file, tokens| {
        let long: Vec<(usize, &str)> = file
            .text
            .lines()
            .enumerate()
            .map(|(at, text)| (at + 1, text))
            .filter(|(_, text)| text.chars().count() > RUST_COLUMNS)
            .collect();
        if long.is_empty() {
            return Vec::new();
        }
        let strings = strings(file, tokens);
        let skipped = skipped(tokens);
        long.into_iter()
            .filter(|(number, _)| !skipped.iter().any(|it| it.contains(number)))
            .filter(|&(number, text)| can_be_broken(number, text, &strings))
            .map(|(number, text)| too_long(file, number, text, RUST_COLUMNS))
            .collect()
    })
}

pub(crate) fn markdown(tree: &Tree) -> Vec<Offence> {
    let mut found = Vec::new();
    for file in tree.ending(".md") {
        let long = markdown::lines(file)
            .filter(|it| it.kind == Kind::Prose)
            .filter(|it| it.text.chars().count() > MARKDOWN_COLUMNS)
            .filter(|it| words_can_be_broken(it.text, "", MARKDOWN_COLUMNS));
        found.extend(long.map(|it| too_long(file, it.number, it.text, MARKDOWN_COLUMNS)));
    }
    found
}

/// Comments in files whose code has no limit. The doc comments of the generated code are those of
/// .proto files.
pub(crate) fn comments(tree: &Tree) -> Vec<Offence> {
    let mut found = Vec::new();
    for (ending, marker) in [(".proto", "//"), (".toml", "#")] {
        for file in tree.ending(ending) {
            let long = (1..)
                .zip(file.text.lines())
                .filter(|(_, text)| text.trim_start().starts_with(marker))
                .filter(|(_, text)| text.chars().count() > RUST_COLUMNS)
                .filter(|(_, text)| words_can_be_broken(text, marker, RUST_COLUMNS));
            found.extend(long.map(|(number, text)| too_long(file, number, text, RUST_COLUMNS)));
        }
    }
    found
}

fn too_long(file: &File, line: usize, text: &str, columns: usize) -> Offence {
    let count = text.chars().count();
    let message = format!("{count} columns, {columns} are allowed");
    Offence {
        path: file.path.clone(),
        line,
        message,
    }
}

fn can_be_broken(number: usize, text: &str, strings: &[Str]) -> bool {
    let last = (number, RUST_COLUMNS);
    if let Some(string) = strings.iter().find(|it| it.start < last && last < it.end) {
        let indent = text.chars().take_while(|it| it.is_whitespace()).count();
        let is_of_one_line = string.start.0 == string.end.0;
        // It has room in a line of its own.
        if is_of_one_line && indent + 4 + string.end.1 - string.start.1 <= RUST_COLUMNS {
            return true;
        }
        let inside = if string.start.0 == number {
            string.start.1 + 1
        } else {
            0
        };
        let before: String = text.chars().take(RUST_COLUMNS).skip(inside).collect();
        return !string.is_raw && before.trim_start().contains(' ');
    }
    let comment = text.trim_start();
    for marker in ["///", "//!", "//"] {
        if let Some(words) = comment.strip_prefix(marker) {
            let is_table = words.trim_start().starts_with('|');
            return !is_table && words_can_be_broken(text, marker, RUST_COLUMNS);
        }
    }
    true
}

/// Whether a line of prose, which may begin with `marker`, could end earlier.
fn words_can_be_broken(text: &str, marker: &str, columns: usize) -> bool {
    let indent = text.chars().take_while(|it| it.is_whitespace()).count() + marker.len();
    let (mut at, mut is_first) = (0, true);
    for word in text.split(' ') {
        let end = at + word.chars().count();
        if end > columns {
            // Alone in its line it would be too long as well, or it is alone already.
            let has_room = indent + 1 + word.chars().count() <= columns;
            return has_room && !is_first;
        }
        // What a link's definition names is on its line.
        let is_label = word.starts_with('[') && word.ends_with("]:");
        is_first &=
            word.is_empty() || word == marker || is_label || markdown::is_item(&format!("{word} "));
        at = end + 1;
    }
    false
}

/// Where a string literal stands; columns count from 0.
struct Str {
    start: (usize, usize),
    end: (usize, usize),
    is_raw: bool,
}

fn strings(file: &File, tokens: &TokenStream) -> Vec<Str> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut found = Vec::new();
    literals(tokens, &mut |literal: &Literal| {
        let (start, end) = (literal.span().start(), literal.span().end());
        let written: String = lines[start.line - 1]
            .chars()
            .skip(start.column)
            .take(2)
            .collect();
        // A doc comment is one to the compiler, too.
        if !written.starts_with('/') {
            found.push(Str {
                start: (start.line, start.column),
                end: (end.line, end.column),
                is_raw: written.starts_with('r') || written == "br",
            });
        }
    });
    found
}

/// The lines of what `#[rustfmt::skip]` stands before.
fn skipped(tokens: &TokenStream) -> Vec<RangeInclusive<usize>> {
    let mut found = Vec::new();
    scopes(tokens, &mut |scope| {
        for (at, token) in scope.iter().enumerate() {
            let is_skip = group(Some(token), Delimiter::Bracket)
                .is_some_and(|it| it.stream().to_string().replace(' ', "") == "rustfmt::skip");
            if is_skip {
                let ends =
                    |it: &_| is_punct(Some(it), ';') || group(Some(it), Delimiter::Brace).is_some();
                let last = scope[at..].iter().find(|it| ends(it)).or(scope.last());
                found.push(line(token.span())..=last.map_or(0, |it| it.span().end().line));
            }
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust_lines(text: &str) -> Vec<usize> {
        rust(&Tree::of(&[("a.rs", text)]))
            .iter()
            .map(|it| it.line)
            .collect()
    }

    #[test]
    fn a_line_of_a_hundred_columns_is_allowed_and_one_more_is_not() {
        let words = "wörd ".repeat(19);
        for (start, end) in [("// ", "12"), ("/// ", "1"), ("//! ", "1")] {
            let text = format!("{start}{words}{end}");
            assert_eq!(text.chars().count(), 100);
            assert_eq!(rust_lines(&format!("{text}\nstruct S;")), [0; 0]);
            assert_eq!(rust_lines(&format!("\n{text}3\nstruct S;")), [2]);
        }
        let code = format!("const A: u64 = {};", "1 + ".repeat(25));
        assert_eq!(rust_lines(&code), [1]);
    }

    #[test]
    fn what_cannot_be_broken_may_be_longer() {
        let url = format!("https://example.com/{}", "a".repeat(100));
        let words = "word ".repeat(30);
        for text in [
            format!("/// see {url}\nstruct S;"),
            format!("/// [`S`]: {url}\nstruct S;"),
            format!("/// | {words}|\nstruct S;"),
            format!("const A: &str = r\"{words}\";"),
            format!("const A: &str = \"{url} {words}\";"),
            format!("#[rustfmt::skip]\nconst A: [&str; 1] = [\n\"{words}\"\n];"),
        ] {
            assert_eq!(rust_lines(&text), [0; 0], "{text}");
        }
        for (text, line) in [
            (format!("/// {words}{url}\nstruct S;"), 1),
            (format!("const A: &str = \"{words}\";"), 1),
            (format!("const A: &str = \"a \\\n{words}\";"), 2),
            (format!("#[rustfmt::skip]\nconst A: u8 = 1;\n// {words}"), 3),
            (
                format!("const A: [&str; 1] = [{}r\"no space\"];", " ".repeat(70)),
                1,
            ),
        ] {
            assert_eq!(rust_lines(&text), [line], "{text}");
        }
    }

    #[test]
    fn comments_beside_code_without_a_limit_have_one() {
        let words = "word ".repeat(30);
        for (path, text) in [
            (
                "a.proto",
                format!("option a = \"{words}\";\n  // {words}\n"),
            ),
            (
                "Cargo.toml",
                format!("description = \"{words}\"\n# {words}\n"),
            ),
        ] {
            let found = comments(&Tree::of(&[(path, &text)]));
            assert_eq!(found.iter().map(|it| it.line).collect::<Vec<_>>(), [2]);
        }
    }

    #[test]
    fn prose_has_a_limit_and_tables_code_and_links_have_none() {
        let words = "word ".repeat(40);
        let url = format!("https://example.com/{}", "a".repeat(120));
        let text = format!(
            "{words}\n| {words}|\n```\n{words}\n```\n# {words}\n\n    {words}\n\n- [a]({url})\n- \
             {words}\n"
        );
        let found = markdown(&Tree::of(&[("a.md", &text)]));
        assert_eq!(found.iter().map(|it| it.line).collect::<Vec<_>>(), [1, 11]);
    }
}
