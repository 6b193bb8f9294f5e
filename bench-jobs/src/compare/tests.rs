use dengine_bench_model::profiles;
use dengine_bench_model::results::{IdleServers, LatencyUs, Protocol, ServerUse, Wire};
use expect_test::expect;

use super::budget::Budget;
use super::*;
use crate::outcome::tests as sample;
use crate::target::{self, Access};

/// A report of the profile `standard` in which every workload has the same numbers.
fn report(protocol: Protocol, ops_per_second: f64) -> Report {
    let base = sample::report().results.remove(0);
    let access = Access {
        protocol,
        wire: None,
    };
    let result = |workload: &profiles::NamedWorkload| RunResult {
        name: workload.name.to_owned(),
        protocol,
        shape: workload.shape(),
        ops_per_second,
        latency_us: LatencyUs {
            avg: 1100.0,
            min: 100,
            max: 4000,
            p50: 1000,
            p90: 1500,
            p99: 2000,
            p999: 3000,
        },
        servers: Some(ServerUse {
            processes: 3,
            cpu_us: 1e6 / ops_per_second,
            resident_bytes_max: 100_000_000,
        }),
        unsupported: target::unsupported(access, workload.shape().consistency).map(str::to_owned),
        ..base.clone()
    };
    let standard = profiles::profile("standard").unwrap().workloads;
    Report {
        system: None,
        profile: Some("standard".to_owned()),
        idle: Some(IdleServers {
            processes: 3,
            resident_bytes_max: 50_000_000,
        }),
        results: standard.iter().map(result).collect(),
        ..sample::report()
    }
}

fn named(label: &str, report: Report) -> Named {
    Named {
        label: label.to_owned(),
        report,
    }
}

fn budget(percent: f64) -> Budget {
    Budget {
        throughput_and_cpu: percent / 100.0,
        p99: None,
    }
}

#[test]
fn side_by_side_with_goals_and_a_labelled_stand_in() {
    let reports = [
        named("DEngine", report(Protocol::Dengine, 50_000.0)),
        named("etcd", report(Protocol::Etcd, 5_000.0)),
    ];
    let text = table::render(&reports);
    let throughput = text.split("\n\n").nth(1).unwrap();
    expect![[r#"
        Throughput, requests/s
        | workload          | conns/clients | DEngine |    etcd | better than etcd |  goal |
        |-------------------|---------------|---------|---------|------------------|-------|
        | single-write      |           1/1 |  50,000 |   5,000 |            10.0× | 4.00× |
        | write             |     200/1,000 |  50,000 |   5,000 |            10.0× | 7.00× |
        | linearizable-read |     200/1,000 |  50,000 |   5,000 |            10.0× | 8.00× |
        | lease-read        |     200/1,000 |  50,000 | 5,000 ¹ |            10.0× | 8.00× |
        | eventual-read     |     200/1,000 |  50,000 |   5,000 |            10.0× | 8.00× |
        | hot-key-read      |     200/1,000 |  50,000 |   5,000 |            10.0× | 8.00× |"#]]
    .assert_eq(throughput);
    let latency = text.split("\n\n").nth(2).unwrap();
    expect![[r#"
        Latency, µs
        | workload          | conns/clients | system           |     avg |   min |     p50 |     p90 |     p99 |   p99.9 |     max |
        |-------------------|---------------|------------------|---------|-------|---------|---------|---------|---------|---------|
        | single-write      |           1/1 | DEngine          |   1,100 |   100 |   1,000 |   1,500 |   2,000 |   3,000 |   4,000 |
        |                   |               | etcd             |   1,100 |   100 |   1,000 |   1,500 |   2,000 |   3,000 |   4,000 |
        |                   |               | better than etcd |   1.00× | 1.00× |   1.00× |   1.00× |   1.00× |   1.00× |   1.00× |
        | write             |     200/1,000 | DEngine          |   1,100 |   100 |   1,000 |   1,500 |   2,000 |   3,000 |   4,000 |
        |                   |               | etcd             |   1,100 |   100 |   1,000 |   1,500 |   2,000 |   3,000 |   4,000 |
        |                   |               | better than etcd |   1.00× | 1.00× |   1.00× |   1.00× |   1.00× |   1.00× |   1.00× |
        | linearizable-read |     200/1,000 | DEngine          |   1,100 |   100 |   1,000 |   1,500 |   2,000 |   3,000 |   4,000 |
        |                   |               | etcd             |   1,100 |   100 |   1,000 |   1,500 |   2,000 |   3,000 |   4,000 |
        |                   |               | better than etcd |   1.00× | 1.00× |   1.00× |   1.00× |   1.00× |   1.00× |   1.00× |
        | lease-read        |     200/1,000 | DEngine          |   1,100 |   100 |   1,000 |   1,500 |   2,000 |   3,000 |   4,000 |
        |                   |               | etcd             | 1,100 ¹ | 100 ¹ | 1,000 ¹ | 1,500 ¹ | 2,000 ¹ | 3,000 ¹ | 4,000 ¹ |
        |                   |               | better than etcd |   1.00× | 1.00× |   1.00× |   1.00× |   1.00× |   1.00× |   1.00× |
        | eventual-read     |     200/1,000 | DEngine          |   1,100 |   100 |   1,000 |   1,500 |   2,000 |   3,000 |   4,000 |
        |                   |               | etcd             |   1,100 |   100 |   1,000 |   1,500 |   2,000 |   3,000 |   4,000 |
        |                   |               | better than etcd |   1.00× | 1.00× |   1.00× |   1.00× |   1.00× |   1.00× |   1.00× |
        | hot-key-read      |     200/1,000 | DEngine          |   1,100 |   100 |   1,000 |   1,500 |   2,000 |   3,000 |   4,000 |
        |                   |               | etcd             |   1,100 |   100 |   1,000 |   1,500 |   2,000 |   3,000 |   4,000 |
        |                   |               | better than etcd |   1.00× | 1.00× |   1.00× |   1.00× |   1.00× |   1.00× |   1.00× |"#]].assert_eq(latency);
    assert!(text.contains("¹ unsupported there"), "{text}");
    assert!(
        text.contains("Memory of a server before the load: etcd: 50 MB"),
        "{text}"
    );
}

#[test]
fn another_load_under_the_same_name_has_no_ratio() {
    let mut other = report(Protocol::Dengine, 1.0);
    other.results[0].shape.clients += 1;
    let reports = [
        named("a", report(Protocol::Dengine, 1.0)),
        named("b", other),
    ];
    assert!(matches!(rows(&reports)[0].cells[1], Cell::OtherLoad(_)));
    assert!(matches!(rows(&reports)[1].cells[1], Cell::Measured(_)));
}

#[test]
fn each_scenario_has_tables_of_its_own() {
    let found = ["single", "cluster"].map(|scenario| Found {
        report: Report {
            scenario: Some(scenario.to_owned()),
            ..report(Protocol::Dengine, 1.0)
        },
        stem: "all".to_owned(),
    });
    let text = by_scenario(&found);
    assert_eq!(text.matches("Throughput, requests/s").count(), 2);
    assert!(!text.contains("better than"), "{text}");
}

#[test]
fn goals_are_about_writes_that_are_on_disk() {
    let mut reports = [
        named("DEngine", report(Protocol::Dengine, 50_000.0)),
        named("etcd", report(Protocol::Etcd, 5_000.0)),
    ];
    assert!(table::render(&reports).contains("goal"));
    for result in &mut reports[0].report.results {
        result.durability = Some("memory-first".to_owned());
    }
    assert!(!table::render(&reports).contains("goal"));
}

#[test]
fn the_floor_stands_beside_lone_writes_and_has_no_goals() {
    let mut floor = report(Protocol::Floor, 100_000.0);
    floor.results.truncate(1);
    let mut reports = vec![
        named("DEngine", report(Protocol::Dengine, 50_000.0)),
        named("etcd", report(Protocol::Etcd, 5_000.0)),
        named("floor", floor),
    ];
    let text = table::render(&reports);
    let row = |name: &str| -> Vec<&str> {
        let row = text.lines().find(|line| line.starts_with(name)).unwrap();
        row.split('|').map(str::trim).skip(3).collect()
    };
    let lone = ["50,000", "5,000", "100,000", "10.0×", "0.50×", "4.00×", ""];
    assert_eq!(row("| single-write"), lone);
    let many = ["50,000", "5,000", "", "10.0×", "", "7.00×", ""];
    assert_eq!(row("| write"), many);
    reports.remove(1);
    assert!(!table::render(&reports).contains("goal"));
}

#[test]
fn labels_are_told_apart_by_their_files() {
    let report = || report(Protocol::Dengine, 1.0);
    let found = |report: Report, stem: &str| Found {
        report,
        stem: stem.to_owned(),
    };
    let labels = |found| {
        label(found)
            .into_iter()
            .map(|named| named.label)
            .collect::<Vec<_>>()
    };
    let same = labels(vec![found(report(), "old"), found(report(), "new")]);
    assert_eq!(same, ["DEngine 0.1.0 (old)", "DEngine 0.1.0 (new)"]);
    // Of one file of lines, by what differs; and if nothing does, by their places.
    let mut unary = report();
    unary.results[0].wire = Some(Wire::Unary);
    let same = labels(vec![found(report(), "all"), found(unary, "all")]);
    assert_eq!(same, ["DEngine 0.1.0 (pipelined)", "DEngine 0.1.0 (unary)"]);
    let same = labels(vec![found(report(), "all"), found(report(), "all")]);
    assert_eq!(same, ["DEngine 0.1.0 (1)", "DEngine 0.1.0 (2)"]);
}

#[test]
fn what_is_worse_than_the_budget_is_named() {
    let baseline = report(Protocol::Dengine, 1000.0);
    let mut now = baseline.clone();
    now.results[1].ops_per_second = 850.0;
    now.results[2].servers.as_mut().unwrap().cpu_us *= 1.2;
    now.results[3].ops_per_second = 950.0;
    let verdict = budget::judge(&[named("now", now)], &baseline, &budget(10.0));
    assert!(verdict.regressed);
    expect![[r#"

        REGRESSION: now, write: Throughput, requests/s: 850 after 1,000 in the baseline, 15 % worse (budget 10 %)
        REGRESSION: now, linearizable-read: CPU of all servers, µs per request: 1,200 after 1,000 in the baseline, 20 % worse (budget 10 %)
    "#]]
    .assert_eq(&verdict.text);
}

#[test]
fn a_workload_that_is_gone_or_failed_is_a_regression() {
    let baseline = report(Protocol::Dengine, 1000.0);
    let mut now = baseline.clone();
    now.results.pop();
    now.results[0].errors = 1;
    let verdict = budget::judge(&[named("now", now)], &baseline, &budget(10.0));
    assert!(
        verdict.text.contains("now, hot-key-read: not measured"),
        "{}",
        verdict.text
    );
    assert!(
        verdict.text.contains("now, single-write: failed"),
        "{}",
        verdict.text
    );
}

#[test]
fn within_the_budget_nothing_is_said_but_that() {
    let baseline = report(Protocol::Dengine, 1000.0);
    let verdict = budget::judge(&[named("now", baseline.clone())], &baseline, &budget(0.0));
    assert!(!verdict.regressed);
    assert_eq!(
        verdict.text,
        "\nWithin the budget of the baseline: 6 workloads\n"
    );
}

#[test]
fn a_ratio_is_written_with_three_digits() {
    let written = [0.5, 9.994, 9.999_999, 10.0, 12.34].map(super::columns::times);
    assert_eq!(written, ["0.50×", "9.99×", "10.0×", "10.0×", "12.3×"]);
}

#[test]
fn a_p99_goal_beside_etcd_is_judged() {
    let of = |protocol, p99| {
        let mut report = report(protocol, 1_000.0);
        report.profile = Some("extra".to_owned());
        report.results.truncate(1);
        let result = &mut report.results[0];
        result.name = "put-seen".to_owned();
        result.latency_us.p99 = p99;
        report
    };
    let text = |own| {
        let etcd = named("etcd", of(Protocol::Etcd, 3_000));
        table::render(&[named("DEngine", of(Protocol::Dengine, own)), etcd])
    };
    let line = |own, verdict| {
        format!("put-seen: {own} µs, at most etcd's 3,000 and 2,000 µs more: {verdict}\n")
    };
    let kept = text(5_000);
    assert!(kept.contains(&line("5,000", "reached")), "{kept}");
    let missed = text(5_001);
    assert!(missed.contains(&line("5,001", "missed")), "{missed}");
    let alone = table::render(&[named("DEngine", of(Protocol::Dengine, 1))]);
    assert!(!alone.contains("Goals"), "{alone}");
}

#[test]
fn a_p99_goal_beside_another_workload_is_judged() {
    let mut report = report(Protocol::Dengine, 1_000.0);
    report.profile = Some("extra".to_owned());
    report.results.truncate(2);
    for (result, (name, p99)) in report
        .results
        .iter_mut()
        .zip([("paced-write", 4_000), ("list-while-writing", 8_001)])
    {
        result.name = name.to_owned();
        result.latency_us.p99 = p99;
    }
    let text = table::render(&[named("DEngine", report)]);
    let line = "list-while-writing: 8,001 µs, at most 2 times the 4,000 of paced-write: missed\n";
    assert!(text.contains(line), "{text}");
}
