//! Loads of the profile `extra` that do more than to write: followers show it, or all keys are
//! listed, meanwhile or by themselves.

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

#[tokio::test]
async fn all_keys_are_listed_page_by_page_while_others_write() {
    let peer = Peer::under(Load::default()).await;
    let arguments = "run --workload extra/list-while-writing --total 1000 --key-space 1200 \
                     --rate 2000 --warm-up 0";
    let (status, measured, summary) = result(&peer.address, arguments).await;
    assert_eq!((status, measured.requests), (0, 1_000), "{summary}");
    assert_eq!(measured.preload.unwrap().keys, 1_200);
    assert!(summary.contains("lists of 1,200 keys"), "{summary}");
    let listing = measured.listing.unwrap();
    assert!(listing.keys == 1_200 && listing.lists > 0, "{listing:?}");
    assert!(listing.seconds_avg <= listing.seconds_max, "{listing:?}");
    let pages = peer.revisions_of_ranges();
    assert!(pages.len() as u64 >= 3 * listing.lists, "{pages:?}");
    let firsts = pages.iter().filter(|revision| **revision == 0).count();
    assert!(
        firsts < pages.len(),
        "later pages are of the first one's revision"
    );
}

#[tokio::test]
async fn without_a_lister_the_same_is_only_written() {
    let peer = Peer::under(Load::default()).await;
    let arguments = "run --workload extra/paced-write --total 100 --key-space 200 --warm-up 0";
    let (status, measured, summary) = result(&peer.address, arguments).await;
    assert_eq!((status, measured.listing), (0, None), "{summary}");
    assert_eq!(peer.puts(), 300, "every key, and then the load");
    let rate = 100.0 / measured.total_seconds;
    assert!(rate < 1_500.0, "{rate} requests per second");
}

#[tokio::test]
async fn each_request_of_a_scan_lists_all_keys_page_by_page() {
    let peer = Peer::under(Load::default()).await;
    let arguments = "run --workload extra/paged-list --total 3 --key-space 1200 --value-size 16 \
                     --warm-up 0";
    let (status, measured, summary) = result(&peer.address, arguments).await;
    assert_eq!((status, measured.requests), (0, 3), "{summary}");
    assert!(summary.contains("list in pages"), "{summary}");
    assert_eq!(
        peer.puts(),
        1_200,
        "every key, and nothing beside the lists"
    );
    let pages = peer.revisions_of_ranges();
    let later = pages.iter().filter(|revision| **revision > 0).count();
    assert_eq!(later, 6, "two of each list are of its first one's revision");
}

#[tokio::test]
async fn a_list_that_lacks_keys_fails_the_run() {
    let peer = Peer::under(Load::default()).await;
    let other = peer.clone();
    let deleting = tokio::spawn(async move {
        loop {
            other.loses("00000007");
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    });
    let arguments = "run --workload extra/list-while-writing --total 50 --key-space 700 \
                     --warm-up 0 --key-prefix=";
    let (status, _, summary) = result(&peer.address, arguments).await;
    deleting.abort();
    assert_eq!(status, 1, "{summary}");
    assert!(summary.contains("a list held 699 of 700 keys"), "{summary}");
}
