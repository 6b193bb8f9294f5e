use std::time::Duration;

use clap::{CommandFactory, FromArgMatches};
use dengine_bench_model::results::Workload;

use super::{options::parse_duration, *};

fn parse(line: &str) -> Result<Cli, clap::Error> {
    let matches = parse::parser().try_get_matches_from(line.split(' '))?;
    let cli = Cli::from_arg_matches(&matches)?;
    cli.validate()?;
    Ok(cli)
}

fn shape(line: &str) -> Shape {
    let tasks = parse(line).unwrap().tasks();
    let [task] = &tasks[..] else {
        panic!("{tasks:?}")
    };
    task.shape.clone()
}

#[test]
fn flags_stand_before_or_after_the_command() {
    let before = "dengine-bench --conns 2 --clients 4 --endpoints a:1,b:2 put";
    let after = "dengine-bench put --conns 2 --clients 4 --endpoints a:1 --endpoints b:2";
    assert_eq!(shape(before), shape(after));
    for line in [before, after] {
        assert_eq!(parse(line).unwrap().options.endpoints, ["a:1", "b:2"]);
    }
}

#[test]
fn lease_reads_are_refused_where_there_are_none_and_not_aliased() {
    assert_eq!(
        shape("dengine-bench range --consistency s").consistency,
        Some(ReadConsistency::Lease)
    );
    let error = parse("dengine-bench range --consistency s --protocol etcd").unwrap_err();
    assert!(
        error.to_string().contains("etcd has no lease reads"),
        "{error}"
    );
}

#[test]
fn contradictions_are_named() {
    for (line, what) in [
        ("put --conns 2 --clients 1", "--clients"),
        ("put --clients 11 --total 10", "--total"),
        ("put --conns 0", "--conns"),
        ("put --total 1000 --key-size 2", "--key-size"),
        ("put --total 100 --key-size 2 --repeat 3", "--key-size"),
        ("put --timeout 0", "--timeout"),
        ("put --rate 0", "--rate"),
        ("put --repeat 0", "--repeat"),
        ("put --protocol etcd --wire unary", "--wire"),
        #[cfg(feature = "kubernetes")]
        ("put --run-id 1", "--report-to"),
        #[cfg(feature = "kubernetes")]
        ("put --report-to a/b", "--run-id"),
        #[cfg(feature = "kubernetes")]
        ("put --run-id 1 --report-to b", "NAMESPACE/NAME"),
        ("run", "--profile"),
        ("run --profile standard --workload mixed", "--workload"),
        ("run --profile fast", "standard"),
        ("run --profile quick --total 5", "--total"),
        ("--clients 5 run --profile quick", "--clients"),
        ("compare", "RESULT"),
        ("compare a.json --budget x", "--budget"),
        ("compare a.json --budget 5%", "--baseline"),
        ("compare a.json --p99-budget 5%", "--baseline"),
        ("report a.json", "--output"),
    ] {
        let error = parse(&format!("dengine-bench {line}")).unwrap_err();
        assert!(error.to_string().contains(what), "{line}: {error}");
        assert_eq!(error.exit_code(), 2);
    }
}

#[test]
fn a_profile_is_all_of_its_workloads_in_order() {
    let cli = parse("dengine-bench run --profile standard --repeat 3").unwrap();
    let names: Vec<_> = cli.tasks().into_iter().map(|task| task.name).collect();
    let expected = profiles::profile("standard").unwrap().workloads;
    assert!(
        names
            .iter()
            .eq(expected.iter().map(|workload| workload.name))
    );
}

#[test]
fn flags_replace_what_a_single_workload_says() {
    let mixed = shape("dengine-bench run --workload mixed --clients 4 --total 50 --rate 10");
    assert_eq!(
        (mixed.workload, mixed.read_percent),
        (Workload::Mixed, Some(80))
    );
    assert_eq!((mixed.connections, mixed.clients, mixed.total), (4, 4, 50));
    assert_eq!(mixed.rate, Some(10.0));
}

#[test]
fn times_are_seconds_unless_they_name_a_unit() {
    assert_eq!(parse_duration("600").unwrap(), Duration::from_secs(600));
    assert_eq!(parse_duration("10m").unwrap(), Duration::from_secs(600));
    assert_eq!(parse_duration("250ms").unwrap(), Duration::from_millis(250));
}

#[test]
fn a_budget_is_a_percentage() {
    assert_eq!(parse::percent("10%").unwrap(), 0.1);
    assert_eq!(parse::percent("5").unwrap(), 0.05);
}

#[test]
fn the_warm_up_reaches_every_client() {
    for (line, warm_up) in [
        ("put --clients 9 --total 10", 9),
        ("put --total 10000", 500),
        ("put --warm-up 0", 0),
    ] {
        let cli = parse(&format!("dengine-bench {line}")).unwrap();
        assert_eq!(cli.warm_up(&cli.tasks()[0].shape), warm_up, "{line}");
    }
}

#[test]
fn commands_that_measure_nothing_show_only_their_own_flags() {
    for tool in ["compare", "report"] {
        let help = parse(&format!("dengine-bench {tool} --help"))
            .unwrap_err()
            .to_string();
        assert!(
            !help.contains("--endpoints") && help.contains("RESULT.json"),
            "{help}"
        );
    }
    let help = parse("dengine-bench run --help").unwrap_err().to_string();
    assert!(
        help.contains("--endpoints") && help.contains("--profile"),
        "{help}"
    );
}

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}
