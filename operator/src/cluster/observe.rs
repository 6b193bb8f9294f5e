//! Observes one cluster: pods, claims and the StatefulSet from the caches, what each member
//! reports, and the member list as a quorum confirms it. I/O, no decisions.

use std::collections::BTreeMap;

use dengine_crds::DEngineClusterStatus;
use dengine_crds::cluster::REPLICAS_MAX;
use dengine_crds::names::{self, annotations, labels};
use dengine_protocol::v1;
use futures::future::join_all;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};

use super::benchmarks::Benchmarks;
use super::model::{Claim, Identity, Member, Membership, Observed, Ordinal, Pod, Report};
use super::pod_trouble::{broken, condition, silent, trouble};
use super::replacements::seen;
use super::resources::stateful_set;
use super::standing::{self, Standing};
use super::validate::Cluster;
use super::versions::Version;
use super::{old_volumes, refused_steps};
use crate::apply::controller;
use crate::context::{Context, now};
use crate::members::Members;

/// Caches of the objects that the operator created, filtered by its labels.
#[derive(Clone, Debug)]
pub struct Caches {
    pub stateful_sets: Store<StatefulSet>,
    pub pods: Store<core::Pod>,
    pub claims: Store<core::PersistentVolumeClaim>,
    pub services: Store<core::Service>,
    pub accounts: Store<core::ServiceAccount>,
    pub budgets: Store<k8s_openapi::api::policy::v1::PodDisruptionBudget>,
    /// PersistentVolumes that are kept, of all clusters. Empty if the operator may not list them.
    pub volumes: Store<core::PersistentVolume>,
    pub benchmarks: Benchmarks,
}

/// What was observed, with what is needed to act on it.
#[derive(Debug)]
pub(crate) struct Observation {
    /// For the planner and the status.
    pub observed: Observed,
    pub addresses: BTreeMap<Ordinal, String>,
    pub stateful_set: Option<std::sync::Arc<StatefulSet>>,
    pub claims: BTreeMap<Ordinal, std::sync::Arc<core::PersistentVolumeClaim>>,
}

pub(crate) async fn observe(
    context: &Context,
    caches: &Caches,
    cluster: &Cluster,
    status: &DEngineClusterStatus,
) -> Observation {
    let (members, now) = (&context.members, now());
    let stateful_set = find(
        &caches.stateful_sets,
        cluster,
        &names::cluster::stateful_set(&cluster.name),
    );
    let size = ordinals_max(stateful_set.as_deref());
    let pods = of_cluster(&caches.pods, cluster, size, names::cluster::pod);
    let claims = of_cluster(&caches.claims, cluster, size, names::cluster::claim);
    let (addresses, answers) = ask(members, cluster, &pods).await;

    let (name, namespace) = (&cluster.name, &cluster.namespace);
    let standing = standing(caches, name, namespace, &cluster.owner.uid);
    let recorded_version = status.cluster_version.as_deref().and_then(Version::parse);
    let cluster_id = status.cluster_id.as_ref().and_then(|id| id.parse().ok());
    let cluster_id = cluster_id.or(standing.cluster_id);
    let membership = membership(members, cluster, cluster_id, &addresses, &answers).await;
    let refused = refused(context, stateful_set.as_deref(), &pods).await;
    let set = stateful_set.as_deref();
    let set = set.filter(|set| standing::is_its(set, name, &cluster.owner.uid));
    let replaced = status
        .replacements
        .iter()
        .filter_map(|one| Some((ordinal_of(cluster, &one.name)?, seen(one, &now)?)))
        .collect();
    let observed = Observed {
        cluster_id,
        seed_folder_id: status.seed_folder_id.clone(),
        had_members: !status.members.is_empty() || standing.cluster_id.is_some(),
        stateful_set_replicas: stateful_set.as_ref().map(|set| replicas(set)),
        pods: pods
            .iter()
            .map(|(ordinal, pod)| {
                let claim = claims.get(ordinal).map(AsRef::as_ref);
                let answer = answers.get(ordinal);
                (*ordinal, view(context, pod, claim, answer, set, &now))
            })
            .collect(),
        claims: claims
            .iter()
            .map(|(ordinal, claim)| (*ordinal, claim_view(context, claim)))
            .collect(),
        membership,
        refused,
        cluster_version: recorded_version.max(standing.cluster_version),
        kept: old_volumes::kept(&caches.volumes, cluster, cluster_id, &replaced),
        replaced,
    };
    Observation {
        observed,
        addresses,
        stateful_set,
        claims,
    }
}

/// Asks every pod that runs. Returns the addresses, but for those at which the member of another
/// pod answered, and the answers.
async fn ask(
    members: &Members,
    cluster: &Cluster,
    pods: &BTreeMap<Ordinal, std::sync::Arc<core::Pod>>,
) -> (
    BTreeMap<Ordinal, String>,
    BTreeMap<Ordinal, v1::StatusResponse>,
) {
    let mut addresses: BTreeMap<Ordinal, String> = pods
        .iter()
        .filter_map(|(ordinal, pod)| Some((*ordinal, address(pod)?)))
        .collect();
    let asked = addresses.iter().map(|(ordinal, ip)| {
        let ready = pods.get(ordinal).is_some_and(|pod| is_ready(pod));
        async move { (*ordinal, members.status(ip, ready).await) }
    });
    let mut answers: BTreeMap<Ordinal, v1::StatusResponse> = join_all(asked)
        .await
        .into_iter()
        .filter_map(|(ordinal, status)| Some((ordinal, status?)))
        .collect();
    answers.retain(|ordinal, answer| {
        let own = is_from(cluster, *ordinal, answer);
        if !own {
            addresses.remove(ordinal);
        }
        own
    });
    (addresses, answers)
}

/// What the StatefulSet records about the cluster, or its claims while there is none. The
/// StatefulSet of a deleted resource may still exist, until it is garbage-collected: then its
/// claims count.
pub(crate) fn standing(caches: &Caches, cluster: &str, namespace: &str, uid: &str) -> Standing {
    let set = ObjectRef::new(&names::cluster::stateful_set(cluster)).within(namespace);
    let set = caches.stateful_sets.get(&set);
    if let Some(standing) = set.and_then(|set| Standing::of(&set, cluster, uid)) {
        return standing;
    }
    let claims = (0..REPLICAS_MAX).filter_map(|ordinal| {
        let claim = ObjectRef::new(&names::cluster::claim(cluster, ordinal));
        caches.claims.get(&claim.within(namespace))
    });
    // A claim that is being deleted takes its volume with it.
    let is_its = |claim: &core::PersistentVolumeClaim| {
        let said = claim.labels().get(labels::CLUSTER);
        let stays = claim.metadata.deletion_timestamp.is_none();
        stays && said.is_some_and(|said| said == cluster)
    };
    let claims: Vec<_> = claims.filter(|claim| is_its(claim)).collect();
    Standing::of_claims(claims.iter().map(AsRef::as_ref))
}

/// Why pods are missing, if the API server refused them.
async fn refused(
    context: &Context,
    set: Option<&StatefulSet>,
    pods: &BTreeMap<Ordinal, std::sync::Arc<core::Pod>>,
) -> Option<String> {
    let set = set?;
    let complete = (0..replicas(set)).all(|ordinal| pods.contains_key(&ordinal));
    if complete {
        return None;
    }
    context.refusals.of(&context.client, set).await
}

/// The object of this name in the cluster's namespace.
pub(crate) fn find<K>(store: &Store<K>, cluster: &Cluster, name: &str) -> Option<std::sync::Arc<K>>
where
    K: kube::Resource<DynamicType = ()> + Clone + 'static,
{
    store.get(&ObjectRef::new(name).within(&cluster.namespace))
}

/// Ordinals below which pods and claims are looked up: those that a cluster may have, and those
/// that the StatefulSet was scaled to by hand.
fn ordinals_max(set: Option<&StatefulSet>) -> u32 {
    let there = set.and_then(|set| set.status.as_ref());
    let there = there.map_or(0, |status| u32::try_from(status.replicas).unwrap_or(0));
    set.map_or(0, replicas).max(there).max(REPLICAS_MAX)
}

/// The cluster's objects of one kind by the ordinals in their names. Each is looked up: going
/// through all objects would cost a thousand clusters a million steps.
fn of_cluster<K>(
    store: &Store<K>,
    cluster: &Cluster,
    size: u32,
    name: impl Fn(&str, u32) -> String,
) -> BTreeMap<Ordinal, std::sync::Arc<K>>
where
    K: kube::Resource<DynamicType = ()> + Clone + 'static,
{
    (0..size)
        .filter_map(|ordinal| {
            Some((
                ordinal,
                find(store, cluster, &name(&cluster.name, ordinal))?,
            ))
        })
        .filter(|(_, object)| object.labels().get(labels::CLUSTER) == Some(&cluster.name))
        .collect()
}

fn ordinal_of(cluster: &Cluster, pod: &str) -> Option<Ordinal> {
    names::cluster::ordinal(&cluster.name, pod)
}

fn replicas(set: &StatefulSet) -> u32 {
    let replicas = set
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    u32::try_from(replicas).unwrap_or(0)
}

/// Only of a pod that runs and is not being deleted.
fn address(pod: &core::Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let runs = status.phase.as_deref() == Some("Running");
    let stays = pod.metadata.deletion_timestamp.is_none();
    (runs && stays)
        .then(|| status.pod_ip.clone())
        .flatten()
        .filter(|ip| !ip.is_empty())
}

/// Whether this pod's member answered. While a node is away, Kubernetes' view of its pods is old,
/// and other pods may have their addresses. A member that reports no address is accepted.
fn is_from(cluster: &Cluster, ordinal: Ordinal, answer: &v1::StatusResponse) -> bool {
    let pod = names::cluster::pod(&cluster.name, ordinal);
    answer.peer_address.is_empty()
        || answer.peer_address == stateful_set::peer_address(cluster, &pod)
}

/// Whether another object controls the pod, which may be deleted already. A StatefulSet adopts pods
/// without a controller.
fn is_of_another(pod: &core::Pod, set: Option<&StatefulSet>) -> bool {
    let set = set.and_then(|set| set.metadata.uid.as_deref());
    let controller = controller(pod.owner_references());
    controller.is_some_and(|controller| Some(controller) != set)
}

fn is_ready(pod: &core::Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

fn view(
    context: &Context,
    pod: &core::Pod,
    claim: Option<&core::PersistentVolumeClaim>,
    answer: Option<&v1::StatusResponse>,
    set: Option<&StatefulSet>,
    now: &Time,
) -> Pod {
    let uid = pod.uid().unwrap_or_default();
    Pod {
        terminating: pod.metadata.deletion_timestamp.is_some(),
        of_another: is_of_another(pod, set),
        ready: is_ready(pod),
        template_hash: pod.annotations().get(annotations::TEMPLATE_HASH).cloned(),
        report: answer.map(report),
        trouble: trouble(pod, claim, now),
        silent: silent(pod, now).filter(|_| answer.is_none()),
        broken: broken(pod, context.ends.of(pod)),
        refused: refused_steps::of(context, &uid),
        uid,
    }
}

fn report(status: &v1::StatusResponse) -> Report {
    let running = status.lifecycle() == v1::Lifecycle::Running;
    Report {
        folder_id: status.folder_id.clone(),
        identity: running.then_some(Identity {
            cluster_id: status.cluster_id,
            member_id: status.member_id,
        }),
        version: status.version.clone(),
        term: status.term,
        ready: status.ready,
        low_on_space: status.low_on_space,
        snapshot_lacks_bytes: status.snapshot_lacks_bytes,
        stalled: status.stalled,
    }
}

fn claim_view(context: &Context, claim: &core::PersistentVolumeClaim) -> Claim {
    let uid = claim.uid().unwrap_or_default();
    Claim {
        marked_for: claim
            .annotations()
            .get(annotations::REMOVED_MEMBER)
            .and_then(|text| parse_mark(text)),
        terminating: claim.metadata.deletion_timestamp.is_some(),
        lost: claim
            .status
            .as_ref()
            .is_some_and(|status| status.phase.as_deref() == Some("Lost")),
        volume: claim
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_name.clone()),
        empty: is_surely_empty(claim),
        refused: refused_steps::of(context, &uid),
        uid,
    }
}

/// Whether no volume was bound to it, and none with data is meant to be.
fn is_surely_empty(claim: &core::PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    let pending = status.and_then(|status| status.phase.as_deref()) == Some("Pending");
    let spec = claim.spec.as_ref();
    let from_scratch = spec.is_some_and(|spec| {
        spec.volume_name.is_none() && spec.data_source.is_none() && spec.data_source_ref.is_none()
    });
    pending && from_scratch
}

/// Value of the annotation that names the removed member of a claim.
pub(crate) fn mark(identity: Identity) -> String {
    format!("{}/{}", identity.cluster_id, identity.member_id)
}

/// The identity in such a value.
pub(crate) fn parse_mark(text: &str) -> Option<Identity> {
    let (cluster_id, member_id) = text.split_once('/')?;
    Some(Identity {
        cluster_id: cluster_id.parse().ok()?,
        member_id: member_id.parse().ok()?,
    })
}

/// Asks the leader, then any other member: each forwards to the leader.
async fn membership(
    members: &Members,
    cluster: &Cluster,
    cluster_id: Option<u64>,
    addresses: &BTreeMap<Ordinal, String>,
    answers: &BTreeMap<Ordinal, v1::StatusResponse>,
) -> Option<Membership> {
    let cluster_id = cluster_id?;
    let mut asked: Vec<(&Ordinal, &v1::StatusResponse)> = answers
        .iter()
        .filter(|(_, status)| status.lifecycle() == v1::Lifecycle::Running)
        .filter(|(_, status)| status.cluster_id == cluster_id)
        .collect();
    asked.sort_by_key(|(_, status)| status.role() != v1::Role::Leader);
    for (ordinal, _) in asked {
        let Some(ip) = addresses.get(ordinal) else {
            continue;
        };
        match members.members(ip).await {
            Some(response) if response.cluster_id == cluster_id => {
                return Some(membership_view(cluster, response));
            }
            _ => {}
        }
    }
    None
}

fn membership_view(cluster: &Cluster, response: v1::MembersResponse) -> Membership {
    let mut members: Vec<Member> = response
        .members
        .into_iter()
        .filter_map(|progress| {
            let member = progress.member?;
            Some(Member {
                id: member.id,
                ordinal: ordinal_of(cluster, &member.name),
                name: member.name,
                folder_id: member.folder_id,
                voter: member.voter,
                leader: progress.leader,
                reachable: progress.reachable,
                lag_entries: progress.lag_entries,
            })
        })
        .collect();
    members.sort_by_key(|member| member.id);
    Membership {
        cluster_id: response.cluster_id,
        term: response.term,
        members,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::validate::tests::cluster;

    #[test]
    fn only_objects_of_the_cluster_are_found_by_name() {
        let demo = cluster("demo");
        let (store, mut writer) = kube::runtime::reflector::store();
        for (name, cluster) in [
            ("demo-0", "demo"),
            ("demo-9", "demo"),
            ("demo-1", "another"),
            ("demo-x-2", "demo-x"),
        ] {
            let mut pod = core::Pod::default();
            pod.metadata.name = Some(name.to_owned());
            pod.metadata.namespace = Some("test".to_owned());
            let label = (labels::CLUSTER.to_owned(), cluster.to_owned());
            pod.metadata.labels = Some([label].into());
            writer.apply_watcher_event(&kube::runtime::watcher::Event::Apply(pod));
        }
        let found = |size: u32| {
            let found = of_cluster(&store, &demo, size, names::cluster::pod);
            found.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(found(7), [0]);
        assert_eq!(found(10), [0, 9], "somebody scaled it by hand");
    }

    #[test]
    fn only_a_claim_that_never_had_a_volume_is_surely_empty() {
        let pending = core::PersistentVolumeClaim {
            spec: Some(core::PersistentVolumeClaimSpec::default()),
            status: Some(core::PersistentVolumeClaimStatus {
                phase: Some("Pending".to_owned()),
                ..core::PersistentVolumeClaimStatus::default()
            }),
            ..core::PersistentVolumeClaim::default()
        };
        assert!(is_surely_empty(&pending));
        let mut restored = pending.clone();
        restored.spec.as_mut().unwrap().volume_name = Some("an-old-one".to_owned());
        assert!(!is_surely_empty(&restored));
        let mut from_snapshot = pending.clone();
        from_snapshot.spec.as_mut().unwrap().data_source =
            Some(core::TypedLocalObjectReference::default());
        assert!(!is_surely_empty(&from_snapshot));
        let mut bound = pending;
        bound.status.as_mut().unwrap().phase = Some("Bound".to_owned());
        assert!(!is_surely_empty(&bound));
    }

    #[test]
    fn another_member_may_answer_at_a_pods_address() {
        let demo = cluster("demo");
        let is_from = |peer_address: &str| {
            let answer = v1::StatusResponse {
                peer_address: peer_address.to_owned(),
                ..v1::StatusResponse::default()
            };
            is_from(&demo, 1, &answer)
        };
        assert!(is_from("demo-1.demo-peer.test.svc:4101"));
        assert!(is_from(""), "it does not say");
        for other in [
            "demo-0.demo-peer.test.svc:4101",
            "demo-1.demo-peer.prod.svc:4101",
            "other-1.other-peer.test.svc:4101",
        ] {
            assert!(!is_from(other), "{other}");
        }
    }

    #[test]
    fn a_mark_can_be_parsed() {
        let identity = Identity {
            cluster_id: u64::MAX,
            member_id: 7,
        };
        assert_eq!(parse_mark(&mark(identity)), Some(identity));
        assert_eq!(parse_mark("7"), None);
    }
}
