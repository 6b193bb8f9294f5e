//! What an operator lists before it is ready, and page sizes.

use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{Request, Response};
use dengine_operator::cluster::validate::Defaults;
use dengine_operator::context::Context;
use dengine_operator::pod::User;
use dengine_operator::scope::Scope;
use dengine_operator::{benchmark, cluster, readiness};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::World;
use crate::api::ApiServer;

/// An API server that lists nothing but clusters.
struct Server {
    api: Arc<ApiServer>,
    /// Kinds that it does not serve: parts of paths.
    lacks: Mutex<Vec<&'static str>>,
    /// Paths of its list requests.
    lists: Mutex<Vec<String>>,
}

impl Server {
    /// One that does not serve this kind, and keeps the rest there.
    fn without(lacks: &'static str, api: Arc<ApiServer>) -> Arc<Self> {
        let (lacks, lists) = (Mutex::new(vec![lacks]), Mutex::default());
        Arc::new(Self { api, lacks, lists })
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let uri = request.uri().to_string();
        if uri.contains("watch=true") {
            pending::<()>().await;
        }
        if !uri.contains("limit=") {
            return self.api.answer(request).await;
        }
        let (code, answer) = self.list(&uri);
        self.lists.lock().unwrap().push(uri);
        let answer = Body::from(answer.to_string().into_bytes());
        Response::builder().status(code).body(answer).unwrap()
    }

    fn list(&self, uri: &str) -> (u16, Value) {
        let lacks = self.lacks.lock().unwrap();
        if lacks.iter().any(|part| uri.contains(part)) {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "code": 404,
                "reason": "NotFound", "message": "the server could not find the requested resource",
            });
            return (404, status);
        }
        let of_clusters = uri.contains("/dengineclusters?");
        let items: Vec<Value> = match of_clusters {
            true => self.api.list("/dengineclusters/"),
            false => Vec::new(),
        };
        let list = json!({
            "kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"},
            "items": items,
        });
        (200, list)
    }

    /// Lists of this kind so far.
    fn of(&self, kind: &str) -> Vec<String> {
        let lists = self.lists.lock().unwrap();
        let of_kind = lists.iter().filter(|uri| uri.contains(kind));
        of_kind.cloned().collect()
    }
}

fn client(server: &Arc<Server>) -> Client {
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move { Ok::<_, Infallible>(server.answer(request).await) }
    });
    Client::new(service, "test")
}

/// An operator of this API server.
fn context(server: &Arc<Server>) -> Context {
    let defaults = Defaults {
        image: "localhost/dengine:dev".to_owned(),
        bench_image: "localhost/dengine-bench:dev".to_owned(),
        user: User::Fixed,
    };
    Context::new(client(server), defaults, Duration::from_secs(3))
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let held = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = timeout(Duration::from_secs(30), held).await;
    assert!(in_time.is_ok(), "{what}: {:?}", readiness::lacking());
}

#[tokio::test]
async fn an_operator_without_crds_is_not_ready_and_pages_are_small() {
    let server = Server::without("dengine.io", Arc::default());
    let context = context(&server);
    let scopes = Scope::of(&["ready".to_owned()]);
    readiness::to_list(&scopes);
    let controllers = async {
        let (of_clusters, of_benchmarks) = (context.clone(), context.clone());
        tokio::join!(
            cluster::controller::run(of_clusters, scopes[0].clone(), 1, pending()),
            benchmark::controller::run(of_benchmarks, scopes[0].clone(), 1, pending()),
        )
    };
    let lists = |kind: &str| server.of(kind);
    let checks = async {
        until("it tries again", || {
            lists("dengineclusters").len() > 1 && lists("/jobs").len() == 1
        })
        .await;
        let lacking = readiness::lacking();
        assert!(
            lacking.is_some(),
            "there is nothing that it could look after"
        );
        server.lacks.lock().unwrap().clear();
        until("it is ready", || readiness::lacking().is_none()).await;
        let benchmarks = lists("denginebenchmarks");
        let few = |uri: &String| uri.contains("limit=8&") || uri.ends_with("limit=8");
        assert!(benchmarks.iter().all(few), "{benchmarks:#?}");
        assert!(
            benchmarks.len() >= 2,
            "of both controllers: {benchmarks:#?}"
        );
    };
    tokio::select! {
        _ = controllers => panic!("nobody told them to stop"),
        () = checks => {}
    }
}

/// Anyone who may create one could write a benchmark that no operator can decode, or have all of
/// them refused.
#[tokio::test]
async fn clusters_do_not_wait_for_the_list_of_benchmarks() {
    let server = Server::without("denginebenchmarks", World::new().await.api);
    // Not the scope whose readiness the other test checks.
    let scope = Scope::of(&["test".to_owned()]).remove(0);
    let controller = cluster::controller::run(context(&server), scope, 1, pending());
    let is_worked_on = until("the cluster has its members", || {
        let tried_again = server.of("denginebenchmarks").len() > 1;
        tried_again && !server.api.paths("/statefulsets/demo").is_empty()
    });
    tokio::select! {
        () = controller => panic!("nobody told it to stop"),
        () = is_worked_on => {}
    }
}
