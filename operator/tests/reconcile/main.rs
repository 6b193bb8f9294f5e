//! Reconciliations of one cluster with a fake API server and fake members: what each requests, and
//! what is not repeated.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod api;
mod benchmarks;
mod crashes;
mod hand_over;
mod members;
mod old_volumes;
mod readiness;
mod refusals;
mod wiped_status;

use std::sync::Arc;
use std::time::Duration;

use dengine_crds::names::{annotations, labels};
use dengine_crds::{DEngineCluster, conditions};
use dengine_operator::cluster;
use dengine_operator::cluster::benchmarks::Benchmarks;
use dengine_operator::cluster::observe::Caches;
use dengine_operator::cluster::validate::Defaults;
use dengine_operator::context::Context;
use dengine_operator::members::{Members, Ports};
use dengine_operator::pod::User;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use serde_json::json;

use api::ApiServer;

const CLUSTER: &str = "/apis/dengine.io/v1alpha1/namespaces/test/dengineclusters/demo";
const CLAIMS: &str = "/api/v1/namespaces/test/persistentvolumeclaims";

/// A healthy cluster `demo` of three members, and its operator.
struct World {
    api: Arc<ApiServer>,
    context: Context,
}

impl World {
    async fn new() -> Self {
        let api = Arc::new(ApiServer::default());
        let port = members::start().await;
        let defaults = Defaults {
            image: "localhost/dengine:dev".to_owned(),
            bench_image: "localhost/dengine-bench:dev".to_owned(),
            user: User::Fixed,
        };
        let context = Context::new(api.client(), defaults, Duration::from_secs(3));
        let ports = Ports {
            admin: port,
            client: port,
        };
        let context = context.with_members(Members::at(ports));
        let cluster = json!({
            "apiVersion": "dengine.io/v1alpha1", "kind": "DEngineCluster",
            "metadata": {"name": "demo", "namespace": "test", "uid": "uid-of-demo"},
            "spec": {},
        });
        api.put(CLUSTER, cluster);
        Self { api, context }
    }

    /// One whose members run and are recorded.
    async fn settled() -> Self {
        let world = Self::new().await;
        world.reconcile().await;
        world.start_pods();
        for _ in 0..3 {
            world.reconcile().await;
        }
        let status = world.cluster().status.unwrap();
        let ready = |c: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
            c.type_ == conditions::READY && c.status == "True"
        };
        assert!(status.conditions.iter().any(|c| ready(&c)), "{status:#?}");
        world
    }

    /// What the StatefulSet controller and three kubelets do.
    fn start_pods(&self) {
        let set: Vec<StatefulSet> = self.api.list("/statefulsets/demo");
        let template = set[0]
            .spec
            .as_ref()
            .unwrap()
            .template
            .metadata
            .clone()
            .unwrap();
        let hash = template.annotations.unwrap()[annotations::TEMPLATE_HASH].clone();
        for ordinal in 0..3 {
            let name = format!("demo-{ordinal}");
            let pod = json!({
                "metadata": {
                    "name": name, "namespace": "test", "labels": {labels::CLUSTER: "demo"},
                    "annotations": {annotations::TEMPLATE_HASH: hash},
                },
                "status": {
                    "phase": "Running", "podIP": format!("127.0.0.{}", ordinal + 1),
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            });
            self.api
                .put(&format!("/api/v1/namespaces/test/pods/{name}"), pod);
            let claim = json!({
                "metadata": {"name": format!("data-{name}"), "namespace": "test",
                             "labels": {labels::CLUSTER: "demo"}},
                "spec": {"resources": {"requests": {"storage": "1Gi"}}},
                "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
            });
            self.api.put(&format!("{CLAIMS}/data-{name}"), claim);
        }
    }

    fn cluster(&self) -> DEngineCluster {
        self.api.list(CLUSTER).remove(0)
    }

    /// Reconciles with complete caches.
    async fn reconcile(&self) {
        self.reconcile_as(&self.context).await;
    }

    /// Reconciles as another operator.
    async fn reconcile_as(&self, context: &Context) {
        cluster::reconcile(&self.cluster(), context, &self.caches())
            .await
            .unwrap();
    }

    fn caches(&self) -> Caches {
        Caches {
            stateful_sets: self.cached("/statefulsets/"),
            pods: self.cached("/pods/"),
            claims: self.cached("/persistentvolumeclaims/"),
            services: self.cached("/services/"),
            accounts: self.cached("/serviceaccounts/"),
            budgets: self.cached("/poddisruptionbudgets/"),
            volumes: self.cached_if("/persistentvolumes/", |volume: &PersistentVolume| {
                volume.labels().contains_key(labels::KEPT_FOR)
            }),
            benchmarks: Benchmarks::new(self.cached("/denginebenchmarks/")),
        }
    }

    fn cached<K>(&self, within: &str) -> Store<K>
    where
        K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + 'static,
    {
        self.cached_if(within, |_| true)
    }

    /// The cached objects that the watch selects.
    fn cached_if<K>(&self, within: &str, selects: impl Fn(&K) -> bool) -> Store<K>
    where
        K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + 'static,
    {
        let (store, mut writer) = reflector::store();
        writer.apply_watcher_event(&Event::Init);
        for object in self.api.list::<K>(within).into_iter().filter(selects) {
            writer.apply_watcher_event(&Event::InitApply(object));
        }
        writer.apply_watcher_event(&Event::InitDone);
        store
    }

    /// Requests of this many reconciliations that contain this text.
    async fn costs(&self, times: usize, within: &str) -> Vec<String> {
        let before = self.api.requests().len();
        for _ in 0..times {
            self.reconcile().await;
        }
        let mut requests = self.api.requests().split_off(before);
        requests.retain(|request| request.contains(within));
        requests
    }

    fn edit(&self, spec: &serde_json::Value) {
        self.api.put(CLUSTER, json!({ "spec": spec }));
    }

    fn message(&self, type_: &str) -> String {
        let status = self.cluster().status.unwrap();
        let mut all = status.conditions.into_iter();
        all.find(|c| c.type_ == type_).unwrap().message
    }
}

/// A thousand idle clusters cost the API server their watches and the lease, and nothing else.
#[tokio::test]
async fn an_idle_cluster_sends_no_requests() {
    let world = World::settled().await;
    assert_eq!(world.costs(20, "").await, Vec::<String>::new());
}

/// Nor does one that waits for pods that do not start: only the reason is requested, now and then.
#[tokio::test]
async fn a_cluster_without_pods_sends_no_requests() {
    let world = World::new().await;
    world.reconcile().await;
    world.reconcile().await;
    let mut requests = world.costs(20, "").await;
    requests.retain(|request| !request.ends_with("/events"));
    assert_eq!(requests, Vec::<String>::new());
}

#[tokio::test]
async fn an_identity_missing_in_the_cache_is_not_overwritten() {
    let world = World::new().await;
    world.reconcile().await;
    world.start_pods();
    let stale = world.cluster();
    world
        .api
        .put(CLUSTER, json!({"status": {"clusterId": "9"}}));
    let id = || world.cluster().status.unwrap().cluster_id;
    cluster::reconcile(&stale, &world.context, &world.caches())
        .await
        .unwrap();
    assert_eq!(id().as_deref(), Some("9"));
    // To show that it would have been recorded otherwise.
    let fresh = world.cluster();
    world
        .api
        .put(CLUSTER, json!({"status": {"clusterId": null}}));
    let fresh = DEngineCluster {
        metadata: world.cluster().metadata,
        ..DEngineCluster::new("demo", fresh.spec)
    };
    cluster::reconcile(&fresh, &world.context, &world.caches())
        .await
        .unwrap();
    assert_eq!(id().as_deref(), Some("7"), "what the members say");
}

#[tokio::test]
async fn a_claim_that_can_not_grow_is_tried_once_and_the_size_can_be_lowered() {
    let world = World::settled().await;
    world
        .api
        .refuse("persistentvolumeclaims", "this class does not expand");
    world.edit(&json!({"storage": {"size": "1000Gi"}}));
    let patches = world
        .costs(10, "PATCH /api/v1/namespaces/test/persistentvolumeclaims")
        .await;
    assert_eq!(patches.len(), 3, "once each, then a pause: {patches:#?}");
    let message = world.message(conditions::PROGRESSING);
    assert!(message.contains("this class does not expand"), "{message}");
    world.edit(&json!({"storage": {"size": "1Gi"}}));
    let patches = world.costs(3, "persistentvolumeclaims").await;
    assert_eq!(patches, Vec::<String>::new());
    let message = world.message(conditions::PROGRESSING);
    assert_eq!(message, "the cluster is as the spec asks");
}

#[tokio::test]
async fn a_webhooks_change_of_an_object_is_not_undone() {
    let world = World::settled().await;
    world.api.change(
        "/services/demo-client",
        json!({"spec": {"type": "NodePort"}}),
    );
    // Someone edits it, so that it is applied again, and the webhook changes it again.
    let path = "/api/v1/namespaces/test/services/demo-client";
    world
        .api
        .put(path, json!({"spec": {"type": "ExternalName"}}));
    let patches = world.costs(10, &format!("PATCH {path}")).await;
    assert_eq!(patches.len(), 1, "{patches:#?}");
}

#[tokio::test]
async fn a_status_that_changed_meanwhile_is_not_overwritten() {
    let world = World::settled().await;
    let stale = world.cluster();
    world
        .api
        .put(CLUSTER, json!({"status": {"clusterId": "9"}}));
    let caches = Caches {
        pods: world.cached("/nothing/"),
        claims: world.cached("/nothing/"),
        ..world.caches()
    };
    let again = cluster::reconcile(&stale, &world.context, &caches).await;
    again.unwrap();
    let id = world.cluster().status.unwrap().cluster_id;
    assert_eq!(id.as_deref(), Some("9"));
}

/// As by a policy that is newer than the cluster.
#[tokio::test]
async fn a_refused_service_is_reported_and_blocks_no_member() {
    let world = World::settled().await;
    let path = "/api/v1/namespaces/test/services/demo-client";
    world
        .api
        .put(path, json!({"spec": {"type": "ExternalName"}}));
    world.api.refuse(path, "no Services on a Friday");
    world.edit(&json!({"engine": {"logLevel": "debug"}}));
    let restarted = world.costs(5, "DELETE /api/v1/namespaces/test/pods").await;
    assert!(!restarted.is_empty(), "nothing is rolled out");
    let message = world.message(conditions::PROGRESSING);
    assert!(message.contains("no Services on a Friday"), "{message}");
}
