//! How a client that was given one address for all members finds the leader behind it, against
//! scripted peers on loopback.

use std::time::Duration;

use dengine_client::{Client, ClientOptions, Consistency, RetryPolicy, Wire};
use dengine_fake_kv::{Peer, balanced};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Code;

/// For what is awaited; nothing is asserted to be faster.
const PATIENCE: Duration = Duration::from_secs(60);

async fn connect(to: &Peer) -> Client {
    connect_by(Wire::Pipelined, to).await
}

async fn connect_by(wire: Wire, to: &Peer) -> Client {
    connect_with(wire, false, to).await
}

async fn connect_with(wire: Wire, spread_reads: bool, to: &Peer) -> Client {
    let options = ClientOptions {
        wire,
        spread_reads,
        // Whatever waited for a connection that does not come would be noticed.
        connect_timeout: Duration::from_secs(3000),
        request_timeout: PATIENCE,
        ..ClientOptions::default()
    };
    Client::connect_with([to.address.clone()], options)
        .await
        .unwrap()
}

/// Writes until `peer` was sent one of them.
async fn write_until_asked(client: &Client, peer: &Peer) {
    let before = peer.requests();
    let asked = async {
        while peer.requests() == before {
            client.put("a", "1").await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, asked).await.unwrap();
}

#[tokio::test]
async fn what_the_leader_answers_with_less_work_goes_there_behind_the_address() {
    what_the_leader_answers_with_less_work_goes_there(Wire::Pipelined).await;
    what_the_leader_answers_with_less_work_goes_there(Wire::Unary).await;
}

async fn what_the_leader_answers_with_less_work_goes_there(wire: Wire) {
    let (follower, leader) = (Peer::start().await, Peer::start().await);
    follower.passes_on_to(&leader.address);
    let client = connect_by(wire, &follower).await;
    write_until_asked(&client, &leader).await;

    let passed_on = follower.requests();
    for _ in 0..10 {
        client.put("a", "1").await.unwrap();
        client.get("a", Consistency::Lease).await.unwrap();
        client.get("a", Consistency::Linearizable).await.unwrap();
    }
    assert_eq!(follower.requests(), passed_on);
    client.get("a", Consistency::Eventual).await.unwrap();
    assert_eq!(follower.requests(), passed_on + 1, "any member answers it");
    assert_eq!(leader.connections(), 1);
}

/// One that only reads finds the leader too.
#[tokio::test]
async fn linearizable_reads_name_the_leader() {
    for wire in [Wire::Pipelined, Wire::Unary] {
        let (follower, leader) = (Peer::start().await, Peer::start().await);
        follower.passes_on_to(&leader.address);
        let client = connect_by(wire, &follower).await;
        let reads = async {
            while leader.requests() == 0 {
                client.get("a", Consistency::Linearizable).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, reads).await.unwrap();
    }
}

#[tokio::test]
async fn reads_that_are_spread_stay_on_their_connection() {
    for wire in [Wire::Pipelined, Wire::Unary] {
        let (follower, leader) = (Peer::start().await, Peer::start().await);
        follower.passes_on_to(&leader.address);
        let client = connect_with(wire, true, &follower).await;
        write_until_asked(&client, &leader).await;
        let (passed_on, led) = (follower.requests(), leader.requests());
        for _ in 0..10 {
            client.get("a", Consistency::Linearizable).await.unwrap();
        }
        client.get("a", Consistency::Lease).await.unwrap();
        assert_eq!(follower.requests(), passed_on + 10);
        assert_eq!(leader.requests(), led + 1);
    }
}

#[tokio::test]
async fn a_leader_out_of_reach_delays_no_call() {
    // One refuses connections; the other takes them, and never answers.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refusing = closed.local_addr().unwrap().to_string();
    drop(closed);
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for leader in [refusing, silent.local_addr().unwrap().to_string()] {
        let member = Peer::start().await;
        member.passes_on_to(&leader);
        let once = ClientOptions {
            connect_timeout: Duration::from_secs(3000),
            request_timeout: PATIENCE,
            retry: RetryPolicy::NONE,
            ..ClientOptions::default()
        };
        let client = Client::connect_with([member.address.clone()], once)
            .await
            .unwrap();
        for _ in 0..50 {
            client.put("a", "1").await.unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(member.requests(), 50);
    }
}

#[tokio::test]
async fn another_leader_is_followed() {
    let (member, first, second) = (
        Peer::start().await,
        Peer::start().await,
        Peer::start().await,
    );
    member.passes_on_to(&first.address);
    let client = connect(&member).await;
    write_until_asked(&client, &first).await;

    first.always(Code::Unavailable);
    member.passes_on_to(&second.address);
    write_until_asked(&client, &second).await;
    let left = first.requests();
    for _ in 0..10 {
        client.put("a", "1").await.unwrap();
    }
    assert_eq!(first.requests(), left);
}

/// An address that leads to `member` until the task ends, and to nobody then.
async fn severable(member: &Peer) -> (String, tokio::task::JoinHandle<()>) {
    let inside = member.address.clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let task = tokio::spawn(async move {
        let mut streams = JoinSet::new();
        while let Ok((mut outside, _)) = listener.accept().await {
            let mut inside = tokio::net::TcpStream::connect(&inside).await.unwrap();
            streams.spawn(async move {
                // Either side may end it.
                let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
            });
        }
    });
    (address, task)
}

#[tokio::test]
async fn a_leader_that_is_gone_is_left_for_the_endpoints() {
    let (member, leader) = (Peer::start().await, Peer::start().await);
    let (address, way) = severable(&leader).await;
    member.passes_on_to(&address);
    let client = connect(&member).await;
    write_until_asked(&client, &leader).await;

    way.abort();
    assert!(way.await.unwrap_err().is_cancelled());
    let passed_on = member.requests();
    for _ in 0..10 {
        client.get("a", Consistency::Lease).await.unwrap();
    }
    assert_eq!(member.requests(), passed_on + 10);
    assert!(client.retries() >= 1, "one found the connection broken");
}

#[tokio::test]
async fn a_leader_of_another_cluster_is_sent_nothing() {
    let (member, stranger) = (Peer::start().await, Peer::start().await);
    stranger.is_of_cluster(8);
    member.passes_on_to(&stranger.address);
    let client = connect(&member).await;
    let probed = async {
        while stranger.probes() == 0 {
            client.put("a", "1").await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, probed).await.unwrap();
    for _ in 0..100 {
        client.put("a", "1").await.unwrap();
    }
    assert_eq!(stranger.requests(), 0);
}

/// As through forwarded ports, beside a name that leads to another cluster.
#[tokio::test]
async fn a_leader_is_reached_where_the_client_was_told_and_nowhere_else() {
    let (member, leader) = (Peer::start().await, Peer::start().await);
    let stranger = Peer::start().await;
    let told = ClientOptions {
        reached_at: Some([("demo-1:4100".to_owned(), leader.address.clone())].into()),
        request_timeout: PATIENCE,
        ..ClientOptions::default()
    };
    let endpoints = [member.address.clone(), leader.address.clone()];
    let client = Client::connect_with(endpoints, told).await.unwrap();
    member.passes_on_to("demo-1:4100");
    write_until_asked(&client, &leader).await;
    let passed_on = member.requests();
    for _ in 0..10 {
        client.put("a", "1").await.unwrap();
    }
    assert_eq!(member.requests(), passed_on);

    leader.always(Code::Unavailable);
    member.passes_on_to(&stranger.address);
    for _ in 0..100 {
        client.put("a", "1").await.unwrap();
    }
    assert_eq!((stranger.requests(), stranger.probes()), (0, 0));
    assert_eq!(leader.connections(), 1);
}

#[tokio::test]
async fn as_many_connections_go_to_the_leader_as_to_the_address() {
    let (member, leader) = (Peer::start().await, Peer::start().await);
    member.passes_on_to(&leader.address);
    let options = ClientOptions {
        connections: 4,
        ..ClientOptions::default()
    };
    let address = balanced(&[&member]).await;
    let client = Client::connect_with([address], options).await.unwrap();
    write_until_asked(&client, &leader).await;
    for _ in 0..8 {
        client.put("a", "1").await.unwrap();
    }
    assert_eq!(leader.connections(), 4);
}
