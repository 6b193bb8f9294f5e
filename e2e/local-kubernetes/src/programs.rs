//! Builds the programs of the local Kubernetes from Go modules, once, into the cache.
//!
//! The module files in `programs/` are part of this binary, and a build's place in the cache is
//! named after a hash of them: a checkout never holds a build product, and a changed version never
//! meets an old binary.

use std::path::{Path, PathBuf};
use std::{fmt, iter};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use crate::progress::ProgressStep;
use crate::{cache, shell};

/// Programs that one Go module gives.
struct Module {
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
    /// Each program with the package that holds its `main`.
    programs: &'static [(&'static str, &'static str)],
    ldflags: &'static str,
    /// How long a first build takes, for the person who waits.
    patience: &'static str,
}

macro_rules! files {
    ($folder:literal: $($file:literal),+) => {
        &[$(($file, include_str!(concat!("../programs/", $folder, "/", $file)))),+]
    };
}

/// `$number` is what its module file names, such as `1.36.3`, of which `$minor` is the second part.
macro_rules! kubernetes {
    ($folder:literal, $number:literal, $minor:literal) => {
        Module {
            name: $folder,
            files: files!($folder: "go.mod", "go.sum"),
            programs: &[
                ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
                (
                    "kube-controller-manager",
                    "k8s.io/kubernetes/cmd/kube-controller-manager",
                ),
                ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
                ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
                ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
                ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
            ],
            ldflags: concat!(
                "-s -w -X k8s.io/component-base/version.gitVersion=v",
                $number,
                " -X k8s.io/component-base/version.gitMajor=1",
                " -X k8s.io/component-base/version.gitMinor=",
                $minor,
                " -X k8s.io/component-base/version.gitTreeState=clean"
            ),
            patience: "about 11 minutes on two cores, once",
        }
    };
}

const KUBERNETES_1_36: Module = kubernetes!("kubernetes", "1.36.3", "36");
const KUBERNETES_1_34: Module = kubernetes!("kubernetes-1.34", "1.34.4", "34");

/// What each local Kubernetes has besides.
const MODULES: [Module; 4] = [
    Module {
        name: "etcd",
        files: files!("etcd": "go.mod", "go.sum"),
        programs: &[
            ("etcd", "go.etcd.io/etcd/server/v3"),
            ("etcdctl", "go.etcd.io/etcd/etcdctl/v3"),
        ],
        ldflags: "-s -w",
        patience: "about a minute, once",
    },
    Module {
        name: "coredns",
        files: files!("coredns": "go.mod", "go.sum", "main.go"),
        programs: &[("coredns", ".")],
        ldflags: "-s -w",
        patience: "about a minute, once",
    },
    Module {
        name: "helm",
        files: files!("helm": "go.mod", "go.sum"),
        programs: &[("helm", "helm.sh/helm/v3/cmd/helm")],
        ldflags: "-s -w",
        patience: "about two minutes, once",
    },
    Module {
        name: "pause",
        files: files!("pause": "go.mod", "main.go"),
        programs: &[("pause", ".")],
        ldflags: "-s -w",
        patience: "seconds, once",
    },
];

/// An etcd that no Kubernetes here runs on.
const ETCD_3_7: Module = Module {
    name: "etcd-3.7",
    files: files!("etcd-3.7": "go.mod", "go.sum"),
    programs: &[("etcd", "go.etcd.io/etcd/server/v3")],
    ldflags: "-s -w",
    patience: "about a minute, once",
};

/// What plays the kubelets of nodes that are not there, for whoever wants a thousand of them.
const KWOK: Module = Module {
    name: "kwok",
    files: files!("kwok": "go.mod", "go.sum"),
    programs: &[("kwok", "sigs.k8s.io/kwok/cmd/kwok")],
    ldflags: "-s -w",
    patience: "about three minutes, once",
};

/// A Kubernetes that can run here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum KubernetesVersion {
    /// The newest.
    #[default]
    #[serde(rename = "1.36")]
    V1_36,
    /// The oldest that the operator is tested on.
    #[serde(rename = "1.34")]
    V1_34,
}

impl KubernetesVersion {
    /// The newest first.
    pub const ALL: [Self; 2] = [Self::V1_36, Self::V1_34];

    /// As its module file names it.
    #[must_use]
    pub fn number(self) -> &'static str {
        match self {
            Self::V1_36 => "1.36.3",
            Self::V1_34 => "1.34.4",
        }
    }

    fn module(self) -> &'static Module {
        match self {
            Self::V1_36 => &KUBERNETES_1_36,
            Self::V1_34 => &KUBERNETES_1_34,
        }
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.number())
    }
}

/// An etcd that measurements can be beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EtcdVersion {
    /// The newest.
    V3_7,
    /// The one below the local Kubernetes.
    V3_6,
}

impl EtcdVersion {
    /// The newest first.
    pub const ALL: [Self; 2] = [Self::V3_7, Self::V3_6];

    /// As its module file names it.
    #[must_use]
    pub fn number(self) -> &'static str {
        match self {
            Self::V3_7 => "3.7.3",
            Self::V3_6 => "3.6.16",
        }
    }
}

/// The programs that were built, by name.
#[derive(Debug, Clone)]
pub struct Programs {
    folders: Vec<(PathBuf, &'static [(&'static str, &'static str)])>,
}

impl Programs {
    /// The path of a program that one of the modules gives.
    ///
    /// # Panics
    /// When no module gives it: the names are constants of this crate.
    #[must_use]
    pub fn path(&self, program: &str) -> PathBuf {
        let (folder, _) = self
            .folders
            .iter()
            .find(|(_, programs)| programs.iter().any(|(name, _)| *name == program))
            .expect("only programs of MODULES are asked for");
        folder.join(program)
    }
}

/// Builds what a Kubernetes of that version needs and is not in the cache yet.
///
/// # Errors
/// When Go is missing or a build fails.
pub fn ensure(version: KubernetesVersion) -> Result<Programs> {
    let cache = programs_folder()?;
    let folders = iter::once(version.module())
        .chain(&MODULES)
        .map(|module| Ok((module.ensure(&cache)?, module.programs)))
        .collect::<Result<_>>()?;
    Ok(Programs { folders })
}

/// Builds only Helm, for a Kubernetes that is not ours.
///
/// # Errors
/// As [`ensure`].
pub fn helm() -> Result<PathBuf> {
    one("helm")
}

/// Builds only etcd, for measurements without a Kubernetes.
///
/// # Errors
/// As [`ensure`].
pub fn etcd(version: EtcdVersion) -> Result<PathBuf> {
    match version {
        EtcdVersion::V3_6 => one("etcd"),
        EtcdVersion::V3_7 => Ok(ETCD_3_7.ensure(&programs_folder()?)?.join("etcd")),
    }
}

/// Builds only etcd's command line, for a Kubernetes that is not ours.
///
/// # Errors
/// As [`ensure`].
pub fn etcdctl() -> Result<PathBuf> {
    one("etcdctl")
}

/// Builds only kwok.
///
/// # Errors
/// As [`ensure`].
pub fn kwok() -> Result<PathBuf> {
    Ok(KWOK.ensure(&programs_folder()?)?.join("kwok"))
}

/// A program of a module.
fn one(name: &str) -> Result<PathBuf> {
    let has = |module: &&Module| module.programs.iter().any(|(program, _)| *program == name);
    let module = MODULES
        .iter()
        .find(has)
        .context("only programs of MODULES are asked for")?;
    Ok(module.ensure(&programs_folder()?)?.join(name))
}

fn programs_folder() -> Result<PathBuf> {
    Ok(cache::root()?.join("programs"))
}

impl Module {
    fn ensure(&self, cache: &Path) -> Result<PathBuf> {
        let folder = cache.join(format!("{}-{}", self.name, self.digest()));
        if self
            .programs
            .iter()
            .any(|(program, _)| !folder.join(program).is_file())
        {
            let mut step =
                ProgressStep::start(format!("Building {} ({})", self.name, self.patience));
            self.build(&folder, &mut step)
                .with_context(|| format!("building {} from its Go module", self.name))?;
            step.done("");
        }
        Ok(folder)
    }

    fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for (name, text) in self.files.iter().chain(self.programs) {
            hash.update(name);
            hash.update([0]);
            hash.update(text);
            hash.update([0]);
        }
        hash.update(self.ldflags);
        hex(&hash.finalize()[..6])
    }

    fn build(&self, folder: &Path, step: &mut ProgressStep) -> Result<()> {
        let source = folder.join("source");
        fs_err::create_dir_all(&source)?;
        for (name, text) in self.files {
            fs_err::write(source.join(name), text)?;
        }
        for (program, package) in self.programs {
            step.note(program);
            let unfinished = folder.join(format!(".{program}.{}", std::process::id()));
            let mut go = shell::command("go");
            go.current_dir(&source)
                .env("CGO_ENABLED", "0")
                .env("GOFLAGS", "-mod=readonly -buildvcs=false");
            go.args(["build", "-v", "-trimpath", "-ldflags", self.ldflags, "-o"])
                .arg(&unfinished)
                .arg(package);
            shell::run_watched(&mut go, |package| {
                step.detail(format_args!("{program}: {package}"));
            })
            .context("is Go 1.26 or newer installed, or one from 1.21 on that may download it?")?;
            fs_err::rename(&unfinished, folder.join(program))?;
        }
        Ok(())
    }
}

/// Bytes as lower-case hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_etcd_is_the_version_that_it_is_called() {
        let below_kubernetes = MODULES.iter().find(|module| module.name == "etcd");
        for (version, module) in [
            (EtcdVersion::V3_6, below_kubernetes.expect("it has one")),
            (EtcdVersion::V3_7, &ETCD_3_7),
        ] {
            let named = format!("go.etcd.io/etcd/server/v3 v{}\n", version.number());
            let (_, go_mod) = module.files[0];
            assert!(go_mod.contains(&named), "{named}");
        }
    }

    #[test]
    fn each_kubernetes_is_the_version_that_it_is_called() {
        for version in KubernetesVersion::ALL {
            let (module, number) = (version.module(), version.number());
            let (_, go_mod) = module.files[0];
            let required = format!("require k8s.io/kubernetes v{number}");
            let is_required = |line: &str| line.trim_end_matches(" // indirect") == required;
            assert!(go_mod.lines().any(is_required), "{required}");
            let minor = number.split('.').nth(1).expect("it has one");
            let said = [
                format!("gitVersion=v{number} "),
                format!("gitMinor={minor} "),
            ];
            assert!(
                said.iter().all(|it| module.ldflags.contains(it)),
                "{said:?}"
            );
        }
    }
}
