//! The result for people: aligned, units named, a failure before any number.

use std::fmt::{self, Write};

use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};
use dengine_bench_model::results::{Protocol, Report, RunResult, Shape, Workload};

use crate::outcome::Verdict;

/// Renders a result. The verdict comes first if it is not a success.
#[must_use]
pub fn render(result: &RunResult) -> String {
    let mut out = String::new();
    write(&mut out, result).expect("writing to a string cannot fail");
    out
}

fn write(out: &mut String, result: &RunResult) -> fmt::Result {
    match Verdict::of(result) {
        Verdict::Succeeded => {}
        Verdict::Unsupported(why) => writeln!(out, "UNSUPPORTED: {why}\n")?,
        Verdict::Failed(why) => writeln!(out, "FAILED: {why}\n")?,
        Verdict::Invalid(why) => writeln!(out, "INVALID: {why}\n")?,
    }
    write_setup(out, result)?;
    if result.requests > result.errors {
        write_summary(out, result)?;
        write_latency(out, result)?;
    }
    Ok(())
}

fn write_setup(out: &mut String, result: &RunResult) -> fmt::Result {
    let shape = &result.shape;
    writeln!(out, "Run")?;
    line(out, "Target", &target(result))?;
    if !result.members.is_empty() {
        let leader = result.leader.as_deref().unwrap_or("unknown");
        line(
            out,
            "Members",
            &format!("{} (leader {leader})", result.members.join(", ")),
        )?;
    }
    line(
        out,
        "Durability",
        result
            .durability
            .as_deref()
            .unwrap_or("not told by the target"),
    )?;
    line(out, "Workload", &load_in_words(shape))?;
    let (clients, connections) = (
        grouped(shape.clients.into()),
        grouped(shape.connections.into()),
    );
    let place = if result.target_leader {
        " to the leader"
    } else {
        ""
    };
    if let Some(wire) = result.wire {
        line(out, "Wire", wire.as_str())?;
    }
    line(
        out,
        "Clients",
        &format!("{clients} over {connections} connections{place}, all in flight"),
    )?;
    if let Some(preload) = result.preload {
        let keys = grouped(preload.keys);
        line(
            out,
            "Filled",
            &format!(
                "{keys} keys in {:.2} s before the run",
                preload.total_seconds
            ),
        )?;
    }
    Ok(())
}

fn target(result: &RunResult) -> String {
    format!("{} (dengine-bench {})", engine(result), result.tool_version)
}

/// Name and version of what was measured.
#[must_use]
pub fn engine(result: &RunResult) -> String {
    let version = result
        .engine_version
        .as_deref()
        .unwrap_or("of unknown version");
    let name = match result.protocol {
        Protocol::Dengine => "DEngine",
        Protocol::Etcd => "etcd",
    };
    format!("{name} {version}")
}

/// What each request does.
#[must_use]
pub fn load_in_words(shape: &Shape) -> String {
    let keys = match (shape.workload, shape.sequential_keys, shape.key_space) {
        (Workload::Watch, _, _) => "each client watches its own key".to_owned(),
        (_, true, 0) => "sequential keys".to_owned(),
        (_, true, space) => format!("sequential keys out of {}", grouped(space)),
        (_, false, 0) => "each key once in random order".to_owned(),
        (_, false, space) => format!("random keys out of {}", grouped(space)),
    };
    let fresh = shape.consistency.map_or("l", |fresh| fresh.as_str());
    let kind = match shape.workload {
        Workload::Put => "put".to_owned(),
        Workload::Range => format!("range {fresh}"),
        Workload::Mixed => {
            let percent = shape.read_percent.unwrap_or(50);
            format!("{percent} % range {fresh}, {} % put", 100 - percent)
        }
        Workload::Watch => "put until the watch tells of it".to_owned(),
    };
    let folder = match shape.key_folder_size {
        0 => String::new(),
        bytes => format!(" behind {bytes} of the run's folder"),
    };
    format!(
        "{kind}, {}-byte keys{folder}, {}-byte values, {keys}",
        shape.key_size, shape.value_size
    )
}

/// All workloads of a report in a table, with what did not succeed above it.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    for result in &report.results {
        match Verdict::of(result) {
            Verdict::Succeeded | Verdict::Unsupported(_) => {}
            Verdict::Failed(why) => out += &format!("FAILED: {}: {why}\n", result.name),
            Verdict::Invalid(why) => out += &format!("INVALID: {}: {why}\n", result.name),
        }
    }
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "workload",
        "conns/clients",
        "requests/s",
        "spread",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "CPU µs: servers",
        "tool",
    ]);
    for result in &report.results {
        table.add_row(row(result));
    }
    table
        .column_iter_mut()
        .skip(1)
        .for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    if let Some(system) = &report.system {
        out += &format!("{system}: ");
    }
    out += &format!("{}\n", heading(report));
    out + &format!("{table}\n")
}

/// What was measured, and under which circumstances.
#[must_use]
pub fn heading(report: &Report) -> String {
    let mut parts = Vec::new();
    if let Some(first) = report.results.first() {
        parts.push(engine(first));
        parts.extend(
            first
                .durability
                .as_ref()
                .map(|mode| format!("durability {mode}")),
        );
        parts.extend(first.wire.map(|wire| format!("wire {}", wire.as_str())));
    }
    parts.extend(
        report
            .profile
            .as_ref()
            .map(|profile| format!("profile {profile}")),
    );
    parts.extend(
        report
            .scenario
            .as_ref()
            .map(|scenario| format!("scenario {scenario}")),
    );
    parts.join(", ")
}

fn row(result: &RunResult) -> [String; 9] {
    let shape = &result.shape;
    let (name, clients) = (
        result.name.clone(),
        format!("{}/{}", shape.connections, grouped(shape.clients.into())),
    );
    let nothing = String::new;
    if result.unsupported.is_some() {
        let why = "unsupported".to_owned();
        return [
            name,
            clients,
            why,
            nothing(),
            nothing(),
            nothing(),
            nothing(),
            nothing(),
            nothing(),
        ];
    }
    let us = &result.latency_us;
    let spread = |spread: &dengine_bench_model::results::Spread| {
        format!(
            "{}–{}",
            whole(spread.ops_per_second_min),
            whole(spread.ops_per_second_max)
        )
    };
    [
        name,
        clients,
        whole(result.ops_per_second),
        result.spread.as_ref().map(spread).unwrap_or_default(),
        grouped(us.p50),
        grouped(us.p99),
        grouped(us.p999),
        result
            .servers
            .map(|servers| format!("{:.1}", servers.cpu_us))
            .unwrap_or_default(),
        result
            .client_cpu_us
            .map(|us| format!("{us:.1}"))
            .unwrap_or_default(),
    ]
}

/// `1 client`, `1,000 clients`.
#[must_use]
pub fn counted(number: u32, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number.into()))
}

/// A throughput without its fraction.
#[must_use]
pub fn whole(number: f64) -> String {
    grouped(number.round() as u64)
}

fn write_summary(out: &mut String, result: &RunResult) -> fmt::Result {
    writeln!(out, "\nSummary")?;
    line(out, "Total time", &format!("{:.3} s", result.total_seconds))?;
    line(out, "Requests", &grouped(result.requests))?;
    if result.errors > 0 {
        line(out, "Failed", &grouped(result.errors))?;
    }
    let rate = grouped(result.ops_per_second.round() as u64);
    line(out, "Throughput", &format!("{rate} requests/s"))
}

fn write_latency(out: &mut String, result: &RunResult) -> fmt::Result {
    let us = &result.latency_us;
    writeln!(
        out,
        "\nLatency (µs, from when the request was wanted to its answer)"
    )?;
    let rows = [
        ("avg", us.avg.round() as u64),
        ("min", us.min),
        ("max", us.max),
        ("p50", us.p50),
        ("p90", us.p90),
        ("p99", us.p99),
        ("p99.9", us.p999),
    ];
    let width = rows
        .iter()
        .map(|(_, us)| grouped(*us).len())
        .max()
        .unwrap_or(0);
    for (name, us) in rows {
        writeln!(out, "  {name:<13}{:>width$}", grouped(us))?;
    }
    Ok(())
}

fn line(out: &mut String, name: &str, value: &str) -> fmt::Result {
    writeln!(out, "  {name:<13}{value}")
}

/// `1234567` as `1,234,567`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use dengine_bench_model::results::Preload;
    use expect_test::{Expect, expect};

    use super::*;
    use crate::outcome::{self, Frame, tests as sample};

    fn check(frame: &Frame, errors: u64, expect: &Expect) {
        expect.assert_eq(&render(&outcome::result(
            frame,
            &sample::measured(errors),
            None,
        )));
    }

    #[test]
    fn a_good_run() {
        let preload = Some(Preload {
            keys: 1000,
            total_seconds: 0.5,
        });
        let frame = Frame {
            preload,
            target_leader: true,
            ..sample::frame()
        };
        check(
            &frame,
            0,
            &expect![[r#"
                Run
                  Target       DEngine 0.1.0 (dengine-bench 0.1.0)
                  Members      demo-0, demo-1, demo-2 (leader demo-1)
                  Durability   fsync
                  Workload     range l, 8-byte keys, 256-byte values, each key once in random order
                  Wire         pipelined
                  Clients      100 over 10 connections to the leader, all in flight
                  Filled       1,000 keys in 0.50 s before the run

                Summary
                  Total time   2.000 s
                  Requests     1,000
                  Throughput   500 requests/s

                Latency (µs, from when the request was wanted to its answer)
                  avg            501
                  min              1
                  max          1,000
                  p50            500
                  p90            900
                  p99            990
                  p99.9          999
            "#]],
        );
    }

    #[test]
    fn a_failed_run_says_so_first() {
        check(
            &sample::frame(),
            12,
            &expect![[r#"
                FAILED: 12 of 1000 requests failed; the first: unavailable: no leader

                Run
                  Target       DEngine 0.1.0 (dengine-bench 0.1.0)
                  Members      demo-0, demo-1, demo-2 (leader demo-1)
                  Durability   fsync
                  Workload     range l, 8-byte keys, 256-byte values, each key once in random order
                  Wire         pipelined
                  Clients      100 over 10 connections, all in flight

                Summary
                  Total time   2.000 s
                  Requests     1,000
                  Failed       12
                  Throughput   494 requests/s

                Latency (µs, from when the request was wanted to its answer)
                  avg          495
                  min            1
                  max          988
                  p50          494
                  p90          890
                  p99          979
                  p99.9        988
            "#]],
        );
    }

    #[test]
    fn a_run_under_two_leaders_says_so_first() {
        let frame = Frame {
            after: Some(sample::facts(3)),
            ..sample::frame()
        };
        let result = outcome::result(&frame, &sample::measured(0), None);
        assert!(render(&result).starts_with("INVALID: the leader changed"));
    }

    #[test]
    fn a_run_that_never_began_shows_no_numbers() {
        let frame = Frame {
            before: None,
            after: None,
            ..sample::frame()
        };
        let result = outcome::failed(&frame, "target not ready within 30s: connection refused");
        expect![[r#"
            FAILED: target not ready within 30s: connection refused

            Run
              Target       DEngine of unknown version (dengine-bench 0.1.0)
              Durability   not told by the target
              Workload     range l, 8-byte keys, 256-byte values, each key once in random order
              Wire         pipelined
              Clients      100 over 10 connections, all in flight
        "#]]
        .assert_eq(&render(&result));
    }

    #[test]
    fn numbers_are_grouped() {
        let shown: Vec<_> = [0, 999, 1000, 123_456, 1_234_567].map(grouped).to_vec();
        assert_eq!(shown, ["0", "999", "1,000", "123,456", "1,234,567"]);
    }
}
