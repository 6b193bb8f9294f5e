//! Carries out one step. Each is safe to repeat: members answer a repeated change as they did the
//! first time, and deletions name the UID of the observed object.

use std::collections::BTreeMap;

use dengine_client::AdminClient;
use dengine_crds::DEngineCluster;
use dengine_crds::names::{self, annotations};
use dengine_crds::reasons::events;
use dengine_protocol::{ports, v1};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{Api, Patch};
use serde_json::json;

use super::model::{Identity, Observed, Ordinal};
use super::observe::{Observation, mark};
use super::plan::{MembershipStep, ObjectStep, Record, Removal, Step};
use super::resources::stateful_set;
use super::validate::Cluster;
use super::{old_volumes, replacements};
use crate::apply::{by_us, exactly, is_code};
use crate::context::{Context, Event, now};
use crate::status_writer;

/// Why a step was not carried out. The next reconciliation plans again.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    /// The Kubernetes API refused or did not answer.
    #[error("{0}")]
    Kube(#[from] kube::Error),
    /// A member refused or did not answer.
    #[error("{0}")]
    Member(#[from] dengine_client::Error),
    /// No member can be called.
    #[error("no member answers")]
    NobodyAnswers,
}

impl StepError {
    /// Whether the API server refused the step, rather than not answering.
    pub(super) fn is_answer(&self) -> bool {
        matches!(self, Self::Kube(kube::Error::Api(_)))
    }

    /// Whether the step cannot be done yet; waiting is normal.
    pub(super) fn is_not_yet(&self) -> bool {
        match self {
            Self::Kube(error) => is_code(error, 409) || is_code(error, 404),
            Self::Member(dengine_client::Error::Refused { .. }) => true,
            Self::Member(error) => error.retryable(),
            Self::NobodyAnswers => true,
        }
    }
}

/// Carries out the step. Returns the event that tells of it.
pub(super) async fn execute(
    context: &Context,
    cluster: &Cluster,
    resource: &mut DEngineCluster,
    observation: &mut Observation,
    step: &Step,
) -> Result<Option<Event>, StepError> {
    match step {
        Step::Done | Step::Wait(_) | Step::Blocked(_) => Ok(None),
        Step::Record(record) => write_record(context, resource, observation, record).await,
        Step::Object(step) => {
            change_object(context, cluster, resource, &observation.observed, step).await
        }
        Step::Membership(step) => change_membership(context, cluster, observation, step)
            .await
            .map(Some),
    }
}

async fn write_record(
    context: &Context,
    resource: &mut DEngineCluster,
    observation: &mut Observation,
    record: &Record,
) -> Result<Option<Event>, StepError> {
    match record {
        Record::NewCluster { ordinal, folder_id } => {
            let (id, seed) = (rand::random_range(1..=u64::MAX), Some(folder_id.clone()));
            record_identity(context, resource, observation, id, seed).await?;
            let cluster = resource.name_any();
            tracing::info!(cluster, id, ordinal, "recorded a new cluster");
            Ok(None)
        }
        Record::Adopted { cluster_id } => {
            record_identity(context, resource, observation, *cluster_id, None).await?;
            let note = format!("adopted the existing cluster {cluster_id} from its volumes");
            Ok(Some(Event::normal(events::ADOPTED, note)))
        }
        Record::Replacement {
            member_id,
            name,
            voted,
            ordinal: _,
        } => {
            record_replacement(context, resource, *member_id, name, *voted).await?;
            let note = format!("{name} (member {member_id}) does not run and is being replaced");
            Ok(Some(Event::warning(events::MEMBER_REPLACED, note)))
        }
    }
}

async fn change_object(
    context: &Context,
    cluster: &Cluster,
    resource: &mut DEngineCluster,
    observed: &Observed,
    step: &ObjectStep,
) -> Result<Option<Event>, StepError> {
    match step {
        ObjectStep::MarkClaim {
            ordinal,
            claim_uid,
            identity,
        } => {
            mark_claim(context, cluster, *ordinal, claim_uid, *identity).await?;
            Ok(None)
        }
        ObjectStep::RestartPod { ordinal, pod_uid } => {
            let why = why_restart(cluster, observed, *ordinal);
            restart(context, cluster, *ordinal, pod_uid, &why).await
        }
        ObjectStep::DeleteClaim {
            ordinal,
            claim_uid,
            keep,
        } => {
            if let Some(volume) = keep {
                old_volumes::keep(context, cluster, resource, claim_uid, volume).await?;
            }
            delete_claim(context, cluster, *ordinal, claim_uid).await
        }
    }
}

async fn change_membership(
    context: &Context,
    cluster: &Cluster,
    observation: &Observation,
    step: &MembershipStep,
) -> Result<Event, StepError> {
    match step {
        MembershipStep::Bootstrap {
            ordinal,
            cluster_id,
            folder_id,
        } => {
            let member = member(context, observation, *ordinal).await?;
            member.bootstrap(*cluster_id, folder_id.clone()).await?;
            let pod = names::cluster::pod(&cluster.name, *ordinal);
            let note = format!("{pod} is the first voter of cluster {cluster_id}");
            Ok(Event::normal(events::BOOTSTRAPPED, note))
        }
        MembershipStep::AddLearner { ordinal, folder_id } => {
            let request = newcomer(cluster, *ordinal, folder_id);
            let name = request.name.clone();
            let leader = leader(context, observation).await?;
            let added = leader.add_learner(request).await?;
            let id = added.member.map(|member| member.id).unwrap_or_default();
            let note = format!("added {name} as a learner, member {id}");
            Ok(Event::normal(events::MEMBER_ADDED, note))
        }
        MembershipStep::Join {
            ordinal,
            member_id,
            folder_id,
        } => {
            let cluster_id = observation.observed.cluster_id;
            let join = v1::JoinRequest {
                cluster_id: cluster_id.ok_or(StepError::NobodyAnswers)?,
                member_id: *member_id,
                folder_id: folder_id.clone(),
            };
            let newcomer = member(context, observation, *ordinal).await?;
            newcomer.join(join).await?;
            let pod = names::cluster::pod(&cluster.name, *ordinal);
            let note = format!("{pod} joined as member {member_id}");
            Ok(Event::normal(events::MEMBER_JOINED, note))
        }
        MembershipStep::Promote { member_id, name } => {
            let leader = leader(context, observation).await?;
            leader.promote(*member_id).await?;
            let note = format!("promoted {name} (member {member_id}) to a voter");
            Ok(Event::normal(events::MEMBER_PROMOTED, note))
        }
        MembershipStep::Remove {
            member_id,
            name,
            why,
        } => {
            let leader = leader(context, observation).await?;
            leader.remove(*member_id).await?;
            Ok(removed(*member_id, name, *why))
        }
        MembershipStep::TransferLeader { member_id, name } => {
            let leader = leader(context, observation).await?;
            let now = leader.transfer_leader(*member_id).await?;
            let note = format!("{name} leads in term {}", now.term);
            Ok(Event::normal(events::LEADER_TRANSFERRED, note))
        }
    }
}

fn removed(member_id: u64, name: &str, why: Removal) -> Event {
    let (what, warning) = match why {
        Removal::DataLost => ("its data is gone; it joins again", true),
        Removal::VolumeLost => ("its volume is gone; it joins again with an empty one", true),
        Removal::VolumeGivenUp => (
            "its volume claim was deleted and its server does not run; it joins again with an \
             empty volume",
            true,
        ),
        Removal::DataDamaged => (
            "its data directory cannot be used any more; it joins again with an empty volume",
            true,
        ),
        Removal::Crashing => (
            "its server crashes again and again; it joins again with an empty volume",
            true,
        ),
        Removal::ScaleDown => ("the cluster is scaled down", false),
    };
    let note = format!("removed {name} (member {member_id}): {what}");
    Event {
        reason: events::MEMBER_REMOVED,
        note,
        warning,
    }
}

/// Writes the identity into the status before any member gets it. The resource version ensures that
/// no other one was recorded meanwhile.
async fn record_identity(
    context: &Context,
    resource: &mut DEngineCluster,
    observation: &mut Observation,
    cluster_id: u64,
    seed_folder_id: Option<String>,
) -> Result<(), StepError> {
    let mut status = resource.status.clone().unwrap_or_default();
    status.cluster_id = Some(cluster_id.to_string());
    status.seed_folder_id.clone_from(&seed_folder_id);
    *resource = status_writer::write(&context.client, resource, &status).await?;
    observation.observed.cluster_id = Some(cluster_id);
    observation.observed.seed_folder_id = seed_folder_id;
    Ok(())
}

/// Records that a member is about to be replaced before its data is given up, so that the pause
/// before the next replacement survives a crash.
async fn record_replacement(
    context: &Context,
    resource: &mut DEngineCluster,
    member_id: u64,
    name: &str,
    voted: bool,
) -> Result<(), StepError> {
    let mut status = resource.status.clone().unwrap_or_default();
    let before = status.replacements.iter().position(|r| r.name == name);
    let before = before.map(|place| status.replacements.remove(place));
    let record = replacements::another(before.as_ref(), name, member_id, voted, &now());
    status.replacements.push(record);
    *resource = status_writer::write(&context.client, resource, &status).await?;
    Ok(())
}

fn newcomer(cluster: &Cluster, ordinal: Ordinal, folder_id: &str) -> v1::AddLearnerRequest {
    let name = names::cluster::pod(&cluster.name, ordinal);
    let host = names::cluster::member_host(&cluster.name, &cluster.namespace, &name);
    v1::AddLearnerRequest {
        peer_address: stateful_set::peer_address(cluster, &name),
        client_address: format!("{host}:{}", ports::CLIENT),
        folder_id: folder_id.to_owned(),
        name,
    }
}

async fn member(
    context: &Context,
    observation: &Observation,
    ordinal: Ordinal,
) -> Result<AdminClient, StepError> {
    let ip = observation
        .addresses
        .get(&ordinal)
        .ok_or(StepError::NobodyAnswers)?;
    Ok(context.members.client(ip).await?)
}

/// The leader if its pod answers, else any member of the cluster: it forwards.
async fn leader(context: &Context, observation: &Observation) -> Result<AdminClient, StepError> {
    let ordinal = any_of(&observation.observed, &observation.addresses);
    member(
        context,
        observation,
        ordinal.ok_or(StepError::NobodyAnswers)?,
    )
    .await
}

fn any_of(observed: &Observed, addresses: &BTreeMap<Ordinal, String>) -> Option<Ordinal> {
    let membership = observed.membership.as_ref()?;
    let answering = |ordinal: &Ordinal| addresses.contains_key(ordinal);
    let leader = membership
        .leader()
        .and_then(|leader| leader.ordinal)
        .filter(answering);
    leader.or_else(|| {
        let healthy = membership
            .voters()
            .filter(|member| observed.is_healthy(member));
        healthy.filter_map(|member| member.ordinal).find(answering)
    })
}

/// A deleted claim stays while its pod uses it.
fn why_restart(cluster: &Cluster, observed: &Observed, ordinal: Ordinal) -> String {
    let claim = observed.claims.get(&ordinal);
    if claim.is_some_and(|claim| claim.terminating) {
        return "start with an empty volume".to_owned();
    }
    let template = stateful_set::template_hash(cluster);
    format!("update it to template {template}")
}

async fn restart(
    context: &Context,
    cluster: &Cluster,
    ordinal: Ordinal,
    pod_uid: &str,
    why: &str,
) -> Result<Option<Event>, StepError> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &cluster.namespace);
    let pod = names::cluster::pod(&cluster.name, ordinal);
    api.delete(&pod, &exactly(pod_uid)).await?;
    let note = format!("restarting {pod} to {why}");
    Ok(Some(Event::normal(events::MEMBER_RESTARTED, note)))
}

async fn mark_claim(
    context: &Context,
    cluster: &Cluster,
    ordinal: Ordinal,
    claim_uid: &str,
    identity: Identity,
) -> Result<(), StepError> {
    let api: Api<PersistentVolumeClaim> =
        Api::namespaced(context.client.clone(), &cluster.namespace);
    let patch = json!({"metadata": {
        "uid": claim_uid,
        "annotations": { annotations::REMOVED_MEMBER: mark(identity) },
    }});
    let claim = names::cluster::claim(&cluster.name, ordinal);
    api.patch(&claim, &by_us(), &Patch::Merge(patch)).await?;
    Ok(())
}

async fn delete_claim(
    context: &Context,
    cluster: &Cluster,
    ordinal: Ordinal,
    claim_uid: &str,
) -> Result<Option<Event>, StepError> {
    let api: Api<PersistentVolumeClaim> =
        Api::namespaced(context.client.clone(), &cluster.namespace);
    let claim = names::cluster::claim(&cluster.name, ordinal);
    api.delete(&claim, &exactly(claim_uid)).await?;
    let note = format!("deleted volume claim {claim}: its member was removed");
    Ok(Some(Event::normal(events::VOLUME_DELETED, note)))
}
