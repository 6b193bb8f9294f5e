//! What both controllers share: the client, connections to members, the event recorder and the
//! operator's own settings.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dengine_crds::reasons::events;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::runtime::events::{Event as KubeEvent, EventType, Recorder, Reporter};

use crate::apply::Altered;
use crate::benchmark::turns::Targets;
use crate::cluster::ends::Ends;
use crate::cluster::refusals::Refusals;
use crate::cluster::validate::Defaults;
use crate::members::Members;
use crate::pace::Pace;
use crate::retries::Retries;
use crate::{conditions, hash};

/// The API server refuses events with longer notes; it counts bytes.
const NOTE_CHARS_MAX: usize = 500;

/// What a reconciliation needs besides its object.
#[derive(Clone)]
pub struct Context {
    /// The Kubernetes API.
    pub(crate) client: Client,
    /// Connections to members.
    pub(crate) members: Arc<Members>,
    /// When clusters are reconciled again.
    pub(crate) pace: Arc<Pace>,
    /// Objects that admission webhooks change.
    pub(crate) altered: Arc<Altered>,
    /// When failed attempts are retried.
    pub retries: Arc<Retries>,
    /// Why the API server refuses pods.
    pub(crate) refusals: Arc<Refusals>,
    /// How often servers failed in a row.
    pub(crate) ends: Arc<Ends>,
    /// Which targets are under load, in all scopes.
    pub(crate) targets: Arc<Targets>,
    /// Defaults for fields that a spec leaves out.
    pub defaults: Defaults,
    /// The operator's name on the clusters that it manages.
    pub(crate) identity: Arc<str>,
    /// How often a cluster is reconciled without a change in Kubernetes.
    pub(crate) poll_interval: Duration,
    recorder: Recorder,
    last_write: Option<LastWrite>,
}

/// Writes that are left until the process exits; see [`Context::crash_point`].
#[derive(Clone, Debug)]
struct LastWrite {
    left: Arc<AtomicU32>,
}

impl Context {
    pub fn new(client: Client, defaults: Defaults, poll_interval: Duration) -> Self {
        let reporter = Reporter::from(dengine_crds::names::managers::OPERATOR);
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            members: Arc::default(),
            pace: Arc::default(),
            altered: Arc::default(),
            retries: Arc::default(),
            refusals: Arc::default(),
            ends: Arc::default(),
            targets: Arc::default(),
            client,
            defaults,
            identity: "dengine-operator".into(),
            poll_interval,
            last_write: None,
        }
    }

    /// The same context of an operator with this name.
    #[must_use]
    pub fn with_identity(self, identity: String) -> Self {
        let identity = identity.into();
        Self { identity, ..self }
    }

    #[must_use]
    pub fn with_members(self, members: Members) -> Self {
        let members = Arc::new(members);
        Self { members, ..self }
    }

    /// The same context in a process that exits right after this many writes, as if killed: tests
    /// use it to stop the operator between any two of its writes.
    #[must_use]
    pub(crate) fn exit_after_writes(self, writes: Option<u32>) -> Self {
        let last_write = writes.map(|writes| LastWrite {
            left: Arc::new(AtomicU32::new(writes)),
        });
        Self { last_write, ..self }
    }

    /// To be called after every write, before anything else depends on it.
    pub(crate) fn crash_point(&self) {
        let Some(last_write) = &self.last_write else {
            return;
        };
        if last_write.left.fetch_sub(1, Ordering::SeqCst) <= 1 {
            tracing::warn!("exiting after this write, as configured");
            std::process::abort();
        }
    }

    /// Attempts a change that nothing depends on. A refusal by the API server is published, each
    /// cause once, and holds up nothing else: the attempt is retried after a growing pause.
    pub(crate) async fn best_effort<T>(
        &self,
        about: &ObjectReference,
        attempt: &str,
        what_fails: &str,
        doing: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<(), kube::Error> {
        if self.retries.not_yet(attempt).is_some() {
            return Ok(());
        }
        match doing.await {
            Ok(_) => self.retries.succeeded(attempt),
            // It is gone or was changed; the next reconciliation sees its new state.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
            Err(kube::Error::Api(status)) => {
                let message = format!("{what_fails}: {}", status.message);
                if self.retries.failed(attempt, &message) {
                    tracing::warn!(message, "refused");
                    let event = Event::warning(events::STEP_FAILED, message);
                    self.publish(about, &event).await;
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Logs and publishes a failure, unless the condition of this type shows it: once, not with
    /// every retry.
    pub(crate) async fn publish_once(
        &self,
        about: &ObjectReference,
        conditions: &[Condition],
        type_: &str,
        event: &Event,
    ) {
        let (name, note) = (about.name.as_deref(), &event.note);
        if conditions::shows(conditions, type_, note) {
            tracing::debug!(name, note, "failed again");
            return;
        }
        tracing::warn!(name, note, "failed");
        self.publish(about, event).await;
    }

    /// Publishes an event. A failure to do so is logged and otherwise ignored: events decide
    /// nothing.
    pub(crate) async fn publish(&self, about: &ObjectReference, what: &Event) {
        let event = KubeEvent {
            type_: if what.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: what.reason.to_owned(),
            note: Some(what.note.chars().take(NOTE_CHARS_MAX).collect()),
            // The recorder aggregates events of equal action and keeps the first note, so different
            // notes need different actions.
            action: format!("{}-{}", what.reason, hash::of(&what.note.as_str().into())),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, about).await {
            tracing::warn!(%error, reason = what.reason, "an event could not be written");
        }
    }
}

/// A Kubernetes event about a cluster or a benchmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// One of the constants in `dengine_crds::reasons::events`.
    pub reason: &'static str,
    /// Message for people.
    pub note: String,
    /// Someone may have to act.
    pub warning: bool,
}

impl Event {
    /// An expected change.
    pub(crate) fn normal(reason: &'static str, note: impl Into<String>) -> Self {
        Self {
            reason,
            note: note.into(),
            warning: false,
        }
    }

    /// A problem.
    pub(crate) fn warning(reason: &'static str, note: impl Into<String>) -> Self {
        Self {
            reason,
            note: note.into(),
            warning: true,
        }
    }
}

/// Now, in whole seconds as Kubernetes stores times.
pub(crate) fn now() -> Time {
    let second = Timestamp::now().as_second();
    Time(Timestamp::from_second(second).expect("the present is in range"))
}
