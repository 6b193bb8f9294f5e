//! A cluster of one inside a program: `cargo run --release --example embedded`
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use dengine::kv::Command;
use dengine::types::ClusterId;
use dengine::{Config, Node};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data_dir = std::env::temp_dir().join("dengine-embedded");
    let config = Config {
        name: "embedded".into(),
        data_dir,
        ..Config::default()
    };
    let node = Node::start(config.validated()?).await?;

    // Only the first run with this data directory bootstraps it; later runs change nothing.
    let folder_id = node.status().folder_id;
    node.bootstrap(ClusterId(1), &folder_id).await?;
    node.status_changes()
        .wait_for(|status| status.ready)
        .await?;

    // Answered once it is on the disk.
    let put = Command::put("hello", "world");
    let written = node.write(put).await?;

    // A linearizable read: first confirm that this member is up to date, then read its own state.
    node.read_barrier().await?;
    let (revision, found) = node.reader()?.get(&"hello".into(), None)?;
    println!(
        "{:?} at revision {}: {found:?}",
        written.outcome, revision.0
    );

    node.shutdown().await?;
    Ok(())
}
