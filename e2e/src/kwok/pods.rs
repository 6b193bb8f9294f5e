//! The pods: made by Deployments, seen by a watch.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::nodes::MARK;
use super::{AT_ONCE, until};

/// Pods of one Deployment at most.
const REPLICAS_MAX: u32 = 100;
/// How many of what differs an error shows.
const SHOWN: usize = 3;

/// The pods of a namespace, as a watch shows them.
pub(super) struct Pods {
    deployments: Api<Deployment>,
    pods: Api<Pod>,
    picture: watch::Receiver<Picture>,
    watching: JoinHandle<()>,
}

/// What a watch has shown so far.
#[derive(Default)]
struct Picture {
    pods: BTreeMap<String, Shown>,
    running: usize,
    /// While the watch lists what there is.
    listing: BTreeMap<String, Shown>,
    /// How often it did.
    lists: usize,
}

#[derive(Debug, Clone, PartialEq)]
struct Shown {
    version: String,
    running: bool,
}

impl Pods {
    pub(super) fn watch(client: &Client, namespace: &str) -> Self {
        let pods = Api::<Pod>::namespaced(client.clone(), namespace);
        let (shows, picture) = watch::channel(Picture::default());
        Self {
            deployments: Api::namespaced(client.clone(), namespace),
            watching: tokio::spawn(paint(pods.clone(), shows)),
            pods,
            picture,
        }
    }

    /// Has them made, and waits until the watch has shown that all of them run.
    pub(super) async fn make(&mut self, count: u32, patience: Duration) -> Result<()> {
        let deployments = count.div_ceil(REPLICAS_MAX);
        let replicas = |number| count / deployments + u32::from(number < count % deployments);
        stream::iter(0..deployments)
            .map(|number| deploy(&self.deployments, number, replicas(number)))
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        let all_run = |it: &Picture| it.running == count as usize && it.pods.len() == it.running;
        self.await_picture("all pods run", patience, all_run).await
    }

    /// Has them deleted, and waits until the watch has shown that none is left.
    pub(super) async fn delete(&mut self, patience: Duration) -> Result<()> {
        self.deployments
            .delete_collection(&DeleteParams::background(), &ListParams::default())
            .await?;
        self.await_picture("all pods are gone", patience, |it| it.pods.is_empty())
            .await
    }

    async fn await_picture(
        &mut self,
        what: &str,
        patience: Duration,
        is_it: impl Fn(&Picture) -> bool,
    ) -> Result<()> {
        let come = timeout(patience, self.picture.wait_for(is_it)).await;
        if let Ok(come) = come.map(|come| come.map(drop)) {
            return come.context("the watch of pods ended");
        }
        let picture = self.picture.borrow();
        anyhow::bail!(
            "waiting in vain for {} s: {what}; there are {} pods, of which {} run",
            patience.as_secs(),
            picture.pods.len(),
            picture.running
        )
    }

    /// What the watch has shown has to be what is there, in the same versions, without its having
    /// looked at more than changes.
    pub(super) async fn compare(&self, patience: Duration) -> Result<()> {
        until("the watch shows what is there", patience, async || {
            let listed = self.pods.list(&ListParams::default()).await?.items;
            let listed: BTreeMap<_, _> = listed.iter().map(shown).collect();
            let picture = self.picture.borrow();
            ensure!(picture.lists == 1, "it was begun {} times", picture.lists);
            ensure!(picture.pods == listed, "{}", difference(&picture, &listed));
            Ok(())
        })
        .await
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

async fn deploy(deployments: &Api<Deployment>, number: u32, replicas: u32) -> Result<()> {
    let name = format!("load-{number}");
    let labels = json!({"app": name});
    let pod = json!({
        "metadata": {"labels": labels},
        "spec": {
            "automountServiceAccountToken": false,
            "nodeSelector": {MARK.0: MARK.1},
            "tolerations": [{"key": MARK.0, "value": MARK.1, "effect": "NoSchedule"}],
            "containers": [{
                "name": "nothing", "image": "localhost/nothing",
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
            }],
        },
    });
    let deployment = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod},
    }))?;
    deployments
        .create(&PostParams::default(), &deployment)
        .await?;
    Ok(())
}

async fn paint(pods: Api<Pod>, picture: watch::Sender<Picture>) {
    let mut events = pin!(watcher(pods, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => picture.send_modify(|picture| picture.apply(event)),
            Err(error) => tracing::warn!(%error, "the watch of pods failed; trying again"),
        }
    }
}

impl Picture {
    fn apply(&mut self, event: Event<Pod>) {
        match event {
            Event::Apply(pod) => {
                let (name, pod) = shown(&pod);
                self.running += usize::from(pod.running);
                let before = self.pods.insert(name, pod);
                self.running -= usize::from(before.is_some_and(|pod| pod.running));
            }
            Event::Delete(pod) => {
                let before = self.pods.remove(&pod.name_any());
                self.running -= usize::from(before.is_some_and(|pod| pod.running));
            }
            Event::Init => self.listing.clear(),
            Event::InitApply(pod) => self.listing.extend([shown(&pod)]),
            Event::InitDone => {
                self.pods = std::mem::take(&mut self.listing);
                self.running = self.pods.values().filter(|pod| pod.running).count();
                self.lists += 1;
            }
        }
    }
}

fn shown(pod: &Pod) -> (String, Shown) {
    let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
    let shown = Shown {
        version: pod.resource_version().unwrap_or_default(),
        running: phase == Some("Running"),
    };
    (pod.name_any(), shown)
}

fn difference(picture: &Picture, listed: &BTreeMap<String, Shown>) -> String {
    let names = picture.pods.keys().chain(listed.keys());
    let differ = names.filter(|name| picture.pods.get(*name) != listed.get(*name));
    let differ = differ.take(SHOWN).map(|name| {
        let (seen, is) = (picture.pods.get(name), listed.get(name));
        format!("{name}: seen as {seen:?}, and is {is:?}")
    });
    differ.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, version: u32, phase: &str) -> Pod {
        let metadata = json!({"name": name, "resourceVersion": version.to_string()});
        serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}})).unwrap()
    }

    #[test]
    fn pods_that_run_are_counted_once_whatever_happens_to_them() {
        let mut picture = Picture::default();
        let mut apply = |event, pods, running| {
            picture.apply(event);
            assert_eq!((picture.pods.len(), picture.running), (pods, running));
        };
        apply(Event::Init, 0, 0);
        apply(Event::InitDone, 0, 0);
        apply(Event::Apply(pod("a", 1, "Pending")), 1, 0);
        apply(Event::Apply(pod("a", 2, "Running")), 1, 1);
        apply(Event::Apply(pod("a", 3, "Running")), 1, 1);
        apply(Event::Apply(pod("b", 4, "Running")), 2, 2);
        apply(Event::Delete(pod("b", 5, "Running")), 1, 1);
        apply(Event::Apply(pod("a", 6, "Failed")), 1, 0);
    }

    #[test]
    fn a_watch_that_lists_again_shows_nothing_in_between() {
        let mut picture = Picture::default();
        picture.apply(Event::Apply(pod("a", 1, "Running")));
        picture.apply(Event::Init);
        assert_eq!(picture.running, 1);
        picture.apply(Event::InitApply(pod("b", 2, "Running")));
        picture.apply(Event::InitApply(pod("c", 3, "Pending")));
        picture.apply(Event::InitDone);
        assert_eq!((picture.pods.len(), picture.running), (2, 1));
    }

    #[test]
    fn what_differs_is_named() {
        let mut picture = Picture::default();
        picture.apply(Event::Apply(pod("a", 1, "Running")));
        let listed: BTreeMap<_, _> = [shown(&pod("a", 2, "Running"))].into();
        assert!(picture.pods != listed);
        assert!(
            difference(&picture, &listed).starts_with("a: seen as Some(Shown { version: \"1\"")
        );
    }
}
