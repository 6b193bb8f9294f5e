//! What `/readyz` answers: whether this process does its work, or would at once.
//!
//! Of several namespaces one may be deleted, and with it the Role by which the operator looks into it. That the API server
//! refuses everything there must not keep the operator from being ready for the others, for ever.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::runtime::watcher;

use crate::apply::is_code;
use crate::scope::Scope;

/// What was seen of each scope since this process works.
#[derive(Debug, Default)]
pub struct Scopes(BTreeMap<Scope, Seen>);

/// What was seen of one scope.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Everything in it was listed once.
    all: bool,
    /// One kind was.
    some: bool,
    /// The API server refused to list a kind.
    refused: bool,
}

impl Seen {
    fn is_closed(self) -> bool {
        self.refused && !self.some
    }
}

impl Scopes {
    /// Scopes of which nothing was seen yet.
    fn new(scopes: &[Scope]) -> Self {
        let scopes = scopes.iter().cloned();
        Self(scopes.map(|scope| (scope, Seen::default())).collect())
    }

    fn watched<T>(&mut self, scope: &Scope, event: &watcher::Result<watcher::Event<T>>) {
        let Some(seen) = self.0.get_mut(scope) else {
            return;
        };
        match event {
            Ok(watcher::Event::InitDone) => seen.some = true,
            Err(watcher::Error::InitialListFailed(error)) => {
                seen.refused |= is_code(error, 403) || is_code(error, 404);
            }
            _ => {}
        }
    }

    fn listed(&mut self, scope: &Scope) {
        if let Some(seen) = self.0.get_mut(scope) {
            seen.all = true;
        }
    }

    /// Why this process can not do its work yet; `None` if it can.
    fn lacking(&self) -> Option<String> {
        let open: Vec<&Scope> = self
            .0
            .iter()
            .filter(|(_, seen)| !seen.all && !seen.is_closed())
            .map(|(scope, _)| scope)
            .collect();
        let works = self.0.values().any(|seen| seen.all);
        let where_to: Vec<String> = match &open[..] {
            [] if works => return None,
            [] => self.0.keys().map(Scope::words).collect(),
            open => open.iter().map(|scope| scope.words()).collect(),
        };
        Some(format!(
            "the Kubernetes API has not listed everything yet in {}; the log says what it answers",
            where_to.join(", ")
        ))
    }
}

static SCOPES: Mutex<Scopes> = Mutex::new(Scopes(BTreeMap::new()));

fn scopes() -> MutexGuard<'static, Scopes> {
    SCOPES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes in which scopes everything has to be listed.
pub fn to_list(wanted: &[Scope]) {
    *scopes() = Scopes::new(wanted);
}

/// Notes what a watch in this scope brought.
pub fn watched<T>(scope: &Scope, event: &watcher::Result<watcher::Event<T>>) {
    scopes().watched(scope, event);
}

/// Notes that everything in one scope was listed once.
pub fn listed(scope: &Scope) {
    scopes().listed(scope);
}

/// Why a process that holds the lease can not do its work yet; `None` if it can.
pub fn lacking() -> Option<String> {
    scopes().lacking()
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    type Event = watcher::Result<watcher::Event<()>>;

    fn refused(code: u16) -> Event {
        let status = Status::failure("no", "Refused").with_code(code);
        let error = kube::Error::Api(status.boxed());
        Err(watcher::Error::InitialListFailed(error))
    }

    fn scopes_of(names: &[&str]) -> (Scopes, Vec<Scope>) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let scopes = Scope::of(&names);
        (Scopes::new(&scopes), scopes)
    }

    #[test]
    fn who_works_is_ready_once_it_has_listed_everything() {
        assert!(Scopes::default().lacking().is_some(), "nothing is known");
        let (mut seen, scopes) = scopes_of(&["a", "b"]);
        assert!(seen.lacking().unwrap().contains("a, namespace b"));
        seen.listed(&scopes[0]);
        assert!(seen.lacking().unwrap().contains("in namespace b;"));
        seen.listed(&scopes[1]);
        assert_eq!(seen.lacking(), None);
    }

    #[test]
    fn a_namespace_that_was_deleted_keeps_nobody_from_the_others() {
        let (mut seen, scopes) = scopes_of(&["a", "b"]);
        seen.watched(&scopes[1], &refused(403));
        assert!(seen.lacking().is_some(), "the other is not listed yet");
        seen.listed(&scopes[0]);
        assert_eq!(seen.lacking(), None);
        // It is there again, and so is its Role.
        seen.watched(&scopes[1], &Event::Ok(watcher::Event::InitDone));
        assert!(seen.lacking().is_some());
        seen.listed(&scopes[1]);
        assert_eq!(seen.lacking(), None);
    }

    #[test]
    fn a_permission_that_lacks_and_a_server_that_does_not_answer_are_no_deleted_namespace() {
        let (mut seen, scopes) = scopes_of(&["a", "b"]);
        seen.listed(&scopes[0]);
        seen.watched(&scopes[1], &refused(500));
        assert!(seen.lacking().is_some(), "it may answer yet");
        seen.watched(&scopes[1], &refused(403));
        seen.watched(&scopes[1], &Event::Ok(watcher::Event::InitDone));
        assert!(seen.lacking().is_some(), "one kind is listed, one refused");
        let (mut seen, scopes) = scopes_of(&[]);
        seen.watched(&scopes[0], &refused(403));
        assert!(seen.lacking().unwrap().contains("all namespaces"));
    }
}
