//! Every crate of the workspace, and every folder of its source, is in the code map of
//! docs/ARCHITECTURE.md.
//!
//! A folder counts as named where a word in backquotes leads to it or to something in it: from the
//! root, from the crate that the heading of the section names, or from a crate that was named
//! before in the same row or paragraph.

use std::collections::BTreeSet;

use crate::markdown::{self, Kind};
use crate::{Offence, Tree};

const PAGE: &str = "docs/ARCHITECTURE.md";

/// Folders that say by their name what they are.
const SAY_IT_THEMSELVES: [&str; 2] = ["bin", "tests"];

pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let Some((first_line, named)) = named(tree) else {
        return vec![Offence {
            path: PAGE.to_owned(),
            line: 1,
            message: "there is no section \"Code map\"".to_owned(),
        }];
    };
    let mut found = Vec::new();
    let mut say = |message| {
        found.push(Offence {
            path: PAGE.to_owned(),
            line: first_line,
            message,
        });
    };
    for member in members(tree) {
        if !named.contains(&member) {
            say(format!("the code map does not name the crate `{member}`"));
        }
        for folder in tree.rust_folders(&format!("{member}/src")) {
            if SAY_IT_THEMSELVES.contains(&folder.as_str()) {
                continue;
            }
            if !named.contains(&format!("{member}/src/{folder}")) {
                say(format!(
                    "the code map does not name `{folder}/` of the crate `{member}`"
                ));
            }
        }
    }
    found
}

/// The line on which the code map begins, and every file and folder that it names, with what these
/// are in.
fn named(tree: &Tree) -> Option<(usize, BTreeSet<String>)> {
    let page = tree.ending(".md").find(|it| it.path == PAGE)?;
    let mut lines = markdown::lines(page);
    let first = lines
        .find(|it| it.kind == Kind::Heading && it.text == "## Code map")?
        .number;
    let crates = members(tree);
    let mut bases = vec![String::new()];
    let mut section = String::new();
    let mut named = BTreeSet::new();
    for line in lines {
        if line.kind == Kind::Heading {
            if line.text.starts_with("## ") {
                break;
            }
            let crate_of_section = markdown::quoted(line.text).find(|it| tree.has(it));
            section = crate_of_section.unwrap_or_default().to_owned();
        }
        if line.kind != Kind::Prose || line.text.is_empty() {
            bases = vec![String::new(), section.clone()];
        }
        for word in markdown::quoted(line.text) {
            let word = word.trim_end_matches('/');
            let folders = bases
                .iter()
                .flat_map(|it| [it.clone(), in_folder(it, "src")]);
            let places: Vec<String> = folders
                .map(|it| in_folder(&it, word))
                .filter(|it| tree.has(it))
                .collect();
            bases.extend(places.iter().filter(|it| crates.contains(it)).cloned());
            for place in places {
                named.extend(
                    place
                        .match_indices('/')
                        .map(|(end, _)| place[..end].to_owned()),
                );
                named.insert(place);
            }
        }
    }
    Some((first, named))
}

fn in_folder(folder: &str, name: &str) -> String {
    match (folder, name) {
        ("", name) => name.to_owned(),
        (folder, "") => folder.to_owned(),
        (folder, name) => format!("{folder}/{name}"),
    }
}

/// The folders of the workspace's crates.
fn members(tree: &Tree) -> Vec<String> {
    let manifest = tree.text("Cargo.toml").unwrap_or_default();
    let listed = manifest
        .split_once("members = [")
        .and_then(|it| it.1.split_once(']'));
    let listed = listed.map_or("", |it| it.0);
    listed
        .split('"')
        .skip(1)
        .step_by(2)
        .map(ToOwned::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_TEXT: &str = "# A\n`d`\n## Code map\n### `a` (crate `x-a`)\n| `one/` | `Two` |\n\
                             ### Others\n\nThe crate `b`\nhas `four/mod.rs`.\n\n| `b/inner` | |\n\
                             ## More\n`a/src/three`\n";

    fn offences(files: &[&str]) -> Vec<String> {
        let mut all = vec![
            (
                "Cargo.toml",
                "members = [\n    \"a\",\n    \"b\",\n    \"b/inner\",\n]\n",
            ),
            ("b/inner/src/lib.rs", ""),
            ("docs/ARCHITECTURE.md", PAGE_TEXT),
        ];
        all.extend(files.iter().map(|it| (*it, "")));
        check(&Tree::of(&all))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn what_rows_and_sections_name_is_found() {
        let files = [
            "a/src/one/mod.rs",
            "b/src/four/mod.rs",
            "b/src/bin/c.rs",
            "b/src/lib.rs",
        ];
        assert_eq!(offences(&files), [""; 0]);
    }

    #[test]
    fn what_is_not_named_there_is_said() {
        let files = [
            "a/src/one/mod.rs",
            "a/src/three/mod.rs",
            "b/src/four/mod.rs",
            "b/src/one/x.rs",
        ];
        assert_eq!(
            offences(&files),
            [
                "docs/ARCHITECTURE.md:3: the code map does not name `three/` of the crate `a`",
                "docs/ARCHITECTURE.md:3: the code map does not name `one/` of the crate `b`",
            ]
        );
        let manifest = ("Cargo.toml", "members = [\"e\"]");
        let found = check(&Tree::of(&[manifest, ("docs/ARCHITECTURE.md", PAGE_TEXT)]));
        assert_eq!(found[0].message, "the code map does not name the crate `e`");
        assert!(
            check(&Tree::of(&[manifest]))[0]
                .message
                .starts_with("there is no section")
        );
    }
}
