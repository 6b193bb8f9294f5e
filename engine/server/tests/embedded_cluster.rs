//! Three members in one process, through the library alone: forming a cluster, writing, reading,
//! handing over, removing, and coming back after a restart.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use dengine::{Config, NewMember, Node, RequestError};
use dengine_kv::{Command, Outcome};
use dengine_testkit::free_port;
use dengine_types::{ClusterId, MemberId, Revision};
use futures::poll;

const CLUSTER: ClusterId = ClusterId(42);

fn config(name: &str, dir: &Path) -> Config {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let mut config = Config {
        name: name.to_owned(),
        data_dir: dir.join(name),
        listen_peer: address,
        advertise_peer: address.to_string(),
        advertise_client: format!("{name}:1"),
        ..Config::default()
    };
    config.log.segment_bytes = 16 << 20;
    config
}

async fn until<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            if let Some(found) = check().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("gave up waiting until {what}"))
}

async fn ready(node: &Node) {
    until("a member is ready", async || {
        node.status().ready.then_some(())
    })
    .await;
}

fn put(key: &str, value: &str) -> Command {
    Command::put(
        Bytes::copy_from_slice(key.as_bytes()),
        Bytes::copy_from_slice(value.as_bytes()),
    )
}

async fn get(node: &Node, key: &str) -> Option<Bytes> {
    node.read_barrier().await.unwrap();
    let (_, kv) = node
        .reader()
        .unwrap()
        .get(&Bytes::copy_from_slice(key.as_bytes()), None)
        .unwrap();
    kv.map(|kv| kv.value)
}

async fn add(leader: &Node, newcomer: &Node) -> MemberId {
    let config = newcomer.config();
    let folder_id = newcomer.status().folder_id;
    let new = NewMember {
        name: config.name.clone(),
        peer_address: config.advertise_peer.clone(),
        client_address: config.advertise_client.clone(),
        folder_id: folder_id.clone(),
    };
    let (id, _) = leader.add_learner(new.clone()).await.unwrap();
    let (again, _) = leader.add_learner(new).await.unwrap();
    assert_eq!(id, again, "adding a folder twice adds one member");
    newcomer.join(CLUSTER, id, &folder_id).await.unwrap();
    until("the learner has caught up", async || {
        leader.promote(id).await.ok()
    })
    .await;
    id
}

async fn start_cluster(dir: &Path) -> Vec<Node> {
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(Node::start(config(name, dir)).await.unwrap());
    }
    let first = &nodes[0];
    let folder_id = first.status().folder_id;
    first.bootstrap(CLUSTER, &folder_id).await.unwrap();
    first.bootstrap(CLUSTER, &folder_id).await.unwrap();
    ready(first).await;
    for newcomer in &nodes[1..] {
        add(first, newcomer).await;
    }
    nodes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_forms_and_every_member_reads_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = start_cluster(dir.path()).await;
    let written = nodes[0].write(put("k", "v")).await.unwrap();
    let Outcome::Put { revision, .. } = written.outcome else {
        panic!("a put came to {:?}", written.outcome)
    };
    assert_eq!(revision, Revision(2), "an empty store is at revision 1");
    for node in &nodes {
        ready(node).await;
        assert_eq!(get(node, "k").await.as_deref(), Some(b"v".as_slice()));
    }
    let not_leader = nodes[1].write(put("k", "w")).await.unwrap_err();
    let RequestError::NotLeader { leader: Some(hint) } = not_leader else {
        panic!("a follower answered {not_leader:?}")
    };
    assert_eq!(
        (hint.id, hint.client_address.as_str()),
        (MemberId(1), "a:1")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_moves_and_a_member_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = start_cluster(dir.path()).await;
    let refused = nodes[0].remove(MemberId(1)).await.unwrap_err();
    assert!(
        refused.to_string().contains("transfer leadership"),
        "{refused}"
    );
    // Given up if the disks are slow; asking again is answered at once if it has come true
    // meanwhile.
    until("leadership is handed over", async || {
        nodes[0].transfer_leader(MemberId(2)).await.ok()
    })
    .await;
    until("the new leader answers", async || {
        nodes[1].members().await.ok()
    })
    .await;
    let left = until("member 1 is removed", async || {
        nodes[1].remove(MemberId(1)).await.ok()
    })
    .await;
    assert_eq!(left.members.len(), 2);
    let nobody = nodes[1].remove(MemberId(0)).await;
    assert!(
        matches!(nobody, Err(RequestError::Invalid(_))),
        "{nobody:?}"
    );
    nodes[1].write(put("after", "removal")).await.unwrap();
    assert!(get(&nodes[2], "after").await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_cluster_comes_back_with_everything() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = start_cluster(dir.path()).await;
    for i in 0..100 {
        nodes[0].write(put(&format!("k{i}"), "v")).await.unwrap();
    }
    let configs: Vec<_> = nodes.iter().map(|n| n.config().clone()).collect();
    for node in &nodes {
        node.shutdown().await.unwrap();
    }
    drop(nodes);
    let mut again = Vec::new();
    for config in configs {
        let node = until("the old listener is gone", async || {
            Node::start(config.clone()).await.ok()
        })
        .await;
        // At once: whoever looked a moment too early would take it for an empty member, and replace
        // it.
        assert_ne!(node.status().member_id, MemberId(0));
        again.push(node);
    }
    for node in &again {
        ready(node).await;
        for i in 0..100 {
            assert!(get(node, &format!("k{i}")).await.is_some(), "k{i} is lost");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_member_serves_nothing_and_keeps_its_identity_once_given() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(config("a", dir.path())).await.unwrap();
    assert_eq!(
        node.write(put("k", "v")).await.unwrap_err(),
        RequestError::WaitingForIdentity
    );
    let folder_id = node.status().folder_id;
    let other = node.bootstrap(CLUSTER, "another folder").await.unwrap_err();
    assert!(other.to_string().contains("wiped or replaced"), "{other}");
    node.bootstrap(CLUSTER, &folder_id).await.unwrap();
    let second = node.bootstrap(ClusterId(43), &folder_id).await.unwrap_err();
    assert!(second.to_string().contains("already belongs"), "{second}");
}

/// A program that ends then is not aborted by RocksDB either, whose globals would be gone under its
/// threads.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_drops_the_last_handle_may_use_the_folder_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for start in 0..10 {
        // At another port each time: the old one is closed a moment later.
        let node = Node::start(config("a", dir.path())).await.unwrap();
        if start == 0 {
            let folder_id = node.status().folder_id;
            node.bootstrap(CLUSTER, &folder_id).await.unwrap();
        }
        ready(&node).await;
        node.write(put("k", "v")).await.unwrap();
    }
}

/// Whoever asked may be gone: an operator that restarts, a deadline that passes.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_was_told_who_it_is_starts_even_if_nobody_waits_for_that() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(config("a", dir.path())).await.unwrap();
    let folder_id = node.status().folder_id;
    {
        let mut asked = pin!(node.bootstrap(CLUSTER, &folder_id));
        // It begins, and its answer is not waited for.
        assert!(poll!(asked.as_mut()).is_pending());
    }
    until("it takes a write", async || {
        node.write(put("k", "v")).await.ok()
    })
    .await;
}

/// What the first member says of itself is in every member's log forever, and in tables and log
/// lines of people.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_member_has_a_name_and_addresses_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let mut bad = config("a", dir.path());
    bad.advertise_client = "a!:1".to_owned();
    let node = Node::start(bad).await.unwrap();
    let folder_id = node.status().folder_id;
    let refused = node.bootstrap(CLUSTER, &folder_id).await.unwrap_err();
    assert!(
        matches!(&refused, RequestError::Invalid(why) if why.contains("host:port")),
        "{refused}"
    );
    assert_eq!(
        node.status().cluster_id,
        ClusterId(0),
        "nothing was changed"
    );
    node.shutdown().await.unwrap();
    drop(node);
    let node = Node::start(config("a", dir.path())).await.unwrap();
    node.bootstrap(CLUSTER, &folder_id).await.unwrap();
    ready(&node).await;
}
