//! Waits for what the API server says, and gathers what a person needs when it never says it.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};
use dengine_local_kubernetes::shell;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::cluster::Cluster;

/// How often the API server is asked.
const INTERVAL: Duration = Duration::from_millis(250);
/// How much of each pod's log a report repeats.
const LOG_LINES: &str = "--tail=25";

/// Something with conditions in its status.
pub trait HasConditions {
    fn conditions(&self) -> &[Condition];
}

impl HasConditions for dengine_crds::DEngineCluster {
    fn conditions(&self) -> &[Condition] {
        self.status
            .as_ref()
            .map_or(&[], |status| &status.conditions)
    }
}

impl HasConditions for dengine_crds::DEngineBenchmark {
    fn conditions(&self) -> &[Condition] {
        self.status
            .as_ref()
            .map_or(&[], |status| &status.conditions)
    }
}

/// Whether the condition is `True` for the generation that the object has now.
pub fn has_condition<K: HasConditions + Resource>(object: &K, type_: &str) -> bool {
    object.conditions().iter().any(|condition| {
        condition.type_ == type_
            && condition.status == "True"
            && condition.observed_generation == object.meta().generation
    })
}

/// Asks for the object until it is as wished, and returns it.
///
/// # Errors
/// When it is not within that time; the error shows it as it was last.
pub async fn until<K>(
    api: &Api<K>,
    name: &str,
    patience: Duration,
    mut wished: impl FnMut(&K) -> bool,
) -> Result<K>
where
    K: Clone + DeserializeOwned + fmt::Debug + serde::Serialize,
{
    let deadline = Instant::now() + patience;
    loop {
        let found = api.get_opt(name).await;
        if let Ok(Some(object)) = &found
            && wished(object)
        {
            return Ok(object.clone());
        }
        if Instant::now() > deadline {
            let shown = match found {
                Ok(Some(object)) => serde_saphyr::to_string(&object)?,
                Ok(None) => "it does not exist".to_owned(),
                Err(error) => error.to_string(),
            };
            bail!(
                "{name} did not become what was waited for within {} s:\n{shown}",
                patience.as_secs()
            );
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Everything of a namespace, and of the operator, that may explain a failure.
#[must_use]
pub fn report(cluster: &Cluster, namespace: &str) -> String {
    let questions: [&[&str]; 5] = [
        &[
            "get",
            "dengineclusters,denginebenchmarks,all,pvc",
            "--output=wide",
        ],
        &["get", "events", "--sort-by=.lastTimestamp"],
        &["describe", "dengineclusters,denginebenchmarks,pods"],
        &[
            "logs",
            "--selector=app.kubernetes.io/name=dengine",
            "--all-containers",
            "--prefix",
            LOG_LINES,
        ],
        &[
            "--namespace=dengine-system",
            "logs",
            "--selector=app.kubernetes.io/name=dengine-operator",
            LOG_LINES,
        ],
    ];
    let answers = questions.map(|arguments| {
        let mut kubectl = cluster.kubectl();
        let answer = shell::run(kubectl.args(["--namespace", namespace]).args(arguments));
        format!(
            "$ kubectl {}\n{}",
            arguments.join(" "),
            answer.unwrap_or_else(|error| error.to_string())
        )
    });
    answers.join("\n")
}
