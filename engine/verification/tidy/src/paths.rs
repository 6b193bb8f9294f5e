//! Every path that a page names exists, and every link leads somewhere.
//!
//! Pages name files by the end of their path (`node/mod.rs`), so a path exists if some file or
//! folder ends like it. A word in backquotes is a path if it ends in `/` or like a file of source,
//! or begins with a folder of the root; what has spaces, `<…>` or `$` in it is not.

use std::collections::BTreeSet;

use crate::markdown::{self, Kind};
use crate::tree::File;
use crate::{Offence, Tree};

/// How files of source and documentation end.
const ENDINGS: [&str; 5] = [".rs", ".md", ".sh", ".proto", ".go"];

/// Folders that builds and members make, and the prefix of the load generator's keys.
const ELSEWHERE: [&str; 4] = ["target", "bench-results", "state", "dengine-bench"];

pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let known = Known::of(tree);
    let mut found = Vec::new();
    for file in tree.ending(".md") {
        for line in markdown::lines(file).filter(|it| it.kind != Kind::Code) {
            let mut say = |message| {
                found.push(Offence {
                    path: file.path.clone(),
                    line: line.number,
                    message,
                });
            };
            for word in markdown::quoted(line.text).filter(|it| known.is_path(it)) {
                for path in alternatives(word).iter().filter(|it| !known.has(it)) {
                    say(format!("there is no `{path}`"));
                }
            }
            for link in markdown::links(line.text).filter(|it| !leads(tree, file, it)) {
                say(format!("the link {link} leads nowhere"));
            }
        }
    }
    found
}

/// Every path of the tree, by how it ends.
struct Known<'a> {
    ends: BTreeSet<&'a str>,
    at_root: BTreeSet<&'a str>,
}

impl<'a> Known<'a> {
    fn of(tree: &'a Tree) -> Self {
        let mut known = Self {
            ends: BTreeSet::new(),
            at_root: BTreeSet::new(),
        };
        for path in tree.paths() {
            known.at_root.extend(path.split_once('/').map(|it| it.0));
            let places = || path.match_indices('/').map(|it| it.0);
            for end in places().chain([path.len()]) {
                let starts = places().map(|it| it + 1).chain([0]).filter(|it| *it < end);
                known.ends.extend(starts.map(|start| &path[start..end]));
            }
        }
        known
    }

    fn is_path(&self, word: &str) -> bool {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./{},*".contains(c);
        let first = word.split('/').next().unwrap_or_default();
        word.chars().all(is_plain)
            && !word.starts_with(['/', '.', '*'])
            && !ELSEWHERE.contains(&first)
            && (ENDINGS
                .iter()
                .any(|it| word.ends_with(it) && word.len() > it.len())
                || (word.contains('/') && (word.ends_with('/') || self.at_root.contains(first))))
    }

    fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        match path.split_once('*') {
            None => self.ends.contains(path),
            Some((start, end)) => {
                let from = self
                    .ends
                    .range(start..)
                    .take_while(|it| it.starts_with(start));
                from.into_iter()
                    .any(|it| it.len() >= path.len() - 1 && it.ends_with(end))
            }
        }
    }
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn alternatives(word: &str) -> Vec<String> {
    let parts = word.split_once('{').and_then(|(start, rest)| {
        let (inside, end) = rest.split_once('}')?;
        Some((start, inside, end))
    });
    let Some((start, inside, end)) = parts else {
        return vec![word.to_owned()];
    };
    inside
        .split(',')
        .flat_map(|it| alternatives(&format!("{start}{it}{end}")))
        .collect()
}

/// Whether a link of this page leads to a file, and its anchor to a heading there.
fn leads(tree: &Tree, page: &File, link: &str) -> bool {
    if link.contains("://") || link.starts_with("mailto:") {
        return true;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => page.path.clone(),
        path => resolve(&page.path, path),
    };
    if !tree.has(&target) {
        return false;
    }
    let heading = |it: &File| markdown::anchors(it).iter().any(|it| it == anchor);
    anchor.is_empty()
        || tree
            .ending(".md")
            .find(|it| it.path == target)
            .is_none_or(heading)
}

/// The path relative to the folder of `page`, from the root.
fn resolve(page: &str, path: &str) -> String {
    let mut folders: Vec<&str> = page.split('/').collect();
    folders.pop();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(folders.pop()),
            part => folders.push(part),
        }
    }
    folders.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences(page: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("a/src/b/c.rs", ""),
            ("a/src/b/d.rs", ""),
            ("a/run.sh", ""),
            ("docs/page.md", page),
            ("docs/other.md", "## What it `is`\n"),
        ]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn paths_and_links_that_exist_are_found() {
        let page = "# Top\n`b/c.rs`, `c.rs`, `a/src`, `b/`, `b/{c,d}.rs`, `b/*.rs`, `run.sh`\n\
                    `kv/read`, `/dev/fuse`, `target/debug/x.rs`, `a/<b>/x.rs`, `.rs`, `a b/x.rs`\n\
                    ```\n`gone.rs`\n```\n[a](other.md) [b](../a/src/b) [c](other.md#what-it-is)\n\
                    [`d`](#top) [e](https://example.com/#f)\n";
        assert_eq!(offences(page), [""; 0]);
    }

    #[test]
    fn paths_and_links_that_lead_nowhere_are_named() {
        let page =
            "`b/e.rs`\n`a/b`\n`x/`\n`b/{c,f}.rs`\n`b/x*.rs`\n[a](gone.md)\n[b](other.md#no)\n";
        assert_eq!(
            offences(page),
            [
                "docs/page.md:1: there is no `b/e.rs`",
                "docs/page.md:2: there is no `a/b`",
                "docs/page.md:3: there is no `x/`",
                "docs/page.md:4: there is no `b/f.rs`",
                "docs/page.md:5: there is no `b/x*.rs`",
                "docs/page.md:6: the link gone.md leads nowhere",
                "docs/page.md:7: the link other.md#no leads nowhere",
            ]
        );
    }
}
