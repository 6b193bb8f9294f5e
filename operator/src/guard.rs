//! Objects that cannot be read. Both kinds are watched behind kube's `DeserializeGuard`: one
//! object that does not decode (written by a newer version, or accepted by another schema) must not
//! break the list of all others.

use std::fmt::Debug;
use std::time::Duration;

use dengine_crds::reasons::events;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::controller::Action;

use crate::context::{Context, Event};
use crate::telemetry;

/// An object, or why it cannot be read.
pub(crate) type Guarded<K> = DeserializeGuard<K>;

/// How often the event is repeated; only an edit of the object, or another version of the operator,
/// helps.
const AGAIN: Duration = Duration::from_secs(120);

/// Publishes that this object cannot be read, why, and that nothing is done for it.
pub(crate) async fn unreadable<K>(context: &Context, object: &InvalidObject) -> Action
where
    K: Resource<DynamicType = ()> + Debug,
{
    let metadata = &object.metadata;
    let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
    telemetry::record_unreadable(
        &K::kind(&()),
        namespace.unwrap_or_default(),
        name.unwrap_or_default(),
    );
    let error = &object.error;
    tracing::warn!(kind = %K::kind(&()), namespace, name, error, "an object cannot be read");
    let about = ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        ..ObjectReference::default()
    };
    let note = format!(
        "this version of the operator cannot read the object and does nothing for it: {error}"
    );
    let event = Event::warning(events::UNREADABLE, note);
    context.publish(&about, &event).await;
    Action::requeue(AGAIN)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dengine_crds::DEngineBenchmark;
    use futures::{StreamExt, future};
    use kube::Client;
    use kube::client::Body;
    use kube::runtime::reflector::ObjectRef;
    use serde_json::{Value, json};
    use tokio::time::timeout;

    use super::*;
    use crate::cluster::controller::{cached, few};
    use crate::scope::Scope;

    /// An API server that lists these objects and reports no change.
    fn api_server(items: &[Value]) -> Client {
        let list = json!({
            "apiVersion": "dengine.io/v1alpha1", "kind": "DEngineBenchmarkList",
            "metadata": {"resourceVersion": "1"}, "items": items,
        });
        let service = tower::service_fn(move |request: axum::http::Request<Body>| {
            let watches = request
                .uri()
                .query()
                .is_some_and(|q| q.contains("watch=true"));
            let list = list.to_string().into_bytes();
            async move {
                if watches {
                    future::pending::<()>().await;
                }
                Ok::<_, tower::BoxError>(axum::http::Response::new(Body::from(list)))
            }
        });
        Client::new(service, "default")
    }

    fn benchmark(name: &str, clients: &Value) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "test", "uid": name},
            "spec": {"workload": "put", "clients": clients,
                     "target": {"clusterRef": {"name": "demo"}}},
        })
    }

    #[tokio::test]
    async fn an_unreadable_object_does_not_break_the_list() {
        let items = [
            benchmark("good", &100.into()),
            benchmark("poison", &5_000_000_000_u64.into()),
        ];
        let scope = Scope::default();
        let api = scope.api::<Guarded<DEngineBenchmark>>(&api_server(&items));
        let (store, changes) = cached(&scope, api, few(), |_| {});
        tokio::spawn(changes.for_each(|_| future::ready(())));
        let listed = timeout(Duration::from_secs(20), store.wait_until_ready());
        listed.await.expect("the list is complete").unwrap();
        let of = |name: &str| store.get(&ObjectRef::new(name).within("test")).unwrap();
        assert!(of("good").0.is_ok());
        let unread = of("poison").0.as_ref().unwrap_err().error.clone();
        assert!(unread.contains("5000000000"), "{unread}");
    }
}
