//! The result for people: aligned, units named, a failure before any number.

mod notes;
mod table;

use std::fmt::{self, Write};

use dengine_bench_model::results::{
    Machine, Protocol, ReadConsistency, Report, RunResult, Shape, Workload,
};

use crate::outcome::Verdict;

pub use self::notes::note;
pub use self::table::table;
pub(crate) use self::table::{LATENCY, latency};

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
    match table::repetitions(std::slice::from_ref(result)) {
        Some(table) => writeln!(out, "\nEach repetition (the median is above)\n{table}"),
        None => Ok(()),
    }
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
    if shape.at_least_seconds.is_some() {
        line(out, "Requests", &requests_in_words(shape))?;
    }
    let clients = grouped(shape.clients.into());
    let connections = counted(shape.connections, "connection");
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
        &format!("{clients} over {connections}{place}, all in flight"),
    )?;
    if let Some(pods) = &result.pods {
        let within = pods.began_within_us as f64 / 1e3;
        let (loading, count) = (pods.loading, pods.count);
        line(
            out,
            "Pods",
            &format!("{loading} of {count} sent it, begun within {within:.1} ms"),
        )?;
    }
    if let Some(seconds) = result.warm_up_seconds {
        let requests = grouped(result.warm_up);
        line(
            out,
            "Warm-up",
            &format!("{requests} requests in {seconds} s"),
        )?;
    }
    write_preparation(out, result)
}

/// What was done before the run, and what is beside it.
fn write_preparation(out: &mut String, result: &RunResult) -> fmt::Result {
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
    if let Some(settling) = &result.settling {
        line(out, "Settled", &notes::settled(settling))?;
    }
    if let Some(listing) = &result.listing {
        line(out, "Beside it", &notes::listed(listing))?;
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
        Protocol::Floor => "floor",
        Protocol::Echo => "echo",
    };
    format!("{name} {version}")
}

/// How many requests there are.
#[must_use]
pub fn requests_in_words(shape: &Shape) -> String {
    let at_least = shape.at_least_seconds;
    let for_longer = at_least.map(|seconds| format!(" and for {seconds} s at least"));
    let total = grouped(shape.total);
    format!("{total} requests{}", for_longer.unwrap_or_default())
}

/// What each request does.
#[must_use]
pub fn load_in_words(shape: &Shape) -> String {
    let keys = match (shape.workload, shape.sequential_keys, shape.key_space) {
        (Workload::Watch, _, _) if shape.watchers.is_none() => {
            "each client watches its own key".to_owned()
        }
        (Workload::Watch, _, _) if shape.clients == 1 => "one key".to_owned(),
        (Workload::Watch | Workload::Swap | Workload::Seen, _, _) => {
            "a key for each client".to_owned()
        }
        (Workload::Scan, _, space) if shape.scan_keys.is_none() => {
            format!("all {} keys", grouped(space))
        }
        (_, true, 0) => "sequential keys".to_owned(),
        (_, true, space) => format!("sequential keys out of {}", grouped(space)),
        (_, false, 0) if shape.at_least_seconds.is_some() => {
            "all keys in random order, over and over".to_owned()
        }
        (_, false, 0) => "each key once in random order".to_owned(),
        (_, false, space) => format!("random keys out of {}", grouped(space)),
    };
    let consistency = shape.consistency.unwrap_or(ReadConsistency::Linearizable);
    let fresh = consistency.word();
    let kind = match shape.workload {
        Workload::Put => "put".to_owned(),
        Workload::Range => format!("{fresh} range"),
        Workload::Mixed => {
            let percent = shape.read_percent.unwrap_or(50);
            format!("{percent} % {fresh} range, {} % put", 100 - percent)
        }
        Workload::Watch => match shape.watchers {
            None => "put until the watch tells of it".to_owned(),
            Some(watchers) => {
                format!(
                    "put until all of {} watches tell of it",
                    grouped(watchers.into())
                )
            }
        },
        Workload::Swap => "swap by revision".to_owned(),
        Workload::List => match shape.listers_beside() {
            0 => "put on keys that are there".to_owned(),
            1 => "put while a client lists all keys".to_owned(),
            listers => format!("put while {listers} clients list all keys"),
        },
        Workload::Scan => match shape.scan_keys {
            None => "list in pages".to_owned(),
            Some(keys) => format!("range of {} keys", grouped(keys.into())),
        },
        Workload::Seen => "put at the leader until a follower shows it".to_owned(),
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

/// The machine that the load came from.
#[must_use]
pub fn machine_in_words(machine: &Machine) -> String {
    format!(
        "{}, {} logical processors, {:.0} GiB of memory, {}",
        machine.processor,
        machine.processors,
        machine.memory_bytes as f64 / f64::from(1 << 30),
        machine.kernel
    )
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
    use dengine_bench_model::results::{Preload, Settling};
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
            settling: Some(Settling {
                total_seconds: 12.25,
                idle: true,
            }),
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
                  Workload     linearizable range, 8-byte keys, 256-byte values, each key once in random order
                  Wire         pipelined
                  Clients      100 over 10 connections to the leader, all in flight
                  Filled       1,000 keys in 0.50 s before the run
                  Settled      servers were idle after 12 s

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
                  Workload     linearizable range, 8-byte keys, 256-byte values, each key once in random order
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
              Workload     linearizable range, 8-byte keys, 256-byte values, each key once in random order
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
