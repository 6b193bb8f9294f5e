//! What a caller may choose about the local cluster. It is written into the cluster's folder, where
//! the node reads it.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::programs::KubernetesVersion;

/// How the local cluster is started; by default on etcd.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Settings {
    #[serde(default)]
    pub kubernetes: KubernetesVersion,
    /// What the API server keeps its objects in.
    pub store: Store,
    /// How long it keeps Events; if not set, as long as Kubernetes has it, an hour.
    pub event_ttl_seconds: Option<u32>,
    /// Whether the API server takes, and controllers send, as many requests as in a large cluster.
    #[serde(default)]
    pub raised_limits: bool,
}

/// What an API server keeps its objects in.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Store {
    /// One member of etcd.
    #[default]
    Etcd,
    /// As many members as there are of DEngine, for whoever compares.
    EtcdOfThree,
    /// Three members of DEngine. This is its program, of which the cluster gets a copy.
    Dengine(PathBuf),
}

impl Store {
    /// What people call it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::EtcdOfThree => "etcd (three members)",
            Self::Dengine(_) => "DEngine",
        }
    }
}

impl Settings {
    /// Those of the cluster that runs, or of the one to start. Whoever wants none in particular
    /// gets whatever runs.
    ///
    /// # Errors
    /// When one runs that is not what is wanted.
    pub(crate) fn agreed(layout: &Layout, running: bool, wanted: Option<&Self>) -> Result<Self> {
        if !running {
            return Ok(wanted.cloned().unwrap_or_default());
        }
        let found = Self::load(layout)?;
        if let Some(wanted) = wanted
            && !found.are_like(wanted)
        {
            bail!(
                "the local Kubernetes is {found}, and {wanted} is wanted: take it down first, with \
                 `make down`"
            );
        }
        Ok(found)
    }

    /// Those of the cluster that was started last; the default ones where none are written.
    ///
    /// # Errors
    /// When they are there and unreadable.
    pub(crate) fn load(layout: &Layout) -> Result<Self> {
        let file = layout.settings();
        if !file.is_file() {
            return Ok(Self::default());
        }
        let text = fs_err::read_to_string(&file)?;
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", file.display()))
    }

    pub(crate) fn save(&self, layout: &Layout) -> Result<()> {
        fs_err::write(layout.settings(), serde_json::to_string_pretty(self)?)?;
        Ok(())
    }

    /// Whether a cluster that was started with these is what the other ones ask for. A program that
    /// was built again since does not make another cluster.
    pub(crate) fn are_like(&self, other: &Self) -> bool {
        let same_store = matches!(
            (&self.store, &other.store),
            (Store::Etcd, Store::Etcd)
                | (Store::EtcdOfThree, Store::EtcdOfThree)
                | (Store::Dengine(_), Store::Dengine(_))
        );
        same_store
            && self.kubernetes == other.kubernetes
            && self.event_ttl_seconds == other.event_ttl_seconds
            && self.raised_limits == other.raised_limits
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.kubernetes, self.store.name())?;
        if let Some(seconds) = self.event_ttl_seconds {
            write!(f, ", with Events that last for {seconds} s")?;
        }
        if self.raised_limits {
            f.write_str(", with raised limits")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_dengine(program: &str) -> Settings {
        Settings {
            store: Store::Dengine(program.into()),
            ..Settings::default()
        }
    }

    #[test]
    fn whoever_wants_nothing_in_particular_gets_what_runs_and_otherwise_etcd() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::at(folder.path());
        let agreed = |running, wanted| Settings::agreed(&layout, running, wanted);
        let new = agreed(false, None).unwrap();
        assert!(new.are_like(&Settings::default()));
        on_dengine("/a/dengine").save(&layout).unwrap();
        let found = agreed(true, None).unwrap();
        assert!(found.are_like(&on_dengine("/b/dengine")));
    }

    #[test]
    fn a_cluster_that_runs_is_not_taken_for_another() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::at(folder.path());
        let short = Settings {
            event_ttl_seconds: Some(20),
            ..on_dengine("dengine")
        };
        short.save(&layout).unwrap();
        let older = Settings {
            kubernetes: KubernetesVersion::V1_34,
            ..short.clone()
        };
        let raised = Settings {
            raised_limits: true,
            ..short.clone()
        };
        for other in [Settings::default(), on_dengine("dengine"), older, raised] {
            let refused = Settings::agreed(&layout, true, Some(&other)).unwrap_err();
            let is = "is v1.36.3 on DEngine, with Events that last for 20 s, and v1.3";
            assert!(refused.to_string().contains(is), "{refused}");
        }
        assert!(Settings::agreed(&layout, true, Some(&short)).is_ok());
    }
}
