//! The program as a person runs it.

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("room for a folder");
    let output = Command::new(env!("CARGO_BIN_EXE_dengine-bench-embedded"))
        .arg("--data-dir")
        .arg(data.path())
        .args(args)
        .output()
        .expect("the program was built");
    let left = std::fs::read_dir(data.path())
        .expect("the folder is ours")
        .count();
    assert_eq!(left, 0, "the members' data is deleted");
    output
}

#[test]
fn every_workload_is_measured_and_syncs_are_counted() {
    let output = run(&["--profile", "quick"]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{table}");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| workload"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let names: Vec<_> = rows.iter().map(|row| row[1]).collect();
    assert_eq!(
        names,
        [
            "single-write",
            "write",
            "linearizable-read",
            "lease-read",
            "eventual-read",
            "hot-key-read"
        ]
    );
    let syncs: u64 = rows[0][6].replace(',', "").parse().unwrap();
    assert!(
        syncs >= 2 * 1_000,
        "a quorum synced each of a lone client's writes: {table}"
    );
}

#[test]
fn what_cannot_be_measured_here_is_said() {
    let output = run(&["--profile", "no-such-profile"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("dengine-bench run --list"),
        "{said}"
    );
}
