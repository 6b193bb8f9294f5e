//! The local cluster's fixed names: addresses, interfaces, and its folders on disk.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cache;

/// Where the API server and the kubelet listen. All addresses are of 198.18.0.0/15, the range
/// reserved for benchmarks: nothing of this cluster can be routed off the machine.
pub const NODE_ADDRESS: &str = "198.18.0.1";
/// The machine's own end of the link to the node.
pub const HOST_ADDRESS: &str = "198.18.0.2";
/// Everything of the cluster's, nodes, pods and Services alike.
pub const WHOLE_RANGE: &str = "198.18.0.0/15";
/// Where pods live.
pub const POD_RANGE: &str = "198.18.16.0/20";
/// Where Services live.
pub const SERVICE_RANGE: &str = "198.19.0.0/16";
/// The `kubernetes` Service: the first address of [`SERVICE_RANGE`].
pub const API_SERVICE_ADDRESS: &str = "198.19.0.1";
/// The DNS Service.
pub const DNS_ADDRESS: &str = "198.19.0.10";
/// The API server's port.
pub const API_PORT: u16 = 6443;
/// The machine's end of the link to the node.
pub const HOST_LINK: &str = "local-k8s";
/// The node's end of that link, in the node's own network namespace.
pub const NODE_LINK: &str = "node0";
/// The only node.
pub const NODE_NAME: &str = "node1";
/// The class of volumes that are as large as their claims ask for, and so can be full. Those of the
/// default class, `standard`, have whatever the machine's disk has.
pub const SIZED_STORAGE_CLASS: &str = "sized";
/// Who makes the volumes of both: [`crate::provisioner`].
pub const PROVISIONER: &str = "dengine.io/local-folder";

/// The folders of the local cluster's state.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The state of this person's local cluster, whether or not it exists.
    ///
    /// # Errors
    /// When there is no cache folder.
    pub fn of_this_user() -> Result<Self> {
        Ok(Self {
            root: cache::root()?.join("local-kubernetes"),
        })
    }

    /// A layout below any folder.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Everything below is the cluster's state and goes when it goes.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A file or folder of the state.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join(name)
    }

    /// Credentials of a cluster administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.join("kubeconfig")
    }

    /// One log file for each program.
    #[must_use]
    pub fn log(&self, program: &str) -> PathBuf {
        self.join("log").join(format!("{program}.log"))
    }

    /// The copy of the program whose commands the node runs.
    #[must_use]
    pub fn own_program(&self) -> PathBuf {
        self.join("own-program")
    }

    /// The copy of DEngine's program, where the API server keeps its objects in DEngine.
    #[must_use]
    pub fn dengine_program(&self) -> PathBuf {
        self.join("dengine-program")
    }

    /// What the caller chose.
    #[must_use]
    pub fn settings(&self) -> PathBuf {
        self.join("settings.json")
    }

    /// What pid a program of the node has within it.
    #[must_use]
    pub fn pid(&self, program: &str) -> PathBuf {
        self.join("pids").join(program)
    }

    /// containerd's socket.
    #[must_use]
    pub fn containerd_socket(&self) -> PathBuf {
        self.join("containerd.sock")
    }

    /// The folders outside of the state that were made for the node, one a line.
    #[must_use]
    pub fn made_folders(&self) -> PathBuf {
        self.join("made-folders")
    }

    /// Keys and certificates.
    #[must_use]
    pub fn pki(&self) -> PathBuf {
        self.join("pki")
    }

    /// The folders of the persistent volumes.
    #[must_use]
    pub fn volumes(&self) -> PathBuf {
        self.join("volumes")
    }
}
