//! Which Kubernetes the demo and the tests use: the local one, or that of the current context.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use dengine_local_kubernetes::images::Archive;
use dengine_local_kubernetes::programs::KubernetesVersion;
use dengine_local_kubernetes::settings::{self, Settings};
use dengine_local_kubernetes::up::{self, Local};
use dengine_local_kubernetes::{programs, shell};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::versions;

/// Set to `1`, everything happens on the cluster of the current context.
pub const USE_CURRENT_CONTEXT: &str = "E2E_USE_CURRENT_CONTEXT";

/// What the local Kubernetes keeps its objects in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Store {
    /// One member of etcd.
    Etcd,
    /// Three members of etcd.
    EtcdOfThree,
    /// Three members of DEngine.
    Dengine,
}

impl Store {
    /// The settings of a local Kubernetes on it. `own_program` lies beside the program of DEngine.
    ///
    /// # Errors
    /// When that is not there.
    pub fn settings(self, own_program: &Path) -> Result<Settings> {
        Ok(Settings {
            store: self.of(own_program)?,
            ..Settings::default()
        })
    }

    fn of(self, own_program: &Path) -> Result<settings::Store> {
        match self {
            Self::Etcd => Ok(settings::Store::Etcd),
            Self::EtcdOfThree => Ok(settings::Store::EtcdOfThree),
            Self::Dengine => {
                let program = own_program.with_file_name("dengine");
                fs_err::metadata(&program).context("`make dengine` builds it")?;
                Ok(settings::Store::Dengine(program))
            }
        }
    }
}

/// How the local Kubernetes is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct LocalArgs {
    /// What its API server keeps its objects in: etcd, three members of it, or three of DEngine.
    /// One that is up must be as it is wanted here; if nothing is said, whatever is up will do, and
    /// otherwise it is the newest on etcd.
    #[arg(long)]
    store: Option<Store>,
    /// Which Kubernetes
    #[arg(long, value_parser = versions::kubernetes())]
    kubernetes_version: Option<KubernetesVersion>,
}

impl LocalArgs {
    /// `None`: nothing in particular is wanted.
    fn settings(self, own_program: &Path) -> Result<Option<Settings>> {
        if self.store.is_none() && self.kubernetes_version.is_none() {
            return Ok(None);
        }
        Ok(Some(Settings {
            kubernetes: self.kubernetes_version.unwrap_or_default(),
            store: self.store.unwrap_or(Store::Etcd).of(own_program)?,
            ..Settings::default()
        }))
    }
}

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
    /// The cluster that the environment asks for; the local one is brought up as it is wanted.
    ///
    /// # Errors
    /// When the local one cannot be brought up, or `kubectl` is missing for another.
    pub fn choose(own_program: &Path, wanted: LocalArgs) -> Result<Self> {
        if std::env::var(USE_CURRENT_CONTEXT).is_ok_and(|value| value == "1") {
            if wanted != LocalArgs::default() {
                bail!("{USE_CURRENT_CONTEXT}=1: what that Kubernetes is, is not ours to say");
            }
            return Self::current();
        }
        local(own_program, wanted).map(|local| Self::Local(Box::new(local)))
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

/// The local Kubernetes, brought up as it is wanted.
///
/// # Errors
/// When it cannot be brought up, or is another one.
pub fn local(own_program: &Path, wanted: LocalArgs) -> Result<Local> {
    up::up(own_program, wanted.settings(own_program)?.as_ref())
}

fn with_kubeconfig(mut command: Command, local: &Local) -> Command {
    command.env("KUBECONFIG", local.kubeconfig());
    command
}
