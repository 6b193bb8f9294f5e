//! The `Kv` service, asked over real connections at every member.

use bytes::Bytes;
use dengine_client::{Consistency, Error, Expected, KeyRange, RangeQuery};
use dengine_protocol::LEADER_HINT_METADATA;
use dengine_protocol::v1::kv_client::KvClient;
use dengine_protocol::v1::{self, CompareAndSwapRequest, GetRequest, PutRequest, RangeRequest};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::harness::{Cluster, becomes};

fn refused(result: Result<impl std::fmt::Debug, Error>, parts: &[&str]) {
    match result.unwrap_err() {
        Error::InvalidRequest { message } => {
            for part in parts {
                assert!(message.contains(part), "{part}: {message}");
            }
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn what_is_too_large_is_refused_and_changes_nothing() {
    let cluster = Cluster::form(3).await;
    let revision = cluster
        .client()
        .await
        .put("k", "v")
        .await
        .unwrap()
        .header
        .revision;
    let largest = (vec![b'k'; 32 * 1024], vec![b'v'; 1536 * 1024]);
    for member in &cluster.members {
        let client = member.client().await;
        let key = ["32769", "at most 32768", "--max-key-bytes"];
        refused(client.put(vec![0; 32 * 1024 + 1], "v").await, &key);
        refused(
            client
                .get(vec![0; 32 * 1024 + 1], Consistency::Eventual)
                .await,
            &key,
        );
        let value = ["1572865", "at most 1572864", "--max-value-bytes"];
        refused(client.put("k", vec![0; 1536 * 1024 + 1]).await, &value);
        let swap = client.compare_and_swap("k", Expected::Absent, vec![0; 1536 * 1024 + 1]);
        refused(swap.await, &value);
        // Larger than any message may be: refused before it is even read.
        refused(
            client.put("k", vec![0; 16 << 20]).await,
            &["--max-value-bytes"],
        );
        refused(client.put("", "v").await, &["empty"]);
        refused(client.delete("").await, &["empty"]);
    }
    let client = cluster.client().await;
    let read = client.get("k", Consistency::Linearizable).await.unwrap();
    assert_eq!(read.header.revision, revision);
    // And the largest that is allowed passes, from a follower too.
    for member in &cluster.members {
        let client = member.client().await;
        client
            .put(largest.0.clone(), largest.1.clone())
            .await
            .unwrap();
        let read = client
            .get(largest.0.clone(), Consistency::Linearizable)
            .await
            .unwrap();
        assert_eq!(read.kv.unwrap().value, largest.1);
    }
}

#[tokio::test]
async fn a_follower_names_the_leader_where_that_had_less_to_do() {
    let cluster = Cluster::form(3).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let put = || PutRequest {
        key: "k".into(),
        value: "v".into(),
        ..PutRequest::default()
    };
    let get = |level: v1::Consistency| GetRequest {
        key: "k".into(),
        consistency: level.into(),
        ..GetRequest::default()
    };
    for (place, is_named) in [(leader, false), (follower, true)] {
        let address = format!("http://{}", cluster.members[place].address());
        let mut kv = KvClient::connect(address).await.unwrap();
        let expected = is_named.then(|| cluster.members[leader].address());
        let named = |answered: &MetadataMap| {
            let named = answered.get(LEADER_HINT_METADATA);
            named.map(|it| it.to_str().unwrap().to_owned())
        };
        let written = kv.put(put()).await.unwrap();
        assert_eq!(named(written.metadata()), expected);
        let by_lease = kv.get(get(v1::Consistency::Lease)).await.unwrap();
        assert_eq!(named(by_lease.metadata()), expected);
        let eventual = kv.get(get(v1::Consistency::Eventual)).await.unwrap();
        assert_eq!(named(eventual.metadata()), None);
    }
}

#[tokio::test]
async fn every_member_serves_every_call() {
    let cluster = Cluster::form(3).await;
    for (place, member) in cluster.members.iter().enumerate() {
        let client = member.client().await;
        let key = format!("from-{place}");
        let put = client.put(key.clone(), "one").await.unwrap().header;
        assert_eq!(put.cluster_id, member.status().await.cluster_id);
        // Everybody sees it at once who asks for a linearizable read, and in the end who does not.
        for other in &cluster.members {
            let client = other.client().await;
            let read = client
                .get(key.clone(), Consistency::Linearizable)
                .await
                .unwrap();
            assert_eq!(&read.kv.unwrap().value[..], b"one");
            assert!(read.header.revision >= put.revision);
            let own = other.status().await.member_id;
            assert_eq!(
                read.header.member_id, own,
                "reads are served where they are asked"
            );
            becomes("an eventual read", true, || async {
                let read = client
                    .get(key.clone(), Consistency::Eventual)
                    .await
                    .unwrap();
                read.kv.is_some_and(|kv| &kv.value[..] == b"one")
            })
            .await;
        }
        let expected = Expected::ModRevision(put.revision);
        let swap = client
            .compare_and_swap(key.clone(), expected, "two")
            .await
            .unwrap();
        assert!(swap.succeeded);
        let again = client
            .compare_and_swap(key.clone(), Expected::Absent, "x")
            .await
            .unwrap();
        assert!(!again.succeeded);
        assert_eq!(&again.previous.unwrap().value[..], b"two");
        let old = client
            .get_at(key.clone(), put.revision, Consistency::Linearizable)
            .await
            .unwrap();
        assert_eq!(&old.kv.unwrap().value[..], b"one");
        assert_eq!(client.delete(key.clone()).await.unwrap().deleted, 1);
        assert!(
            client
                .get(key, Consistency::Linearizable)
                .await
                .unwrap()
                .kv
                .is_none()
        );
    }
}

#[tokio::test]
async fn without_a_quorum_only_eventual_reads_are_served() {
    let mut cluster = Cluster::form(3).await;
    cluster.client().await.put("k", "v").await.unwrap();
    let survivor = cluster.leader().await;
    for place in 0..3 {
        if place != survivor {
            cluster.members[place].kill();
        }
    }
    let client = cluster.members[survivor].client().await;
    let read = client.get("k", Consistency::Eventual).await.unwrap();
    assert_eq!(&read.kv.unwrap().value[..], b"v");
    let read = client
        .get("k", Consistency::Linearizable)
        .await
        .unwrap_err();
    assert!(
        matches!(read, Error::Unavailable { .. } | Error::Timeout { .. }),
        "{read}"
    );
    let put = client.put("k", "w").await.unwrap_err();
    let open = matches!(
        put,
        Error::Unavailable { .. } | Error::UnknownOutcome { .. }
    );
    assert!(open, "{put}");
}

#[tokio::test]
async fn ranges_are_ordered_bounded_and_historical() {
    let cluster = Cluster::form_with(1, |_| {}).await;
    let client = cluster.client().await;
    let mut before_last = 0;
    for n in 0..10 {
        let put = client
            .put(format!("k{n}"), vec![b'v'; 512 * 1024])
            .await
            .unwrap();
        before_last = put.header.revision - 1;
    }
    let all = RangeQuery::from(KeyRange::prefix("k"));
    let found = client.range(all.clone()).await.unwrap();
    // 2 MiB of keys and values fit into one answer, and it says that there is more.
    assert_eq!((found.kvs.len(), found.more, found.count), (3, true, None));
    let keys = client.range(all.clone().keys_only()).await.unwrap();
    let names: Vec<_> = keys.kvs.iter().map(|kv| kv.key.clone()).collect();
    let expect: Vec<_> = (0..10).map(|n| Bytes::from(format!("k{n}"))).collect();
    assert_eq!((names, keys.more), (expect, false));
    assert!(keys.kvs.iter().all(|kv| kv.value.is_empty()));
    let two = client
        .range(all.clone().limit(2).keys_only())
        .await
        .unwrap();
    assert_eq!((two.kvs.len(), two.more, two.count), (2, true, None));
    let count = client.range(all.clone().count_only()).await.unwrap();
    assert_eq!((count.kvs.len(), count.count), (0, Some(10)));
    let past = client
        .range(all.clone().count_only().revision(before_last))
        .await
        .unwrap();
    assert_eq!(past.count, Some(9));
    let future = client
        .range(all.revision(before_last + 100))
        .await
        .unwrap_err();
    assert!(
        matches!(future, Error::RevisionUnavailable { .. }),
        "{future}"
    );
    let deleted = client.delete_range(KeyRange::prefix("k")).await.unwrap();
    assert_eq!(deleted.deleted, 10);
}

#[tokio::test]
async fn malformed_requests_are_refused_as_such() {
    let cluster = Cluster::form(1).await;
    let address = format!("http://{}", cluster.members[0].address());
    let mut kv = KvClient::connect(address).await.unwrap();
    let check = |status: Status, part: &str| {
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains(part), "{status}");
    };
    let swap = CompareAndSwapRequest {
        key: "k".into(),
        value: "v".into(),
        ..CompareAndSwapRequest::default()
    };
    check(kv.compare_and_swap(swap).await.unwrap_err(), "expected");
    let get = GetRequest {
        key: "k".into(),
        consistency: 77,
        ..GetRequest::default()
    };
    check(kv.get(get).await.unwrap_err(), "consistency 77");
    check(kv.put(PutRequest::default()).await.unwrap_err(), "empty");
    let range = RangeRequest {
        key: "k".into(),
        range_end: vec![1; 40_000].into(),
        ..RangeRequest::default()
    };
    check(kv.range(range).await.unwrap_err(), "range_end");
}
