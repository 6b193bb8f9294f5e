//! What older releases wrote and said: their folders are opened, and their members are replaced one
//! by one.
//!
//! The folders are archives beside this file, written once by the release that they are named after
//! and never again: `082bf19-killed` ended by SIGKILL with nothing of its state on disk, so that
//! its whole log is applied again; `082bf19-stopped` made its state durable in the middle, gave up
//! history and log before that, and was asked to stop. `make older FROM=…` builds a release, has it
//! write folders for inspection, and replaces a cluster of its members.

mod script;

use std::path::{Path, PathBuf};
use std::process::Command;

use dengine_client::Consistency;

use self::script::{End, Kept};
use crate::harness::{Cluster, Load, Member, becomes, scratch};
use crate::health::scrape;

/// Where the program of an older release is, for the tests that need it.
const PROGRAM: &str = "DENGINE_OLDER_PROGRAM";

fn archives() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/processes/older")
}

fn tar(args: &[&str], archive: &Path, folder: &Path) {
    let mut command = Command::new("tar");
    command.args(args).arg(archive).arg("-C").arg(folder);
    if args.contains(&"-czf") {
        command.arg(".");
    }
    assert!(command.status().unwrap().success(), "{command:?}");
}

async fn opens_and_holds_everything(name: &str) {
    let home = scratch();
    tar(
        &["-xzf"],
        &archives().join(format!("{name}.tar.gz")),
        home.path(),
    );
    let kept = Kept::read(home.path());
    let mut member = Member::new(home.path(), "m0");
    for start in ["first", "second"] {
        member.start();
        member.ready().await;
        if start == "first" {
            kept.check_hash(&member).await;
        }
        kept.check(&member, start).await;
        // What it wrote again is applied again the second time.
        member.kill();
    }
}

#[tokio::test]
async fn a_folder_with_unapplied_entries_of_082bf19_opens_and_holds_everything() {
    opens_and_holds_everything("082bf19-killed").await;
}

#[tokio::test]
async fn a_folder_that_082bf19_made_durable_opens_and_holds_everything() {
    opens_and_holds_everything("082bf19-stopped").await;
}

fn older_program() -> PathBuf {
    std::env::var_os(PROGRAM)
        .unwrap_or_else(|| panic!("{PROGRAM} names no program: `make older FROM=…` does"))
        .into()
}

/// Writes `NAME-killed.tar.gz` and `NAME-stopped.tar.gz` into `DENGINE_OLDER_FOLDERS`.
#[tokio::test]
#[ignore = "needs the program of an older release: make older"]
async fn an_older_release_writes_folders() {
    let target = PathBuf::from(std::env::var_os("DENGINE_OLDER_FOLDERS").unwrap());
    let release = std::env::var("DENGINE_OLDER_NAME").unwrap();
    for end in [End::Killed, End::Stopped] {
        let home = scratch();
        script::write_folder(home.path(), &older_program(), end).await;
        let archive = target.join(format!("{release}-{end}.tar.gz"));
        tar(&["--exclude=*.log", "-czf"], &archive, home.path());
    }
}

/// Under load, leader and all; and back by one, which is allowed until the last member was
/// upgraded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the program of an older release: make older"]
async fn members_of_an_older_release_are_replaced_one_by_one_under_load() {
    let program = older_program();
    let mut cluster = Cluster::form_with(3, |member| member.downgrade(&program)).await;
    let client = cluster.client().await;
    let load = Load::start(&client);
    load.progress(200).await;
    for place in [0, 1] {
        replace(&mut cluster.members[place], None).await;
        load.progress(200).await;
    }
    replace(&mut cluster.members[1], Some(&program)).await;
    load.progress(200).await;
    for place in [1, 2] {
        assert_eq!(highest_command_version(&cluster).await, 2);
        replace(&mut cluster.members[place], None).await;
        load.progress(200).await;
    }
    becomes("new commands are written", 4, || {
        highest_command_version(&cluster)
    })
    .await;
    load.progress(200).await;
    load.finish(&client).await;
    let revision = client
        .get("counter", Consistency::Linearizable)
        .await
        .unwrap()
        .header
        .revision;
    assert!(revision > 0);
}

async fn replace(member: &mut Member, program: Option<&Path>) {
    assert_eq!(member.terminate().code(), Some(0));
    match program {
        Some(program) => member.downgrade(program),
        None => member.upgrade(),
    }
    member.start();
    member.ready().await;
}

/// By the metrics of all members; the oldest release has none.
async fn highest_command_version(cluster: &Cluster) -> u64 {
    let mut highest = 2;
    for member in &cluster.members {
        let metrics = scrape(member.monitor_port).await;
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("dengine_command_version "));
        highest = line.map_or(highest, |value| highest.max(value.parse().unwrap()));
    }
    highest
}
