//! Members on addresses of this machine.

use dengine_fake_kv::FakeCluster;
use tokio::net::TcpListener;

const CLUSTER_ID: u64 = 7;

/// Starts three members at 127.0.0.1 to 127.0.0.3, and returns their port.
pub(crate) async fn start() -> u16 {
    for _ in 0..100 {
        if let Some(port) = try_start().await {
            return port;
        }
    }
    panic!("no port is free at three addresses");
}

async fn try_start() -> Option<u16> {
    let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = first.local_addr().unwrap().port();
    let mut listeners = vec![first];
    for host in ["127.0.0.2", "127.0.0.3"] {
        listeners.push(TcpListener::bind((host, port)).await.ok()?);
    }
    let cluster = FakeCluster::new(CLUSTER_ID, (0..3).map(|ordinal| format!("demo-{ordinal}")));
    for (place, listener) in listeners.into_iter().enumerate() {
        cluster.serve(place, listener);
    }
    Some(port)
}
