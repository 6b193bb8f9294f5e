//! The objects of the test: what is made and changed, and what lists have to show.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Event};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{EVENT_TTL_SECONDS, PAGE, StoreWorld, for_each, pages, until};

pub(super) const OBJECTS: usize = 1_000;
const KINDS: usize = 100;
const EVENTS: usize = 50;
const PAGE_OF_EVENTS: u32 = 20;
/// Kubernetes puts a ConfigMap of its own into every namespace, whose name begins otherwise.
pub(super) const PREFIX: &str = "object-";
/// Made while the others are listed.
const LATE: &str = "object-late";
/// Made when all else is done: whoever sees it has seen all of it.
pub(super) const LAST: &str = "object-the-last";

/// A resource version. On this store it is the revision of the write.
pub(super) type Version = u64;

pub(super) fn version(object: &ConfigMap) -> Result<Version> {
    let version = object.resource_version();
    Ok(version.context("an object has a version")?.parse()?)
}

fn name(number: usize) -> String {
    format!("{PREFIX}{number:04}")
}

fn round_of(object: &ConfigMap) -> Option<&str> {
    let data = object.data.as_ref()?;
    data.get("round").map(String::as_str)
}

async fn create(api: &Api<ConfigMap>, name: &str) -> Result<Version> {
    let object = json!({"metadata": {"name": name}, "data": {"round": "0"}});
    let object = serde_json::from_value(object)?;
    version(&api.create(&PostParams::default(), &object).await?)
}

pub(super) async fn make(api: &Api<ConfigMap>) -> Result<()> {
    for_each(OBJECTS, async |number| {
        create(api, &name(number)).await.map(drop)
    })
    .await
}

pub(super) async fn make_the_last(api: &Api<ConfigMap>) -> Result<Version> {
    create(api, LAST).await
}

/// Changes an object. An attempt without an answer is repeated: if it took effect, the next one
/// changes nothing, and is answered with the version of the first.
pub(super) async fn change(
    api: &Api<ConfigMap>,
    number: usize,
    round: usize,
) -> Result<(Version, String)> {
    let name = name(number);
    let patch = Patch::Merge(json!({"data": {"round": round.to_string()}}));
    let changed = until(&format!("{name} of round {round}"), async || {
        Ok(api.patch(&name, &PatchParams::default(), &patch).await?)
    })
    .await?;
    Ok((version(&changed)?, name))
}

/// Lists all in pages. What changes after the first page must not be in the others.
pub(super) async fn list_while_they_change(
    api: &Api<ConfigMap>,
    acknowledged: &mut BTreeMap<Version, String>,
) -> Result<String> {
    let (snapshot, listed) = pages(api, PAGE, async || {
        let (version, name) = change(api, OBJECTS - 1, 1_000).await?;
        acknowledged.insert(version, name);
        acknowledged.insert(create(api, LATE).await?, LATE.to_owned());
        Ok(())
    })
    .await?;
    check(&listed, "0")?;
    Ok(snapshot)
}

pub(super) async fn all_are_of_round(api: &Api<ConfigMap>, round: usize) -> Result<()> {
    let all = api.list(&ListParams::default()).await?.items;
    let changed: Vec<_> = all
        .into_iter()
        .filter(|object| ![LATE, LAST].contains(&object.name_any().as_str()))
        .collect();
    check(&changed, &round.to_string())
}

/// All objects have to be there once, in their order, as that round left them.
fn check(listed: &[ConfigMap], round: &str) -> Result<()> {
    let ours = listed
        .iter()
        .filter(|object| object.name_any().starts_with(PREFIX));
    let found: Vec<_> = ours
        .map(|object| (object.name_any(), round_of(object)))
        .collect();
    let expected: Vec<_> = (0..OBJECTS)
        .map(|number| (name(number), Some(round)))
        .collect();
    let differs = found
        .iter()
        .zip(&expected)
        .find(|(left, right)| left != right);
    ensure!(
        found == expected,
        "{} of {OBJECTS} objects of round {round}; the first that differs: {differs:?}",
        found.len()
    );
    Ok(())
}

/// Makes kinds of objects, each of which the API server watches from then on, and one of each.
pub(super) async fn of_new_kinds(world: &StoreWorld) -> Result<()> {
    let definitions = Api::<CustomResourceDefinition>::all(world.client.clone());
    for_each(KINDS, async |number| {
        let definition = serde_json::from_value(definition(&group(world), number))?;
        definitions
            .create(&PostParams::default(), &definition)
            .await?;
        Ok(())
    })
    .await?;
    for_each(KINDS, |number| one_of_kind(world, number)).await
}

fn group(world: &StoreWorld) -> String {
    format!("{}.dengine.io", world.name)
}

fn definition(group: &str, number: usize) -> Value {
    json!({
        "metadata": {"name": format!("kind{number}s.{group}")},
        "spec": {
            "group": group,
            "names": {"kind": format!("Kind{number}"), "plural": format!("kind{number}s")},
            "scope": "Namespaced",
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                }},
            }],
        },
    })
}

/// The API server serves a kind some time after its definition was made.
async fn one_of_kind(world: &StoreWorld, number: usize) -> Result<()> {
    let kind = GroupVersionKind::gvk(&group(world), "v1", &format!("Kind{number}"));
    let kind = ApiResource::from_gvk_with_plural(&kind, &format!("kind{number}s"));
    let api = Api::<DynamicObject>::namespaced_with(world.client.clone(), &world.name, &kind);
    let object = DynamicObject::new("one", &kind);
    until(&format!("{} is served", kind.kind), async || {
        match api.create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            created => Ok(created.map(drop)?),
        }
    })
    .await?;
    let listed = api.list(&ListParams::default()).await?.items;
    ensure!(listed.len() == 1, "{}: {}", kind.kind, listed.len());
    Ok(())
}

/// Events have a lease, and go with it; not before. The API server keeps none of them in memory, so
/// these pages are of the store.
pub(super) async fn events_go(world: &StoreWorld) -> Result<()> {
    let events = world.api::<Event>();
    let started = Instant::now();
    for_each(EVENTS, async |number| {
        let event = serde_json::from_value(event(&world.name, number))?;
        events.create(&PostParams::default(), &event).await?;
        Ok(())
    })
    .await?;
    let (_, listed) = pages(&events, PAGE_OF_EVENTS, async || Ok(())).await?;
    ensure!(listed.len() == EVENTS, "{} of {EVENTS}", listed.len());
    until("no Events", async || {
        let left = events.list(&ListParams::default()).await?.items.len();
        ensure!(left == 0, "{left} Events are left");
        Ok(())
    })
    .await?;
    let lasted = started.elapsed();
    let ttl = Duration::from_secs(EVENT_TTL_SECONDS.into());
    ensure!(lasted >= ttl, "they were gone after {lasted:?}");
    Ok(())
}

fn event(namespace: &str, number: usize) -> Value {
    json!({
        "metadata": {"name": format!("event-{number}")},
        "involvedObject": {"kind": "ConfigMap", "namespace": namespace, "name": name(number)},
        "reason": "Tested", "message": "goes by itself", "type": "Normal",
    })
}
