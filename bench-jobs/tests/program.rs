//! The real program against a real gRPC server in the test's process: exit status, output, and what
//! reached the server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use dengine_crds::benchmark::RunResult;
use support::{Behaviour, Peer};
use tokio::{process::Command, sync::Barrier};

struct Ran {
    status: i32,
    stdout: String,
    stderr: String,
}

async fn bench(endpoint: &str, arguments: &str) -> Ran {
    let command = Command::new(env!("CARGO_BIN_EXE_dengine-bench"))
        .args(arguments.split_whitespace())
        .args(["--endpoints", endpoint])
        .env_remove("NODE_NAME")
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

/// Runs with the result on the standard output.
async fn result(endpoint: &str, arguments: &str) -> (i32, RunResult, String) {
    let ran = bench(endpoint, &format!("{arguments} --json -")).await;
    let result = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", ran.stdout, ran.stderr);
    });
    (ran.status, result, ran.stderr)
}

#[tokio::test]
async fn a_good_run_sends_exactly_what_was_asked_for() {
    let peer = Peer::start(Behaviour::default()).await;
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
    let peer = Peer::start(Behaviour {
        fail_every: Some(50),
        ..Behaviour::default()
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
    let peer = Peer::start(Behaviour {
        fail_every: Some(1),
        ..Behaviour::default()
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
    let peer = Peer::start(Behaviour {
        elect_at: Some(60),
        ..Behaviour::default()
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
    let peer = Peer::start(Behaviour {
        elect_at: Some(5),
        ..Behaviour::default()
    })
    .await;
    let ran = bench(&peer.address, "put --total 100 --warm-up 10").await;
    assert_eq!(ran.status, 0, "{}", ran.stdout);
}

#[tokio::test]
async fn all_clients_are_in_flight_at_once() {
    let together = Some(Barrier::new(64));
    let peer = Peer::start(Behaviour {
        together,
        ..Behaviour::default()
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
    let peer = Peer::start(Behaviour {
        delay,
        ..Behaviour::default()
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
    let peer = Peer::start(Behaviour::default()).await;
    for consistency in ["l", "e"] {
        let arguments = "--clients 4 --total 300 --key-space 100 --warm-up 4 --consistency";
        let (status, result, summary) =
            result(&peer.address, &format!("range {arguments} {consistency}")).await;
        assert_eq!(status, 0, "{summary}");
        assert_eq!(result.requests, 300);
        assert!(summary.contains("100 keys in"), "{summary}");
        assert_eq!(result.preload.unwrap().keys, 100);
    }
    assert_eq!((peer.keys(), peer.puts()), (100, 200));
    assert!(peer.gets() >= 2 * 304);
}

#[tokio::test]
async fn a_run_ends_with_its_time() {
    let peer = Peer::start(Behaviour {
        hang_at: Some(11),
        ..Behaviour::default()
    })
    .await;
    let began = Instant::now();
    let arguments = "put --clients 5 --total 1000 --warm-up 0 --timeout 1s";
    let (status, result, summary) = result(&peer.address, arguments).await;
    assert_eq!(status, 1);
    assert_eq!((result.requests, result.errors), (15, 5), "{summary}");
    assert!(summary.contains("5 requests were in flight"), "{summary}");
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
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
    let pid = child.id().unwrap().to_string();
    assert!(
        Command::new("kill")
            .arg(pid)
            .status()
            .await
            .unwrap()
            .success()
    );
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
        let peer = Peer::start(Behaviour {
            hang_at: Some(1),
            ..Behaviour::default()
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
    let peer = Peer::start(Behaviour::default()).await;
    let ran = bench(&peer.address, "put --conns 9 --clients 3").await;
    assert_eq!((ran.status, peer.puts()), (2, 0));
    assert!(
        ran.stderr.contains("--clients must be --conns (9)"),
        "{}",
        ran.stderr
    );
    let ran = bench(&peer.address, "range --consistency s").await;
    assert_eq!(ran.status, 2);
    assert!(ran.stderr.contains("not supported yet"), "{}", ran.stderr);
}

#[tokio::test]
async fn a_result_that_cannot_be_delivered_fails_a_good_run() {
    let peer = Peer::start(Behaviour::default()).await;
    let ran = bench(&peer.address, "put --total 10 --json /nowhere/result.json").await;
    assert_eq!(ran.status, 1);
    assert!(
        ran.stderr.contains("/nowhere/result.json"),
        "{}",
        ran.stderr
    );
    assert!(ran.stdout.starts_with("Run\n"), "{}", ran.stdout);
}
