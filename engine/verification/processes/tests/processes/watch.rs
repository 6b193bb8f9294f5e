//! Watches: every change once, in order, whoever dies and whatever is compacted.

use std::time::Duration;

use dengine_client::{
    Batch, Client, Error, Event, EventKind, KeyRange, Operation, Watch, WatchQuery, WatchUpdate,
};

use crate::harness::Cluster;

fn all() -> WatchQuery {
    WatchQuery::new(KeyRange::all())
}

/// The next events, as many as are told until there are `count`.
async fn events(watch: &mut Watch, count: usize) -> Vec<Event> {
    let mut found = Vec::new();
    while found.len() < count {
        if let WatchUpdate::Events { events, .. } = watch.next().await.unwrap() {
            found.extend(events);
        }
    }
    found
}

fn lines(events: &[Event]) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let line = |it: &Event| {
        let kind = match it.kind {
            EventKind::Put => "put",
            EventKind::Delete => "delete",
        };
        let (key, value) = (text(&it.kv.key), text(&it.kv.value));
        let before = it.previous.as_ref().map(|it| text(&it.value));
        format!("{kind} {key} {value} before {}", before.unwrap_or_default())
    };
    events.iter().map(line).collect()
}

#[tokio::test]
async fn every_member_tells_history_and_the_present() {
    let cluster = Cluster::form(3).await;
    let writer = cluster.client().await;
    let first = writer.put("a1", "x").await.unwrap().header.revision;
    writer.put("b", "other").await.unwrap();
    let batch = Batch::new()
        .then(Operation::put("a1", "y"))
        .then(Operation::put("a2", "z"));
    writer.batch(batch).await.unwrap();
    let mut watches = Vec::new();
    for member in &cluster.members {
        let client = member.client().await;
        let query = WatchQuery::new(KeyRange::prefix("a")).from_revision(first);
        watches.push(client.watch(query.clone().previous()).await.unwrap());
        let deletes = client.watch(query.only_deletes()).await.unwrap();
        watches.push(deletes);
    }
    writer.delete_range(KeyRange::prefix("a")).await.unwrap();
    for pair in watches.chunks_mut(2) {
        let expect = [
            "put a1 x before ",
            "put a1 y before x",
            "put a2 z before ",
            "delete a1  before y",
            "delete a2  before z",
        ];
        assert_eq!(lines(&events(&mut pair[0], 5).await), expect);
        let expect = ["delete a1  before ", "delete a2  before "];
        assert_eq!(lines(&events(&mut pair[1], 2).await), expect);
    }
}

/// Writes `count` keys, each a revision of its own; the last revision.
async fn write(client: &Client, count: usize) -> u64 {
    let mut last = 0;
    for n in 0..count {
        last = client
            .put(format!("k{n}"), "v")
            .await
            .unwrap()
            .header
            .revision;
    }
    last
}

/// Everything from `first` to `last` is told, each once and in order.
async fn check_complete(watch: &mut Watch, first: u64, last: u64) {
    let mut expected = first;
    while expected <= last {
        for event in events(watch, 1).await {
            assert_eq!(event.kv.mod_revision, expected, "left out or told twice");
            expected += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_when_its_member_dies_and_misses_nothing() {
    let mut cluster = Cluster::form(3).await;
    let client = cluster.patient_client().await;
    let session = client.with_session(dengine_client::SessionOptions::default());
    let writer = session.await.unwrap();
    let first = writer.put("k", "v").await.unwrap().header.revision + 1;
    // One at each member, so that whoever dies is being watched.
    let mut watches = Vec::new();
    for place in 0..3 {
        let pinned = client.with_affinity(place);
        watches.push(pinned.watch(all().from_revision(first)).await.unwrap());
    }
    let writing = tokio::spawn({
        let writer = writer.clone();
        async move { write(&writer, 1000).await }
    });
    for _ in 0..2 {
        let leader = cluster.leader().await;
        cluster.members[leader].kill();
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.members[leader].start();
        cluster.members[leader].ready().await;
    }
    let last = writing.await.unwrap();
    for watch in &mut watches {
        check_complete(watch, first, last).await;
    }
}

#[tokio::test]
async fn what_is_compacted_is_told_with_where_history_begins() {
    let cluster = Cluster::form(1).await;
    let client = cluster.client().await;
    let last = write(&client, 10).await;
    client.compact(last - 3).await.unwrap();
    let gone = client.watch(all().from_revision(last - 5)).await;
    let error = match gone {
        Ok(mut watch) => watch.next().await.unwrap_err(),
        Err(error) => error,
    };
    let compact_revision = last - 3;
    assert_eq!(error, Error::Compacted { compact_revision });
    let mut kept = client
        .watch(all().from_revision(compact_revision))
        .await
        .unwrap();
    check_complete(&mut kept, compact_revision, last).await;
}

#[tokio::test]
async fn a_watch_may_begin_in_the_future() {
    let cluster = Cluster::form(1).await;
    let client = cluster.client().await;
    let now = write(&client, 1).await;
    let mut watch = client.watch(all().from_revision(now + 3)).await.unwrap();
    let last = write(&client, 5).await;
    check_complete(&mut watch, now + 3, last).await;
}

#[tokio::test]
async fn progress_is_told_when_nothing_happens_and_never_before_an_event() {
    let cluster = Cluster::form_with(1, |member| {
        member.add_args(["--watch-progress-interval-ms", "200"]);
    })
    .await;
    let client = cluster.client().await;
    let query = WatchQuery::new(KeyRange::key("rare")).progress();
    let mut watch = client.watch(query).await.unwrap();
    let mut told = 0;
    for _ in 0..3 {
        // Changes of other keys move it on.
        let others = write(&client, 20).await;
        let rare = client.put("rare", "v").await.unwrap().header.revision;
        assert_eq!(rare, others + 1);
        loop {
            match watch.next().await.unwrap() {
                WatchUpdate::Progress { revision } => {
                    assert!(revision >= told && revision < rare, "{revision}");
                    told = revision;
                }
                WatchUpdate::Events {
                    events, revision, ..
                } => {
                    assert_eq!((events.len(), revision), (1, rare));
                    told = revision;
                    break;
                }
            }
        }
        let after = watch.next().await.unwrap();
        assert_eq!(after, WatchUpdate::Progress { revision: rare });
    }
}
