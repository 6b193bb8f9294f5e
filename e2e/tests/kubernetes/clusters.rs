//! What the tests of the operator do to clusters, and what they look at.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dengine_crds::cluster::MemberRole;
use dengine_crds::names::labels;
use dengine_crds::{DEngineCluster, DEngineClusterStatus, conditions, names};
use dengine_e2e::observe::{self, HasConditions as _};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::load::say;
use crate::support::World;

/// With which the server ends if its member has to be replaced.
const EXIT_REPLACE: i32 = 3;
/// How long a change of up to four members may take on a busy machine.
pub(crate) const CHANGE_PATIENCE: Duration = Duration::from_secs(300);

impl World {
    /// Makes a cluster with this spec, and waits until it is Ready.
    pub(crate) async fn make_cluster_with(
        &self,
        name: &str,
        spec: Value,
    ) -> Result<DEngineCluster> {
        self.begin_cluster(name, spec).await?;
        self.await_ready(name).await
    }

    /// Makes a cluster with this spec, and does not wait for it.
    pub(crate) async fn begin_cluster(&self, name: &str, spec: Value) -> Result<()> {
        let made = serde_json::from_value(json!({
            "apiVersion": "dengine.io/v1alpha1",
            "kind": "DEngineCluster",
            "metadata": {"name": name},
            "spec": spec,
        }))?;
        self.api::<DEngineCluster>()
            .create(&PostParams::default(), &made)
            .await?;
        Ok(())
    }

    /// Changes a cluster as `kubectl edit` does.
    pub(crate) async fn edit(&self, name: &str, patch: Value) -> Result<()> {
        self.api::<DEngineCluster>()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Waits until the operator has nothing left to do for a cluster, and returns it.
    pub(crate) async fn await_settled(
        &self,
        name: &str,
        replicas: usize,
    ) -> Result<DEngineCluster> {
        let wished = |cluster: &DEngineCluster| is_settled(cluster, replicas);
        self.await_cluster(name, CHANGE_PATIENCE, wished).await
    }

    /// As [`Self::await_settled`], without waiting.
    pub(crate) async fn is_settled(&self, name: &str, replicas: usize) -> Result<DEngineCluster> {
        let cluster = self.api::<DEngineCluster>().get(name).await?;
        ensure!(is_settled(&cluster, replicas), "{:#?}", cluster.status);
        Ok(cluster)
    }

    pub(crate) async fn await_cluster(
        &self,
        name: &str,
        patience: Duration,
        wished: impl FnMut(&DEngineCluster) -> bool,
    ) -> Result<DEngineCluster> {
        observe::until(&self.api::<DEngineCluster>(), name, patience, wished).await
    }

    /// UIDs of a kind of a cluster's objects, by name. What is being deleted is not there any more.
    pub(crate) async fn uids<K>(&self, cluster: &str) -> Result<BTreeMap<String, String>>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + Debug,
        K::DynamicType: Default,
    {
        let of_cluster = ListParams::default().labels(&format!("{}={cluster}", labels::CLUSTER));
        let found = self.api::<K>().list(&of_cluster).await?;
        Ok(found
            .items
            .iter()
            .filter(|object| object.meta().deletion_timestamp.is_none())
            .map(|object| (object.name_any(), object.uid().unwrap_or_default()))
            .collect())
    }

    /// Takes a pod away as a crash of its node would: at once.
    pub(crate) async fn kill_pod(&self, name: &str) -> Result<()> {
        let at_once = DeleteParams::default().grace_period(0);
        self.api::<Pod>().delete(name, &at_once).await?;
        Ok(())
    }

    /// Waits until the pod's server has ended by itself, for its folder is of no use any more.
    pub(crate) async fn await_refusal_of_folder(&self, name: &str) -> Result<()> {
        let begun = std::time::Instant::now();
        loop {
            let pod = self.api::<Pod>().get_opt(name).await?;
            let containers = pod.and_then(|pod| pod.status?.container_statuses);
            let ended = containers.into_iter().flatten().any(|it| {
                let states = [it.state, it.last_state].into_iter().flatten();
                let mut ends = states.filter_map(|state| state.terminated);
                ends.any(|end| end.exit_code == EXIT_REPLACE)
            });
            if ended {
                return Ok(());
            }
            anyhow::ensure!(begun.elapsed() < CHANGE_PATIENCE, "{name} runs");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }

    pub(crate) async fn pod_ip(&self, name: &str) -> Result<String> {
        let pod = self.api::<Pod>().get(name).await?;
        let ip = pod.status.and_then(|status| status.pod_ip);
        ip.with_context(|| format!("{name} has no address"))
    }

    /// The data folder of a member, on this machine: local volumes are folders.
    pub(crate) async fn folder(&self, cluster: &str, ordinal: u32) -> Result<PathBuf> {
        let claim = names::cluster::claim(cluster, ordinal);
        let claim = self.api::<PersistentVolumeClaim>().get(&claim).await?;
        let volume = claim.spec.and_then(|spec| spec.volume_name);
        let volume = volume.context("the claim has a volume")?;
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let volume = volumes.get(&volume).await?;
        let local = volume.spec.and_then(|spec| spec.local);
        let path = local
            .context("the volume is a folder of this machine")?
            .path;
        Ok(PathBuf::from(path).join("data"))
    }

    /// The events about a cluster, oldest first: reason and words.
    pub(crate) async fn events(&self, cluster: &str) -> Result<Vec<(String, String)>> {
        let mut found = self
            .api::<Event>()
            .list(&ListParams::default())
            .await?
            .items;
        found.retain(|event| {
            let about = event.regarding.as_ref();
            about.is_some_and(|about| {
                about.kind.as_deref() == Some("DEngineCluster")
                    && about.name.as_deref() == Some(cluster)
            })
        });
        found.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
        let words = |event: Event| {
            (
                event.reason.unwrap_or_default(),
                event.note.unwrap_or_default(),
            )
        };
        Ok(found.into_iter().map(words).collect())
    }

    /// Prints what the events tell, for the person who reads the test's output.
    pub(crate) async fn print_events(&self, cluster: &str) -> Result<()> {
        for (reason, note) in self.events(cluster).await? {
            say(format_args!("      {reason}: {note}"));
        }
        Ok(())
    }
}

fn is_settled(cluster: &DEngineCluster, replicas: usize) -> bool {
    let members = status(cluster).members;
    let voters = members.iter().filter(|m| m.role != MemberRole::Learner);
    observe::has_condition(cluster, conditions::READY)
        && observe::has_condition(cluster, conditions::MEMBERS_UPDATED)
        && is_false(cluster, conditions::PROGRESSING)
        && voters.count() == replicas
        && members.len() == replicas
}

pub(crate) fn status(cluster: &DEngineCluster) -> DEngineClusterStatus {
    cluster.status.clone().unwrap_or_default()
}

pub(crate) fn leader(cluster: &DEngineCluster) -> Result<String> {
    status(cluster).leader.context("the cluster has a leader")
}

/// The ordinal of a member that follows.
pub(crate) fn follower(cluster: &DEngineCluster) -> Result<u32> {
    let leader = leader(cluster)?;
    let name = cluster.name_any();
    let members = status(cluster).members;
    let mut others = members.iter().filter(|member| member.name != leader);
    let ordinal = others.find_map(|member| names::cluster::ordinal(&name, &member.name));
    ordinal.context("the cluster has a follower")
}

/// The ids of the members by their names.
pub(crate) fn ids(cluster: &DEngineCluster) -> BTreeMap<String, String> {
    let members = status(cluster).members.into_iter();
    members.map(|member| (member.name, member.id)).collect()
}

/// Whether the condition is `False` for the generation that the object has now.
pub(crate) fn is_false(cluster: &DEngineCluster, type_: &str) -> bool {
    cluster.conditions().iter().any(|condition| {
        condition.type_ == type_
            && condition.status == "False"
            && condition.observed_generation == cluster.metadata.generation
    })
}

/// The words of a condition.
pub(crate) fn message(cluster: &DEngineCluster, type_: &str) -> String {
    let conditions = cluster.conditions().iter();
    let mut found = conditions.filter(|condition| condition.type_ == type_);
    found.next().map(|c| c.message.clone()).unwrap_or_default()
}

/// Exactly the claims of the first `replicas` members are there, and those that were there before
/// are the same.
pub(crate) async fn check_claims(
    world: &World,
    cluster: &str,
    replicas: u32,
    before: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>> {
    let wanted: Vec<String> = (0..replicas)
        .map(|ordinal| names::cluster::claim(cluster, ordinal))
        .collect();
    let there = world.uids::<PersistentVolumeClaim>(cluster).await?;
    ensure!(
        there.keys().eq(wanted.iter()),
        "claims {there:?}, wanted {wanted:?}"
    );
    for (name, uid) in before {
        let same = there.get(name).is_none_or(|now| now == uid);
        ensure!(same, "the claim {name} was replaced");
    }
    Ok(there)
}
