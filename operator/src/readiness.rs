//! `/readyz`: whether this process does its work, or could start at once.
//!
//! One of several namespaces may be deleted, and with it the Role of the operator there. The API
//! server then refuses every list in it; this must not keep the operator unready for the other
//! namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::Resource;
use kube::runtime::watcher;

use crate::apply::is_code;
use crate::scope::Scope;

/// Kinds that have to be listed first. PersistentVolumes that are kept are not among them: they are
/// released a little later.
const KINDS: [&str; 9] = [
    "DEngineCluster",
    "DEngineBenchmark",
    "StatefulSet",
    "Pod",
    "PersistentVolumeClaim",
    "Service",
    "ServiceAccount",
    "PodDisruptionBudget",
    "Job",
];

/// Lists that each scope has completed since this process became leader.
#[derive(Debug, Default)]
pub(crate) struct Scopes(BTreeMap<Scope, Seen>);

#[derive(Clone, Debug, Default)]
struct Seen {
    /// Kinds that were listed, and not refused since.
    listed: BTreeSet<String>,
    refused: bool,
}

impl Seen {
    fn all(&self) -> bool {
        KINDS.iter().all(|kind| self.listed.contains(*kind))
    }

    fn is_closed(&self) -> bool {
        self.refused && self.listed.is_empty()
    }
}

impl Scopes {
    fn new(scopes: &[Scope]) -> Self {
        let scopes = scopes.iter().cloned();
        Self(scopes.map(|scope| (scope, Seen::default())).collect())
    }

    fn watched<T>(&mut self, scope: &Scope, event: &watcher::Result<watcher::Event<T>>)
    where
        T: Resource<DynamicType = ()>,
    {
        let kind = T::kind(&());
        let Some(seen) = self.0.get_mut(scope).filter(|_| KINDS.contains(&&*kind)) else {
            return;
        };
        match event {
            Ok(watcher::Event::InitDone) => {
                seen.listed.insert(kind.into_owned());
            }
            Err(watcher::Error::InitialListFailed(error))
                if is_code(error, 403) || is_code(error, 404) =>
            {
                seen.listed.remove(&*kind);
                seen.refused = true;
            }
            _ => {}
        }
    }

    /// Why this process is not ready; `None` if it is.
    fn lacking(&self) -> Option<String> {
        let open: Vec<&Scope> = self
            .0
            .iter()
            .filter(|(_, seen)| !seen.all() && !seen.is_closed())
            .map(|(scope, _)| scope)
            .collect();
        let works = self.0.values().any(Seen::all);
        let where_to: Vec<String> = match &open[..] {
            [] if works => return None,
            [] => self.0.keys().map(Scope::description).collect(),
            open => open.iter().map(|scope| scope.description()).collect(),
        };
        Some(format!(
            "not everything is listed yet in {}; the log has the errors of the Kubernetes API",
            where_to.join(", ")
        ))
    }
}

static SCOPES: Mutex<Scopes> = Mutex::new(Scopes(BTreeMap::new()));

fn scopes() -> MutexGuard<'static, Scopes> {
    SCOPES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the scopes in which everything has to be listed.
pub fn to_list(wanted: &[Scope]) {
    *scopes() = Scopes::new(wanted);
}

/// Records what a watch in this scope reported.
pub(crate) fn watched<T>(scope: &Scope, event: &watcher::Result<watcher::Event<T>>)
where
    T: Resource<DynamicType = ()>,
{
    scopes().watched(scope, event);
}

/// Why the leader is not ready; `None` if it is.
pub fn lacking() -> Option<String> {
    scopes().lacking()
}

#[cfg(test)]
mod tests {
    use dengine_crds::{DEngineBenchmark, DEngineCluster};
    use k8s_openapi::api::apps::v1::StatefulSet;
    use k8s_openapi::api::batch::v1::Job;
    use k8s_openapi::api::core::v1 as core;
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;
    use kube::core::Status;

    use super::*;

    fn refused<T>(code: u16) -> watcher::Result<watcher::Event<T>> {
        let status = Status::failure("no", "Refused").with_code(code);
        let error = kube::Error::Api(status.boxed());
        Err(watcher::Error::InitialListFailed(error))
    }

    fn scopes_of(names: &[&str]) -> (Scopes, Vec<Scope>) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let scopes = Scope::of(&names);
        (Scopes::new(&scopes), scopes)
    }

    impl Scopes {
        fn listed<T: Resource<DynamicType = ()>>(&mut self, scope: &Scope) {
            self.watched::<T>(scope, &Ok(watcher::Event::InitDone));
        }

        fn others(&mut self, scope: &Scope) {
            self.listed::<DEngineBenchmark>(scope);
            self.listed::<StatefulSet>(scope);
            self.listed::<core::Pod>(scope);
            self.listed::<core::PersistentVolumeClaim>(scope);
            self.listed::<core::Service>(scope);
            self.listed::<core::ServiceAccount>(scope);
            self.listed::<PodDisruptionBudget>(scope);
            self.listed::<Job>(scope);
        }

        fn all(&mut self, scope: &Scope) {
            self.others(scope);
            self.listed::<DEngineCluster>(scope);
        }
    }

    #[test]
    fn the_leader_is_ready_once_it_has_listed_everything() {
        assert!(Scopes::default().lacking().is_some(), "nothing is known");
        let (mut seen, scopes) = scopes_of(&["a", "b"]);
        assert!(seen.lacking().unwrap().contains("a, namespace b"));
        seen.all(&scopes[0]);
        assert!(seen.lacking().unwrap().contains("in namespace b;"));
        seen.all(&scopes[1]);
        assert_eq!(seen.lacking(), None);
    }

    #[test]
    fn a_deleted_namespace_does_not_block_the_others() {
        let (mut seen, scopes) = scopes_of(&["a", "b"]);
        seen.watched(&scopes[1], &refused::<core::Pod>(403));
        assert!(seen.lacking().is_some(), "the other is not listed yet");
        seen.all(&scopes[0]);
        assert_eq!(seen.lacking(), None);
        // The namespace and its Role exist again.
        seen.listed::<core::Pod>(&scopes[1]);
        assert!(seen.lacking().is_some());
        seen.all(&scopes[1]);
        assert_eq!(seen.lacking(), None);
    }

    #[test]
    fn a_missing_permission_is_not_a_deleted_namespace() {
        let (mut seen, scopes) = scopes_of(&["a", "b"]);
        seen.all(&scopes[0]);
        seen.watched(&scopes[1], &refused::<core::Pod>(500));
        assert!(seen.lacking().is_some(), "it may answer yet");
        seen.watched(&scopes[1], &refused::<core::Pod>(403));
        seen.listed::<core::Service>(&scopes[1]);
        assert!(seen.lacking().is_some(), "one kind is listed, one refused");
        let (mut seen, scopes) = scopes_of(&[]);
        seen.watched(&scopes[0], &refused::<core::Pod>(403));
        assert!(seen.lacking().unwrap().contains("all namespaces"));
    }

    #[test]
    fn a_missing_or_refused_kind_is_not_ready() {
        let (mut seen, scopes) = scopes_of(&[]);
        seen.others(&scopes[0]);
        seen.watched(&scopes[0], &refused::<DEngineCluster>(404));
        assert!(seen.lacking().is_some(), "there are no CRDs");
        seen.listed::<DEngineCluster>(&scopes[0]);
        assert_eq!(seen.lacking(), None);
        seen.watched(&scopes[0], &refused::<core::PersistentVolume>(403));
        assert_eq!(seen.lacking(), None, "it can do without");
        seen.watched(&scopes[0], &refused::<Job>(403));
        assert!(seen.lacking().is_some());
    }
}
