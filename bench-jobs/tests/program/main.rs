//! The real program against a real gRPC server in the test's process: exit status, output, and what
//! reached the server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod disk;
mod extra;
mod pods;
mod settling;

use std::process::{Output, Stdio};
use std::time::Duration;

use dengine_bench_model::profiles;
use dengine_bench_model::results::{Report, RunResult, Shape};
use dengine_fake_kv::{Load, Peer, ScriptStep};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::sync::Barrier;
use tokio::time::timeout;
use tonic::Code;

/// For what would otherwise take an hour.
const PATIENCE: Duration = Duration::from_secs(120);

struct Ran {
    status: i32,
    stdout: String,
    stderr: String,
}

async fn bench(endpoint: &str, arguments: &str) -> Ran {
    tool(&format!("{arguments} --endpoints {endpoint}")).await
}

async fn tool(arguments: &str) -> Ran {
    told_where(None, arguments).await
}

/// With the endpoints in the variable, if they are named there.
async fn told_where(endpoints: Option<&str>, arguments: &str) -> Ran {
    let command = Command::new(env!("CARGO_BIN_EXE_dengine-bench"))
        .args(arguments.split_whitespace())
        .env_remove("NODE_NAME")
        .env_remove("DENGINE_ENDPOINTS")
        .envs(endpoints.map(|it| ("DENGINE_ENDPOINTS", it)))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let Output {
        status,
        stdout,
        stderr,
    } = command.await.unwrap();
    Ran {
        status: status.code().unwrap(),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

#[tokio::test]
async fn the_variable_names_the_members() {
    let peer = Peer::start().await;
    let load = "put --total 10 --clients 1";
    let ran = told_where(Some(&peer.address), load).await;
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    // A flag wins.
    let named = format!("{load} --endpoints {}", peer.address);
    let ran = told_where(Some("127.0.0.1:1"), &named).await;
    assert_eq!(ran.status, 0, "{}", ran.stderr);
}

/// Runs with the result on the standard output.
async fn result(endpoint: &str, arguments: &str) -> (i32, RunResult, String) {
    let ran = bench(endpoint, &format!("{arguments} --json -")).await;
    let (status, mut report, summary) = (ran.status, read(&ran), ran.stderr);
    assert_eq!(report.results.len(), 1, "{summary}");
    (status, report.results.remove(0), summary)
}

/// What a run with `--json -` printed.
fn read(ran: &Ran) -> Report {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", ran.stdout, ran.stderr);
    })
}

#[tokio::test]
async fn a_good_run_sends_exactly_what_was_asked_for() {
    let peer = Peer::under(Load::default()).await;
    let arguments = "put --conns 3 --clients 7 --total 500 --warm-up 7 --node n1";
    let (status, result, summary) = result(&peer.address, arguments).await;
    assert_eq!(status, 0, "{summary}");
    assert_eq!((result.requests, result.errors), (500, 0));
    assert_eq!(peer.puts(), 507);
    assert_eq!(peer.keys(), 500, "each key once");
    assert_eq!(peer.connections(), 3);
    assert_eq!(result.durability.as_deref(), Some("fsync"));
    assert_eq!(result.engine_version.as_deref(), Some("9.9.9"));
    assert_eq!(result.leader.as_deref(), Some("demo-0"));
    assert_eq!(result.node.as_deref(), Some("n1"));
    assert_eq!(
        (result.members, result.warm_up),
        (vec!["demo-0".to_owned()], 7)
    );
    assert_eq!((result.term_before, result.term_after), (Some(2), Some(2)));
    assert!(summary.starts_with("Run\n"), "{summary}");
}

#[tokio::test]
async fn a_failed_request_comes_first_and_fails_the_run() {
    let peer = Peer::under(Load {
        fail_every: Some(50),
        ..Load::default()
    })
    .await;
    let ran = bench(&peer.address, "put --clients 2 --total 100 --warm-up 0").await;
    assert_eq!(ran.status, 1, "{}", ran.stdout);
    let first = "FAILED: 2 of 100 requests failed; the first: unavailable: scripted failure\n";
    assert!(ran.stdout.starts_with(first), "{}", ran.stdout);
    assert_eq!(peer.puts(), 100, "a failed request is not repeated");
}

#[tokio::test]
async fn a_target_that_only_fails_is_given_up() {
    let peer = Peer::under(Load {
        fail_every: Some(1),
        ..Load::default()
    })
    .await;
    let arguments = "put --clients 50 --total 100000 --warm-up 0";
    let (status, result, _) = result(&peer.address, arguments).await;
    assert_eq!(status, 1);
    assert!((1_000..1_100).contains(&result.errors), "{}", result.errors);
    assert_eq!(result.requests, result.errors);
}

#[tokio::test]
async fn another_leader_makes_the_run_invalid() {
    let peer = Peer::under(Load {
        elect_at: Some(60),
        ..Load::default()
    })
    .await;
    let ran = bench(&peer.address, "put --total 100 --warm-up 10").await;
    assert_eq!(ran.status, 3, "{}", ran.stdout);
    assert!(
        ran.stdout.starts_with("INVALID: the leader changed"),
        "{}",
        ran.stdout
    );
}

#[tokio::test]
async fn an_election_during_the_warm_up_harms_nobody() {
    let peer = Peer::under(Load {
        elect_at: Some(5),
        ..Load::default()
    })
    .await;
    let ran = bench(&peer.address, "put --total 100 --warm-up 10").await;
    assert_eq!(ran.status, 0, "{}", ran.stdout);
}

#[tokio::test]
async fn all_clients_are_in_flight_at_once() {
    let together = Some(Barrier::new(64));
    let peer = Peer::under(Load {
        together,
        ..Load::default()
    })
    .await;
    let arguments = "put --conns 4 --clients 64 --total 128 --warm-up 0 --timeout 30s";
    let (status, result, summary) = result(&peer.address, arguments).await;
    assert_eq!(
        status, 0,
        "a semaphore somewhere would have stopped this run: {summary}"
    );
    assert_eq!(result.requests, 128);
}

#[tokio::test]
async fn latencies_hold_the_whole_wait() {
    let delay = Duration::from_millis(30);
    let peer = Peer::under(Load {
        delay,
        ..Load::default()
    })
    .await;
    let arguments = "put --total 10 --warm-up 0";
    let (_, result, _) = result(&peer.address, arguments).await;
    assert!(result.latency_us.min >= 30_000, "{:?}", result.latency_us);
    // A closed loop without gaps: the latencies of its one client fill the run's time.
    let spent = 10.0 * result.latency_us.avg / 1e6;
    assert!(
        spent > 0.99 * result.total_seconds,
        "{spent} of {} s",
        result.total_seconds
    );
}

#[tokio::test]
async fn a_range_reads_keys_that_exist() {
    let peer = Peer::under(Load::default()).await;
    for consistency in ["l", "s", "e"] {
        let arguments = "--clients 4 --total 300 --key-space 100 --warm-up 4 --consistency";
        let (status, result, summary) =
            result(&peer.address, &format!("range {arguments} {consistency}")).await;
        assert_eq!(status, 0, "{summary}");
        assert_eq!(result.requests, 300);
        assert!(summary.contains("100 keys in"), "{summary}");
        assert_eq!(result.preload.unwrap().keys, 100);
    }
    assert_eq!((peer.keys(), peer.puts()), (300, 300), "a folder for each");
    assert!(peer.gets().len() >= 3 * 304);
}

#[tokio::test]
async fn a_run_ends_with_its_time() {
    let peer = Peer::under(Load {
        hang_at: Some(11),
        ..Load::default()
    })
    .await;
    // Whoever waited for the requests would do so for an hour.
    let arguments = "put --clients 5 --total 1000 --warm-up 0 --timeout 5s --request-timeout 1h";
    let ended = timeout(PATIENCE, result(&peer.address, arguments)).await;
    let (status, result, summary) = ended.expect("the run ends with its time");
    assert_eq!(status, 1);
    assert_eq!((result.requests, result.errors), (15, 5), "{summary}");
    assert!(summary.contains("5 requests were in flight"), "{summary}");
}

#[tokio::test]
async fn a_watch_that_tells_nothing_fails_its_requests() {
    let peer = Peer::under(Load::default()).await;
    let arguments = "run --workload watch --clients 2 --total 2 --warm-up 0 --key-space 2 \
        --timeout 1h --request-timeout 500ms";
    let ended = timeout(PATIENCE, result(&peer.address, arguments)).await;
    let (status, result, summary) = ended.expect("each request ends with its time");
    assert_eq!((status, result.errors), (1, 2), "{summary}");
    let first = "the watch did not deliver the write within 500ms";
    assert!(summary.contains(first), "{summary}");
}

#[tokio::test]
async fn a_write_fans_out_to_every_watch() {
    let peer = Peer::under(Load {
        tells: true,
        ..Load::default()
    })
    .await;
    let arguments = "run --workload watch-fan-out --watchers 5 --total 20 --warm-up 1";
    let ended = timeout(PATIENCE, result(&peer.address, arguments)).await;
    let (status, result, summary) = ended.expect("every watch is told");
    assert_eq!((status, result.requests), (0, 20), "{summary}");
    assert_eq!(peer.puts(), 21, "one writer, one key");
    let watched = peer.watched();
    // Warm-up and measurement open their own.
    assert_eq!(watched.len(), 2 * 5);
    assert!(watched.iter().all(|key| key == &watched[0]), "{watched:?}");
    assert_eq!(result.shape.watchers, Some(5));
    assert!(summary.contains("all of 5 watches"), "{summary}");
}

#[tokio::test]
async fn a_swap_builds_on_its_clients_last_one() {
    for wire in ["pipelined", "unary"] {
        let peer = Peer::under(Load::default()).await;
        let arguments =
            format!("swap --wire {wire} --conns 2 --clients 5 --total 200 --warm-up 10");
        let (status, result, summary) = result(&peer.address, &arguments).await;
        assert_eq!((status, result.requests), (0, 200), "{summary}");
        assert!(summary.contains("swap by revision"), "{summary}");
        // Each client reads its key before the warm-up and before the measurement.
        assert_eq!((peer.gets().len(), peer.puts()), (10, 0));
        assert!(peer.left().is_empty(), "{:?}", peer.left());
    }
}

#[tokio::test]
async fn a_key_is_read_again_after_a_swap_whose_outcome_is_not_known() {
    // Reads are served all the same: the search for what other runs left, and those before the
    // warm-up and the measurement. The fourth request is the first swap.
    let done = || ScriptStep::DoneBut(Code::Internal);
    let peer = Peer::scripted([done(), done(), done(), done()]).await;
    let (status, result, summary) = result(&peer.address, "swap --total 5 --warm-up 0").await;
    // Had it built on the revision before, all others would have failed too.
    assert_eq!((status, result.requests, result.errors), (1, 5, 1));
    assert!(summary.contains("outcome unknown"), "{summary}");
    assert_eq!(peer.gets().len(), 3);
}

#[tokio::test]
async fn a_swap_fails_when_somebody_else_writes_its_key() {
    let peer = Peer::start().await;
    let other = peer.clone();
    let writing = tokio::spawn(async move {
        loop {
            other.holds("00000000", Vec::new());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let arguments = "swap --total 10 --rate 20 --warm-up 0 --key-prefix=";
    let (status, result, summary) = result(&peer.address, arguments).await;
    writing.abort();
    assert!(status == 1 && result.errors > 0, "{summary}");
    assert!(summary.contains("changed by somebody else"), "{summary}");
}

#[tokio::test]
async fn a_warm_up_lasts_as_long_as_asked_for() {
    let peer = Peer::under(Load {
        delay: Duration::from_millis(10),
        ..Load::default()
    })
    .await;
    let arguments = "put --total 5 --warm-up 300ms";
    let (status, result, summary) = result(&peer.address, arguments).await;
    assert_eq!((status, result.requests), (0, 5), "{summary}");
    assert_eq!(result.warm_up_seconds, Some(0.3));
    // Each of them took 10 ms, and the last one began in time.
    assert!((1..=30).contains(&result.warm_up), "{}", result.warm_up);
    assert_eq!(peer.puts(), result.warm_up + 5);
    assert!(summary.contains("requests in 0.3 s"), "{summary}");
}

/// Sends SIGTERM to a run once `until` is done, and returns how it ended.
async fn terminated(endpoint: &str, arguments: &str, until: impl AsyncFn()) -> (i32, String) {
    let child = Command::new(env!("CARGO_BIN_EXE_dengine-bench"))
        .args(arguments.split_whitespace())
        .args(["--endpoints", endpoint])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    until().await;
    // Not by `kill`, which a bare machine lacks.
    let pid = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let output = child.wait_with_output().await.unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

#[tokio::test]
async fn a_terminated_run_still_delivers_its_result() {
    // While measuring, and while warming up.
    for arguments in ["put --warm-up 0", "put"] {
        let peer = Peer::under(Load {
            hang_at: Some(1),
            ..Load::default()
        })
        .await;
        let hangs = async || {
            while peer.puts() == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let (status, summary) = terminated(&peer.address, arguments, hangs).await;
        assert_eq!(status, 1);
        let (first, _) = summary.split_once('\n').unwrap();
        assert!(first.starts_with("FAILED: "), "{first}");
        assert!(first.contains("the run was terminated"), "{first}");
    }
}

#[tokio::test]
async fn a_target_that_is_not_there_fails_the_run_with_its_reason() {
    // A port that was free a moment ago.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    for protocol in ["dengine", "etcd"] {
        let arguments = format!("put --protocol {protocol} --ready-timeout 300ms");
        let (status, result, summary) = result(&address, &arguments).await;
        assert_eq!(status, 1);
        assert_eq!((result.requests, result.errors), (1, 1));
        assert!(
            summary.starts_with("FAILED: target not ready within 300ms"),
            "{summary}"
        );
    }
}

#[tokio::test]
async fn a_wrong_command_line_sends_nothing() {
    let peer = Peer::under(Load::default()).await;
    let ran = bench(&peer.address, "put --conns 9 --clients 3").await;
    assert_eq!((ran.status, peer.puts()), (2, 0));
    assert!(
        ran.stderr.contains("--clients must be --conns (9)"),
        "{}",
        ran.stderr
    );
    let ran = bench(&peer.address, "range --consistency s --protocol etcd").await;
    assert_eq!(ran.status, 2);
    assert!(ran.stderr.contains("no lease reads"), "{}", ran.stderr);
}

#[tokio::test]
async fn a_result_that_cannot_be_delivered_fails_a_good_run() {
    let peer = Peer::under(Load::default()).await;
    let ran = bench(&peer.address, "put --total 10 --json /nowhere/result.json").await;
    assert_eq!(ran.status, 1);
    assert!(
        ran.stderr.contains("/nowhere/result.json"),
        "{}",
        ran.stderr
    );
    assert!(ran.stdout.starts_with("Run\n"), "{}", ran.stdout);
}

#[tokio::test]
async fn a_profile_measures_all_of_its_workloads_in_order() {
    let peer = Peer::under(Load::default()).await;
    let ran = bench(&peer.address, "run --profile quick --json - --system S").await;
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let report = read(&ran);
    let expected = profiles::profile("quick").unwrap().workloads;
    assert_eq!(report.results.len(), expected.len());
    for (result, expected) in report.results.iter().zip(expected) {
        assert_eq!(result.name, expected.name);
        assert_eq!(result.shape.key_folder_size, 28);
        let bare = Shape {
            key_folder_size: 0,
            ..result.shape.clone()
        };
        assert_eq!(bare, expected.shape());
        assert_eq!((result.requests, result.errors), (expected.total, 0));
        assert!(result.client_cpu_us.unwrap() > 0.0 && !result.curve.is_empty());
    }
    assert_eq!(report.system.as_deref(), Some("S"));
    assert!(report.machine.is_some() && report.command[1] == "run");
    let filled: Vec<_> = report
        .results
        .iter()
        .filter_map(|result| result.preload)
        .collect();
    assert_eq!(filled.len(), 1, "filled once, and read by all");
    assert!(ran.stderr.contains("| hot-key-read"), "{}", ran.stderr);
}

/// More than there are keys, so it uses them again.
#[tokio::test]
async fn a_load_goes_on_for_as_long_as_it_is_to_last_at_least() {
    let peer = Peer::under(Load::default()).await;
    let load = "put --clients 2 --total 4 --warm-up 0 --at-least 300ms";
    let (status, measured, summary) = result(&peer.address, load).await;
    assert_eq!(status, 0, "{summary}");
    assert!(measured.total_seconds >= 0.3, "{}", measured.total_seconds);
    assert!(measured.requests > 4 && measured.errors == 0, "{summary}");
    assert_eq!(measured.shape.at_least_seconds, Some(0.3));
    assert!(summary.contains("and for 0.3 s at least"), "{summary}");
}

/// It is told before, for there may be no time to delete them; and once more when they are gone.
#[tokio::test]
async fn a_mixed_load_reads_and_writes() {
    let peer = Peer::under(Load::default()).await;
    let arguments = "run --workload mixed --total 2000 --key-space 100 --warm-up 10";
    let (status, result, summary) = result(&peer.address, arguments).await;
    assert_eq!((status, result.requests), (0, 2000), "{summary}");
    // 80 % of 2000, give or take; 100 puts filled the keys.
    assert!(
        (1_450..1_750).contains(&peer.gets().len()),
        "{}",
        peer.gets().len()
    );
    assert!((350..650).contains(&(peer.puts() - 100)), "{}", peer.puts());
}

#[tokio::test]
async fn a_mixed_load_has_the_share_of_reads_that_was_asked_for() {
    for (percent, reads) in [(0, 0..1), (50, 880..1_120), (100, 2_000..2_011)] {
        let peer = Peer::under(Load::default()).await;
        let arguments = format!(
            "run --workload mixed --read-percent {percent} --total 2000 --key-space 100 --warm-up 0"
        );
        let (status, result, summary) = result(&peer.address, &arguments).await;
        assert_eq!((status, result.requests), (0, 2000), "{summary}");
        // One more shows that the keys are there.
        let gets = peer.gets().len() - result.shape.connections as usize;
        assert!(reads.contains(&gets), "{percent} %: {gets}");
        let words = format!("{percent} % linearizable range, {} % put", 100 - percent);
        assert!(summary.contains(&words), "{summary}");
    }
}

#[tokio::test]
async fn several_workloads_go_into_one_file_of_lines_and_one_table() {
    let peer = Peer::under(Load::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("results.jsonl");
    let lines = lines.to_str().unwrap();
    // As T4's script does: a call for each system, and repeated calls append.
    for system in ["T4", "etcd", "etcd"] {
        let arguments = format!(
            "run --workload seq-put,par-put --total 200 --system {system} --scenario single \
             --jsonl {lines}"
        );
        let ran = bench(&peer.address, &arguments).await;
        assert_eq!(ran.status, 0, "{}", ran.stderr);
    }
    for arguments in [
        format!("compare {lines}"),
        format!("compare --results {lines}"),
    ] {
        let compared = tool(&arguments).await;
        assert_eq!(compared.status, 0, "{}", compared.stderr);
        let has = |words: &str| assert!(compared.stdout.contains(words), "{}", compared.stdout);
        has("| seq-put  |           1/1 |");
        has("better than etcd");
        has("avg |");
    }
    let page = folder.path().join("page.html");
    let reported = tool(&format!("report {lines} --output {}", page.display())).await;
    assert_eq!(reported.status, 0, "{}", reported.stderr);
    let judged = tool(&format!("compare {lines} --baseline {lines}")).await;
    assert_eq!(judged.status, 1);
    assert!(judged.stderr.contains("takes one"), "{}", judged.stderr);
}

#[tokio::test]
async fn lines_go_to_the_standard_output_too() {
    let peer = Peer::under(Load::default()).await;
    let ran = bench(&peer.address, "put --total 10 --jsonl -").await;
    let line: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(line["name"], "put");
    assert!(ran.stderr.starts_with("Run\n"), "{}", ran.stderr);
}

#[tokio::test]
async fn an_open_loop_keeps_its_rate_and_counts_what_waited() {
    let peer = Peer::under(Load::default()).await;
    let arguments = "put --rate 200 --total 100 --clients 4 --warm-up 0";
    let (_, in_time, summary) = result(&peer.address, arguments).await;
    assert!((0.45..60.0).contains(&in_time.total_seconds), "{summary}");

    // Each answer takes 50 ms and is wanted after 5: the last waits for all before it.
    let slow = Peer::under(Load {
        delay: Duration::from_millis(50),
        ..Load::default()
    })
    .await;
    let arguments = "put --rate 200 --total 20 --clients 1 --warm-up 0";
    let (_, late, _) = result(&slow.address, arguments).await;
    assert!(late.latency_us.max > 800_000, "{:?}", late.latency_us);
}

#[tokio::test]
async fn repetitions_are_all_measured_and_their_spread_is_told() {
    let peer = Peer::under(Load::default()).await;
    let arguments = "put --total 200 --warm-up 1 --repeat 3";
    let (status, result, summary) = result(&peer.address, arguments).await;
    assert_eq!((status, peer.puts()), (0, 601), "{summary}");
    assert_eq!(peer.keys(), 600, "no repetition overwrites another's keys");
    let spread = result.spread.unwrap();
    assert_eq!((spread.runs, result.repetitions.len()), (3, 3));
    assert!(summary.contains("Each repetition"), "{summary}");
    assert!(spread.ops_per_second_min <= result.ops_per_second);
    assert!(result.ops_per_second <= spread.ops_per_second_max);
}

#[tokio::test]
async fn calls_travel_as_asked_for() {
    for wire in ["pipelined", "unary"] {
        let peer = Peer::under(Load::default()).await;
        let arguments = format!("put --clients 4 --total 100 --warm-up 0 --wire {wire}");
        let (status, result, summary) = result(&peer.address, &arguments).await;
        assert_eq!((status, peer.puts()), (0, 100), "{summary}");
        assert_eq!(result.wire.unwrap().as_str(), wire);
        assert_eq!(peer.frames() > 0, wire == "pipelined");
    }
}

#[tokio::test]
async fn results_go_from_run_to_comparison_and_page() {
    let peer = Peer::under(Load::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (fast, slow, lines, page) = (
        path("a.json"),
        path("b.json"),
        path("all.jsonl"),
        path("r.html"),
    );
    for (file, system) in [(&fast, "A"), (&slow, "B")] {
        let arguments =
            format!("put --total 50 --warm-up 0 --system {system} --json {file} --jsonl {lines}");
        assert_eq!(bench(&peer.address, &arguments).await.status, 0);
    }
    // The same measurement, ten times as slow.
    let mut report: Report = serde_json::from_slice(&std::fs::read(&fast).unwrap()).unwrap();
    report.results[0].ops_per_second /= 10.0;
    std::fs::write(&slow, serde_json::to_vec(&report).unwrap()).unwrap();

    let compared = tool(&format!("compare {fast} {slow}")).await;
    assert_eq!(compared.status, 0, "{}", compared.stderr);
    assert!(compared.stdout.contains("10.0×"), "{}", compared.stdout);

    let judged = tool(&format!("compare {slow} --baseline {fast} --budget 50%")).await;
    assert_eq!(judged.status, 4, "{}", judged.stdout);
    assert!(
        judged.stdout.contains("REGRESSION: A, put:"),
        "{}",
        judged.stdout
    );
    assert_eq!(
        tool(&format!("compare {fast} --baseline {fast}"))
            .await
            .status,
        0
    );

    assert_eq!(
        tool(&format!("report {fast} {slow} --output {page}"))
            .await
            .status,
        0
    );
    assert!(std::fs::read_to_string(page).unwrap().contains("</html>"));
    let lines = std::fs::read_to_string(lines).unwrap();
    let systems: Vec<_> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["system"].clone())
        .collect();
    assert_eq!(systems, ["A", "B"]);

    let broken = tool("compare /nowhere.json").await;
    assert_eq!(broken.status, 1);
    assert!(broken.stderr.contains("/nowhere.json"), "{}", broken.stderr);
}

#[tokio::test]
async fn servers_on_this_machine_are_looked_at() {
    let peer = Peer::under(Load::default()).await;
    // The peer is this very process.
    let arguments = format!(
        "put --total 2000 --warm-up 0 --server-pid {}",
        std::process::id()
    );
    let ran = bench(&peer.address, &format!("{arguments} --json -")).await;
    let report = read(&ran);
    let servers = report.results[0].servers.unwrap();
    assert!(
        servers.processes == 1 && servers.cpu_us > 0.0,
        "{servers:?}"
    );
    assert!(servers.resident_bytes_max >= 1 << 20, "{servers:?}");
    assert_eq!(report.idle.unwrap().processes, 1);

    let ran = bench(&peer.address, "put --server-pid 4294967295").await;
    assert_eq!(ran.status, 1);
    assert!(
        ran.stderr.contains("--server-pid 4294967295"),
        "{}",
        ran.stderr
    );
}
