//! Takes the local cluster down: kills the node, with which everything in its namespaces goes, and
//! removes its folder.

use std::path::Path;

use anyhow::Result;

use crate::layout::Layout;
use crate::progress::ProgressStep;
use crate::up::{self, NodeRecord};

/// Where control groups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";
/// The group that the kubelet puts every pod below.
const POD_GROUP: &str = "kubepods";

/// Takes the cluster down; fine when none is up.
///
/// # Errors
/// When the node does not die or its folder cannot be removed.
pub fn down() -> Result<()> {
    let _lock = up::lock()?;
    let layout = Layout::of_this_user()?;
    let step = ProgressStep::start("Taking the local Kubernetes down");
    clear(&layout)?;
    step.done("");
    Ok(())
}

/// Kills what the record names, if it is still that, and removes the state. The caller holds the
/// lock.
///
/// # Errors
/// As [`down`].
pub(crate) fn clear(layout: &Layout) -> Result<()> {
    if let Some(node) = NodeRecord::load(layout)? {
        for process in node.inner.iter().chain([&node.outer]) {
            process.kill()?;
        }
        remove_groups(Path::new(CGROUPS));
    }
    remove_made_folders(layout);
    if layout.root().exists() {
        fs_err::remove_dir_all(layout.root())?;
    }
    Ok(())
}

/// The folders that the node needed to exist. One that has something in it by now is somebody
/// else's, and stays.
fn remove_made_folders(layout: &Layout) {
    for folder in fs_err::read_to_string(layout.made_folders())
        .unwrap_or_default()
        .lines()
    {
        let _ = fs_err::remove_dir(folder);
    }
}

/// Removes the pods' control groups of every hierarchy. One that still holds a process is not ours
/// and stays: the kernel refuses to remove it.
fn remove_groups(mount: &Path) {
    let hierarchies = fs_err::read_dir(mount)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    for hierarchy in hierarchies.chain([mount.to_owned()]) {
        remove_group(&hierarchy.join(POD_GROUP));
    }
}

fn remove_group(group: &Path) {
    let children = fs_err::read_dir(group)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    children
        .filter(|path| path.is_dir())
        .for_each(|child| remove_group(&child));
    let _ = fs_err::remove_dir(group);
}
