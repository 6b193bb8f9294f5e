//! Volumes grow while members run: first the existing claims, one by one, then the StatefulSet's
//! template for new ones. Kubernetes refuses to change that template, so the StatefulSet is
//! recreated; its pods stay.

use std::collections::BTreeMap;
use std::sync::Arc;

use dengine_crds::names;
use dengine_crds::reasons::{cluster as reasons, events};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PropagationPolicy};
use serde_json::json;

use super::messages::{goes_with_its_pod, members};
use super::model::{Ordinal, Pod};
use super::observe::Observation;
use super::status::Notice;
use super::validate::Cluster;
use crate::apply::{by_us, exactly, is_code};
use crate::context::{Context, Event};
use crate::quantity;

/// Why the volumes do not have the wanted size.
#[derive(Debug, thiserror::Error)]
pub(super) enum VolumesError {
    /// The StatefulSet could not be recreated with another size.
    #[error("StatefulSet {name} cannot be recreated: {source}")]
    Renew {
        name: String,
        source: Box<kube::Error>,
    },
    /// A claim could not be changed.
    #[error("volume claim {claim} cannot be expanded to {size}: {message}")]
    Expand {
        claim: String,
        size: String,
        message: String,
    },
}

/// Size in the claim template of an existing StatefulSet.
pub(super) fn claim_template_size(set: &StatefulSet) -> Option<String> {
    let template = set
        .spec
        .as_ref()?
        .volume_claim_templates
        .as_ref()?
        .first()?;
    requested(template)
}

/// Sets the wanted size in the claims, and in the StatefulSet's template once they all have it. A
/// claim that cannot grow holds up no other.
///
/// # Errors
/// The first object that the API server refused to change, after all were tried.
pub(super) async fn expand(
    context: &Context,
    cluster: &Cluster,
    observation: &Observation,
) -> Result<(), VolumesError> {
    let size = &cluster.spec.storage.size;
    let to_change = to_change(&observation.claims, size);
    let mut changed = Ok(());
    for claim in &to_change {
        changed = changed.and(expand_claim(context, cluster, claim).await);
    }
    changed?;
    let Some(set) = observation.stateful_set.as_deref() else {
        return Ok(());
    };
    // Also after the size was lowered again: no new volume may get the size that was not available.
    let template = claim_template_size(set);
    if to_change.is_empty()
        && set.metadata.deletion_timestamp.is_none()
        && template.is_some_and(|template| !quantity::equal(&template, size))
    {
        renew(context, cluster, set).await?;
    }
    Ok(())
}

/// What people should know about the volumes: those that do not have their size yet, those whose
/// claim was deleted while their member runs, and those that stay larger than the spec says. The
/// spec may be lowered at any time, so that a size that is not available can be taken back.
pub(super) fn notice(
    claims: &BTreeMap<Ordinal, Arc<PersistentVolumeClaim>>,
    pods: &BTreeMap<Ordinal, Pod>,
    size: &str,
) -> Option<Notice> {
    let of = |which: &dyn Fn(&PersistentVolumeClaim) -> bool| -> Vec<Ordinal> {
        let claims = claims
            .iter()
            .filter(|(_, claim)| is_bound(claim) && which(claim));
        claims.map(|(ordinal, _)| *ordinal).collect()
    };
    let growing =
        of(&|claim| is_smaller(capacity(claim), size) && !is_smaller(requested(claim), size));
    if !growing.is_empty() {
        if let Some(notice) = can_not_grow(claims, &growing, size) {
            return Some(notice);
        }
        let pending = of(&|claim| has_condition(claim, "FileSystemResizePending"));
        let mut message = format!("the volumes of {} grow to {size}", members(&growing));
        if !pending.is_empty() {
            let who = members(&pending);
            message = format!(
                "{message}; some drivers expand the file system only when the pod starts: restart \
                 {who}"
            );
        }
        return Some(Notice::works(reasons::EXPANDING_VOLUMES, message));
    }
    let mut going = of(&|claim| claim.metadata.deletion_timestamp.is_some());
    // The planner handles one whose server does not run.
    going.retain(|ordinal| pods.get(ordinal).is_some_and(|pod| pod.report.is_some()));
    if !going.is_empty() {
        let message = goes_with_its_pod(&format!("the volume claim of {}", members(&going)));
        return Some(Notice::rests(reasons::VOLUME_CLAIM_DELETED, message));
    }
    let larger = of(&|claim| is_larger(requested(claim), size));
    (!larger.is_empty()).then(|| {
        let message = format!(
            "the volume claims of {} request more than spec.storage.size ({size}); volumes do not \
             shrink, so they keep their size",
            members(&larger)
        );
        Notice::rests(reasons::VOLUMES_STAY_LARGER, message)
    })
}

/// Conditions of a claim whose driver cannot expand the volume.
const RESIZE_ERRORS: [&str; 2] = ["ControllerResizeError", "NodeResizeError"];

/// Volumes that should grow, and why they do not, as their driver reports it. Kubernetes keeps
/// retrying; what the driver calls infeasible is hardly retried.
fn can_not_grow(
    claims: &BTreeMap<Ordinal, Arc<PersistentVolumeClaim>>,
    growing: &[Ordinal],
    size: &str,
) -> Option<Notice> {
    let failing = growing.iter().filter_map(|ordinal| {
        let claim = claims.get(ordinal)?;
        Some((*ordinal, resize_error(claim)?, is_infeasible(claim)))
    });
    let failing: Vec<(Ordinal, String, bool)> = failing.collect();
    let (_, why, _) = failing.first()?;
    let who: Vec<Ordinal> = failing.iter().map(|(ordinal, ..)| *ordinal).collect();
    let message = format!(
        "the volumes of {} cannot grow to {size}: {why}; to stop trying, lower \
         spec.storage.size",
        members(&who)
    );
    let is_over = who.len() == growing.len() && failing.iter().all(|(.., never)| *never);
    Some(if is_over {
        Notice::rests(reasons::EXPANDING_VOLUMES, message)
    } else {
        Notice::works(reasons::EXPANDING_VOLUMES, message)
    })
}

fn resize_error(claim: &PersistentVolumeClaim) -> Option<String> {
    let status = claim.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let said = conditions.find(|condition| {
        RESIZE_ERRORS.contains(&condition.type_.as_str()) && condition.status == "True"
    });
    let said = said.and_then(|condition| condition.message.clone());
    let state = resize_state(claim).filter(|_| is_infeasible(claim));
    said.filter(|message| !message.is_empty())
        .or_else(|| state.map(str::to_owned))
}

/// Whether the driver rules the size out.
fn is_infeasible(claim: &PersistentVolumeClaim) -> bool {
    resize_state(claim).is_some_and(|state| state.ends_with("Infeasible"))
}

fn resize_state(claim: &PersistentVolumeClaim) -> Option<&str> {
    let states = claim
        .status
        .as_ref()?
        .allocated_resource_statuses
        .as_ref()?;
    states.get("storage").map(String::as_str)
}

/// The claims that request less than this, and those that requested more and never got it, since
/// the size was lowered again. Kubernetes allows changes only of bound claims; a claim that is
/// bound later is changed then.
fn to_change(claims: &BTreeMap<Ordinal, Arc<PersistentVolumeClaim>>, size: &str) -> Vec<String> {
    let differs = |claim: &PersistentVolumeClaim| {
        is_smaller(requested(claim), size)
            || (is_larger(requested(claim), size) && is_smaller(capacity(claim), size))
    };
    claims
        .values()
        .filter(|claim| claim.metadata.deletion_timestamp.is_none())
        .filter(|claim| is_bound(claim) && differs(claim))
        .map(|claim| claim.name_any())
        .collect()
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    status.and_then(|status| status.phase.as_deref()) == Some("Bound")
}

fn has_condition(claim: &PersistentVolumeClaim, type_: &str) -> bool {
    let conditions = claim.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten();
    conditions.any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// A refused change is retried after a growing pause, and reported meanwhile.
async fn expand_claim(
    context: &Context,
    cluster: &Cluster,
    name: &str,
) -> Result<(), VolumesError> {
    let size = &cluster.spec.storage.size;
    let failed = |message: String| VolumesError::Expand {
        claim: name.to_owned(),
        size: size.clone(),
        message,
    };
    let attempt = format!("{} {name} {size}", cluster.owner.uid);
    if let Some(message) = context.retries.not_yet(&attempt) {
        return Err(failed(message));
    }
    let api: Api<PersistentVolumeClaim> =
        Api::namespaced(context.client.clone(), &cluster.namespace);
    let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
    match api.patch(name, &by_us(), &Patch::Merge(patch)).await {
        // The step before may have deleted it.
        Err(error) if is_code(&error, 404) => return Ok(()),
        Err(error) => {
            let message = error.to_string();
            context.retries.failed(&attempt, &message);
            return Err(failed(message));
        }
        Ok(_) => context.retries.succeeded(&attempt),
    }
    context.crash_point();
    let note = format!("volume claim {name} requests {size}");
    let event = Event::normal(events::VOLUME_EXPANDING, note);
    context.publish(&cluster.reference(), &event).await;
    Ok(())
}

/// Deletes the StatefulSet and nothing that it owns; the next reconciliation creates it again.
async fn renew(
    context: &Context,
    cluster: &Cluster,
    set: &StatefulSet,
) -> Result<(), VolumesError> {
    let name = names::cluster::stateful_set(&cluster.name);
    let api: Api<StatefulSet> = Api::namespaced(context.client.clone(), &cluster.namespace);
    let parameters = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Orphan),
        ..exactly(&set.uid().unwrap_or_default())
    };
    api.delete(&name, &parameters)
        .await
        .map_err(|source| VolumesError::Renew {
            name: name.clone(),
            source: Box::new(source),
        })?;
    context.crash_point();
    let size = &cluster.spec.storage.size;
    let note = format!(
        "StatefulSet {name} is recreated, so that new members get volumes of {size}; its pods stay"
    );
    let event = Event::normal(events::VOLUME_TEMPLATE_CHANGED, note);
    context.publish(&cluster.reference(), &event).await;
    Ok(())
}

fn requested(claim: &PersistentVolumeClaim) -> Option<String> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    requests.get("storage").map(|size| size.0.clone())
}

fn capacity(claim: &PersistentVolumeClaim) -> Option<String> {
    let capacity = claim.status.as_ref()?.capacity.as_ref()?;
    capacity.get("storage").map(|size| size.0.clone())
}

fn is_smaller(size: Option<String>, than: &str) -> bool {
    size.and_then(|size| Some(quantity::parse(&size)? < quantity::parse(than)?))
        .unwrap_or(false)
}

fn is_larger(size: Option<String>, than: &str) -> bool {
    size.and_then(|size| Some(quantity::parse(&size)? > quantity::parse(than)?))
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{
        PersistentVolumeClaimCondition, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus,
        VolumeResourceRequirements,
    };
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::cluster::model::Report;

    fn claim(name: &str, size: &str, phase: &str) -> PersistentVolumeClaim {
        let requests = [("storage".to_owned(), Quantity(size.to_owned()))];
        let mut claim = PersistentVolumeClaim {
            spec: Some(PersistentVolumeClaimSpec {
                resources: Some(VolumeResourceRequirements {
                    requests: Some(requests.into()),
                    ..VolumeResourceRequirements::default()
                }),
                ..PersistentVolumeClaimSpec::default()
            }),
            status: Some(PersistentVolumeClaimStatus {
                phase: Some(phase.to_owned()),
                ..PersistentVolumeClaimStatus::default()
            }),
            ..PersistentVolumeClaim::default()
        };
        claim.metadata.name = Some(name.to_owned());
        claim
    }

    #[test]
    fn only_bound_claims_that_stay_grow() {
        let mut going = claim("going", "1Gi", "Bound");
        going.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let mut unknown = claim("unknown", "1Gi", "");
        unknown.status = None;
        let claims = (0..).zip([
            claim("unbound", "1Gi", "Pending"),
            claim("small", "1Gi", "Bound"),
            claim("lost", "1Gi", "Lost"),
            claim("large", "2Gi", "Bound"),
            going,
            unknown,
            claim("tiny", "64Mi", "Bound"),
        ]);
        let claims = claims.map(|(ordinal, claim)| (ordinal, Arc::new(claim)));
        assert_eq!(to_change(&claims.collect(), "2Gi"), ["small", "tiny"]);
    }

    /// A claim that requests one size and has the other.
    fn has(asks: &str, has: &str) -> Arc<PersistentVolumeClaim> {
        let mut claim = claim("data", asks, "Bound");
        let capacity = [("storage".to_owned(), Quantity(has.to_owned()))];
        claim.status.as_mut().unwrap().capacity = Some(capacity.into());
        Arc::new(claim)
    }

    #[test]
    fn a_lowered_size_is_requested_if_kubernetes_allows_it() {
        let change = |asks: &str, had: &str, size: &str| {
            !to_change(&BTreeMap::from([(0, has(asks, had))]), size).is_empty()
        };
        assert!(change("1Gi", "1Gi", "2Gi"), "it grows");
        assert!(
            change("1000Gi", "1Gi", "2Gi"),
            "less, and still more than it has"
        );
        assert!(
            !change("1000Gi", "1Gi", "1Gi"),
            "Kubernetes takes no less than that"
        );
        assert!(!change("2Gi", "2Gi", "1Gi"), "it has it already");
        assert!(!change("2Gi", "2Gi", "2Gi"));
    }

    #[test]
    fn volumes_that_grow_or_can_not_shrink_are_reported() {
        let says = |asks: &str, had: &str, size: &str| {
            let claims = BTreeMap::from([(0, has("1Gi", "1Gi")), (2, has(asks, had))]);
            let notice = notice(&claims, &BTreeMap::new(), size);
            notice.map(|notice| (notice.reason, notice.works, notice.message))
        };
        assert_eq!(says("1Gi", "1Gi", "1Gi"), None);
        let (reason, works, message) = says("2Gi", "1Gi", "2Gi").unwrap();
        assert_eq!((reason, works), ("ExpandingVolumes", true));
        assert_eq!(message, "the volumes of member 2 grow to 2Gi");
        let (reason, works, message) = says("2Gi", "2Gi", "1Gi").unwrap();
        assert_eq!((reason, works), ("VolumesStayLarger", false));
        assert!(message.contains("member 2"), "{message}");
    }

    #[test]
    fn a_deleted_claim_is_reported() {
        let mut claim = (*has("1Gi", "1Gi")).clone();
        claim.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let claims = BTreeMap::from([(0, has("1Gi", "1Gi")), (1, Arc::new(claim))]);
        let mut pod = Pod::default();
        let says = |pod: &Pod| {
            let pods = BTreeMap::from([(1, pod.clone())]);
            notice(&claims, &pods, "1Gi").map(|notice| (notice.reason, notice.message))
        };
        assert_eq!(says(&pod), None, "it does not run");
        pod.report = Some(Report {
            folder_id: "f".to_owned(),
            identity: None,
            version: "1.0.0".to_owned(),
            term: 1,
            ready: true,
            low_on_space: false,
            snapshot_lacks_bytes: 0,
            stalled: false,
        });
        let (reason, message) = says(&pod).unwrap();
        assert_eq!(reason, "VolumeClaimDeleted");
        assert!(
            message.contains("the volume claim of member 1 was deleted,"),
            "{message}"
        );
    }

    #[test]
    fn a_driver_that_waits_for_a_restart_is_reported() {
        let mut claim = (*has("2Gi", "1Gi")).clone();
        claim.status.as_mut().unwrap().conditions = Some(vec![PersistentVolumeClaimCondition {
            type_: "FileSystemResizePending".to_owned(),
            status: "True".to_owned(),
            ..PersistentVolumeClaimCondition::default()
        }]);
        let claims = BTreeMap::from([(1, Arc::new(claim))]);
        let said = notice(&claims, &BTreeMap::new(), "2Gi").unwrap();
        assert!(
            said.message.contains("restart member 1"),
            "{}",
            said.message
        );
    }

    #[test]
    fn a_drivers_error_is_reported() {
        let notice_of = |type_: &str, state: Option<&str>| {
            let mut claim = (*has("2Gi", "1Gi")).clone();
            let status = claim.status.as_mut().unwrap();
            status.conditions = Some(vec![PersistentVolumeClaimCondition {
                type_: type_.to_owned(),
                status: "True".to_owned(),
                message: Some("the quota of the pool is used up".to_owned()),
                ..PersistentVolumeClaimCondition::default()
            }]);
            let state = state.map(|state| [("storage".to_owned(), state.to_owned())].into());
            status.allocated_resource_statuses = state;
            let claims = BTreeMap::from([(0, has("2Gi", "2Gi")), (1, Arc::new(claim))]);
            notice(&claims, &BTreeMap::new(), "2Gi").unwrap()
        };
        for type_ in RESIZE_ERRORS {
            let said = notice_of(type_, None);
            assert!(said.works, "it is tried again");
            assert!(
                said.message.contains("volumes of member 1 cannot grow"),
                "{said:?}"
            );
            assert!(said.message.contains("the quota of the pool"), "{said:?}");
            let never = notice_of(type_, Some("ControllerResizeInfeasible"));
            assert!(!never.works && never.message == said.message, "{never:?}");
        }
        let silent = notice_of("Resizing", Some("NodeResizeInfeasible"));
        assert!(
            silent.message.contains("NodeResizeInfeasible"),
            "{silent:?}"
        );
        let grows = notice_of("Resizing", Some("NodeResizeInProgress"));
        assert_eq!(grows.message, "the volumes of member 1 grow to 2Gi");
    }

    #[test]
    fn only_what_is_smaller_grows() {
        assert!(is_smaller(Some("1Gi".to_owned()), "2Gi"));
        assert!(!is_smaller(Some("1024Mi".to_owned()), "1Gi"));
        assert!(!is_smaller(Some("2Gi".to_owned()), "1Gi"));
        assert!(!is_smaller(None, "1Gi"), "nothing is known of it");
    }
}
