use std::time::Duration;

use clap::CommandFactory;
use dengine_bench_model::results::{Protocol, Wire, Workload};

use super::values::parse_duration;
use super::*;
use crate::target::Caller;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    let matches = parse::parser().try_get_matches_from(line.split(' '))?;
    let cli = Cli::from_matches(&matches)?;
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
fn a_shell_is_told_the_command_line() {
    let script = String::from_utf8(completions(Shell::Bash)).unwrap();
    for part in ["_dengine__bench()", "--read-percent"] {
        assert!(script.contains(part), "{part}");
    }
}

#[test]
fn pods_that_cannot_share_a_load_are_named() {
    for (line, what) in [
        (
            "put --conns 2 --clients 2 --pods 2 --pod-index 0",
            "--first-pod",
        ),
        (
            "put --conns 2 --clients 2 --pods 2 --first-pod a:1",
            "--pod-index",
        ),
        (
            "put --conns 2 --clients 2 --pods 2 --first-pod a:1 --pod-index 2",
            "--pod-index",
        ),
        (
            "put --conns 2 --clients 2 --pods 2 --first-pod a --pod-index 0",
            "--first-pod",
        ),
        (
            "put --conns 1 --clients 9 --pods 2 --first-pod a:1 --pod-index 0",
            "--conns",
        ),
        (
            "run --profile small --pods 11 --first-pod a:1 --pod-index 0",
            "--pods",
        ),
        ("put --pods 33", "--pods"),
        (
            "range --protocol echo --pods 2 --first-pod a:1 --pod-index 0",
            "--pods",
        ),
    ] {
        let error = parse(&format!("dengine-bench {line}")).unwrap_err();
        assert!(error.to_string().contains(what), "{line}: {error}");
    }
}

#[test]
fn which_pod_it_is_matters_only_to_one_of_several() {
    let alone = parse("dengine-bench put --pod-index 7").unwrap();
    assert_eq!(
        (alone.options.pods.index(), alone.options.pods.follows()),
        (0, false)
    );
    let line = "put --conns 3 --clients 3 --pods 3 --first-pod load-0.svc:4104 --pod-index";
    let pod = |index| parse(&format!("dengine-bench {line} {index}")).unwrap();
    let pods = pod(2).options.pods;
    assert_eq!(
        (pods.index(), pods.follows(), pods.port()),
        (2, true, Some(4104))
    );
    assert!(!pod(0).options.pods.follows());
    assert_eq!(pod(0).measured_alike(), pod(2).measured_alike());
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
        ("range --consistency weak", "serializable"),
        ("put --warm-up soon", "such as 5s"),
        ("run --workload mixed --read-percent 101", "0..=100"),
        (
            "run --workload seq-put --read-percent 50",
            "use it with mixed",
        ),
        (
            "run --workload seq-put --read-consistency e",
            "seq-get, par-get or mixed",
        ),
        ("run --workload par-get --watchers 2", "watch-fan-out"),
        ("run --workload watch --watchers 0", "--watchers"),
        ("run --workload watch --watchers 5000", "500000 watches"),
        ("run --workload watch --conns 9 --clients 4", "--clients"),
        ("run --profile quick --read-percent 50", "--read-percent"),
        (
            "run --profile quick --read-consistency e",
            "--read-consistency",
        ),
        ("run --profile quick --watchers 5", "--watchers"),
        ("run --workload get", "seq-get, par-get"),
        ("run --workload t4/fan-out", "profile t4 has seq-put"),
        ("run --workload t5/mixed", "there is no profile"),
        ("run --workload mixed,t4/mixed", "twice"),
        (
            "run --workload mixed --read-consistency lease --protocol etcd",
            "no lease reads",
        ),
        (
            "range --consistency lease --wire etcd",
            "etcd's API has no lease reads",
        ),
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
fn what_a_bound_is_not_about_is_named() {
    for (line, what) in [
        ("put --protocol floor --wire unary", "--wire"),
        ("put --protocol floor --clients 2", "writes of one client"),
        ("range --protocol floor", "writes of one client"),
        (
            "run --profile dense --protocol floor",
            "writes of one client",
        ),
        ("put --protocol echo", "about reads"),
        ("swap --protocol floor", "writes of one client"),
        ("run --profile extra --protocol echo", "about reads"),
        ("range --protocol echo --wire unary", "--wire"),
    ] {
        let error = parse(&format!("dengine-bench {line}")).unwrap_err();
        assert!(error.to_string().contains(what), "{line}: {error}");
        assert_eq!(error.exit_code(), 2);
    }
}

#[test]
fn the_floor_measures_what_it_is_about_and_nothing_else() {
    let line = "dengine-bench run --profile standard --protocol floor";
    let cli = parse(line).unwrap();
    let names: Vec<_> = cli.tasks().into_iter().map(|task| task.name).collect();
    assert_eq!(names, ["single-write"]);
    assert!(parse("dengine-bench run --list --protocol floor").is_ok());
}

#[test]
fn the_echo_measures_unary_reads_and_nothing_else() {
    let cli = parse("dengine-bench run --profile standard --protocol echo").unwrap();
    let tasks = cli.tasks();
    assert_eq!(tasks.len(), 4);
    assert!(
        tasks
            .iter()
            .all(|task| task.shape.workload == Workload::Range)
    );
    assert_eq!(cli.options.wire(), Some(Wire::Unary));
}

#[test]
fn etcds_api_is_a_wire_of_dengine() {
    let line = "dengine-bench range --wire etcd --consistency serializable";
    let options = parse(line).unwrap().options;
    assert_eq!(options.wire(), Some(Wire::Etcd));
    let access = options.access();
    assert_eq!(
        (access.protocol, access.caller()),
        (Protocol::Dengine, Caller::Etcd)
    );
    let profile = parse("dengine-bench run --profile etcd --wire etcd").unwrap();
    let unsupported = |task: &Task| target::unsupported(access, task.shape.consistency).is_some();
    assert!(!profile.tasks().iter().any(unsupported));
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
fn what_contradicts_how_long_a_load_lasts_is_named() {
    for (line, what) in [
        ("put --rate 9 --at-least 5s", "--at-least"),
        (
            "run --workload extra/paced-write --at-least 5s",
            "--at-least",
        ),
        ("run --profile quick --at-least 5s", "--at-least"),
        ("put --at-least 10m", "--timeout"),
    ] {
        let error = parse(&format!("dengine-bench {line}")).unwrap_err();
        assert!(error.to_string().contains(what), "{line}: {error}");
    }
}

#[test]
fn how_long_a_workload_lasts_can_be_said_unless_its_rate_says_so() {
    let at_least = |flags| shape(&format!("dengine-bench run --workload {flags}")).at_least();
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(at_least("mixed"), None);
    assert_eq!(at_least("mixed --at-least 90s"), seconds(90));
    assert_eq!(at_least("standard/lease-read"), seconds(5));
    assert_eq!(at_least("standard/lease-read --at-least 30"), seconds(30));
    assert_eq!(at_least("standard/lease-read --rate 1000"), None);
    assert_eq!(at_least("standard/lease-read --total 1000"), None);
    let both = "standard/lease-read --total 1000 --at-least 30s";
    assert_eq!(at_least(both), seconds(30));
}

#[test]
fn consistency_is_a_letter_or_a_word_and_etcds_word_too() {
    for (words, consistency) in [
        (["l", "linearizable"], ReadConsistency::Linearizable),
        (["s", "lease"], ReadConsistency::Lease),
        (["e", "eventual"], ReadConsistency::Eventual),
        (["serializable", "e"], ReadConsistency::Eventual),
    ] {
        for word in words {
            for line in [
                "range --consistency",
                "range --read-consistency",
                "run --workload seq-get --read-consistency",
                "run --workload par-get --read-consistency",
                "run --workload mixed --read-consistency",
            ] {
                let shape = shape(&format!("dengine-bench {line} {word}"));
                assert_eq!(shape.consistency, Some(consistency), "{line} {word}");
            }
        }
    }
}

#[test]
fn a_mixed_load_has_any_share_of_reads() {
    for percent in [0, 50, 100] {
        let line = format!("dengine-bench run --workload mixed --read-percent {percent}");
        assert_eq!(shape(&line).read_percent, Some(percent));
    }
}

#[test]
fn a_watch_fans_out_to_as_many_as_are_asked_for() {
    let plain = shape("dengine-bench run --workload watch");
    assert_eq!((plain.clients, plain.watches_each()), (100, 1));
    let fan_out = shape("dengine-bench run --workload watch-fan-out");
    let size = (fan_out.connections, fan_out.clients, fan_out.watches_each());
    assert_eq!(size, (10, 1, 100));
    let few = shape("dengine-bench run --workload watch-fan-out --watchers 3");
    assert_eq!((few.connections, few.watches_each()), (3, 3));
    let many = shape("dengine-bench run --workload watch --clients 2 --watchers 5 --conns 10");
    assert_eq!((many.connections, many.clients), (10, 2));
}

#[test]
fn each_client_of_a_swap_has_a_key_of_its_own() {
    let swap = shape("dengine-bench swap --conns 2 --clients 7 --key-space 3");
    assert_eq!((swap.workload, swap.clients), (Workload::Swap, 7));
    assert_eq!(crate::keys::space(&swap), 7);
    let renewal = shape("dengine-bench run --workload extra/lease-renewal --clients 50");
    assert_eq!(crate::keys::space(&renewal), 50);
}

#[test]
fn several_workloads_are_measured_by_one_call_and_one_client_stays_alone() {
    let cli = parse(
        "dengine-bench run --workload seq-put,par-put --workload t4/mixed --clients 8 --total 99",
    );
    let tasks = cli.unwrap().tasks();
    let sizes: Vec<_> = tasks
        .iter()
        .map(|task| (&*task.name, task.shape.clients, task.shape.total))
        .collect();
    assert_eq!(
        sizes,
        [("seq-put", 1, 99), ("par-put", 8, 99), ("mixed", 8, 99)]
    );
    assert_eq!(tasks[2].shape.read_percent, Some(50));
    // Alone, it has as many as are asked for.
    assert_eq!(
        shape("dengine-bench run --workload seq-put --clients 8").clients,
        8
    );
}

#[test]
fn help_names_every_workload() {
    let help = parse("dengine-bench run --help").unwrap_err().to_string();
    for workload in profiles::profile(profiles::BASIC).unwrap().workloads {
        assert!(help.contains(workload.name), "{}", workload.name);
    }
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
        ("put --clients 9 --total 10", WarmUp::Requests(9)),
        ("put --total 10000", WarmUp::Requests(500)),
        ("put --warm-up 0", WarmUp::Requests(0)),
        ("put --warm-up 700", WarmUp::Requests(700)),
        ("put --warm-up 5s", WarmUp::Time(Duration::from_secs(5))),
        (
            "put --warm-up 250ms",
            WarmUp::Time(Duration::from_millis(250)),
        ),
    ] {
        let cli = parse(&format!("dengine-bench {line}")).unwrap();
        let load = &cli.options.load;
        assert_eq!(load.warm_up(&cli.tasks()[0].shape), warm_up, "{line}");
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
