//! Acknowledged means synced. Killing a process proves nothing about the disk, so here a library
//! stands between the members and their disks, and delays, counts or fails every sync.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use dengine_client::{Consistency, Error};
use futures::future::join_all;

use crate::harness::{Cluster, Load, Member, eventually};

/// What every sync takes longer.
const DELAY: Duration = Duration::from_millis(20);

/// The shim, built with the system's C compiler.
pub(crate) struct Shim {
    folder: tempfile::TempDir,
}

impl Shim {
    pub(crate) fn build() -> Self {
        let folder = crate::harness::scratch();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/processes/sync_shim.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(folder.path().join("shim.so"))
            .arg(source)
            .arg("-ldl")
            .output()
            .expect("a C compiler is there: RocksDB needs one too");
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        Self { folder }
    }

    pub(crate) fn between(&self, member: &mut Member) {
        member.env("LD_PRELOAD", self.folder.path().join("shim.so"));
        member.env("SHIM_COUNT_FILE", self.path("count", member));
        member.env("SHIM_FAIL_FILE", self.path("fail", member));
        member.env("SHIM_HANG_FILE", self.path("hang", member));
        member.env("SHIM_SLOW_FILE", self.path("slow", member));
    }

    fn delay(&self, member: &mut Member) {
        self.between(member);
        member.env("SHIM_DELAY_US", DELAY.as_micros().to_string());
    }

    fn path(&self, what: &str, member: &Member) -> PathBuf {
        self.folder.path().join(format!("{what}-{}", member.name))
    }

    fn fail(&self, member: &Member) {
        fs_err::write(self.path("fail", member), "").unwrap();
    }

    fn heal(&self, member: &Member) {
        fs_err::remove_file(self.path("fail", member)).unwrap();
    }

    pub(crate) fn hang(&self, member: &Member) {
        fs_err::write(self.path("hang", member), "").unwrap();
    }

    pub(crate) fn go_on(&self, member: &Member) {
        fs_err::remove_file(self.path("hang", member)).unwrap();
    }

    /// Syncs of the member that succeeded so far.
    fn count(&self, member: &Member) -> u64 {
        fs_err::metadata(self.path("count", member)).map_or(0, |count| count.len())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acknowledgement_waits_for_the_disks_of_a_majority() {
    let shim = Shim::build();
    let cluster = Cluster::form_with(3, |member| shim.delay(member)).await;
    let client = cluster.client().await;
    client.put("warm", "up").await.unwrap();
    let counts = || {
        cluster
            .members
            .iter()
            .map(|member| shim.count(member))
            .collect::<Vec<_>>()
    };
    for n in 0..10 {
        let before = counts();
        let begun = Instant::now();
        client.put(format!("k{n}"), "v").await.unwrap();
        let took = begun.elapsed();
        let after = counts();
        assert!(took >= DELAY, "write {n} was acknowledged after {took:?}");
        let synced = before
            .iter()
            .zip(&after)
            .filter(|(before, after)| after > before)
            .count();
        assert!(
            synced >= 2,
            "write {n}: syncs of the members before {before:?}, after {after:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_come_together_share_a_sync() {
    const WRITES: u64 = 200;
    let shim = Shim::build();
    let cluster = Cluster::form_with(3, |member| shim.delay(member)).await;
    let client = cluster.client().await;
    client.put("warm", "up").await.unwrap();
    let total = || {
        cluster
            .members
            .iter()
            .map(|member| shim.count(member))
            .sum::<u64>()
    };
    let before = total();
    let begun = Instant::now();
    let puts = (0..WRITES).map(|n| client.put(format!("k{n}"), "v"));
    for put in join_all(puts).await {
        put.unwrap();
    }
    assert!(begun.elapsed() >= DELAY);
    let syncs = total() - before;
    // Three members that sync every write for itself would need 600.
    assert!(syncs < WRITES, "{syncs} syncs for {WRITES} writes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_sync_fails_acknowledges_nothing_more_and_ends() {
    let shim = Shim::build();
    let mut cluster = Cluster::form_with(1, |member| shim.between(member)).await;
    let client = cluster.members[0].client().await;
    for n in 0..10 {
        client.put(format!("before-{n}"), "v").await.unwrap();
    }
    shim.fail(&cluster.members[0]);
    let syncs = shim.count(&cluster.members[0]);
    let puts = (0..50).map(|n| client.put(format!("after-{n}"), "v"));
    for put in join_all(puts).await {
        match put {
            Ok(_) => panic!("acknowledged, but never synced"),
            Err(Error::UnknownOutcome { .. } | Error::Unavailable { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    let status = cluster.members[0].wait_for_end();
    assert_eq!(status.code(), Some(4));
    assert_eq!(
        shim.count(&cluster.members[0]),
        syncs,
        "a failed sync is not tried again"
    );
    let logged = cluster.members[0].logged();
    assert!(
        logged.contains("the log failed") && logged.contains("Check the disk"),
        "{logged}"
    );

    shim.heal(&cluster.members[0]);
    cluster.members[0].start();
    cluster.members[0].ready().await;
    let client = cluster.members[0].client().await;
    for n in 0..10 {
        let read = client
            .get(format!("before-{n}"), Consistency::Linearizable)
            .await
            .unwrap();
        assert!(read.kv.is_some(), "before-{n} was acknowledged");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_fails_is_replaced_and_nothing_is_lost() {
    let shim = Shim::build();
    let mut cluster = Cluster::form_with(3, |member| shim.between(member)).await;
    let client = cluster.client().await;
    let load = Load::start(&client);
    load.progress(100).await;
    let leader = cluster.leader().await;
    shim.fail(&cluster.members[leader]);
    assert_eq!(cluster.members[leader].wait_for_end().code(), Some(4));
    load.progress(100).await;
    shim.heal(&cluster.members[leader]);
    cluster.members[leader].start();
    cluster.members[leader].ready().await;
    load.progress(100).await;
    load.finish(&client).await;
}

/// A disk that hangs reports nothing, and the others hear from their leader all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_hangs_hands_over_and_is_not_ready_until_it_goes_on() {
    let shim = Shim::build();
    let cluster = Cluster::form_with(3, |member| shim.between(member)).await;
    let client = cluster.patient_client().await;
    client.put("before", "v").await.unwrap();
    let hung = cluster.leader().await;
    let id = cluster.members[hung].status().await.member_id;
    shim.hang(&cluster.members[hung]);
    // Something has to be written for the disk to be missed.
    let writer = tokio::spawn({
        let client = client.clone();
        async move { client.put("meanwhile", "v").await }
    });
    eventually("another member leads", || async {
        let status = cluster.members[(hung + 1) % 3].status().await;
        (status.leader_id != id && status.leader_id != 0).then_some(())
    })
    .await;
    client.put("after", "v").await.unwrap();
    assert!(!cluster.members[hung].status().await.ready);
    shim.go_on(&cluster.members[hung]);
    eventually("it is ready again", || async {
        cluster.members[hung].status().await.ready.then_some(())
    })
    .await;
    // Whether it was taken over or not, somebody says what became of it.
    let _ = writer.await.unwrap();
}

/// Its last sync comes after everything else has stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_last_sync_fails_does_not_say_that_it_stopped_in_good_order() {
    let shim = Shim::build();
    let mut cluster = Cluster::form_with(1, |member| {
        shim.between(member);
        member.add_args([
            "--durability",
            "memory-first",
            "--log-sync-interval-ms",
            "60000",
        ]);
    })
    .await;
    let client = cluster.members[0].client().await;
    client.put("acknowledged", "v").await.unwrap();
    shim.fail(&cluster.members[0]);
    let status = cluster.members[0].terminate();
    assert_eq!(status.code(), Some(4));
    let mark = cluster.members[0].data_dir.join("power.toml");
    let mark = fs_err::read_to_string(mark).unwrap();
    assert!(mark.contains("clean = false"), "{mark}");
}

/// What the kernel could not write it may drop, also without a power loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memory_first_member_whose_sync_failed_is_suspect_under_the_same_boot() {
    let shim = Shim::build();
    let mut cluster = Cluster::form_with(1, |member| {
        shim.between(member);
        member.add_args(["--durability", "memory-first"]);
    })
    .await;
    let client = cluster.members[0].client().await;
    shim.fail(&cluster.members[0]);
    // Acknowledged before it is on the disk, which then fails.
    let _ = client.put("acknowledged", "v").await;
    assert!(!cluster.members[0].wait_for_end().success());
    shim.heal(&cluster.members[0]);
    let refused = cluster.members[0].run_to_end();
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(3), "{complaint}");
    assert!(complaint.contains("its disk has failed"), "{complaint}");
}

/// Kubernetes kills what has not ended by itself half a minute after SIGTERM, and a folder may take
/// minutes to open.
#[tokio::test]
async fn a_member_that_opens_its_folder_hears_a_signal() {
    let shim = Shim::build();
    let mut cluster = Cluster::form_with(1, |member| shim.between(member)).await;
    cluster.client().await.put("k", "v").await.unwrap();
    let member = &mut cluster.members[0];
    member.kill();
    shim.hang(member);
    member.start();
    // It has its ports before it opens its folder.
    eventually("its process is up", || async {
        tokio::net::TcpStream::connect(member.address()).await.ok()
    })
    .await;
    let begun = Instant::now();
    assert!(member.terminate().success());
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    assert!(
        member
            .logged()
            .contains("stopping before the data directory is open")
    );
    shim.go_on(member);
    member.start();
    member.ready().await;
    let client = member.client().await;
    let read = client.get("k", Consistency::Linearizable);
    assert!(read.await.unwrap().kv.is_some());
}

/// Every write waited for that disk, and for no other's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_alone_is_slow_hands_over() {
    let shim = Shim::build();
    let cluster = Cluster::form_with(3, |member| {
        if member.name == "m0" {
            shim.delay(member);
        }
    })
    .await;
    let client = cluster.client().await;
    let slow = &cluster.members[0];
    let id = slow.status().await.member_id;
    crate::harness::hand_over(&slow.admin().await, id).await;
    let load = Load::start(&client);
    eventually("another member leads", || async {
        (slow.status().await.leader_id != id).then_some(())
    })
    .await;
    slow.says("the disk of this leader is slow").await;
    load.progress(100).await;
    load.finish(&client).await;
}

/// Thousands of keys of a frame, each from a slow disk, kept a thread from everything else for
/// seconds, heartbeats included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_from_a_slow_disk_cost_no_leader_its_lead() {
    let shim = Shim::build();
    let mut cluster = Cluster::form_with(3, |member| {
        shim.between(member);
        // A state that is small is read at the start.
        member.add_args(["--state-key-cache-bytes", "0"]);
    })
    .await;
    let client = cluster.patient_client().await;
    let value = |n: usize| {
        (0..4096)
            .map(|it| (it * (n + 1) % 251) as u8)
            .collect::<Vec<_>>()
    };
    const KEYS: usize = 6_000;
    for from in (0..KEYS).step_by(500) {
        let puts = (from..from + 500).map(|n| client.put(format!("k{n}"), value(n)));
        join_all(puts)
            .await
            .into_iter()
            .for_each(|put| drop(put.unwrap()));
    }
    let leader = cluster.leader().await;
    // In tables that are in no cache.
    cluster.members[leader]
        .admin()
        .await
        .snapshot()
        .await
        .unwrap();
    let id = cluster.members[leader].status().await.member_id;
    cluster.members[leader].kill();
    cluster.members[leader].start();
    cluster.members[leader].ready().await;
    crate::harness::hand_over(&cluster.members[leader].admin().await, id).await;
    let member = &cluster.members[leader];
    let before = member.status().await;
    assert_eq!(before.leader_id, id);
    fs_err::write(shim.path("slow", member), "").unwrap();
    let begun = Instant::now();
    let mut reading = tokio::task::JoinSet::new();
    for lane in 0..4 {
        let reader = member.client().await;
        reading.spawn(async move {
            let keys = (0..KEYS).filter(|n| n % 4 == lane);
            let gets = keys.map(|n| reader.get(format!("k{n}"), Consistency::Eventual));
            join_all(gets)
                .await
                .into_iter()
                .filter(Result::is_ok)
                .count()
        });
    }
    let mut written = 0;
    while reading.try_join_next().is_none() {
        // It waits behind the reads of its own address, on a busy machine for longer than a client
        // that is not patient.
        let put = client.put("beside", "v").await;
        written += u32::from(put.is_ok());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Five milliseconds for each of thousands of keys: longer than a follower waits for a
    // heartbeat.
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(1), "the reads took {took:?}");
    assert!(written > 0, "no write was served beside the reads");
    let after = member.status().await;
    assert_eq!((after.leader_id, after.term), (id, before.term));
}
