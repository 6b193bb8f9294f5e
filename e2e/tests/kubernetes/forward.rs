//! `kubectl port-forward`, started again whenever the pod behind it goes: the way into a Kubernetes
//! whose addresses are not ours.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, bail};
use dengine_testkit::free_port;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::Instant;

use crate::support::World;

const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);

/// Forwards a free local port to a Service until the test's runtime ends; returns the local
/// address.
pub(crate) async fn to(world: &World, service: &str, port: u16) -> Result<String> {
    let local = free_port();
    let mut kubectl = Command::from(world.cluster().kubectl());
    kubectl
        .args([
            "--namespace",
            &world.namespace,
            "port-forward",
            &format!("service/{service}"),
            &format!("{local}:{port}"),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    tokio::spawn(async move {
        loop {
            if let Ok(mut child) = kubectl.spawn() {
                let _ = child.wait().await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    });
    await_listener((Ipv4Addr::LOCALHOST, local).into()).await?;
    Ok(format!("127.0.0.1:{local}"))
}

async fn await_listener(address: SocketAddr) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(address).await.is_err() {
        if Instant::now() > deadline {
            bail!("kubectl port-forward does not listen on {address}");
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}
