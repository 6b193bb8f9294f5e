//! Why pods of a StatefulSet or a Job, or their claims, are missing: the API server refused them (a
//! quota, a policy, a missing class), and their controller reports it only in events.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use dengine_crds::names::annotations;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, Patch};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;

use super::observe::Observation;
use super::validate::Cluster;
use crate::apply::by_us;
use crate::context::Context;

/// How long an answer is valid.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// The controller retries with pauses of up to 17 minutes; an older refusal may have been resolved
/// since.
const EVENT_AGE_SECONDS_MAX: i64 = 20 * 60;
/// How long the controller is left to itself before it is made to try again. A cluster with refused
/// pods is reconciled as often.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(20);
/// Events of an object that are read.
const EVENTS_MAX: u32 = 50;
const KEPT_MAX: usize = 4096;
/// After these words, of the StatefulSet controller and of the Job controller, comes the API
/// server's answer.
const ANSWER_FOLLOWS: [&str; 2] = ["failed error: ", "Error creating: "];

/// The last answers, by the UID of the object that the events are about.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    answers: Mutex<HashMap<String, (Instant, Option<String>)>>,
    /// When pods were last retried, by the UID of their StatefulSet.
    retried: Mutex<HashMap<String, Instant>>,
}

impl Refusals {
    /// Why pods of this object are refused, as the API server said it last; `None` if unknown.
    pub(crate) async fn of<K: Resource>(&self, client: &Client, maker: &K) -> Option<String> {
        let uid = maker.uid()?;
        if let Some(known) = self.known(&uid) {
            return known;
        }
        let api: Api<Event> = Api::namespaced(client.clone(), &maker.namespace()?);
        let fields = format!("involvedObject.uid={uid},reason=FailedCreate");
        let asked = ListParams::default().fields(&fields).limit(EVENTS_MAX);
        let answer = match api.list(&asked).await {
            Ok(events) => newest(&events.items, Timestamp::now()),
            Err(error) => {
                tracing::debug!(%error, "events cannot be read");
                None
            }
        };
        let mut answers = self.answers.lock().expect("nobody panics with the lock");
        if answers.len() >= KEPT_MAX {
            answers.clear();
        }
        answers.insert(uid, (Instant::now(), answer.clone()));
        answer
    }

    /// Whether the controller of this StatefulSet was left to itself for long enough; if so, it is
    /// counted as made to try again now.
    fn is_retry_due(&self, uid: &str) -> bool {
        let mut retried = self.retried.lock().expect("nobody panics with the lock");
        let last = retried.get(uid);
        if last.is_some_and(|last| last.elapsed() < RETRY_AFTER) {
            return false;
        }
        if retried.len() >= KEPT_MAX {
            retried.clear();
        }
        retried.insert(uid.to_owned(), Instant::now());
        true
    }

    fn known(&self, uid: &str) -> Option<Option<String>> {
        let answers = self.answers.lock().expect("nobody panics with the lock");
        let (when, answer) = answers.get(uid)?;
        (when.elapsed() < ASK_AGAIN_AFTER).then(|| answer.clone())
    }
}

/// The alphabetically first recent one, so that the status does not change with every event.
fn newest(events: &[Event], now: Timestamp) -> Option<String> {
    let is_new = |event: &&Event| {
        let last = event.last_timestamp.as_ref().map(|time| time.0);
        let last = last.or_else(|| event.event_time.as_ref().map(|time| time.0));
        last.is_some_and(|last| now.as_second() - last.as_second() <= EVENT_AGE_SECONDS_MAX)
    };
    let said = events.iter().filter(is_new).filter_map(|event| {
        let message = event.message.as_deref()?;
        let mut answers = ANSWER_FOLLOWS.iter();
        let answer = answers.find_map(|before| Some(message.split_once(before)?.1));
        Some(answer.unwrap_or(message))
    });
    said.min().map(str::to_owned)
}

/// Has the StatefulSet controller try again, from time to time while pods are refused. By itself it
/// pauses for up to 17 minutes: the pause doubles with every failure, and events of the other pods
/// make dozens of failures within seconds. That what refused the pods was mended, nobody tells it;
/// any change of the StatefulSet wakes it.
pub(super) async fn retry(context: &Context, cluster: &Cluster, observation: &Observation) {
    let set = observation.stateful_set.as_deref();
    let Some((set, uid)) = set.and_then(|set| Some((set, set.uid()?))) else {
        return;
    };
    if observation.observed.refused.is_none() || !context.refusals.is_retry_due(&uid) {
        return;
    }
    let name = set.name_any();
    let when = json!({annotations::RETRIED_AT: Timestamp::now().to_string()});
    let patch = Patch::Merge(json!({"metadata": {"uid": uid, "annotations": when}}));
    let attempt = format!("retry pods of {uid}");
    let what_fails = format!("StatefulSet {name} cannot be annotated to have its pods retried");
    let api: Api<StatefulSet> = Api::namespaced(context.client.clone(), &cluster.namespace);
    let annotated = async { api.patch(&name, &by_us(), &patch).await };
    let about = cluster.reference();
    if let Err(error) = context
        .best_effort(&about, &attempt, &what_fails, annotated)
        .await
    {
        tracing::debug!(%error, name, "pods are not retried");
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn event(message: &str, second: i64) -> Event {
        Event {
            message: Some(message.to_owned()),
            last_timestamp: Some(Time(Timestamp::from_second(second).unwrap())),
            ..Event::default()
        }
    }

    #[test]
    fn only_recent_refusals_of_the_api_server_are_found() {
        let quota = r#"create Pod demo-0 in StatefulSet demo failed error: pods "demo-0" is forbidden: exceeded quota: small"#;
        let second = r#"create Pod demo-1 in StatefulSet demo failed error: pods "demo-1" is forbidden: exceeded quota: small"#;
        let now = Timestamp::from_second(10_000).unwrap();
        let told = [event(second, 9_999), event(quota, 9_000)];
        assert_eq!(
            newest(&told, now).as_deref(),
            Some(r#"pods "demo-0" is forbidden: exceeded quota: small"#)
        );
        let of_job = event(
            r#"Error creating: pods "run-x7f2q" is forbidden: violates PodSecurity"#,
            9_000,
        );
        assert_eq!(
            newest(&[of_job], now).as_deref(),
            Some(r#"pods "run-x7f2q" is forbidden: violates PodSecurity"#)
        );
        assert_eq!(newest(&[event(quota, 1_000)], now), None);
        assert_eq!(
            newest(&[event("no way", 9_999)], now).as_deref(),
            Some("no way")
        );
        assert_eq!(newest(&[], now), None);
    }
}
