//! The program as `make bench` starts it, asked as dengine-bench asks it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use dengine_bench::target::{Access, Connect, Facts, Target, Way as _};
use dengine_bench_model::results::{Protocol, ReadConsistency, Wire};
use dengine_protocol::v1::GetRequest;
use dengine_protocol::v1::kv_client::KvClient;
use dengine_testkit::free_port;

const PATIENCE: Duration = Duration::from_secs(60);

/// A process that ends with the test.
struct Process {
    address: String,
    child: Child,
}

impl Process {
    fn start(address: &str, arguments: &[&str]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_dengine-bench-bounds"))
            .args(arguments)
            .args(["--listen", address])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            address: address.to_owned(),
            child,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Addresses that nobody has.
fn addresses<const N: usize>() -> [String; N] {
    [(); N].map(|()| format!("127.0.0.1:{}", free_port()))
}

/// A process of the floor, with a file that is soon filled.
fn floor(address: &str, data: &Path, followers: &[&str]) -> Process {
    let data = data.to_str().unwrap();
    let mut arguments = vec!["floor", "--file-bytes", "1048576", "--data-dir", data];
    for follower in followers {
        arguments.extend(["--follower", follower]);
    }
    Process::start(address, &arguments)
}

async fn connected(protocol: Protocol, endpoints: Vec<String>) -> Target {
    let access = Access {
        protocol,
        wire: Some(Wire::Unary),
    };
    let facts = Facts::await_ready(access, &endpoints, PATIENCE).await;
    let facts = facts.unwrap();
    assert_eq!(facts.members.len(), endpoints.len());
    assert_eq!(facts.leader.unwrap().address, endpoints[0]);
    let connect = Connect {
        access,
        connections: endpoints.len(),
        followers: Vec::new(),
        endpoints,
        request_timeout: PATIENCE,
        retry: false,
    };
    Target::connect(&connect).await.unwrap()
}

fn value(number: u64) -> Bytes {
    Bytes::from(format!("value {number:08}"))
}

async fn write(target: &Target, numbers: std::ops::Range<u64>) {
    let mut lane = target.lane(0);
    for number in numbers {
        lane.put(Bytes::new(), &value(number)).await.unwrap();
    }
}

fn values(numbers: std::ops::Range<u64>) -> Vec<u8> {
    numbers.flat_map(value).collect()
}

/// How much of what was written lies in a file, which is all zeros behind it.
fn held(data: &Path, written: &[u8]) -> usize {
    let file = std::fs::read(data.join("journal")).unwrap();
    assert_eq!(file.len(), 1 << 20);
    let end = file
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    assert_eq!(file[..end], written[..end], "{}", data.display());
    end
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_floor_answered_is_in_the_files_of_a_majority() {
    let folder = tempfile::tempdir().unwrap();
    let data = ["1", "2", "3"].map(|name| folder.path().join(name));
    let [first, second, third] = addresses();
    let leader = floor(&first, &data[0], &[&second, &third]);
    let followers = [floor(&second, &data[1], &[]), floor(&third, &data[2], &[])];
    let endpoints = [&leader, &followers[0], &followers[1]].map(|it| it.address.clone());
    let target = connected(Protocol::Floor, endpoints.to_vec()).await;
    write(&target, 0..200).await;
    // And another client, once the first one is gone.
    drop(target);
    let target = connected(Protocol::Floor, endpoints.to_vec()).await;
    write(&target, 200..300).await;

    let written = values(0..300);
    assert_eq!(held(&data[0], &written), written.len());
    let most = data[1..].iter().map(|data| held(data, &written)).max();
    assert_eq!(most, Some(written.len()));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_is_a_majority_of_itself_and_keeps_no_keys() {
    let folder = tempfile::tempdir().unwrap();
    let [address] = addresses();
    let _alone = floor(&address, folder.path(), &[]);
    let target = connected(Protocol::Floor, vec![address]).await;
    write(&target, 0..10).await;
    let written = values(0..10);
    assert_eq!(held(folder.path(), &written), written.len());
    let mut lane = target.lane(0);
    let got = lane.get(Bytes::new(), ReadConsistency::Linearizable);
    assert!(got.await.unwrap_err().contains("keeps no keys"));
}

/// Without its followers there is no majority: better no number than a wrong one.
#[tokio::test(flavor = "multi_thread")]
async fn a_floor_without_its_followers_answers_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = ["1", "2", "3"].map(|name| folder.path().join(name));
    let [first, second, third] = addresses();
    let _leader = floor(&first, &data[0], &[&second, &third]);
    let follower = floor(&second, &data[1], &[]);
    let other = floor(&third, &data[2], &[]);
    let endpoints = vec![first, second, third];
    let target = connected(Protocol::Floor, endpoints).await;
    write(&target, 0..1).await;
    drop(follower);
    drop(other);
    let mut lane = target.lane(0);
    lane.put(Bytes::new(), &value(1)).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_echo_answers_every_read_and_no_write() {
    let addresses: [String; 2] = addresses();
    let _servers = addresses
        .each_ref()
        .map(|address| Process::start(address, &["echo", "--value-size", "300"]));
    let target = connected(Protocol::Echo, addresses.to_vec()).await;
    for client in 0..4 {
        let mut lane = target.lane(client);
        for fresh in [
            ReadConsistency::Linearizable,
            ReadConsistency::Lease,
            ReadConsistency::Eventual,
        ] {
            let found = lane.get(value(client as u64), fresh).await.unwrap();
            assert!(found.exists && found.revision > 0, "{found:?}");
        }
        let refused = lane.put(value(0), &value(0)).await.unwrap_err();
        assert!(refused.contains("Kv.Get alone"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_echo_answers_with_a_value_of_the_size_that_is_asked_for() {
    let [address] = addresses();
    let _server = Process::start(&address, &["echo", "--value-size", "300"]);
    let endpoints = vec![address.clone()];
    connected(Protocol::Echo, endpoints).await;
    let mut kv = KvClient::connect(format!("http://{address}"))
        .await
        .unwrap();
    let request = GetRequest {
        key: value(7),
        ..GetRequest::default()
    };
    let got = kv.get(request).await.unwrap().into_inner().kv.unwrap();
    assert_eq!((got.key, got.value.len()), (value(7), 300));
}
