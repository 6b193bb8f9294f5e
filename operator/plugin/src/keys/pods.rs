//! The members of a cluster as Kubernetes sees them, and the way to one through the API server.
//! What goes wrong there is said with what to do about it.

use std::time::Duration;

use dengine_crds::DEngineCluster;
use dengine_crds::names::cluster::ordinal;
use dengine_crds::names::labels;
use dengine_protocol::ports;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Error, ResourceExt};
use tokio::io::{AsyncRead, AsyncReadExt as _, DuplexStream};
use tokio::time::timeout;

use super::forward::{Broken, Member, PodState, Way, Ways};
use crate::access::Access;

/// Longest wait for a way, and then for the member to speak. An API server that is far away takes
/// some round trips, and one whose node is gone would never say so.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for the reason why a way ended, which mostly has come before.
const REASON_PATIENCE: Duration = Duration::from_millis(200);
/// More than what a member says before it is asked anything.
const GREETING_BYTES: usize = 4096;

/// The pods of one cluster.
#[derive(Clone, Debug)]
pub(super) struct Pods {
    api: Api<Pod>,
    namespace: String,
    cluster: String,
}

impl Pods {
    pub(super) fn of(access: &Access, cluster: String) -> Self {
        Self {
            api: access.api(),
            namespace: access.namespace.clone(),
            cluster,
        }
    }

    /// The error of a request, or what to do about it.
    fn broken(&self, what: &str, verbs: &str, resource: &str, error: &Error) -> Broken {
        let Pods { namespace, .. } = self;
        match error {
            Error::Api(status) if status.code == 403 => Broken::Forbidden(format!(
                "you may not {what} in the namespace {namespace}: that takes the verbs {verbs} on \
                 {resource} ({})",
                status.message
            )),
            error => Broken::Failed(format!("can't {what}: {error}")),
        }
    }
}

impl Ways for Pods {
    type Stream = DuplexStream;

    async fn members(&self) -> Result<Vec<Member>, Broken> {
        let of_cluster = ListParams::default().labels(&format!(
            "{}={},{}={}",
            labels::COMPONENT,
            labels::COMPONENT_MEMBER,
            labels::CLUSTER,
            self.cluster
        ));
        let listed = self.api.list(&of_cluster).await;
        let listed =
            listed.map_err(|error| self.broken("list pods", "get and list", "pods", &error))?;
        let named = |pod: &Pod| ordinal(&self.cluster, &pod.name_any());
        let mut pods = listed.items;
        pods.retain(|pod| named(pod).is_some());
        pods.sort_by_key(named);
        let member = |pod: &Pod| Member {
            name: pod.name_any(),
            state: state(pod),
        };
        Ok(pods.iter().map(member).collect())
    }

    async fn open(&self, member: &str) -> Result<Way<DuplexStream>, Broken> {
        let silent = || Broken::Failed(format!("{member} does not answer in {PATIENCE:?}"));
        let forward = timeout(PATIENCE, self.api.portforward(member, &[ports::CLIENT]));
        let forward = forward.await.map_err(|_| silent())?;
        let mut forward = forward.map_err(|error| {
            let what = format!("forward a port to {member}");
            // Which of them is asked for depends on the version of Kubernetes.
            self.broken(&what, "get and create", "pods/portforward", &error)
        })?;
        let (Some(stream), Some(reason)) = (
            forward.take_stream(ports::CLIENT),
            forward.take_error(ports::CLIENT),
        ) else {
            return Err(silent());
        };
        match timeout(PATIENCE, greeted(stream)).await {
            Err(_) => Err(silent()),
            Ok(Some(way)) => Ok(way),
            Ok(None) => {
                let reason = timeout(REASON_PATIENCE, reason).await.ok().flatten();
                let reason = reason.unwrap_or_else(|| "it closed the connection".to_owned());
                Err(Broken::Failed(format!("{member}: {}", reason.trim())))
            }
        }
    }
}

/// A way, once the member has spoken: with HTTP/2 a server does, before it is asked anything. Until
/// then nothing has gone there, so that it can go elsewhere.
async fn greeted<S: AsyncRead + Unpin>(mut stream: S) -> Option<Way<S>> {
    let mut greeting = Vec::with_capacity(GREETING_BYTES);
    match stream.read_buf(&mut greeting).await {
        Ok(bytes) if bytes > 0 => Some(Way { stream, greeting }),
        _ => None,
    }
}

/// Whether a way to the pod makes sense.
fn state(pod: &Pod) -> PodState {
    let status = pod.status.clone().unwrap_or_default();
    let container = status.container_statuses.iter().flatten().next();
    let container = container.and_then(|it| it.state.clone());
    let waits = container.and_then(|it| it.waiting).and_then(|it| it.reason);
    let phase = status.phase.unwrap_or_else(|| "Unknown".to_owned());
    if phase != "Running" || waits.is_some() {
        return PodState::Down(waits.unwrap_or(phase));
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return PodState::Leaving;
    }
    let mut conditions = status.conditions.iter().flatten();
    match conditions.any(|it| it.type_ == "Ready" && it.status == "True") {
        true => PodState::Ready,
        false => PodState::Running,
    }
}

/// What is wrong where a cluster has no pods, with what to do.
pub(super) async fn why_there_are_none(access: &Access, cluster: &str) -> String {
    let namespace = &access.namespace;
    match access.api::<DEngineCluster>().get_opt(cluster).await {
        Ok(Some(_)) => {
            return format!(
                "{cluster} has no pods yet; see `kubectl dengine status {cluster}` for what it is \
                 waiting for"
            );
        }
        Err(error) => {
            return format!(
                "there is no pod of a cluster {cluster} in the namespace {namespace} \
                 (--namespace names another one), and the cluster itself could not be looked \
                 up: {error}"
            );
        }
        Ok(None) => {}
    }
    let absent = format!("there is no cluster {cluster} in the namespace {namespace}");
    let by_name = ListParams::default().fields(&format!("metadata.name={cluster}"));
    let everywhere = access.api_everywhere::<DEngineCluster>();
    // Not everybody may look there.
    let found = everywhere.list_metadata(&by_name).await;
    let found = found.map(|it| it.items).unwrap_or_default();
    let namespaces: Vec<_> = found.iter().filter_map(ResourceExt::namespace).collect();
    match &namespaces[..] {
        [] => format!(
            "{absent}; `kubectl get dengineclusters --all-namespaces` lists those that there are"
        ),
        [one] => format!("{absent}, but in {one}: add --namespace {one}"),
        several => format!(
            "{absent}, but in {}: say which one with --namespace",
            several.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    /// What an API server answers that has these objects: a path, and what is there. What it has
    /// not is not found, and what is null may not be read.
    fn access(objects: &'static [(&str, &str)]) -> Access {
        let answer = move |request: Request<Body>| async move {
            let path = request.uri().path();
            let found = objects.iter().find(|it| it.0 == path);
            let failure = |code: u16, reason: &str| {
                let status = json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "code": code, "reason": reason, "message": format!("{reason}: no"),
                });
                (code, status.to_string())
            };
            let (code, answer) = match found {
                None => failure(404, "NotFound"),
                Some((_, "null")) => failure(403, "Forbidden"),
                Some((_, object)) => (200, (*object).to_owned()),
            };
            let response = Response::builder().status(code);
            Ok::<_, Infallible>(response.body(Body::from(answer.into_bytes())).unwrap())
        };
        Access {
            client: Client::new(tower::service_fn(answer), "test"),
            namespace: "test".to_owned(),
        }
    }

    const PODS: &str = "/api/v1/namespaces/test/pods";
    const FORWARD: &str = "/api/v1/namespaces/test/pods/demo-0/portforward";
    const DEMO: &str = "/apis/dengine.io/v1alpha1/namespaces/test/dengineclusters/demo";
    const CLUSTERS: &str = "/apis/dengine.io/v1alpha1/dengineclusters";

    fn pod(status: &Value, leaving: bool) -> Pod {
        let mut pod = json!({"metadata": {"name": "demo-0"}, "status": status});
        if leaving {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn what_a_pod_is_good_for_is_told_by_its_status() {
        let ready =
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        let runs =
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]});
        let crashes = json!({"phase": "Running", "containerStatuses": [{
            "name": "dengine", "image": "", "imageID": "", "ready": false, "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        }]});
        let down = |why: &str| PodState::Down(why.to_owned());
        assert_eq!(state(&pod(&ready, false)), PodState::Ready);
        assert_eq!(state(&pod(&ready, true)), PodState::Leaving);
        assert_eq!(state(&pod(&runs, false)), PodState::Running);
        assert_eq!(state(&pod(&crashes, false)), down("CrashLoopBackOff"));
        assert_eq!(
            state(&pod(&json!({"phase": "Pending"}), false)),
            down("Pending")
        );
        assert_eq!(state(&pod(&json!({}), false)), down("Unknown"));
    }

    #[tokio::test]
    async fn only_pods_of_members_count_in_the_order_of_their_ordinals() {
        let access = access(&[(
            PODS,
            r#"{"metadata": {}, "items": [
                {"metadata": {"name": "demo-10"}}, {"metadata": {"name": "demo-x-0"}},
                {"metadata": {"name": "demo-2"}}]}"#,
        )]);
        let members = Pods::of(&access, "demo".to_owned()).members().await;
        let names: Vec<_> = members.unwrap().into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["demo-2", "demo-10"]);
    }

    #[tokio::test]
    async fn who_may_not_is_told_what_it_takes() {
        let pods = Pods::of(
            &access(&[(PODS, "null"), (FORWARD, "null")]),
            "demo".to_owned(),
        );
        let list = pods.members().await.unwrap_err();
        assert!(matches!(list, Broken::Forbidden(_)));
        let expect = "you may not list pods in the namespace test: that takes the verbs get and \
            list on pods (Forbidden: no)";
        assert_eq!(list.to_string(), expect);
        let forward = pods.open("demo-0").await.unwrap_err();
        assert!(matches!(forward, Broken::Forbidden(_)));
        let part = "the verbs get and create on pods/portforward";
        assert!(forward.to_string().contains(part), "{forward}");
        let gone = pods.open("demo-1").await.unwrap_err();
        assert!(matches!(gone, Broken::Failed(_)), "{gone}");
    }

    #[tokio::test]
    async fn where_there_are_no_pods_the_cluster_is_looked_for() {
        for (objects, expect) in [
            (
                &[(DEMO, r#"{"metadata": {"name": "demo"}, "spec": {}}"#)][..],
                "demo has no pods yet; see `kubectl dengine status demo`",
            ),
            (
                &[(DEMO, "null")],
                "there is no pod of a cluster demo in the namespace test",
            ),
            (
                &[],
                "there is no cluster demo in the namespace test; `kubectl get",
            ),
            (
                &[(CLUSTERS, "null")],
                "there is no cluster demo in the namespace test; `kubectl get",
            ),
            (
                &[(
                    CLUSTERS,
                    r#"{"metadata": {}, "items": [{"metadata": {"name": "demo", "namespace": "a"}}]}"#,
                )],
                "there is no cluster demo in the namespace test, but in a: add --namespace a",
            ),
            (
                &[(
                    CLUSTERS,
                    r#"{"metadata": {}, "items": [{"metadata": {"name": "demo", "namespace": "a"}},
                    {"metadata": {"name": "demo", "namespace": "b"}}]}"#,
                )],
                "test, but in a, b: say which one with --namespace",
            ),
        ] {
            let said = why_there_are_none(&access(objects), "demo").await;
            assert!(said.contains(expect), "{said}");
        }
    }

    #[tokio::test]
    async fn a_way_is_one_once_the_member_has_spoken() {
        let (here, mut there) = duplex(64);
        there.write_all(b"SETTINGS").await.unwrap();
        assert_eq!(greeted(here).await.unwrap().greeting, b"SETTINGS");
        let (here, there) = duplex(64);
        drop(there);
        assert!(greeted(here).await.is_none(), "it closed the connection");
    }
}
