//! Markdown, as far as rules look at it: lines with what they are, words in backquotes, links.

use crate::tree::File;

/// One line of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    /// Counted from 1.
    pub(crate) number: usize,
    pub(crate) text: &'a str,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Prose,
    Heading,
    Table,
    /// Between fences, the fences included, or indented as code.
    Code,
}

/// The lines of a page.
pub(crate) fn lines(file: &File) -> impl Iterator<Item = Line<'_>> {
    let mut in_fence = false;
    let mut before_is_blank = true;
    let mut in_indented = false;
    file.text.lines().enumerate().map(move |(at, text)| {
        let trimmed = text.trim_start();
        let is_fence = trimmed.starts_with("```") || trimmed.starts_with("~~~");
        // Indented after a blank line it is code, or goes on with the item of a list.
        let is_indented = text.starts_with("    ") && !is_item(trimmed);
        in_indented = is_indented && (in_indented || before_is_blank);
        let kind = if is_fence || in_fence || in_indented {
            Kind::Code
        } else if text.starts_with('#') {
            Kind::Heading
        } else if trimmed.starts_with('|') {
            Kind::Table
        } else {
            Kind::Prose
        };
        in_fence ^= is_fence;
        before_is_blank = trimmed.is_empty();
        Line {
            number: at + 1,
            text,
            kind,
        }
    })
}

/// Whether this begins an item of a list.
pub(crate) fn is_item(trimmed: &str) -> bool {
    let after_number = trimmed.trim_start_matches(|it: char| it.is_ascii_digit());
    ["- ", "* ", "+ "].iter().any(|it| trimmed.starts_with(it))
        || (after_number.len() < trimmed.len() && after_number.starts_with(". "))
}

/// What stands between backquotes on one line.
pub(crate) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Where the links of one line lead, outside of backquotes.
pub(crate) fn links(text: &str) -> impl Iterator<Item = &str> {
    // What is in backquotes may be the text of a link: only what follows `](` counts.
    text.split("](")
        .skip(1)
        .filter_map(|it| it.split_once(')')?.0.split_whitespace().next())
}

/// The anchors of a page's headings, as GitHub makes them.
pub(crate) fn anchors(file: &File) -> Vec<String> {
    lines(file)
        .filter(|it| it.kind == Kind::Heading)
        .map(|it| {
            let words = it.text.trim_start_matches('#').trim().to_lowercase();
            let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
            words
                .chars()
                .filter(kept)
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart() {
        let text =
            "# A\nwords\n```sh\n# code\n```\n| a |\n\n    code\n    code\n- item\n    goes on\n";
        let file = File {
            path: String::new(),
            text: text.to_owned(),
        };
        let kinds: Vec<Kind> = lines(&file).map(|it| it.kind).collect();
        use Kind::{Code, Heading, Prose, Table};
        assert_eq!(
            kinds,
            [
                Heading, Prose, Code, Code, Code, Table, Prose, Code, Code, Prose, Prose
            ]
        );
    }

    #[test]
    fn words_links_and_anchors_are_found() {
        let text = "of `a/b.rs` and [`c`](../d.md#e) or [f](g.md)";
        assert_eq!(quoted(text).collect::<Vec<_>>(), ["a/b.rs", "c"]);
        assert_eq!(links(text).collect::<Vec<_>>(), ["../d.md#e", "g.md"]);
        let text = "## Fuzz targets: `engine/a_b`\n".to_owned();
        assert_eq!(
            anchors(&File {
                path: String::new(),
                text
            }),
            ["fuzz-targets-enginea_b"]
        );
    }
}
