//! The program as a person runs it.

use std::process::{Command, Output};

use dengine_bench_model::results::Report;

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

/// What it prints when all went well.
fn table_of(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("a table is text")
}

#[test]
fn every_workload_is_measured_and_syncs_are_counted() {
    let table = table_of(&["--profile", "quick"]);
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
    let header: Vec<&str> = table
        .lines()
        .find(|line| line.starts_with("| workload"))
        .map(|line| line.split('|').map(str::trim).collect())
        .unwrap();
    for column in ["avg µs", "min µs", "p90 µs", "p99.9 µs", "max µs"] {
        assert!(header.contains(&column), "{column}: {table}");
    }
    let place = header.iter().position(|it| *it == "log syncs").unwrap();
    let syncs: u64 = rows[0][place].replace(',', "").parse().unwrap();
    assert!(
        syncs >= 2 * 1_000,
        "a quorum synced each of a lone client's writes: {table}"
    );
}

#[test]
fn single_workloads_are_repeated_and_written_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("embedded.json");
    let table = table_of(&[
        "--workload",
        "par-put,mixed,extra/lease-renewal",
        "--read-percent",
        "50",
        "--total",
        "2000",
        "--repeat",
        "3",
        "--warm-up",
        "200ms",
        "--durability",
        "memory-first",
        "--json",
        json.to_str().unwrap(),
    ]);
    assert!(table.contains("Each repetition"), "{table}");
    let report: Report = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report.scenario.as_deref(), Some("embedded"));
    let names: Vec<_> = report.results.iter().map(|result| &*result.name).collect();
    assert_eq!(names, ["par-put", "mixed", "lease-renewal"]);
    for result in &report.results {
        assert_eq!((result.requests, result.repetitions.len()), (2_000, 3));
        assert_eq!(result.durability.as_deref(), Some("memory-first"));
        assert_eq!(result.warm_up_seconds, Some(0.2));
        assert_eq!(result.members, ["m0", "m1", "m2"]);
    }
    assert_eq!(report.results[1].shape.read_percent, Some(50));
}

#[test]
fn watches_are_left_to_the_server() {
    let table = table_of(&["--workload", "seq-put,watch", "--total", "100"]);
    let watch = table.lines().find(|line| line.starts_with("| watch"));
    assert!(watch.unwrap().contains("unsupported"), "{table}");
    let output = run(&["--workload", "watch"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("measure them with dengine-bench"),
        "{said}"
    );
}

#[test]
fn what_cannot_be_measured_here_is_said() {
    let output = run(&["--profile", "no-such-profile"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("standard"),
        "{said}"
    );
}
