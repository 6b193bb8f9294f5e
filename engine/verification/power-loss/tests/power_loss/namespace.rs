//! Mounts of its own for this test program: they go with it however it ends, and no container gets
//! a copy of them.

use std::process::Command;

const INSIDE: &str = "DENGINE_POWER_LOSS_INSIDE";

/// Runs `test`, the one with this name, in a mount namespace of its own.
///
/// # Panics
/// It failed, or there can be no such namespace.
pub(crate) fn inside(name: &str, test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    assert!(
        rustix::process::geteuid().is_root(),
        "this test mounts disks: run it as root"
    );
    let status = Command::new("unshare")
        .args(["--mount", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "yes")
        .status()
        .expect("unshare (util-linux) is installed");
    assert!(status.success(), "{name} failed in its namespace");
}
