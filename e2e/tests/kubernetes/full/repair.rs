//! The other ways in which a member loses its data or its life.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::node::Process;
use crate::repair::{Claim, repairs};
use crate::support::test;

#[tokio::test]
async fn a_member_whose_volume_was_emptied_is_replaced() {
    test("emptied", async |world| {
        repairs(
            world,
            json!({"replicas": 3}),
            Claim::Same,
            async |folder, pod| {
                fs_err::remove_dir_all(folder)?;
                world.kill_pod(pod).await
            },
        )
        .await
    })
    .await;
}

#[tokio::test]
async fn a_member_whose_claim_was_deleted_is_replaced() {
    test("deleted", async |world| {
        repairs(world, json!({"replicas": 3}), Claim::New, async |_, pod| {
            world.kubectl(&["delete", "pvc", &format!("data-{pod}"), "--wait=false"])?;
            world.kill_pod(pod).await
        })
        .await
    })
    .await;
}

#[tokio::test]
async fn a_member_that_crashes_again_and_again_is_replaced() {
    test("crashing", async |world| {
        repairs(
            world,
            json!({"replicas": 3}),
            Claim::New,
            async |folder, pod| {
                let another = u32::from(pod == "m-0");
                let another = world.folder("m", another).await?.join("log");
                exchange_log(folder, &another)?;
                world.kill_pod(pod).await
            },
        )
        .await
    })
    .await;
}

/// Another member's log in place of its own: a fault that is no damage, and of which the server
/// says neither that its folder is of no use nor that its disk fails.
fn exchange_log(folder: &std::path::Path, another: &std::path::Path) -> Result<()> {
    fs_err::rename(folder.join("log"), folder.join("log-of-before"))?;
    let mut copy = std::process::Command::new("cp");
    let copied = copy.arg("-a").arg(another).arg(folder).status()?;
    ensure!(copied.success(), "{another:?} was not copied");
    Ok(())
}

#[tokio::test]
async fn a_memory_first_member_whose_machine_lost_power_is_replaced() {
    test("suspect", async |world| {
        let spec = json!({"replicas": 3, "engine": {"durability": "memory-first"}});
        repairs(world, spec, Claim::New, async |folder, pod| {
            pretend_another_boot(folder)?;
            // Not the pod: its end would be a clean one.
            Process::of(world, pod).await?.kill()
        })
        .await
    })
    .await;
}

/// As if the machine had been started again since the member was last seen.
pub(super) fn pretend_another_boot(folder: &std::path::Path) -> Result<()> {
    let mark = folder.join("power.toml");
    let text = fs_err::read_to_string(&mark)?;
    let (before, after) = text
        .split_once("boot_id = \"")
        .context("the mark names the boot")?;
    Ok(fs_err::write(
        &mark,
        format!("{before}boot_id = \"0{after}"),
    )?)
}
