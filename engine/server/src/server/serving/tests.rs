//! What others wait for is not held while the client that has it is not polled: it may be heavy,
//! and its threads of lower priority.

use std::pin::pin;
use std::time::Duration;

use dengine_kv::SESSIONS_MAX;
use dengine_protocol::v1::DeleteRequest;
use futures::FutureExt as _;
use tokio::time::{sleep, timeout};

use super::*;
use crate::nicer::Nicer;
use crate::node::testing;
use crate::server::aside;
use crate::server::turns::Turn;

const LONG: Duration = Duration::from_secs(30);

/// Serves a member. What is returned besides are threads for long reads.
fn serving(node: Node) -> (Arc<Serving>, Nicer) {
    let threads = aside::threads().unwrap();
    let limits = Limits::default();
    let serving = Serving::new(
        node,
        limits.clone(),
        Forwarder::new(&limits),
        Tracer::default(),
        Openers::default(),
        Aside::new(&threads),
        CancellationToken::new(),
    );
    (serving, threads)
}

fn caller(last: u8) -> Caller {
    Caller {
        origin: Origin::Client,
        source: Arc::new(Source::new(from(last))),
        until: None,
        trace: None,
    }
}

fn from(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

/// It had one of four turns until its threads had a processor, and everybody's writes of ranges
/// waited.
#[tokio::test]
async fn a_turn_to_visit_ranges_is_not_kept_while_who_has_it_is_not_polled() {
    let dir = tempfile::tempdir().unwrap();
    let (serving, _threads) = serving(testing::waiting(dir.path()).await);
    let delete = |caller: Caller| {
        let serving = Arc::clone(&serving);
        async move {
            let request = DeleteRequest {
                key: "a".into(),
                range_end: "b".into(),
                ..DeleteRequest::default()
            };
            let limits = &serving.request_limits;
            let command = dengine_protocol::checks::writes::command(&request, limits).unwrap();
            serving.order_in_turn(request, command, &caller).await
        }
    };
    let turns = &serving.range_writes;
    let mut taken: Vec<Turn> = Vec::new();
    for other in [1, 1, 2, 3] {
        taken.push(turns.take(Some(from(other))).await);
    }
    let mut heavy = pin!(delete(caller(8)));
    assert!((&mut heavy).now_or_never().is_none());
    let other = async {
        // What was begun for the heavy one is first.
        tokio::task::yield_now().await;
        taken.pop();
        timeout(LONG / 10, delete(caller(9))).await
    };
    // A member without a cluster orders nothing.
    assert!(other.await.expect("it had its turn").is_err());
    assert!(heavy.await.is_err());
}

/// While it did not look which sessions have ended, no other did, and a client with too many of
/// them was refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_for_ended_sessions_is_over_though_who_has_it_is_not_polled() {
    let dir = tempfile::tempdir().unwrap();
    let node = testing::leading(dir.path()).await;
    let (serving, _threads) = serving(node.clone());
    let open = || serving.openers.open(from(1), Origin::Client, 0);
    let opening: Vec<_> = std::iter::from_fn(|| open().ok()).collect();
    assert_eq!(opening.len(), SESSIONS_MAX as usize / 2);
    let heavy = caller(1);
    let mut refused = pin!(serving.place_for_session(&heavy));
    // Begun, and not polled from here on. Other threads look, and may be done already.
    let begun = (&mut refused).now_or_never();
    let looked = async {
        while serving.openers.look(true).is_none() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LONG, looked).await.expect("others look again");
    let refused = match begun {
        Some(refused) => refused,
        None => refused.await,
    };
    assert!(refused.is_err());
    drop(opening);
    node.shutdown().await.unwrap();
}
