//! Connections that are held open, by whoever reaches a port, keep away nobody who has work to do.

use std::time::Duration;

use dengine_client::Consistency;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::harness::{Cluster, Member, becomes, eventually};

/// Connections on which nothing is said.
struct Silent {
    open: JoinSet<()>,
}

impl Silent {
    /// So many to that port, or as many of them as are let in.
    async fn hold(port: u16, count: usize) -> Self {
        let mut open = JoinSet::new();
        for _ in 0..count {
            let Ok(stream) = TcpStream::connect(("127.0.0.1", port)).await else {
                continue;
            };
            open.spawn(async move {
                let mut stream = stream;
                // HTTP/2 says its settings; then nothing comes until the end.
                while stream.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {}
            });
        }
        Self { open }
    }

    /// Those that were not closed from the other side.
    fn count(&mut self) -> usize {
        while self.open.try_join_next().is_some() {}
        self.open.len()
    }
}

/// Connections to the peer port were not counted at all, and one without a Hello was kept for as
/// long as it liked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_on_the_peer_port_keep_no_member_away() {
    let mut cluster = Cluster::form(3).await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    cluster.members[follower].kill();
    let mut strangers = Vec::new();
    for place in (0..3).filter(|place| *place != follower) {
        let port = cluster.members[place].peer_port;
        strangers.push(Silent::hold(port, 400).await);
    }
    for held in &mut strangers {
        // Half of 256, for one address.
        eventually("most strangers are closed", || {
            let left = held.count();
            async move { (left <= 128).then_some(()) }
        })
        .await;
    }
    cluster.members[follower].start();
    cluster.members[follower].ready().await;
    // Both others are needed, or this one.
    let third = (leader + 2) % 3;
    cluster.members[third].kill();
    let client = cluster.patient_client().await;
    client.put("k", "v").await.unwrap();
    // Who has not said whose it is within ten seconds is let go, room or not.
    let held = &mut strangers[0];
    becomes("no stranger is left", 0, || {
        let left = held.count();
        async move { left }
    })
    .await;
}

#[tokio::test]
async fn strangers_on_the_monitor_port_keep_no_probe_away() {
    let cluster = Cluster::form(1).await;
    let port = cluster.members[0].monitor_port;
    let mut strangers = Silent::hold(port, 200).await;
    for _ in 0..5 {
        let metrics = crate::health::scrape(port).await;
        assert!(metrics.contains("dengine_ready 1"), "{metrics}");
    }
    assert!(strangers.count() <= 64);
}

fn few_files(member: &mut Member) {
    member.limit_files(256);
    member.add_args(["--log-flush-bytes", "4194304"]);
}

/// Log and RocksDB end the member when they find no file descriptor: a flood of connections must
/// leave them some.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_connections_leaves_file_descriptors_to_log_and_state() {
    let mut cluster = Cluster::form_with(1, few_files).await;
    let client = cluster.client().await;
    client.put("before", "v").await.unwrap();
    let member = &cluster.members[0];
    let mut floods = Vec::new();
    for port in [
        member.client_port,
        member.peer_port,
        member.admin_port,
        member.monitor_port,
    ] {
        floods.push(Silent::hold(port, 300).await);
    }
    // Several segments of the log, and files of the state.
    for n in 0..60 {
        client.put(format!("k{n}"), vec![n; 1 << 20]).await.unwrap();
    }
    let admin = eventually("the admin port lets somebody in", || async {
        dengine_client::AdminClient::connect(&format!("127.0.0.1:{}", member.admin_port))
            .await
            .ok()
    })
    .await;
    admin.snapshot().await.unwrap();
    let read = client.get("k59", Consistency::Linearizable).await.unwrap();
    assert_eq!(read.kv.unwrap().value.len(), 1 << 20);
    let held: usize = floods.iter_mut().map(Silent::count).sum();
    assert!(held < 192, "three quarters of 256 at most: {held}");
    drop(floods);
    tokio::time::timeout(Duration::from_secs(20), client.put("after", "v"))
        .await
        .unwrap()
        .unwrap();
    assert!(cluster.members[0].terminate().success());
    let logged = cluster.members[0].logged();
    assert!(
        !logged.to_lowercase().contains("too many open files"),
        "{logged}"
    );
    assert!(
        logged.contains("ulimit -n"),
        "it says that it takes fewer: {logged}"
    );
}

/// While HTTP/2 has an answer to a PING that nobody takes, it reads nothing either, and so did not
/// see that it should end.
#[tokio::test]
async fn who_only_pings_and_reads_nothing_is_let_go_too() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    const PING: &[u8] = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00pingping";
    let cluster = Cluster::form(1).await;
    let address = ("127.0.0.1", cluster.members[0].peer_port);
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(PREFACE).await.unwrap();
    let pings = PING.repeat(1000);
    let let_go = async { while stream.write_all(&pings).await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(30), let_go)
        .await
        .expect("a stranger without a Hello is let go after ten seconds");
}
