//! Loads of the profile `extra` that are about more members than the one that is written to.

use dengine_fake_kv::{Load, Peer};

use super::result;

/// The leader takes the place of its follower, too: no other would hold what it holds.
async fn leader_beside_itself() -> Peer {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let load = Load {
        tells: true,
        beside: Some(address),
        ..Load::default()
    };
    Peer::loaded(listener, load)
}

#[tokio::test]
async fn a_write_is_done_when_a_follower_has_shown_it() {
    let peer = leader_beside_itself().await;
    let arguments = "run --workload extra/par-put-seen --total 200 --warm-up 20";
    let (status, measured, summary) = result(&peer.address, arguments).await;
    assert_eq!((status, measured.requests), (0, 200), "{summary}");
    assert!(summary.contains("until a follower shows it"), "{summary}");
    assert_eq!((peer.puts(), peer.keys()), (220, 10));
    // Ten clients watch in the warm-up, and again in the measurement.
    assert_eq!(peer.watched().len(), 20);
    let gets = peer.gets();
    assert_eq!(gets.len(), 220, "one session read for each write");
    assert!(gets.iter().all(|get| get.at_least.is_some()), "{gets:?}");
    assert_eq!(
        peer.connections(),
        20,
        "ten to the leader, ten to followers"
    );
}

#[tokio::test]
async fn a_member_alone_has_no_follower() {
    let peer = Peer::under(Load::default()).await;
    let (status, measured, summary) =
        result(&peer.address, "run --workload extra/put-seen --total 10").await;
    assert_eq!((status, peer.puts()), (0, 0), "{summary}");
    let why = measured.unsupported.as_deref();
    assert_eq!(why, Some("the cluster has no follower"));
}
