//! Batches: all or nothing, at one revision, at every member.

use dengine_client::{Batch, Compare, Consistency, Error, KeyRange, Operation, OperationResult};

use crate::harness::{Cluster, eventually};

#[tokio::test]
async fn a_batch_takes_one_revision_or_none_at_every_member() {
    let cluster = Cluster::form(3).await;
    for (place, member) in cluster.members.iter().enumerate() {
        let client = member.client().await;
        let key = |name: &str| format!("{place}-{name}");
        let before = client.put(key("from"), "v").await.unwrap().header.revision;
        let moved = || {
            Batch::new()
                .when(Compare::exists(key("from")))
                .when(Compare::absent(key("to")))
                .then(Operation::delete(key("from")).returning_previous())
                .then(Operation::put(key("to"), "v"))
                .then(Operation::get(key("to")))
                .otherwise(Operation::range(KeyRange::prefix(format!("{place}-")), 0))
        };
        let done = client.batch(moved()).await.unwrap();
        assert!(done.succeeded);
        assert_eq!(done.header.revision, before + 1, "one for all");
        let [
            OperationResult::Delete {
                deleted: 1,
                previous,
            },
            OperationResult::Put { previous: None },
            OperationResult::Get { kvs, .. },
        ] = &done.results[..]
        else {
            panic!("{:?}", done.results);
        };
        assert_eq!(&previous[0].value[..], b"v");
        assert_eq!(kvs[0].mod_revision, before + 1, "it sees what it did");

        let again = client.batch(moved()).await.unwrap();
        assert!(!again.succeeded);
        assert_eq!(again.header.revision, before + 1, "reads take none");
        let [
            OperationResult::Get {
                kvs,
                count: Some(1),
                ..
            },
        ] = &again.results[..]
        else {
            panic!("{:?}", again.results);
        };
        assert_eq!(kvs[0].key, key("to"));
        let read = client.get(key("from"), Consistency::Linearizable).await;
        assert_eq!(read.unwrap().kv, None);
    }
}

#[tokio::test]
async fn bad_batches_change_nothing() {
    let cluster = Cluster::form(1).await;
    let client = cluster.client().await;
    let before = client.put("k", "v").await.unwrap().header.revision;
    let many = (0..129).fold(Batch::new(), |batch, n| {
        batch.then(Operation::put(format!("k{n}"), "v"))
    });
    let twice = Batch::new()
        .then(Operation::put("k", "1"))
        .then(Operation::delete_range(KeyRange::prefix("k")));
    let large = Batch::new()
        .then(Operation::put("a", vec![0; 1024 * 1024]))
        .then(Operation::put("b", vec![0; 1024 * 1024]));
    for (batch, part) in [
        (many, "--max-batch-operations"),
        (twice, "duplicate key"),
        (large, "--max-batch-request-bytes"),
        (Batch::new().then(Operation::put("", "v")), "empty"),
    ] {
        let error = client.batch(batch).await.unwrap_err();
        assert!(matches!(error, Error::InvalidRequest { .. }), "{error}");
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    let read = client.get("k", Consistency::Linearizable).await.unwrap();
    assert_eq!(read.header.revision, before);
}

#[tokio::test]
async fn a_delete_that_would_return_too_much_is_refused() {
    let cluster =
        Cluster::form_with(1, |member| member.add_args(["--max-range-bytes", "8192"])).await;
    let client = cluster.client().await;
    for n in 0..4 {
        client.put(format!("k{n}"), vec![0; 4096]).await.unwrap();
    }
    let all = || KeyRange::prefix("k");
    let error = client
        .delete_range_returning_previous(all())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("--max-range-bytes"), "{error}");
    let one = client
        .delete_range_returning_previous(KeyRange::prefix("k0"))
        .await;
    assert_eq!(one.unwrap().previous.len(), 1);
    assert_eq!(client.delete_range(all()).await.unwrap().deleted, 3);
}

#[tokio::test]
async fn an_answer_larger_than_grpcs_default_bound_comes_through_every_member() {
    let cluster = Cluster::form(3).await;
    let client = cluster.client().await;
    for n in 0..3 {
        let value = vec![b'v'; 1024 * 1024 + 300 * 1024];
        client.put(format!("k{n}"), value).await.unwrap();
    }
    for member in &cluster.members {
        let batch = Batch::new()
            .then(Operation::put("k0", vec![b'v'; 1024 * 1024]).returning_previous())
            .then(Operation::range(KeyRange::prefix("k"), 0));
        let done = member.client().await.batch(batch).await.unwrap();
        assert_eq!(done.results.len(), 2);
    }
}

#[tokio::test]
async fn history_below_a_compaction_is_gone_at_every_member() {
    let cluster = Cluster::form(3).await;
    let client = cluster.client().await;
    let first = client.put("k", "1").await.unwrap().header.revision;
    let second = client.put("k", "2").await.unwrap().header.revision;
    client.compact(second).await.unwrap();
    let again = client.compact(first).await.unwrap_err();
    assert!(
        matches!(again, Error::RevisionUnavailable { .. }),
        "{again}"
    );
    let future = client.compact(second + 100).await.unwrap_err();
    assert!(
        matches!(future, Error::RevisionUnavailable { .. }),
        "{future}"
    );
    for member in &cluster.members {
        let client = member.client().await;
        let old = client.get_at("k", first, Consistency::Linearizable).await;
        let old = old.unwrap_err();
        assert!(matches!(old, Error::RevisionUnavailable { .. }), "{old}");
        let kept = client.get_at("k", second, Consistency::Linearizable).await;
        assert_eq!(&kept.unwrap().kv.unwrap().value[..], b"2");
    }
}

/// It is served like the read that it is: no entry, no sync, on any member.
#[tokio::test]
async fn a_batch_that_only_reads_takes_no_place_in_the_log() {
    let cluster = Cluster::form(3).await;
    let leader = &cluster.members[cluster.leader().await];
    let writer = cluster.client().await;
    // What a member says of itself may be a tick old, so its log is looked at once it tells of a
    // write.
    let last_index_after = async |value: &'static str| {
        let revision = writer.put("k", value).await.unwrap().header.revision;
        eventually("the member tells of the write", || async {
            let status = leader.status().await;
            (status.revision >= revision).then_some(status.last_index)
        })
        .await
    };
    let before = last_index_after("v").await;
    for member in &cluster.members {
        let client = member.client().await;
        for _ in 0..20 {
            let read = Batch::new()
                .when(Compare::exists("k"))
                .then(Operation::get("k"));
            let read = client.batch(read).await.unwrap();
            assert!(read.succeeded);
            assert_eq!(read.results.len(), 1);
        }
    }
    assert_eq!(last_index_after("w").await, before + 1, "that write alone");
}
