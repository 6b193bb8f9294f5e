//! `dengine admin`, as a person runs it.

use std::process::Output;

use dengine_client::AdminClient;
use dengine_protocol::v1::admin_client::AdminClient as Generated;
use dengine_protocol::v1::{
    AddLearnerRequest, BootstrapRequest, CloseSessionRequest, HashRequest, JoinRequest,
    MembersRequest, PromoteRequest, RemoveRequest, SessionsRequest, SnapshotRequest, StatusRequest,
    TransferLeaderRequest,
};
use serde_json::Value;
use tonic::Code;

use crate::harness::{Cluster, Member, becomes, dengine, eventually, scratch};

fn admin(cluster: &Cluster, args: &[&str]) -> Output {
    let endpoints = cluster.endpoints().join(",");
    dengine()
        .args(["admin", "--endpoints", &endpoints])
        .args(args)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// Runs it, expects it to succeed, and returns what it said.
fn done(cluster: &Cluster, args: &[&str]) -> String {
    let output = admin(cluster, args);
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    said(&output)
}

fn json(cluster: &Cluster, args: &[&str]) -> Value {
    let output = admin(cluster, &[args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Expects it to fail with this in what it says.
fn refused(cluster: &Cluster, args: &[&str], part: &str) {
    let output = admin(cluster, args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {}", said(&output));
    assert!(said(&output).contains(part), "{args:?}: {}", said(&output));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_shows_every_member_with_its_indexes() {
    let mut cluster = Cluster::form(3).await;
    cluster.client().await.put("k", "v").await.unwrap();
    let table = done(&cluster, &["status"]);
    for part in [
        "ID", "APPLIED", "REVISION", "LAG", "m0", "m1", "m2", "leader", "follower",
    ] {
        assert!(table.contains(part), "{part} is missing:\n{table}");
    }
    // Once the leader has heard of both others what they read.
    becomes("all write what all read", true, || async {
        let status = json(&cluster, &["status"]);
        let written = status["commandVersion"].as_u64();
        let reads = |member: &Value| member["commandsReadMax"].as_u64() == written;
        written.is_some() && status["members"].as_array().unwrap().iter().all(reads)
    })
    .await;
    assert!(done(&cluster, &["status"]).contains("commands of version"));
    let down = cluster.follower().await;
    cluster.members[down].kill();
    let status = json(&cluster, &["status"]);
    let members = status["members"].as_array().unwrap();
    assert_eq!(members.len(), 3);
    for (place, member) in members.iter().enumerate() {
        let up = place != down;
        assert_eq!(member["healthy"].as_bool(), Some(up), "{member}");
        assert_eq!(member["appliedIndex"].is_u64(), up, "{member}");
    }
    refused(&cluster, &["health"], "does not answer");
    cluster.members[down].start();
    cluster.members[down].ready().await;
    assert!(done(&cluster, &["health"]).contains("healthy: 3 members"));
    for member in &mut cluster.members {
        member.kill();
    }
    refused(&cluster, &["health"], "no leader");
    refused(
        &cluster,
        &["--timeout", "2s", "members", "list"],
        "admin status",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_is_added_promoted_led_by_and_replaced() {
    let mut cluster = Cluster::form(3).await;
    cluster.client().await.put("k", "v").await.unwrap();
    let mut fourth = Member::new(cluster.home.path(), "m3");
    fourth.start();
    let address = fourth.address();
    fourth.admin().await;
    let listed = json(
        &cluster,
        &["members", "add-learner", "--endpoint", &address],
    );
    assert_eq!(listed["members"].as_array().unwrap().len(), 4);
    refused(&cluster, &["transfer", "4"], "members promote 4");
    refused(&cluster, &["transfer", "9"], "no member 9");
    let again = [
        "members",
        "add-learner",
        "--promote",
        "--endpoint",
        &address,
    ];
    assert!(
        done(&cluster, &again).contains("m3"),
        "it is promoted, and not added twice"
    );
    let transferred = json(&cluster, &["transfer", "4"]);
    assert_eq!(transferred["leaderId"].as_u64(), Some(4));
    refused(
        &cluster,
        &["members", "replace", "4", "--endpoint", &address],
        "transfer",
    );
    done(&cluster, &["transfer", "1"]);

    // One dies for good, and another takes its place.
    cluster.members[2].kill();
    let mut fifth = Member::new(cluster.home.path(), "m4");
    fifth.start();
    fifth.admin().await;
    let replaced = json(
        &cluster,
        &["members", "replace", "3", "--endpoint", &fifth.address()],
    );
    let ids: Vec<_> = replaced["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["id"].as_u64())
        .collect();
    assert_eq!(ids, [Some(1), Some(2), Some(4), Some(5)]);
    assert!(done(&cluster, &["members", "remove", "4"]).contains("m4"));
    assert!(!done(&cluster, &["members", "list"]).contains("m3"));
    refused(&cluster, &["members", "remove", "77"], "never a member 77");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushes_and_hashes_are_of_every_member() {
    let cluster = Cluster::form(3).await;
    let client = cluster.client().await;
    for n in 0..50 {
        client.put(format!("k{n}"), "v").await.unwrap();
    }
    // The second is its name of before.
    for command in ["flush", "snapshot"] {
        let made = json(&cluster, &[command]);
        for member in made["members"].as_array().unwrap() {
            assert!(member["index"].as_u64().unwrap() > 0, "{member}");
        }
    }
    becomes("all members hold the same", 1, || async {
        let hashed = json(&cluster, &["hash"]);
        let members = hashed["members"].as_array().unwrap();
        let states = members
            .iter()
            .map(|it| (it["appliedIndex"].to_string(), it["hash"].to_string()));
        states.collect::<std::collections::BTreeSet<_>>().len()
    })
    .await;
    assert!(done(&cluster, &["hash"]).contains("HASH"));
}

/// Each was asked at its address for clients, though people had named where it serves them.
#[tokio::test]
async fn who_serves_people_on_its_own_machine_only_is_asked_there() {
    let cluster = Cluster::start(2, Member::serve_clients_everywhere);
    let local = |member: &Member| format!("127.0.0.1:{}", member.admin_port);
    let endpoints = cluster.members.iter().map(local).collect::<Vec<_>>();
    for command in [
        &["init"][..],
        &["admin", "hash"],
        &["admin", "snapshot"],
        &["admin", "sessions", "list"],
    ] {
        let output = dengine()
            .args(command)
            .args(["--endpoints", &endpoints.join(",")])
            .output()
            .unwrap();
        assert!(output.status.success(), "{command:?}: {}", said(&output));
    }
}

#[test]
fn nobody_there_is_said_with_what_to_do() {
    let home = scratch();
    let absent = Member::new(home.path(), "a").address();
    let output = dengine()
        .args([
            "admin",
            "--timeout",
            "1s",
            "--endpoints",
            &absent,
            "members",
            "list",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    for part in [&absent[..], "dengine admin status"] {
        assert!(said(&output).contains(part), "{part}: {}", said(&output));
    }
}

/// All that it said was a code.
#[tokio::test]
async fn at_another_port_it_says_which_one_to_name() {
    let cluster = Cluster::form(1).await;
    let member = &cluster.members[0];
    for port in [member.peer_port, member.monitor_port] {
        let address = format!("127.0.0.1:{port}");
        for command in [&["members", "list"][..], &["status"], &["hash"]] {
            let output = dengine()
                .args(["admin", "--timeout", "5s", "--endpoints", &address])
                .args(command)
                .output()
                .unwrap();
            let told = said(&output);
            assert!(told.contains("--listen-admin"), "{command:?} {told}");
            assert!(!output.status.success(), "{command:?} {told}");
        }
    }
}

#[tokio::test]
async fn the_port_of_clients_changes_nothing() {
    let cluster = Cluster::form(3).await;
    let follower = &cluster.members[cluster.follower().await];
    let address = format!("http://{}", follower.address());
    let mut clients = Generated::connect(address).await.unwrap();
    let status = clients.status(StatusRequest {}).await.unwrap().into_inner();
    let admin_address = format!("127.0.0.1:{}", follower.admin_port);
    assert_eq!(status.admin_address, admin_address);
    clients.members(MembersRequest {}).await.unwrap();
    let member_id = status.member_id;
    let refusals = [
        clients.remove(RemoveRequest { member_id }).await.err(),
        clients.promote(PromoteRequest { member_id }).await.err(),
        clients
            .transfer_leader(TransferLeaderRequest { member_id })
            .await
            .err(),
        clients.snapshot(SnapshotRequest {}).await.err(),
        clients.hash(HashRequest {}).await.err(),
        clients.bootstrap(BootstrapRequest::default()).await.err(),
        clients.join(JoinRequest::default()).await.err(),
        clients
            .add_learner(AddLearnerRequest::default())
            .await
            .err(),
        clients.sessions(SessionsRequest {}).await.err(),
        clients
            .close_session(CloseSessionRequest::default())
            .await
            .err(),
    ];
    for refused in refusals {
        let refused = refused.expect("it is refused");
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(refused.message().contains("--listen-admin"), "{refused}");
    }
    // A follower's admin port passes on to the leader's what only the leader can do.
    let admin = AdminClient::connect(&admin_address).await.unwrap();
    admin.transfer_leader(member_id).await.unwrap();
    eventually("the follower leads", || async {
        let status = admin.status().await.ok()?;
        (status.leader_id == member_id).then_some(())
    })
    .await;
}
