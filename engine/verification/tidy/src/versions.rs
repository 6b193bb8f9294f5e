//! The workspace, the Helm chart and the newest section of CHANGELOG.md say the same version.
//!
//! They are changed together, as docs/releasing.md says; a chart of another version would install
//! members that it does not know.

use crate::{Offence, Tree};

const CHART: &str = "charts/dengine-operator/Chart.yaml";
const CHANGELOG: &str = "CHANGELOG.md";

pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let manifest = tree.text("Cargo.toml").unwrap_or_default();
    let package = manifest
        .split_once("[workspace.package]")
        .map_or("", |it| it.1);
    let version = value(package, "version = ").map_or("", |it| it.1);
    let chart = tree.text(CHART).unwrap_or_default();
    let said = [
        (CHART, value(chart, "version: ")),
        (CHART, value(chart, "appVersion: ")),
        (
            CHANGELOG,
            value(tree.text(CHANGELOG).unwrap_or_default(), "## "),
        ),
    ];
    let is_other = |it: Option<(usize, &str)>| it.is_none_or(|it| it.1 != version);
    said.into_iter()
        .filter(|(_, said)| is_other(*said))
        .map(|(path, said)| Offence {
            path: path.to_owned(),
            line: said.map_or(1, |it| it.0),
            message: format!("says another version than {version:?}, the one of Cargo.toml"),
        })
        .collect()
}

/// The first word after `key` where a line begins with it, and that line's number.
fn value<'a>(text: &'a str, key: &str) -> Option<(usize, &'a str)> {
    let mut lines = text.lines().enumerate();
    let (at, rest) = lines.find_map(|(at, line)| Some((at, line.strip_prefix(key)?)))?;
    Some((at + 1, rest.split_whitespace().next()?.trim_matches('"')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences(chart: &str, changelog: &str) -> Vec<String> {
        let manifest = "# Versions\n[workspace.package]\nversion = \"0.2.0\"\n";
        let tree = Tree::of(&[
            ("Cargo.toml", manifest),
            (CHART, chart),
            (CHANGELOG, changelog),
        ]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_version_is_said_everywhere() {
        let chart = "version: 0.2.0\nappVersion: \"0.2.0\"\n";
        assert_eq!(
            offences(chart, "# Changelog\n\n## 0.2.0 - 2026-12-01\n\n## 0.1.0\n"),
            [""; 0]
        );
        assert_eq!(
            offences("version: 0.2.0\nappVersion: 0.1.0\n", "## 0.1.0\n"),
            [
                format!("{CHART}:2: says another version than \"0.2.0\", the one of Cargo.toml"),
                format!(
                    "{CHANGELOG}:1: says another version than \"0.2.0\", the one of Cargo.toml"
                ),
            ]
        );
        assert_eq!(offences("", "").len(), 3);
    }
}
