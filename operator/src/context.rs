//! What both controllers share: the client, the members, the recorder of events and the operator's
//! own settings.

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
    /// How soon clusters are looked at again.
    pub(crate) pace: Arc<Pace>,
    /// What webhooks make of objects.
    pub(crate) altered: Arc<Altered>,
    /// When what failed is tried again.
    pub retries: Arc<Retries>,
    /// Why pods are refused.
    pub(crate) refusals: Arc<Refusals>,
    /// How often servers ended by themselves.
    pub(crate) ends: Arc<Ends>,
    /// What benchmarks load, in all scopes.
    pub(crate) targets: Arc<Targets>,
    /// What specs may leave out.
    pub defaults: Defaults,
    /// The operator's name on what it looks after.
    pub(crate) identity: Arc<str>,
    /// How often a cluster is looked at when nothing seems to happen.
    pub(crate) poll_interval: Duration,
    recorder: Recorder,
    last_write: Option<LastWrite>,
}

/// Writes that are left until the process dies; see [`Context::crash_point`].
#[derive(Clone, Debug)]
struct LastWrite {
    left: Arc<AtomicU32>,
}

impl Context {
    /// A context that speaks through this client.
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

    /// The same context of an operator of this name.
    #[must_use]
    pub fn with_identity(self, identity: String) -> Self {
        let identity = identity.into();
        Self { identity, ..self }
    }

    /// The same context with other members.
    #[must_use]
    pub fn with_members(self, members: Members) -> Self {
        let members = Arc::new(members);
        Self { members, ..self }
    }

    /// The same context in a process that dies right after so many writes, as if killed: the tests' way to
    /// stop between any two things that it does.
    #[must_use]
    pub(crate) fn exit_after_writes(self, writes: Option<u32>) -> Self {
        let last_write = writes.map(|writes| LastWrite {
            left: Arc::new(AtomicU32::new(writes)),
        });
        Self { last_write, ..self }
    }

    /// To be called whenever something in the world was changed, before anything is made of it.
    pub(crate) fn crash_point(&self) {
        let Some(last_write) = &self.last_write else {
            return;
        };
        if last_write.left.fetch_sub(1, Ordering::SeqCst) <= 1 {
            tracing::warn!("told to die after this write");
            std::process::abort();
        }
    }

    /// Does what nothing else waits for. That the API server will not have it is told, each cause once, and holds up nothing:
    /// it is tried again after a pause that grows.
    ///
    /// # Errors
    /// If the API server does not answer.
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
            // It is gone, or somebody wrote it meanwhile; the next look finds it as it is then.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
            Err(kube::Error::Api(status)) => {
                let words = format!("{what_fails}: {}", status.message);
                if self.retries.failed(attempt, &words) {
                    tracing::warn!(words, "refused");
                    let event = Event::warning(events::STEP_FAILED, words);
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

    /// Tells people what happened. An event that can not be written is logged and otherwise ignored:
    /// it decides nothing.
    pub(crate) async fn publish(&self, about: &ObjectReference, what: &Event) {
        let event = KubeEvent {
            type_: if what.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: what.reason.to_owned(),
            note: Some(what.note.chars().take(NOTE_CHARS_MAX).collect()),
            // The recorder counts events of equal action as one and keeps the first note, so different notes need
            // different actions.
            action: format!("{}-{}", what.reason, hash::of(&what.note.as_str().into())),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, about).await {
            tracing::warn!(%error, reason = what.reason, "an event could not be written");
        }
    }
}

/// Something that people should know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// One of the constants in `dengine_crds::reasons::events`.
    pub reason: &'static str,
    /// In words.
    pub note: String,
    /// Somebody may have to act.
    pub warning: bool,
}

impl Event {
    /// What was to be expected.
    pub(crate) fn normal(reason: &'static str, note: impl Into<String>) -> Self {
        Self {
            reason,
            note: note.into(),
            warning: false,
        }
    }

    /// What was not.
    pub(crate) fn warning(reason: &'static str, note: impl Into<String>) -> Self {
        Self {
            reason,
            note: note.into(),
            warning: true,
        }
    }
}

/// Now, in the seconds that Kubernetes stores.
pub(crate) fn now() -> Time {
    let second = Timestamp::now().as_second();
    Time(Timestamp::from_second(second).expect("the present is in range"))
}
