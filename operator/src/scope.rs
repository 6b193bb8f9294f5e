//! Which namespaces the operator looks at.

use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};

/// One namespace, or all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// `None`: every namespace.
    pub namespace: Option<String>,
}

impl Scope {
    /// Access to the objects of a kind within the scope.
    pub fn api<K>(&self, client: &Client) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        }
    }
}
