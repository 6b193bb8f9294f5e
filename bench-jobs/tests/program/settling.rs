//! What is measured on keys that were written before waits until the servers are idle.

use std::process::Stdio;

use dengine_fake_kv::{Load, Peer};
use tokio::process::Command;

use super::result;

/// A server as far as `/proc` knows: it does nothing.
fn idle() -> tokio::process::Child {
    let mut cat = Command::new("cat");
    cat.stdin(Stdio::piped()).stdout(Stdio::null());
    cat.kill_on_drop(true).spawn().unwrap()
}

#[tokio::test]
async fn reads_begin_once_the_servers_are_idle() {
    let peer = Peer::under(Load::default()).await;
    let server = idle();
    let pid = server.id().unwrap();
    let load = format!("range --key-space 10 --total 100 --warm-up 0 --server-pid {pid}");
    let (status, measured, summary) = result(&peer.address, &load).await;
    assert_eq!(status, 0, "{summary}");
    let settling = measured.settling.unwrap();
    assert!(
        settling.idle && settling.total_seconds >= 1.0,
        "{settling:?}"
    );
    assert!(summary.contains("servers were idle after"), "{summary}");

    let hurried = format!("{load} --settle-timeout 10ms");
    let (status, measured, summary) = result(&peer.address, &hurried).await;
    assert_eq!((status, measured.settling.unwrap().idle), (0, false));
    assert!(summary.contains("servers were still busy"), "{summary}");
}

#[tokio::test]
async fn writes_of_new_keys_do_not_wait() {
    let peer = Peer::under(Load::default()).await;
    let server = idle();
    let pid = server.id().unwrap();
    let load = format!("put --total 100 --warm-up 0 --server-pid {pid}");
    let (status, measured, summary) = result(&peer.address, &load).await;
    assert_eq!((status, measured.settling), (0, None), "{summary}");
}
