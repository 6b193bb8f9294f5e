//! Several processes that send one load together.

use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use dengine_bench_model::results::Report;
use dengine_fake_kv::{Load, Peer};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::PATIENCE;

/// However slow this machine is, they begin close enough to each other.
const PATIENT: &str = "--begin-within 1h";

/// A port that is free now.
fn port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// One of several, which meet at this port.
fn pod(peer: &Peer, port: u16, pods: u32, index: u32, arguments: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_dengine-bench"))
        .args(arguments.split_whitespace())
        .args(["--endpoints", &peer.address, "--json", "-"])
        .args(["--pods", &pods.to_string()])
        .args(["--first-pod", &format!("127.0.0.1:{port}")])
        .env("JOB_COMPLETION_INDEX", index.to_string())
        .env("NODE_NAME", format!("node-{index}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// All of them, the first one first.
fn all(peer: &Peer, pods: u32, arguments: &str) -> Vec<Child> {
    let port = port();
    let pod = |index| pod(peer, port, pods, index, arguments);
    (0..pods).map(pod).collect()
}

/// Pods in the middle of a load, and what they load: it answers nothing more.
async fn under_way(pods: u32) -> (Peer, Vec<Child>) {
    const ANSWERED: u64 = 30;
    let peer = Peer::under(Load {
        hang_at: Some(ANSWERED),
        ..Load::default()
    })
    .await;
    let arguments = format!(
        "put --conns 6 --clients 12 --total 100000 --warm-up 0 --request-timeout 1h {PATIENT}"
    );
    let pods = all(&peer, pods, &arguments);
    while peer.puts() < ANSWERED {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (peer, pods)
}

/// How it ended, and what it printed.
async fn ended(child: Child) -> (Option<i32>, String, String) {
    let output = timeout(PATIENCE, child.wait_with_output());
    let output = output.await.expect("it ends").unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// The report of the first, and how each ended.
async fn ran(pods: Vec<Child>) -> (Report, Vec<Option<i32>>, String) {
    let (mut codes, mut report, mut said) = (Vec::new(), None, String::new());
    for pod in pods {
        let (code, stdout, stderr) = ended(pod).await;
        codes.push(code);
        said += &stderr;
        if !stdout.is_empty() {
            assert!(
                report.is_none(),
                "the first reports, and nobody else: {stdout}"
            );
            report = Some(serde_json::from_str(&stdout).unwrap());
        }
    }
    let report = report.unwrap_or_else(|| panic!("no report: {said}"));
    (report, codes, said)
}

/// Why the first result does not count.
fn trouble(report: &Report) -> &str {
    let pods = report.results[0].pods.as_ref().unwrap();
    pods.trouble.as_deref().unwrap()
}

#[tokio::test]
async fn three_send_what_one_would_and_have_one_result() {
    let peer = Peer::under(Load::default()).await;
    let arguments = format!("put --conns 4 --clients 7 --total 500 --warm-up 14 {PATIENT}");
    let (report, codes, said) = ran(all(&peer, 3, &arguments)).await;
    assert_eq!(codes, [Some(0); 3], "{said}");
    assert_eq!(report.nodes, ["node-0", "node-1", "node-2"]);
    let result = &report.results[0];
    assert_eq!((result.requests, result.errors), (500, 0));
    assert_eq!(result.warm_up, 14);
    assert_eq!((peer.puts(), peer.keys()), (514, 500), "each key once");
    assert_eq!(result.shape.connections, 4);
    assert!(result.client_cpu_us.unwrap() > 0.0);
    let pods = result.pods.as_ref().unwrap();
    assert_eq!((pods.count, pods.loading), (3, 3));
    assert_eq!(pods.trouble, None);
}

#[tokio::test]
async fn what_is_read_is_written_by_the_first_alone_and_a_rate_is_that_of_all() {
    let peer = Peer::under(Load::default()).await;
    let arguments = format!(
        "range --conns 3 --clients 6 --total 120 --key-space 50 --rate 400 --warm-up 6 {PATIENT}"
    );
    let (report, codes, said) = ran(all(&peer, 3, &arguments)).await;
    assert_eq!(codes, [Some(0); 3], "{said}");
    let result = &report.results[0];
    assert_eq!((result.requests, result.errors), (120, 0));
    assert_eq!(result.preload.unwrap().keys, 50);
    assert_eq!(peer.puts(), 50);
    // The last request is wanted 119 / 400 seconds after the start.
    assert!(result.total_seconds >= 0.29, "{}", result.total_seconds);
}

#[tokio::test]
async fn a_workload_of_one_client_comes_from_the_first() {
    let peer = Peer::under(Load::default()).await;
    let arguments = format!("run --workload seq-put,par-put --total 200 --warm-up 100 {PATIENT}");
    let (report, codes, said) = ran(all(&peer, 2, &arguments)).await;
    assert_eq!(codes, [Some(0); 2], "{said}");
    let loading = report
        .results
        .iter()
        .map(|result| result.pods.as_ref().unwrap().loading);
    assert_eq!(loading.collect::<Vec<_>>(), [1, 2]);
    assert!(report.results.iter().all(|result| result.requests == 200));
}

#[tokio::test]
async fn a_failure_in_any_of_them_fails_the_run() {
    let peer = Peer::under(Load {
        fail_every: Some(50),
        ..Load::default()
    })
    .await;
    let arguments = format!("put --conns 2 --clients 4 --total 200 --warm-up 0 {PATIENT}");
    let (report, codes, said) = ran(all(&peer, 2, &arguments)).await;
    assert_eq!(codes, [Some(1), Some(0)], "{said}");
    let result = &report.results[0];
    assert_eq!((result.requests, result.errors), (200, 4));
}

/// Its part of the load is missing, whatever the others measured.
#[tokio::test]
async fn a_lost_pod_makes_the_run_invalid_and_is_named() {
    let (_peer, mut pods) = under_way(3).await;
    pods.remove(2).kill().await.unwrap();
    let (report, codes, said) = ran(pods).await;
    assert_eq!(codes, [Some(3), Some(0)], "{said}");
    let trouble = trouble(&report);
    assert!(
        trouble.starts_with("pod 2 of 3 (counted from 0) was lost"),
        "{trouble}"
    );
    assert!(trouble.contains("then run again"), "{trouble}");
    assert!(said.contains("INVALID: pod 2 of 3"), "{said}");
}

#[tokio::test]
async fn without_the_first_the_others_end() {
    let (_peer, mut pods) = under_way(2).await;
    pods.remove(0).kill().await.unwrap();
    let (code, stdout, stderr) = ended(pods.remove(0)).await;
    assert_eq!((code, &*stdout), (Some(1), ""), "{stderr}");
    assert!(
        stderr.contains("pod 0 of 2 (counted from 0) was lost"),
        "{stderr}"
    );
}

#[tokio::test]
async fn who_does_not_come_is_named() {
    let peer = Peer::under(Load::default()).await;
    let arguments = format!("put --conns 3 --clients 3 --total 10 --join-timeout 1s {PATIENT}");
    let (report, codes, said) = ran(vec![pod(&peer, port(), 3, 0, &arguments)]).await;
    assert_eq!(codes, [Some(3)], "{said}");
    let trouble = trouble(&report);
    let words = "of 3 pods (counted from 0) 1, 2 did not come within 1s";
    assert!(trouble.starts_with(words), "{trouble}");
    assert_eq!(peer.puts(), 0);
}

/// Two loads of different sizes are not parts of one.
#[tokio::test]
async fn a_pod_with_other_flags_takes_no_part() {
    let peer = Peer::under(Load::default()).await;
    let (port, own) = (port(), "--conns 2 --clients 2 --join-timeout 3s");
    let first = pod(&peer, port, 2, 0, &format!("put --total 10 {own}"));
    let other = pod(&peer, port, 2, 1, &format!("put --total 20 {own}"));
    let (code, _, stderr) = ended(other).await;
    assert_eq!(code, Some(1));
    assert!(stderr.contains("was started with other flags"), "{stderr}");
    let (report, codes, said) = ran(vec![first]).await;
    assert_eq!(codes, [Some(3)], "{said}");
    let words = "pod 1 of 2 (counted from 0) was started with other flags than the first";
    assert!(trouble(&report).starts_with(words), "{}", trouble(&report));
}
