//! The program as a person meets it: settings, errors, exit codes.

use std::net::TcpListener;
use std::process::Output;

use crate::harness::{Cluster, Member, dengine, scratch};

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let home = scratch();
    let file = home.path().join("dengine.toml");
    let text = "name = 'file'\ndata_dir = '/nowhere'\ntick_ms = 70\nheartbeat_ticks = 2\n\
                [limits]\nmax_key_bytes = 70\n";
    fs_err::write(&file, text).unwrap();
    let output = dengine()
        .args([
            "serve",
            "--print-config",
            "--config",
            file.to_str().unwrap(),
        ])
        .args(["--max-key-bytes", "90"])
        .env("DENGINE_TICK_MS", "80")
        .env("DENGINE_MAX_KEY_BYTES", "80")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let printed: toml::Table = stdout(&output).parse().unwrap();
    assert_eq!(printed["name"].as_str(), Some("file"));
    assert_eq!(printed["heartbeat_ticks"].as_integer(), Some(2));
    assert_eq!(printed["tick_ms"].as_integer(), Some(80));
    assert_eq!(printed["limits"]["max_key_bytes"].as_integer(), Some(90));
    assert_eq!(printed["election_ticks"].as_integer(), Some(10));
}

#[test]
fn a_bad_configuration_names_every_problem_and_changes_nothing() {
    let home = scratch();
    let member =
        Member::new(home.path(), "a").args(["--election-ticks", "2", "--max-key-bytes", "0"]);
    let output = member.run_to_end();
    assert_eq!(output.status.code(), Some(2));
    for part in ["election_ticks", "max_key_bytes"] {
        assert!(
            stderr(&output).contains(part),
            "{part}: {}",
            stderr(&output)
        );
    }
    assert!(
        !member.data_dir.exists(),
        "nothing was started, so nothing is left"
    );
}

#[test]
fn an_unknown_setting_is_refused_by_name() {
    let home = scratch();
    let file = home.path().join("dengine.toml");
    fs_err::write(&file, "tick_msec = 100\n").unwrap();
    let output = Member::new(home.path(), "a")
        .args(["--config", file.to_str().unwrap()])
        .run_to_end();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("tick_msec"), "{}", stderr(&output));
}

#[test]
fn a_port_in_use_is_named_and_changes_nothing() {
    let home = scratch();
    let member = Member::new(home.path(), "a");
    let _held = TcpListener::bind(member.address()).unwrap();
    let output = member.run_to_end();
    assert_eq!(output.status.code(), Some(4));
    assert!(
        stderr(&output).contains("listen_client"),
        "{}",
        stderr(&output)
    );
    assert!(!member.data_dir.exists());
}

#[tokio::test]
async fn a_signal_ends_a_member_in_good_order() {
    let mut cluster = Cluster::form(1).await;
    let client = cluster.client().await;
    client.put("k", "v").await.unwrap();
    let status = cluster.members[0].terminate();
    assert_eq!(status.code(), Some(0));
    assert!(cluster.members[0].logged().contains("stopped"));
}

#[tokio::test]
async fn forming_a_cluster_again_changes_nothing() {
    let cluster = Cluster::form(3).await;
    let before = cluster.members[0].status().await;
    let output = cluster.init();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("exists already"),
        "{}",
        stdout(&output)
    );
    assert_eq!(
        cluster.members[0].status().await.cluster_id,
        before.cluster_id
    );
    let admin = cluster.members[1].admin().await;
    let members = admin.members().await.unwrap().members;
    assert_eq!(members.len(), 3);
    assert!(
        members
            .iter()
            .all(|it| it.member.as_ref().is_some_and(|member| member.voter))
    );
}

#[test]
fn forming_a_cluster_of_members_that_are_not_there_fails_in_time() {
    let home = scratch();
    let absent = Member::new(home.path(), "a").address();
    let output = dengine()
        .args(["init", "--timeout", "1s", "--endpoints", &absent])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&absent), "{}", stderr(&output));
}
