//! A cluster of three inside one program, which writes while the member that led is stopped:
//! `cargo run --release -p dengine-server --example embedded_three`
//!
//! Members of three programs on three machines form a cluster in the same way: each starts its own
//! [`Node`], one of them is bootstrapped, and the others join it.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use dengine::kv::Command;
use dengine::types::ClusterId;
use dengine::{Config, NewMember, Node};

/// Drawn at random for a cluster that is to live; the same for all of its members.
const CLUSTER: ClusterId = ClusterId(1);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let data = tempfile::tempdir()?;
    let mut nodes = Vec::new();
    for number in 0..3 {
        nodes.push(Node::start(config(number, data.path()).validated()?).await?);
    }
    let first = nodes[0].clone();
    first.bootstrap(CLUSTER, &first.status().folder_id).await?;
    ready(&first).await?;
    for newcomer in &nodes[1..] {
        add(&first, newcomer).await?;
    }

    put(&first, "color", "blue").await?;
    // On the disks of two members at least, so it outlives any one of them.
    nodes.remove(0).shutdown().await?;

    let leader = leader(&nodes).await?;
    put(leader, "shape", "round").await?;
    leader.read_barrier().await?;
    for key in ["color", "shape"] {
        let (_, found) = leader.reader()?.get(&key.into(), None)?;
        let value = found.ok_or("it was written")?.value;
        println!("{key} is {}", String::from_utf8_lossy(&value));
    }
    for node in nodes {
        node.shutdown().await?;
    }
    Ok(())
}

/// Members reach each other at their peer addresses; nothing listens for clients.
fn config(number: u16, data: &Path) -> Config {
    let name = format!("m{number}");
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 4200 + number));
    Config {
        data_dir: data.join(&name),
        listen_peer: peer,
        advertise_peer: peer.to_string(),
        advertise_client: format!("{name}:4100"),
        name,
        ..Config::default()
    }
}

/// Makes a newcomer a learner, which receives the log, and a voter once it has caught up.
async fn add(leader: &Node, newcomer: &Node) -> Result<(), Box<dyn Error>> {
    let config = newcomer.config();
    let folder_id = newcomer.status().folder_id;
    let member = NewMember {
        name: config.name.clone(),
        peer_address: config.advertise_peer.clone(),
        client_address: config.advertise_client.clone(),
        folder_id: folder_id.clone(),
    };
    let (id, _) = leader.add_learner(member).await?;
    newcomer.join(CLUSTER, id, &folder_id).await?;
    while leader.promote(id).await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ready(newcomer).await
}

async fn ready(node: &Node) -> Result<(), Box<dyn Error>> {
    let mut status = node.status_changes();
    status.wait_for(|status| status.ready).await?;
    Ok(())
}

/// The member that was elected.
async fn leader(nodes: &[Node]) -> Result<&Node, Box<dyn Error>> {
    let elected = |node: &&Node| {
        let status = node.status();
        status.leader.is_some_and(|it| it.id == status.member_id)
    };
    tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            if let Some(leader) = nodes.iter().find(elected) {
                return leader;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .map_err(|_| "no member was elected within ten seconds".into())
}

async fn put(node: &Node, key: &str, value: &str) -> Result<(), Box<dyn Error>> {
    let put = Command::put(key.to_owned(), value.to_owned());
    node.write(put).await?;
    Ok(())
}
