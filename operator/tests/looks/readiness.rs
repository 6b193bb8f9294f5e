//! What an operator lists before it is ready, and how much of it at once.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use axum::http::{Request, Response};
use dengine_operator::cluster::validate::Defaults;
use dengine_operator::context::Context;
use dengine_operator::scope::Scope;
use dengine_operator::{benchmark, cluster, readiness};
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::time::{sleep, timeout};

/// An API server with nothing in it.
#[derive(Default)]
struct Empty {
    has_crds: bool,
    lists: Vec<String>,
}

impl Empty {
    fn answer(&mut self, uri: String) -> Response<Body> {
        let (code, answer) = if uri.contains("dengine.io") && !self.has_crds {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 404,
                "reason": "NotFound", "message": "the server could not find the requested resource",
            });
            (404, status)
        } else {
            let list = json!({
                "kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [],
            });
            (200, list)
        };
        self.lists.push(uri);
        let answer = Body::from(answer.to_string().into_bytes());
        Response::builder().status(code).body(answer).unwrap()
    }

    /// Lists of this kind so far.
    fn of(&self, kind: &str) -> Vec<String> {
        let lists = self.lists.iter().filter(|uri| uri.contains(kind));
        lists.cloned().collect()
    }
}

fn client(server: &Arc<Mutex<Empty>>) -> Client {
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let uri = request.uri().to_string();
            if uri.contains("watch=true") {
                pending::<()>().await;
            }
            let answer = server.lock().unwrap().answer(uri);
            ready(Ok::<_, Infallible>(answer)).await
        }
    });
    Client::new(service, "test")
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
async fn who_finds_no_crds_is_not_ready_and_nobodys_benchmarks_fill_the_memory() {
    let server = Arc::new(Mutex::new(Empty::default()));
    let defaults = Defaults {
        image: "localhost/dengine:dev".to_owned(),
        bench_image: "localhost/dengine-bench:dev".to_owned(),
    };
    let context = Context::new(client(&server), defaults, Duration::from_secs(3));
    let scopes = Scope::of(&["ready".to_owned()]);
    readiness::to_list(&scopes);
    let controllers = async {
        let (of_clusters, of_benchmarks) = (context.clone(), context.clone());
        tokio::join!(
            cluster::controller::run(of_clusters, scopes[0].clone(), 1, pending()),
            benchmark::controller::run(of_benchmarks, scopes[0].clone(), 1, pending()),
        )
    };
    let lists = |kind: &str| server.lock().unwrap().of(kind);
    let looks = async {
        until("it tries again", || {
            lists("dengineclusters").len() > 1 && lists("/jobs").len() == 1
        })
        .await;
        let lacking = readiness::lacking();
        assert!(
            lacking.is_some(),
            "there is nothing that it could look after"
        );
        server.lock().unwrap().has_crds = true;
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
        () = looks => {}
    }
}
