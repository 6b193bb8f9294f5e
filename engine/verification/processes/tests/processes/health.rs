//! Probes hear the truth: `ready` follows the quorum, `live` does not.

use std::cell::RefCell;

use dengine_client::Consistency;
use dengine_protocol::health::{LIVE, READY};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::harness::{Cluster, Member, becomes, dengine, eventually, scratch};

/// What a pipe holds on Linux.
const PIPE_BYTES: u64 = 64 << 10;

async fn ask(port: u16, service: &str) -> ServingStatus {
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    let Ok(channel) = endpoint.connect().await else {
        return ServingStatus::Unknown;
    };
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    match HealthClient::new(channel).check(request).await {
        Ok(response) => response.into_inner().status(),
        Err(_) => ServingStatus::ServiceUnknown,
    }
}

async fn both_ports_say(member: &Member, service: &str, expect: ServingStatus) {
    for port in [member.client_port, member.monitor_port] {
        becomes(&format!("{service:?} of {}", member.name), expect, || {
            ask(port, service)
        })
        .await;
    }
}

/// A container runtime that hangs, or a terminal that is stopped, held up whoever had something to
/// say, with RocksDB's lock held at times; and the end, if standard output leads there too.
#[tokio::test]
async fn a_member_whose_log_nobody_reads_serves_and_ends() {
    let unread = RefCell::new(Vec::new());
    let mut cluster = Cluster::form_with(1, |member| {
        unread.borrow_mut().push(member.log_to_nobody());
        member.add_args(["--log-level", "trace,h2=trace"]);
    })
    .await;
    let client = cluster.members[0].client().await;
    for value in 0..1_000_u32 {
        client.put("k", value.to_string()).await.unwrap();
    }
    let waiting = rustix::io::ioctl_fionread(&unread.borrow()[0]).unwrap();
    assert!(
        waiting > PIPE_BYTES - 4096,
        "{waiting} bytes: there is room"
    );
    let lost = counter(&cluster.members[0], "dengine_log_lines_lost_total").await;
    assert!(lost > 0, "lines were waited for");
    assert!(cluster.members[0].terminate().success());
}

#[tokio::test]
async fn a_member_without_a_quorum_is_not_ready_and_still_alive() {
    let mut cluster = Cluster::form(3).await;
    for member in &cluster.members {
        both_ports_say(member, READY, ServingStatus::Serving).await;
        both_ports_say(member, "", ServingStatus::Serving).await;
        both_ports_say(member, LIVE, ServingStatus::Serving).await;
    }
    cluster.members[1].kill();
    cluster.members[2].kill();
    both_ports_say(&cluster.members[0], READY, ServingStatus::NotServing).await;
    both_ports_say(&cluster.members[0], "", ServingStatus::NotServing).await;
    assert_eq!(
        ask(cluster.members[0].monitor_port, LIVE).await,
        ServingStatus::Serving
    );
    assert_eq!(
        ask(cluster.members[0].client_port, LIVE).await,
        ServingStatus::Serving
    );

    cluster.members[1].start();
    both_ports_say(&cluster.members[0], READY, ServingStatus::Serving).await;
    both_ports_say(&cluster.members[1], READY, ServingStatus::Serving).await;
}

#[tokio::test]
async fn a_waiting_member_is_alive_and_not_ready() {
    let cluster = Cluster::start(1, |_| {});
    let member = &cluster.members[0];
    both_ports_say(member, LIVE, ServingStatus::Serving).await;
    both_ports_say(member, READY, ServingStatus::NotServing).await;
    assert_eq!(
        ask(member.monitor_port, "no such").await,
        ServingStatus::ServiceUnknown
    );
}

#[tokio::test]
async fn the_health_command_tells_by_its_exit_code() {
    let mut cluster = Cluster::form(1).await;
    let member = &cluster.members[0];
    let monitor = format!("127.0.0.1:{}", member.monitor_port);
    let code = |endpoint: &str, service: &str| {
        let mut command = dengine();
        command.args(["health", "--endpoint", endpoint, "--service", service]);
        command.output().unwrap().status.code()
    };
    assert_eq!(code(&member.address(), "ready"), Some(0));
    assert_eq!(code(&monitor, "live"), Some(0));
    assert_eq!(code(&monitor, "no such"), Some(1));
    let mut of_two = dengine();
    of_two.env(
        "DENGINE_ENDPOINTS",
        format!("{},{monitor}", member.address()),
    );
    let output = of_two.arg("health").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && said.lines().count() == 2,
        "{said}"
    );
    cluster.members[0].kill();
    assert_eq!(code(&monitor, "live"), Some(1));
}

#[tokio::test]
async fn metrics_are_there_and_carry_units() {
    let cluster = Cluster::form(1).await;
    let client = cluster.client().await;
    client.put("k", "v").await.unwrap();
    client.get("k", Consistency::Linearizable).await.unwrap();
    let port = cluster.members[0].monitor_port;
    // What a member says of its own state may be one tick old.
    let text = eventually("the put is seen in the metrics", || async {
        let text = scrape(port).await;
        text.contains("dengine_revision 2\n").then_some(text)
    })
    .await;
    for part in [
        "dengine_request_seconds_bucket{method=\"Put\",code=\"OK\"",
        "dengine_log_sync_seconds_bucket",
        "dengine_commit_seconds_bucket",
        "dengine_replica_turn_seconds_bucket",
        "dengine_read_confirm_seconds_bucket",
        "dengine_apply_seconds_bucket",
        "dengine_ready 1\n",
        "dengine_leader 1\n",
        "dengine_build_info{version=",
        "process_resident_memory_bytes",
        "dengine_store_cache_capacity_bytes 67108864\n",
        "dengine_store_cache_hits_total{blocks=\"data\"} ",
        "dengine_store_cache_misses_total{blocks=\"filter\"} ",
        "dengine_store_writes_stopped 0\n",
        "dengine_store_writes_stalled_milliseconds_total 0\n",
        "# TYPE dengine_store_merge_written_bytes_total counter\n",
        "# HELP dengine_request_seconds",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[tokio::test]
async fn health_is_told_over_http_too() {
    let home = scratch();
    let mut waiting = Member::new(home.path(), "waiting");
    waiting.start();
    waiting.admin().await;
    let said = |path| http(waiting.monitor_port, path);
    assert!(said("/healthz").await.starts_with("HTTP/1.1 200"));
    let unready = said("/readyz").await;
    assert!(unready.starts_with("HTTP/1.1 503"), "{unready}");
    assert!(unready.contains("waits for a cluster"), "{unready}");
    let cluster = Cluster::form(1).await;
    let ready = http(cluster.members[0].monitor_port, "/readyz").await;
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
}

#[tokio::test]
async fn slow_requests_are_logged_without_their_keys() {
    let slow = |member: &mut Member| {
        // No request is faster, and none may show what it is about.
        member.add_args(["--slow-request-ms", "1", "--log-format", "json"]);
    };
    let cluster = Cluster::form_with(1, slow).await;
    let client = cluster.client().await;
    eventually("a slow request is logged", || async {
        client.put("secret-key", "secret-value").await.unwrap();
        cluster.members[0]
            .logged()
            .contains("slow request")
            .then_some(())
    })
    .await;
    let logged = cluster.members[0].logged();
    assert!(logged.contains("\"method\":\"Put\""), "{logged}");
    assert!(!logged.contains("secret"), "{logged}");
}

/// What the monitor port tells Prometheus.
pub(crate) async fn scrape(port: u16) -> String {
    let response = http(port, "/metrics").await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    response
}

/// The value of a counter of the member.
pub(crate) async fn counter(member: &Member, name: &str) -> u64 {
    let text = scrape(member.monitor_port).await;
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.split_whitespace().last());
    value.map_or(0, |value| value.parse().unwrap())
}

async fn http(port: u16, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port))
        .await
        .unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}
