//! `memory-first`: acknowledged means written by a majority, and not yet on its disks.

use dengine_client::Consistency;

use crate::harness::{Cluster, Load, Member, dengine};

const MEMORY_FIRST: [&str; 2] = ["--durability", "memory-first"];

async fn cluster() -> Cluster {
    Cluster::form_with(3, |member| member.add_args(MEMORY_FIRST)).await
}

/// As if the machine had lost power since the member was last seen.
fn pretend_another_boot(member: &Member) {
    let mark = member.data_dir.join("power.toml");
    let text = fs_err::read_to_string(&mark).unwrap();
    let (before, after) = text.split_once("boot_id = \"").unwrap();
    fs_err::write(&mark, format!("{before}boot_id = \"0{after}")).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_every_process_at_once_loses_nothing() {
    let mut cluster = cluster().await;
    let client = cluster.client().await;
    let load = Load::start(&client);
    load.progress(200).await;
    for member in &mut cluster.members {
        member.kill();
    }
    for member in &mut cluster.members {
        member.start();
    }
    load.progress(100).await;
    load.finish(&client).await;
    assert_eq!(cluster.members[0].status().await.durability, "memory-first");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_lost_power_does_not_take_part_until_a_person_says_so() {
    let mut cluster = cluster().await;
    let client = cluster.client().await;
    client.put("color", "blue").await.unwrap();
    let away = cluster.follower().await;
    let member = &mut cluster.members[away];
    member.kill();
    pretend_another_boot(member);
    let refused = member.run_to_end();
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(3), "the operator replaces it");
    assert!(complaint.contains("lost power"), "{complaint}");

    let recover = |args: &[&str]| {
        let mut command = dengine();
        command
            .arg("recover")
            .arg("--data-dir")
            .arg(&member.data_dir);
        command.args(args).output().unwrap()
    };
    assert!(!recover(&[]).status.success(), "nobody has accepted a loss");
    assert!(recover(&["--accept-lost-writes"]).status.success());
    member.start();
    member.ready().await;
}

/// Nobody knows what a folder lacks whose record can't be read, so nobody can accept it.
#[tokio::test]
async fn a_damaged_record_of_power_is_no_loss_to_accept() {
    let mut cluster = Cluster::form(1).await;
    let member = &mut cluster.members[0];
    member.kill();
    let record = member.data_dir.join("power.toml");
    fs_err::write(&record, "format = 9\n").unwrap();
    let mut recover = dengine();
    let recover = recover.args(["recover", "--accept-lost-writes", "--data-dir"]);
    let refused = recover.arg(&member.data_dir).output().unwrap();
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && complaint.contains("power.toml"),
        "{complaint}"
    );
    assert_eq!(fs_err::read_to_string(&record).unwrap(), "format = 9\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_history_was_given_up_is_refused_for_good() {
    let mut cluster = cluster().await;
    let away = cluster.follower().await;
    let member = &mut cluster.members[away];
    member.kill();
    fs_err::write(member.data_dir.join("given-up"), "entry 7 differs\n").unwrap();
    for _ in 0..2 {
        let refused = member.run_to_end();
        let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(3), "the operator replaces it");
        assert!(complaint.contains("entry 7 differs"), "{complaint}");
        let mut recover = dengine();
        let recover = recover.args(["recover", "--accept-lost-writes", "--data-dir"]);
        let recovered = recover.arg(&member.data_dir).output().unwrap();
        assert!(
            !recovered.status.success(),
            "no loss is to be accepted here"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_end_outlives_a_power_loss() {
    let mut cluster = cluster().await;
    let away = cluster.follower().await;
    let member = &mut cluster.members[away];
    assert_eq!(member.terminate().code(), Some(0));
    pretend_another_boot(member);
    member.start();
    member.ready().await;
}

/// All of a site's machines lose power, and the state was flushed after the log was last synced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_lost_more_than_its_state_begins_anew_once_the_loss_is_accepted() {
    let mut cluster = Cluster::form_with(1, |member| {
        member.add_args(MEMORY_FIRST);
        // Nothing but votes and members is synced during the test.
        member.add_args(["--log-sync-interval-ms", "60000"]);
    })
    .await;
    let member = &cluster.members[0];
    let client = member.client().await;
    client.put("before", "v").await.unwrap();
    let (log, synced) = (member.data_dir.join("log"), member.data_dir.join("synced"));
    copy(&log, &synced);
    let revision = client.put("after", "v").await.unwrap().header.revision;
    member.admin().await.snapshot().await.unwrap();

    let member = &mut cluster.members[0];
    member.kill();
    fs_err::remove_dir_all(&log).unwrap();
    fs_err::rename(&synced, &log).unwrap();
    pretend_another_boot(member);
    assert_eq!(member.run_to_end().status.code(), Some(3));
    let mut recover = dengine();
    let recover = recover.args(["recover", "--accept-lost-writes", "--data-dir"]);
    assert!(recover.arg(&member.data_dir).status().unwrap().success());
    for _ in 0..2 {
        member.start();
        member.ready().await;
        let client = member.client().await;
        let kept = client
            .get("after", Consistency::Linearizable)
            .await
            .unwrap();
        assert!(kept.kv.is_some(), "the state has it");
        let next = client.put("next", "v").await.unwrap().header.revision;
        assert!(next > revision);
        member.kill();
    }
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs_err::create_dir(to).unwrap();
    for item in fs_err::read_dir(from).unwrap() {
        let item = item.unwrap();
        fs_err::copy(item.path(), to.join(item.file_name())).unwrap();
    }
}
