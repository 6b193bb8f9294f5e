//! Numbers that pages say, where the tree can count them: how many fuzz targets there are.
//!
//! A number that nothing counts is wrong a month later; it is better not said.

use crate::{Offence, Tree};

const TARGETS: &str = "engine/verification/fuzz/tests/fuzz/main.rs";
const PAGE: &str = "engine/verification/README.md";
/// Where the page says it: the words around the number.
const SAID: (&str, &str) = ("for each of ", " targets");

pub(crate) fn check(tree: &Tree) -> Vec<Offence> {
    let list = tree.text(TARGETS).unwrap_or_default();
    let targets = list.lines().filter(|it| it.contains(": targets::")).count();
    let page = tree.text(PAGE).unwrap_or_default();
    let said = page.lines().enumerate().find_map(|(at, line)| {
        let (_, behind) = line.split_once(SAID.0)?;
        let (number, _) = behind.split_once(SAID.1)?;
        Some((at + 1, number.parse::<usize>().ok()))
    });
    let (line, number) = said.unwrap_or((1, None));
    if number == Some(targets) {
        return Vec::new();
    }
    vec![Offence {
        path: PAGE.to_owned(),
        line,
        message: format!("there are {targets} fuzz targets in {TARGETS}"),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_fuzz_targets_is_counted() {
        let list = "targets! {\n    a: targets::a::A;\n    b: targets::b::B;\n}\n";
        let offences = |page: &str| {
            let found = check(&Tree::of(&[(TARGETS, list), (PAGE, page)]));
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(offences("\n1 min for each of 2 targets\n"), [""; 0]);
        let says = format!("{PAGE}:2: there are 2 fuzz targets in {TARGETS}");
        assert_eq!(offences("\n1 min for each of 3 targets\n"), [says]);
        assert_eq!(offences("nothing").len(), 1);
    }
}
