//! Members to test with.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use dengine_kv::Command;
use dengine_testkit::free_port;
use dengine_types::ClusterId;

use super::Node;
use crate::config::Config;

/// One that waits to belong to a cluster.
pub(crate) async fn waiting(dir: &Path) -> Node {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let mut config = Config {
        name: "a".to_owned(),
        data_dir: dir.join("a"),
        listen_peer: address,
        advertise_peer: address.to_string(),
        advertise_client: "a:1".to_owned(),
        ..Config::default()
    };
    config.log.segment_bytes = 16 << 20;
    Node::start(config).await.unwrap()
}

/// One that is a cluster of its own, and leads it.
pub(crate) async fn leading(dir: &Path) -> Node {
    let node = waiting(dir).await;
    let folder_id = node.status().folder_id;
    node.bootstrap(ClusterId(7), &folder_id).await.unwrap();
    while node.write(put("first")).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    node
}

pub(crate) fn put(key: &str) -> Command {
    Command::put(key.to_owned(), "v")
}
