//! A member that finds its state damaged ends, whoever comes upon it, so that it is replaced.

use dengine_client::{Consistency, KeyRange, RangeQuery, WatchQuery};

use crate::harness::{Cluster, Member, dengine};

const KEYS: u64 = 100;
const SAID: &str = "storage is damaged";

fn flip_a_bit(member: &Member) {
    let tables = fs_err::read_dir(member.data_dir.join("state")).unwrap();
    let mut tables: Vec<_> = tables
        .map(|it| it.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "sst"))
        .collect();
    tables.sort_by_key(|path| fs_err::metadata(path).unwrap().len());
    let largest = tables.last().expect("the state was flushed");
    let mut bytes = fs_err::read(largest).unwrap();
    // Values come first, and what is known of them last.
    let half = bytes.len() / 2;
    bytes[half] ^= 1;
    fs_err::write(largest, bytes).unwrap();
}

/// A member of its own cluster, with a value that can't be read any more.
async fn damaged() -> Cluster {
    let cluster = Cluster::form(1).await;
    let client = cluster.members[0].client().await;
    for n in 0..KEYS {
        let value: Vec<u8> = (0..4096u64)
            .map(|it| (((it * it + n) * 2_654_435_761) >> 13) as u8)
            .collect();
        client.put(key(n), value).await.unwrap();
    }
    cluster.members[0].admin().await.snapshot().await.unwrap();
    flip_a_bit(&cluster.members[0]);
    cluster
}

fn key(n: u64) -> String {
    format!("key {n:03}")
}

/// It is of those ends after which an operator replaces it.
fn ends(cluster: &mut Cluster) {
    let status = cluster.members[0].wait_for_end();
    let logged = cluster.members[0].logged();
    assert_eq!(status.code(), Some(3), "{logged}");
    assert!(logged.contains(SAID), "{logged}");
}

#[tokio::test]
async fn a_member_that_finds_damage_in_a_range_says_so_and_ends() {
    let mut cluster = damaged().await;
    let client = cluster.members[0].client().await;
    let all = RangeQuery::new(KeyRange::prefix("key "));
    let error = client.range(all).await.unwrap_err();
    assert!(error.to_string().contains(SAID), "{error}");
    ends(&mut cluster);
}

#[tokio::test]
async fn a_member_that_finds_damage_in_a_get_says_so_and_ends() {
    let mut cluster = damaged().await;
    let client = cluster.members[0].client().await;
    let mut told = Ok(());
    for n in 0..KEYS {
        let got = client.get(key(n), Consistency::Eventual).await;
        told = told.and(got.map(drop));
    }
    let error = told.unwrap_err();
    assert!(error.to_string().contains(SAID), "{error}");
    ends(&mut cluster);
}

#[tokio::test]
async fn a_member_that_finds_damage_in_a_hash_says_so_and_ends() {
    let mut cluster = damaged().await;
    let endpoint = cluster.members[0].address();
    let hash = ["admin", "--endpoints", &endpoint, "hash"];
    let output = dengine().args(hash).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(SAID), "{said}");
    ends(&mut cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_finds_damage_in_the_past_ends() {
    let mut cluster = damaged().await;
    let client = cluster.members[0].client().await;
    let past = WatchQuery::new(KeyRange::prefix("key ")).from_revision(1);
    let watching = tokio::spawn(async move {
        let mut watch = client.watch(past).await.unwrap();
        while watch.next().await.is_ok() {}
    });
    tokio::task::block_in_place(|| ends(&mut cluster));
    watching.abort();
}
