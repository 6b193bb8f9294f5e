//! A disk that fills up: a small file system of the test's own, so it needs root, as `make test`
//! has.

use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dengine_client::{Client, ClientOptions, Consistency, Error, KeyRange, RetryPolicy};

use crate::harness::{Cluster, Disk, Member, eventually, hand_over};

const RESERVE_BYTES: u64 = 64 << 20;
/// As the harness sets it.
const SEGMENT_BYTES: u64 = 8 << 20;

fn on(disk: &Disk, reserve_bytes: u64, member: &mut Member) {
    member.data_dir = disk.folder.path().join("data");
    member.add_args(["--min-free-bytes", &reserve_bytes.to_string()]);
}

#[tokio::test]
async fn a_nearly_full_member_refuses_what_needs_space_and_recovers() {
    let disk = Disk::mount();
    let cluster = Cluster::form_with(1, |member| on(&disk, RESERVE_BYTES, member)).await;
    let member = &cluster.members[0];
    let client = member.client().await;
    client.put("k", "v").await.unwrap();
    disk.fill(RESERVE_BYTES / 2);
    eventually("the member notices", || async {
        member.status().await.low_on_space.then_some(())
    })
    .await;
    let refused = client.put("k", "w").await.unwrap_err();
    assert!(
        matches!(&refused,
                 Error::LowOnSpace { message, .. } if message.contains("--min-free-bytes")),
        "{refused}"
    );
    let read = client.get("k", Consistency::Linearizable).await.unwrap();
    assert_eq!(
        read.kv.unwrap().value,
        "v",
        "nothing was changed, and reads are served"
    );
    client.delete("k").await.unwrap();
    disk.free();
    eventually("the member takes writes again", || async {
        client.put("k", "x").await.ok()
    })
    .await;
    // The status is published at the replica's next round, which may be after this write.
    eventually("the status says so", || async {
        (!member.status().await.low_on_space).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_leader_whose_disk_fills_up_hands_over_and_no_write_is_refused_for_long() {
    let disk = Disk::mount();
    let cluster = Cluster::form_with(3, |member| {
        if member.name == "m0" {
            on(&disk, RESERVE_BYTES, member);
        }
    })
    .await;
    let admin = cluster.members[cluster.leader().await].admin().await;
    let first = cluster.members[0].status().await.member_id;
    hand_over(&admin, first).await;
    let client = cluster.patient_client().await;
    client.put("k", "v").await.unwrap();
    disk.fill(RESERVE_BYTES / 2);
    eventually("another member leads", || async {
        let status = cluster.members[0].status().await;
        (status.low_on_space && status.leader_id != first && status.leader_id != 0).then_some(())
    })
    .await;
    client.put("k", "w").await.unwrap();
    // It comes to lead again, as low as it is.
    let admin = cluster.members[cluster.leader().await].admin().await;
    hand_over(&admin, first).await;
    eventually("another member leads again", || async {
        let status = cluster.members[0].status().await;
        (status.leader_id != first && status.leader_id != 0).then_some(())
    })
    .await;
    client.put("k", "x").await.unwrap();
}

#[tokio::test]
async fn a_member_without_any_space_waits_for_some_and_loses_nothing() {
    let disk = Disk::mount();
    let cluster = Cluster::form_with(1, |member| {
        on(&disk, 0, member);
        member.add_args(["--request-timeout-ms", "1000"]);
    })
    .await;
    let client = cluster.members[0].client().await;
    client.put("first", "v").await.unwrap();
    disk.fill(0);
    let value = vec![7; 1 << 20];
    let mut acknowledged = 0;
    let unknown = loop {
        match client.put(format!("k{acknowledged}"), value.clone()).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 100, "the log has room for that?");
    };
    assert!(matches!(unknown, Error::UnknownOutcome { .. }), "{unknown}");
    disk.free();
    eventually("writes go on", || async {
        client.put("last", "v").await.ok()
    })
    .await;
    for number in 0..acknowledged {
        let read = client
            .get(format!("k{number}"), Consistency::Linearizable)
            .await;
        assert!(read.unwrap().kv.is_some(), "k{number} was acknowledged");
    }
}

/// It keeps less in memory than what is left where a segment finds no space, and waits for longer
/// than RocksDB before it looks again.
async fn alone_with_a_small_state(disk: &Disk) -> Cluster {
    let cluster = Cluster::form_with(1, |member| {
        on(disk, 0, member);
        member.add_args([
            "--state-write-buffer-bytes=1048576",
            "--request-timeout-ms=30000",
        ]);
    })
    .await;
    // The second one is made beside the first writes; on a busy machine the disk was full before.
    let log = cluster.members[0].data_dir.join("log");
    eventually("the log has two segments", || async {
        let files = fs_err::read_dir(&log).unwrap();
        let bytes = files.filter_map(|it| Some(it.ok()?.metadata().ok()?.blocks() * 512));
        (bytes.sum::<u64>() >= 2 * SEGMENT_BYTES).then_some(())
    })
    .await;
    cluster
}

#[tokio::test]
async fn a_state_that_finds_no_space_waits_for_some_and_the_member_goes_on() {
    let disk = Disk::mount();
    let cluster = alone_with_a_small_state(&disk).await;
    let client = cluster.patient_client().await;
    disk.fill(0);
    // Less than what the log has room for, more than what the state keeps in memory.
    let fills_memory = async {
        for number in 0..8 {
            client.put(format!("k{number}"), noise()).await.unwrap();
        }
    };
    let frees_when_that_waits = async {
        cluster.members[0].says("while writing a batch").await;
        disk.free();
    };
    tokio::join!(fills_memory, frees_when_that_waits);
    let logged = cluster.members[0].logged();
    assert!(!logged.contains("member ends"), "{logged}");
}

/// RocksDB can't pack it.
fn noise() -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    rand::fill(&mut bytes[..]);
    bytes
}

/// Zeros, which RocksDB packs to next to nothing: what fills the disk is the log.
const PACKS_WELL: usize = 1 << 20;

/// Nobody finds space elsewhere. Only so much was applied that nobody flushed, and what is not
/// flushed has to stay in the log.
#[tokio::test]
async fn a_log_that_fills_the_disk_makes_room_in_it() {
    let disk = Disk::mount();
    let cluster = alone_with_a_small_state(&disk).await;
    // Who sets space aside for a segment has all there is for a moment, in which RocksDB finds
    // none, and looks again after five seconds.
    let client = cluster.patient_client().await;
    disk.fill(40 << 20);
    for number in 0..100 {
        let put = client.put(format!("k{number}"), vec![0; PACKS_WELL]).await;
        put.unwrap_or_else(|error| panic!("k{number}: {error}"));
    }
    cluster.members[0].says("the disk is full").await;
}

/// It has spare segments, and RocksDB no byte to open its state with.
#[tokio::test]
async fn a_member_starts_on_a_full_disk_and_takes_what_frees_space() {
    let disk = Disk::mount();
    let mut cluster = Cluster::form_with(1, |member| {
        on(&disk, RESERVE_BYTES, member);
        member.add_args([
            "--log-flush-bytes",
            "1048576",
            "--log-keep-bytes",
            "1048576",
        ]);
    })
    .await;
    let client = cluster.members[0].client().await;
    let spare = || {
        let names = std::fs::read_dir(disk.folder.path().join("data/log")).unwrap();
        let names = names.map(|it| it.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".spare")).count()
    };
    eventually("a segment is a spare one", || async {
        client.put("k", vec![0; PACKS_WELL]).await.unwrap();
        (spare() > 0).then_some(())
    })
    .await;
    cluster.members[0].kill();
    disk.fill(0);
    cluster.members[0].start();
    cluster.members[0].ready().await;
    let client = cluster.members[0].client().await;
    let refused = client.put("k", "w").await.unwrap_err();
    assert!(matches!(refused, Error::LowOnSpace { .. }), "{refused}");
    client.delete("k").await.unwrap();
}

/// With default settings: three segments of the log, the reserve, and as much again for the state.
const SMALL_DISK_BYTES: u64 = 512 << 20;

/// RocksDB met the full disk while it merged, and then waited for twice the space of all that it
/// would merge, though nothing of that was left; a quarter of the disk was kept for segments to
/// come. Only a restart helped.
#[tokio::test]
async fn a_disk_full_of_what_is_deleted_has_space_again() {
    let disk = Disk::mount_of(SMALL_DISK_BYTES);
    let cluster = Cluster::form_with(1, |member| {
        member.data_dir = disk.folder.path().join("data");
        member.add_args(["--request-timeout-ms", "60000"]);
    })
    .await;
    // What is committed may wait for space to be applied in, on a busy machine for longer than a
    // call usually may.
    let options = ClientOptions {
        request_timeout: Duration::from_secs(60),
        retry: RetryPolicy::NONE,
        ..ClientOptions::default()
    };
    let endpoint = cluster.members[0].address();
    let client = Client::connect_with([endpoint], options).await.unwrap();
    // From this key on, as far as there is space.
    let fill = async |from: usize| {
        for number in from..600 {
            if let Err(error) = client.put(format!("k{number:03}"), noise()).await {
                assert!(matches!(error, Error::LowOnSpace { .. }), "{error}");
                return number;
            }
        }
        panic!("it has room for all that?")
    };
    let at_first = fill(0).await;
    for _ in 0..2 {
        // One delete may visit 128 MiB.
        for range in (0..10).map(|it| KeyRange::prefix(format!("k{it}"))) {
            client.delete_range(range).await.unwrap();
        }
        let deleted = client.delete("k").await.unwrap();
        client.compact(deleted.header.revision).await.unwrap();
        // While what was deleted goes, there may be some space and then none.
        let written = AtomicUsize::new(0);
        eventually("there is space again for half as much", || async {
            let more = fill(written.load(Ordering::Relaxed)).await;
            written.store(more, Ordering::Relaxed);
            (more > at_first / 2).then_some(())
        })
        .await;
    }
}
