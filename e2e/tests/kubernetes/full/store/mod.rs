//! Kubernetes itself on DEngine: an API server that keeps its objects in three members, in place of
//! etcd.
//!
//! The test brings up a local Kubernetes of its own, and takes it down when all went well: its
//! Events are to last for seconds. No other one may be up meanwhile, so `make e2e-full` leaves this
//! out, and `make e2e-full ONLY=store` runs it.

mod objects;
mod watching;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dengine_e2e::cluster::Cluster;
use dengine_local_kubernetes::process::Process;
use dengine_local_kubernetes::settings::{Settings, Store};
use dengine_local_kubernetes::store::{CLIENT_PORT, MEMBERS, Member};
use dengine_local_kubernetes::up::{self, Local};
use dengine_local_kubernetes::{down, shell};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, timeout};

use self::objects::{OBJECTS, Version};
use crate::load::say;

const PAGE: u32 = 100;
const EVENT_TTL_SECONDS: u32 = 20;
/// How long a member, the API server or a watch may take to come back on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at what is awaited.
const INTERVAL: Duration = Duration::from_millis(250);
/// Requests that are under way at once.
const AT_ONCE: usize = 16;
/// A member is killed once so many of a round's changes have been acknowledged.
const BEFORE_THE_KILL: usize = OBJECTS / 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubernetes_on_dengine_loses_nothing_while_its_members_are_killed_in_turn() {
    // Bringing a Kubernetes up is blocking work.
    let local = tokio::task::spawn_blocking(bring_up).await.unwrap();
    let (local, program) = local.expect("there is no Kubernetes on DEngine to test");
    let cluster = Cluster::Local(Box::new(local.clone()));
    let world = StoreWorld {
        local,
        program,
        client: cluster.client().await.unwrap(),
        name: format!("e2e-store-{}", std::process::id()),
    };
    // It stays up if this fails, with the logs of its programs: `make down` removes it.
    run(&world).await.unwrap();
    tokio::task::spawn_blocking(down::down)
        .await
        .unwrap()
        .unwrap();
}

fn bring_up() -> Result<(Local, PathBuf)> {
    let program = dengine_testkit::built_program("make e2e-full ONLY=store");
    let settings = Settings {
        store: Store::Dengine(program.clone()),
        event_ttl_seconds: Some(EVENT_TTL_SECONDS),
        ..Settings::default()
    };
    let own_program = Path::new(env!("CARGO_BIN_EXE_dengine-e2e"));
    Ok((up::up(own_program, Some(&settings))?, program))
}

/// A Kubernetes whose objects are in DEngine.
struct StoreWorld {
    local: Local,
    /// DEngine's.
    program: PathBuf,
    client: Client,
    /// That of the test's namespace, different in every run.
    name: String,
}

async fn run(world: &StoreWorld) -> Result<()> {
    world.make_namespace().await?;
    stage(
        "objects in pages of one snapshot, changes while members are killed",
        || objects_outlive_members(world),
    )
    .await?;
    stage("new kinds of objects", || objects::of_new_kinds(world)).await?;
    stage("Events that go", || objects::events_go(world)).await
}

async fn stage<F: Future<Output = Result<()>>>(what: &str, work: impl FnOnce() -> F) -> Result<()> {
    let started = Instant::now();
    work().await.context(what.to_owned())?;
    let seconds = started.elapsed().as_secs_f64();
    say(format_args!("    {what}: {seconds:.0} s"));
    Ok(())
}

/// Makes the objects, lists them while some change, and then changes all of them once for each
/// member that is killed: a watch from that list on has to see all of it.
async fn objects_outlive_members(world: &StoreWorld) -> Result<()> {
    let api = world.api::<ConfigMap>();
    objects::make(&api).await?;
    let mut acknowledged = BTreeMap::new();
    let snapshot = objects::list_while_they_change(&api, &mut acknowledged).await?;
    let watch = tokio::spawn(watching::changes_until_the_last(api.clone(), snapshot));
    for (round, member) in (1..).zip(&MEMBERS) {
        change_all_and_kill(world, round, member, &mut acknowledged).await?;
    }
    let last = objects::make_the_last(&api).await?;
    acknowledged.insert(last, objects::LAST.to_owned());
    let seen = timeout(PATIENCE, watch).await;
    let seen = seen.context("a watch that did not see the last object")???;
    watching::compare(&acknowledged, &seen)?;
    objects::all_are_of_round(&api, MEMBERS.len()).await
}

async fn change_all_and_kill(
    world: &StoreWorld,
    round: usize,
    member: &Member,
    acknowledged: &mut BTreeMap<Version, String>,
) -> Result<()> {
    let api = world.api::<ConfigMap>();
    let changes = (0..OBJECTS).map(|number| objects::change(&api, number, round));
    let mut changes = stream::iter(changes).buffer_unordered(AT_ONCE).enumerate();
    while let Some((place, change)) = changes.next().await {
        let (version, name) = change?;
        acknowledged.insert(version, name);
        if place == BEFORE_THE_KILL {
            world.local.process(member.name)?.kill()?;
            say(format_args!("    {} was killed", member.name));
        }
    }
    world.await_ready(member).await
}

impl StoreWorld {
    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    async fn make_namespace(&self) -> Result<()> {
        let namespace = serde_json::from_value(json!({"metadata": {"name": self.name}}))?;
        Api::<Namespace>::all(self.client.clone())
            .create(&PostParams::default(), &namespace)
            .await?;
        Ok(())
    }

    /// Waits until a member that was killed runs again and takes part.
    async fn await_ready(&self, member: &Member) -> Result<()> {
        until(&format!("{} is back", member.name), async || {
            let process = self.local.process(member.name)?;
            self.probe(&process, member)
        })
        .await
    }

    /// The node's loopback addresses are in its own network namespace.
    fn probe(&self, process: &Process, member: &Member) -> Result<()> {
        let mut nsenter = shell::command("nsenter");
        nsenter
            .arg(format!("--net=/proc/{}/ns/net", process.pid()))
            .arg(&self.program)
            .args(["health", "--endpoints"])
            .arg(format!("{}:{CLIENT_PORT}", member.host));
        shell::run(&mut nsenter).map(drop)
    }
}

/// Tries until it works.
async fn until<T>(what: &str, mut attempt: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("waiting in vain: {what}")));
            }
            Err(_) => tokio::time::sleep(INTERVAL).await,
        }
    }
}

/// Does something for each number, several at once.
async fn for_each(count: usize, work: impl AsyncFn(usize) -> Result<()>) -> Result<()> {
    stream::iter(0..count)
        .map(|number| work(number))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// All objects, page by page, and the version that all pages are of. `between` happens after the
/// first one.
async fn pages<K>(
    api: &Api<K>,
    page: u32,
    between: impl AsyncFnOnce() -> Result<()>,
) -> Result<(String, Vec<K>)>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let parameters = ListParams::default().limit(page);
    let first = api.list(&parameters).await?;
    let version = first.metadata.resource_version;
    let (mut items, mut more) = (first.items, first.metadata.continue_);
    between().await?;
    while let Some(token) = more.filter(|token| !token.is_empty()) {
        ensure!(
            items.len().is_multiple_of(page as usize),
            "{} objects in whole pages of {page}",
            items.len()
        );
        let next = api.list(&parameters.clone().continue_token(&token)).await?;
        ensure!(
            next.metadata.resource_version == version,
            "a page of {:?} after one of {version:?}",
            next.metadata.resource_version
        );
        items.extend(next.items);
        more = next.metadata.continue_;
    }
    Ok((version.context("a list has a version")?, items))
}
