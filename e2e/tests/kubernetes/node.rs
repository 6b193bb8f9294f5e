//! Reaches into the local node from the machine that it runs on: the servers' processes, and the network of their pods.

use std::path::Path;

use anyhow::{Context as _, Result};
use dengine_e2e::shell;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use rustix::process::{Pid, Signal};

use crate::support::World;

/// The process of a member's server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(Pid);

impl Process {
    /// The server that runs in this pod now.
    pub(crate) async fn of(world: &World, pod: &str) -> Result<Self> {
        let uid = world.api::<Pod>().get(pod).await?.uid().unwrap_or_default();
        for entry in fs_err::read_dir("/proc")? {
            let folder = entry?.path();
            let pid = folder
                .file_name()
                .and_then(|name| name.to_str()?.parse().ok());
            if let Some(pid) = pid.and_then(Pid::from_raw)
                && is_server_of(&folder, &uid)
            {
                return Ok(Self(pid));
            }
        }
        anyhow::bail!("no server runs in {pod} ({uid})")
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(self) -> Result<()> {
        rustix::process::kill_process(self.0, Signal::KILL).context("killing a server")
    }

    /// Changes what the pod's network lets through: arguments of `iptables`.
    pub(crate) fn iptables(self, arguments: &[&str]) -> Result<()> {
        let namespace = format!("--net=/proc/{}/ns/net", self.0.as_raw_nonzero());
        let mut nsenter = shell::command("nsenter");
        nsenter
            .arg(namespace)
            .arg("iptables")
            .arg("--wait")
            .args(arguments);
        shell::run(&mut nsenter).map(drop)
    }
}

/// A process that ended meanwhile is none.
fn is_server_of(folder: &Path, pod_uid: &str) -> bool {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    read("comm").trim() == "dengine" && read("cgroup").contains(pod_uid)
}
