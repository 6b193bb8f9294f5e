//! The rules of style, held over this repository. Each offence is named with its file and line.
//!
//! `exceptions.txt` beside this file lists what is not in order yet: a rule and a file on each
//! line. It is empty while everything is. An exception that is not needed fails too. With
//! `DENGINE_TIDY_WRITE=1` the list is written again, from what is there.

#![allow(clippy::print_stderr, reason = "the test says where offences are")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use dengine_tidy::{RULES, Tree};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn the_tree_is_tidy() {
    let tree = Tree::read(&here("../../..")).expect("a checkout with git");
    let list = here("tests/tidy/exceptions.txt");
    let listed = fs::read_to_string(&list).expect("the list of exceptions");
    let excepted: BTreeSet<&str> = listed.lines().filter(|it| !it.starts_with('#')).collect();

    let mut needed = BTreeSet::new();
    let mut offences = String::new();
    for rule in RULES {
        for offence in (rule.check)(&tree) {
            let exception = format!("{} {}", rule.name, offence.path);
            if !excepted.contains(exception.as_str()) {
                writeln!(offences, "{offence} [{}]", rule.name).expect("a string takes all");
            }
            needed.insert(exception);
        }
    }
    if env::var_os("DENGINE_TIDY_WRITE").is_some() {
        let comments = listed.lines().filter(|it| it.starts_with('#'));
        let lines = comments.chain(needed.iter().map(String::as_str));
        fs::write(&list, lines.map(|it| format!("{it}\n")).collect::<String>()).expect("a file");
        return;
    }
    for idle in excepted.iter().filter(|it| !needed.contains(**it)) {
        writeln!(
            offences,
            "exceptions.txt: \"{idle}\" is not needed any more"
        )
        .expect("as above");
    }
    assert!(
        offences.is_empty(),
        "{} offences:\n{offences}",
        offences.lines().count()
    );
}
