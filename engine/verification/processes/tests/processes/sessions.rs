//! Exactly once: a stamped write takes effect once, however often and wherever it is sent.

use std::time::Duration;

use dengine_client::{Client, Consistency, Error, Expected, SessionOptions};
use dengine_protocol::v1::compare_and_swap_request::Expected as WireExpected;
use dengine_protocol::v1::kv_client::KvClient;
use dengine_protocol::v1::{
    CloseSessionRequest, CompareAndSwapRequest, DeleteRequest, KeepAliveSessionRequest,
    OpenSessionRequest, PutRequest, SessionStamp,
};
use futures::future::join_all;
use serde_json::Value;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::harness::{Cluster, Member, dengine, eventually};

async fn kv(member: &Member) -> KvClient<Channel> {
    let address = format!("http://{}", member.address());
    eventually("the member accepts connections", || async {
        KvClient::connect(address.clone()).await.ok()
    })
    .await
}

async fn open(member: &Member, ttl_ms: u64) -> u64 {
    let opened = kv(member)
        .await
        .open_session(OpenSessionRequest { ttl_ms })
        .await;
    opened.unwrap().into_inner().session_id
}

fn stamp(session_id: u64, sequence: u64, acknowledged: u64) -> Option<SessionStamp> {
    Some(SessionStamp {
        session_id,
        sequence,
        acknowledged,
    })
}

fn put(key: &str, session: Option<SessionStamp>) -> PutRequest {
    PutRequest {
        key: key.to_owned().into(),
        value: "v".into(),
        prev_kv: true,
        session,
        ..PutRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_write_is_answered_as_the_first_time_and_done_once() {
    let mut cluster = Cluster::form(3).await;
    let session = open(&cluster.members[0], 60_000).await;
    let written = put("k", stamp(session, 1, 0));
    let swapped = CompareAndSwapRequest {
        key: "k".into(),
        value: "w".into(),
        expected: Some(WireExpected::CurrentValue("v".into())),
        session: stamp(session, 2, 0),
        ..CompareAndSwapRequest::default()
    };
    let mut answers = Vec::new();
    // Of every member, then after the leader died, then after everybody did.
    for round in 0..3 {
        for member in &cluster.members {
            if round == 1 && member.is_down() {
                continue;
            }
            let answer = eventually("the write is answered", || async {
                let mut kv = kv(member).await;
                let put = kv.put(written.clone()).await.ok()?.into_inner();
                let swap = kv
                    .compare_and_swap(swapped.clone())
                    .await
                    .ok()?
                    .into_inner();
                let revisions = (put.header?.revision, swap.header?.revision);
                Some((revisions, put.prev_kv, swap.succeeded))
            })
            .await;
            answers.push(answer);
        }
        if round == 0 {
            let leader = cluster.leader().await;
            cluster.members[leader].kill();
        } else if round == 1 {
            for member in &mut cluster.members {
                if !member.is_down() {
                    member.kill();
                }
                member.start();
            }
        }
    }
    assert_eq!(answers.len(), 8);
    assert!(answers.iter().all(|it| *it == answers[0]), "{answers:?}");
    assert!(answers[0].2, "the swap succeeded");
    let client = cluster.client().await;
    let read = client.get("k", Consistency::Linearizable).await.unwrap();
    assert_eq!(read.kv.unwrap().version, 2);
}

#[tokio::test]
async fn what_a_session_refuses_is_told_apart() {
    let cluster = Cluster::form(1).await;
    let member = &cluster.members[0];
    let mut kv = kv(member).await;
    let session = open(member, 60_000).await;
    kv.put(put("k", stamp(session, 1, 0))).await.unwrap();
    kv.put(put("k", stamp(session, 2, 1))).await.unwrap();
    let refused = |code, status: tonic::Status| assert_eq!(status.code(), code, "{status}");
    let acknowledged = kv.put(put("k", stamp(session, 1, 0))).await.unwrap_err();
    refused(Code::FailedPrecondition, acknowledged);
    let malformed = kv.put(put("k", stamp(session, 3, 3))).await.unwrap_err();
    refused(Code::InvalidArgument, malformed);
    let unknown = kv
        .put(put("k", stamp(session + 1, 1, 0)))
        .await
        .unwrap_err();
    refused(Code::NotFound, unknown);
    let close = CloseSessionRequest {
        session_id: session,
    };
    assert!(kv.close_session(close).await.unwrap().into_inner().closed);
    assert!(!kv.close_session(close).await.unwrap().into_inner().closed);
    refused(
        Code::NotFound,
        kv.put(put("k", stamp(session, 3, 2))).await.unwrap_err(),
    );
    let keep = KeepAliveSessionRequest {
        session_id: session,
    };
    refused(
        Code::NotFound,
        kv.keep_alive_session(keep).await.unwrap_err(),
    );
    let read = cluster
        .client()
        .await
        .get("k", Consistency::Linearizable)
        .await;
    assert_eq!(
        read.unwrap().kv.unwrap().version,
        2,
        "nothing else was done"
    );
}

#[tokio::test]
async fn a_session_that_is_not_used_expires_and_one_that_is_kept_does_not() {
    let cluster = Cluster::form(3).await;
    let session = open(&cluster.members[0], 1).await;
    let client = cluster.client().await;
    let options = SessionOptions {
        ttl: Duration::from_secs(1),
    };
    let kept = client.with_session(options).await.unwrap();
    let mut kv = kv(&cluster.members[1]).await;
    // Each look uses the session, so it is let alone for longer than its time in between.
    eventually("the unused session is gone", || {
        let mut kv = kv.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            let asked = kv.put(put("gone", stamp(session, 1, 0))).await;
            asked.err().filter(|it| it.code() == Code::NotFound)
        }
    })
    .await;
    let close = CloseSessionRequest {
        session_id: session,
    };
    assert!(!kv.close_session(close).await.unwrap().into_inner().closed);
    kept.put("kept", "v").await.unwrap();
    kept.close_session().await.unwrap();
    let lost = kept.put("kept", "w").await.unwrap_err();
    assert!(matches!(lost, Error::SessionLost { .. }), "{lost}");
}

/// Adds one, as often as it takes; how often it was told that it had.
async fn count(client: Client, times: u64) -> u64 {
    let mut counted = 0;
    while counted < times {
        let read = client
            .get("counter", Consistency::Linearizable)
            .await
            .unwrap()
            .kv;
        let value = read.as_ref().map_or(0, |kv| {
            std::str::from_utf8(&kv.value)
                .unwrap()
                .parse::<u64>()
                .unwrap()
        });
        let expected = Expected::ModRevision(read.map_or(0, |kv| kv.mod_revision));
        let swap = client
            .compare_and_swap("counter", expected, (value + 1).to_string())
            .await
            .expect("a session finds every outcome out");
        counted += u64::from(swap.succeeded);
    }
    counted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_session_no_outcome_stays_unknown_whoever_dies() {
    let mut cluster = Cluster::form(3).await;
    let client = cluster.patient_client().await;
    let mut counting = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let session = client
            .with_session(SessionOptions::default())
            .await
            .unwrap();
        counting.spawn(count(session, 100));
    }
    for _ in 0..2 {
        let leader = cluster.leader().await;
        cluster.members[leader].kill();
        tokio::time::sleep(Duration::from_millis(500)).await;
        cluster.members[leader].start();
        cluster.members[leader].ready().await;
    }
    let mut counted = 0;
    while let Some(more) = counting.join_next().await {
        counted += more.unwrap();
    }
    let read = client
        .get("counter", Consistency::Linearizable)
        .await
        .unwrap();
    assert_eq!(read.kv.unwrap().value, counted.to_string());
}

/// Opens as many sessions at once from there; how many it got.
async fn open_from(member: &Member, address: [u8; 4], count: usize) -> usize {
    let endpoint = Endpoint::from_shared(format!("http://{}", member.address()));
    let endpoint = endpoint.unwrap().local_address(Some(address.into()));
    let kv = KvClient::new(endpoint.connect().await.unwrap());
    let open = || async {
        let open = OpenSessionRequest { ttl_ms: 3_600_000 };
        kv.clone().open_session(open).await
    };
    let mut opened = 0;
    for _ in 0..count.div_ceil(500) {
        for result in join_all((0..500).map(|_| open())).await {
            match result {
                Ok(_) => opened += 1,
                Err(status) => {
                    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                    assert!(
                        status.message().contains("dengine admin sessions"),
                        "{status}"
                    );
                    let word = status.metadata().get(dengine_protocol::UNCHANGED_METADATA);
                    assert!(word.is_some(), "a member's word that nothing was changed");
                }
            }
        }
    }
    opened
}

fn admin(cluster: &Cluster, args: &[&str]) -> Value {
    let endpoints = cluster.endpoints().join(",");
    let output = dengine()
        .args(["admin", "--endpoints", &endpoints, "--json", "sessions"])
        .args(args)
        .output()
        .unwrap();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {complained}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Ten thousand small calls locked everybody out for an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_client_leaves_sessions_to_others_and_people_can_end_them() {
    let cluster = Cluster::form(1).await;
    let member = &cluster.members[0];
    let greedy = open_from(member, [127, 0, 0, 1], 6_000).await;
    assert_eq!(greedy, 5_000, "half of what no other has");
    assert_eq!(open_from(member, [127, 0, 0, 2], 500).await, 500);
    let metrics = crate::health::scrape(member.monitor_port).await;
    for line in ["dengine_sessions 5500\n", "dengine_sessions_max 10000\n"] {
        assert!(metrics.contains(line), "{line}");
    }
    let listed = admin(&cluster, &["list"]);
    assert_eq!(listed["sessionsMax"], 10_000);
    let listed = listed["sessions"].as_array().unwrap();
    assert_eq!(listed.len(), 5_500);
    let of_other = |it: &&Value| it["openedFrom"] == "127.0.0.2";
    let other = listed.iter().find(of_other).unwrap()["id"]
        .as_u64()
        .unwrap();
    let closed = admin(&cluster, &["close", &other.to_string()]);
    assert_eq!(closed["closed"], serde_json::json!([other]));
    let refused = kv(member).await.put(put("k", stamp(other, 1, 0))).await;
    assert_eq!(refused.unwrap_err().code(), Code::NotFound);
    let closed = admin(&cluster, &["close", "--opened-from", "127.0.0.1"]);
    assert_eq!(closed["closed"].as_array().unwrap().len(), 5_000);
    assert_eq!(
        admin(&cluster, &["list"])["sessions"]
            .as_array()
            .unwrap()
            .len(),
        499
    );
    // What was ended is counted as that within a second.
    eventually("the client may open some again", || async {
        (open_from(member, [127, 0, 0, 1], 500).await > 0).then_some(())
    })
    .await;
}

/// The answer that is kept holds users' values, and was logged whole.
#[tokio::test]
async fn a_sequence_that_is_used_twice_puts_no_value_into_the_log() {
    let mut cluster = Cluster::form(1).await;
    let member = &cluster.members[0];
    let mut kv = kv(member).await;
    let session = open(member, 60_000).await;
    let secret = PutRequest {
        value: "secret".into(),
        ..put("k", None)
    };
    kv.put(secret).await.unwrap();
    kv.put(put("k", stamp(session, 1, 0))).await.unwrap();
    let other = DeleteRequest {
        key: "k".into(),
        session: stamp(session, 1, 0),
        ..DeleteRequest::default()
    };
    let refused = kv.delete(other).await.unwrap_err();
    assert!(!refused.message().contains("secret"), "{refused}");
    assert!(cluster.members[0].terminate().success());
    let logged = cluster.members[0].logged();
    assert!(logged.contains("used one sequence twice"), "{logged}");
    assert!(!logged.contains("secret"), "{logged}");
}
