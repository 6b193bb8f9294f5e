//! Which namespaces the operator manages.

use std::collections::BTreeSet;

use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};

/// One namespace, or all. An operator for several has a pair of controllers for each: a watch of
/// the Kubernetes API covers one namespace, or all.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// `None`: every namespace.
    pub namespace: Option<String>,
}

impl Scope {
    /// The scopes of an operator for these namespaces; one for all of them if there are none.
    pub fn of(namespaces: &[String]) -> Vec<Self> {
        let named: BTreeSet<&String> = namespaces.iter().filter(|name| !name.is_empty()).collect();
        if named.is_empty() {
            return vec![Self::default()];
        }
        let scopes = named.into_iter().map(|name| Self {
            namespace: Some(name.clone()),
        });
        scopes.collect()
    }

    pub(crate) fn description(&self) -> String {
        let name = self.namespace.as_ref();
        name.map_or_else(
            || "all namespaces".to_owned(),
            |name| format!("namespace {name}"),
        )
    }

    /// The API of a kind within the scope.
    pub(crate) fn api<K>(&self, client: &Client) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_unique_and_no_name_means_all() {
        let scopes = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let scopes = Scope::of(&names).into_iter();
            scopes.map(|scope| scope.namespace).collect::<Vec<_>>()
        };
        assert_eq!(scopes(&[]), [None]);
        assert_eq!(
            scopes(&[""]),
            [None],
            "an empty variable of the environment"
        );
        let both = [Some("a".to_owned()), Some("b".to_owned())];
        assert_eq!(scopes(&["b", "a", "b"]), both);
    }
}
