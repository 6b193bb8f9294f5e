//! Reaches into the local node from the machine that it runs on: the servers' processes, their
//! files, the network of their pods, and the images.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use dengine_e2e::cluster::Cluster;
use dengine_local_kubernetes::shell;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use rustix::process::{Pid, Signal};

use crate::support::{World, not_run};

/// What a member that is cut off still gets and sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cut {
    BothWays,
    /// It hears nobody, and is heard.
    Deaf,
    /// It hears everybody, and is not heard.
    Mute,
}

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

    /// A file of the pod, as this machine reaches it.
    pub(crate) fn path(self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.0.as_raw_nonzero()))
    }

    /// Cuts the pod off from these addresses.
    pub(crate) fn cut_off(self, cut: Cut, from: &[String]) -> Result<()> {
        self.filter(cut, from, "--append")
    }

    /// Takes back what [`Self::cut_off`] did.
    pub(crate) fn reconnect(self, cut: Cut, to: &[String]) -> Result<()> {
        self.filter(cut, to, "--delete")
    }

    fn filter(self, cut: Cut, others: &[String], how: &str) -> Result<()> {
        for other in others {
            if cut != Cut::Mute {
                self.iptables(&[how, "INPUT", "--source", other, "--jump", "DROP"])?;
            }
            if cut != Cut::Deaf {
                self.iptables(&[how, "OUTPUT", "--destination", other, "--jump", "DROP"])?;
            }
        }
        Ok(())
    }

    fn iptables(self, arguments: &[&str]) -> Result<()> {
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

/// Gives the server's image another name, as another version would have. Another's node gets no
/// names from us.
pub(crate) fn second_tag<'a>(world: &World, name: &'a str) -> Result<Option<&'a str>> {
    let images = &world.shared.images;
    let server = images.iter().find(|image| image.name() == "dengine");
    let (Cluster::Local(local), Some(server)) = (world.cluster(), server) else {
        not_run("the part with another image: another's node gets no names from us")?;
        return Ok(None);
    };
    local.tag(&server.pinned_tag(), name)?;
    Ok(Some(name))
}
