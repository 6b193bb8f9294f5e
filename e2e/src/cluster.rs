//! Which Kubernetes the demo and the tests use: the local one, or that of the current context.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use dengine_local_kubernetes::images::Archive;
use dengine_local_kubernetes::up::{self, Local};
use dengine_local_kubernetes::{programs, shell};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// Set to `1`, everything happens on the cluster of the current context.
pub const USE_CURRENT_CONTEXT: &str = "E2E_USE_CURRENT_CONTEXT";

/// A Kubernetes to work on.
#[derive(Debug, Clone)]
pub enum Cluster {
    /// Started here, by us.
    Local(Box<Local>),
    /// Somebody else's; images reach it by hand.
    Current {
        /// Where its Helm is.
        helm: PathBuf,
    },
}

impl Cluster {
    /// The cluster that the environment asks for; the local one is brought up.
    ///
    /// # Errors
    /// When the local one cannot be brought up, or `kubectl` is missing for another.
    pub fn choose(own_program: &std::path::Path) -> Result<Self> {
        if std::env::var(USE_CURRENT_CONTEXT).is_ok_and(|value| value == "1") {
            return Self::current();
        }
        Ok(Self::Local(Box::new(up::up(own_program)?)))
    }

    /// The cluster of the current context.
    ///
    /// # Errors
    /// When `kubectl` is missing.
    pub fn current() -> Result<Self> {
        let kubectl = shell::find("kubectl");
        kubectl.with_context(|| format!("{USE_CURRENT_CONTEXT}=1 needs kubectl in PATH"))?;
        let helm = match shell::find("helm") {
            Some(helm) => helm,
            None => programs::helm()?,
        };
        Ok(Self::Current { helm })
    }

    /// A client with the rights of whoever runs this.
    ///
    /// # Errors
    /// When the credentials cannot be read.
    pub async fn client(&self) -> Result<Client> {
        let config = match self {
            Self::Local(local) => {
                let kubeconfig = Kubeconfig::read_from(local.kubeconfig())?;
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?
            }
            Self::Current { .. } => Config::from_kubeconfig(&KubeConfigOptions::default()).await?,
        };
        Ok(Client::try_from(config)?)
    }

    /// `kubectl` for this cluster.
    #[must_use]
    pub fn kubectl(&self) -> Command {
        match self {
            Self::Local(local) => {
                with_kubeconfig(Command::new(local.programs().path("kubectl")), local)
            }
            Self::Current { .. } => shell::command("kubectl"),
        }
    }

    /// `helm` for this cluster.
    #[must_use]
    pub fn helm(&self) -> Command {
        match self {
            Self::Local(local) => {
                with_kubeconfig(Command::new(local.programs().path("helm")), local)
            }
            Self::Current { helm } => Command::new(helm),
        }
    }

    /// Applies a manifest as a person would.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        shell::run_with_input(self.kubectl().args(["apply", "--filename=-"]), manifest).map(drop)
    }

    /// Gives the nodes their images. Another's cluster must have them already.
    ///
    /// # Errors
    /// When containerd refuses one.
    pub fn load(&self, images: &[Archive]) -> Result<()> {
        match self {
            Self::Local(local) => images.iter().try_for_each(|image| local.load(image)),
            Self::Current { .. } => Ok(()),
        }
    }

    /// The chart's values that name exactly these images. In another's cluster whatever it has
    /// under the tag is used.
    #[must_use]
    pub fn pinned(&self, images: &[Archive]) -> Vec<String> {
        let value = |image: &Archive| match image.name() {
            "dengine" => format!("defaultImages.server={}", image.pinned_tag()),
            "dengine-bench" => format!("defaultImages.bench={}", image.pinned_tag()),
            "dengine-operator" => format!("image.tag={}", image.pinned()),
            other => unreachable!("{other} is no image of ours"),
        };
        match self {
            Self::Local(_) => images.iter().map(value).collect(),
            Self::Current { .. } => Vec::new(),
        }
    }

    /// The kubeconfig that a person should use, if it is not the usual one.
    #[must_use]
    pub fn kubeconfig(&self) -> Option<PathBuf> {
        match self {
            Self::Local(local) => Some(local.kubeconfig()),
            Self::Current { .. } => None,
        }
    }
}

fn with_kubeconfig(mut command: Command, local: &Local) -> Command {
    command.env("KUBECONFIG", local.kubeconfig());
    command
}
