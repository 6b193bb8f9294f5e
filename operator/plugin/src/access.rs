//! Which Kubernetes and which namespace, chosen as `kubectl` does.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Config, Resource};
use serde_json::Value;

/// How often an object that is awaited is looked at.
const INTERVAL: Duration = Duration::from_millis(500);

/// `kubectl`'s own flags, as far as they matter here.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Namespace; that of the current context if not given.
    #[arg(long, short, global = true)]
    namespace: Option<String>,
    /// Context of the kubeconfig; the current one if not given.
    #[arg(long, global = true)]
    context: Option<String>,
    /// File with the kubeconfig; found as kubectl does if not given.
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<std::path::PathBuf>,
}

/// A way to the objects of one namespace.
pub(crate) struct Access {
    pub(crate) client: Client,
    /// The namespace.
    pub(crate) namespace: String,
}

impl Options {
    /// Connects with the credentials of whoever calls.
    pub(crate) async fn connect(&self) -> anyhow::Result<Access> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = match &self.kubeconfig {
            Some(file) => {
                let kubeconfig = Kubeconfig::read_from(file)?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await
            }
            None => Config::from_kubeconfig(&options).await,
        };
        let config = config.context("no usable kubeconfig; does `kubectl get nodes` work?")?;
        let namespace = self.namespace.clone();
        Ok(Access {
            namespace: namespace.unwrap_or_else(|| config.default_namespace.clone()),
            client: Client::try_from(config)?,
        })
    }
}

impl Access {
    /// Objects of one kind in the namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Objects of one kind in all namespaces.
    pub(crate) fn api_everywhere<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = ()>,
    {
        Api::all(self.client.clone())
    }

    /// Asks for an object until `done` says something of it; forever, since a person can end that.
    pub(crate) async fn until<K, T>(
        &self,
        name: &str,
        mut done: impl FnMut(&K) -> Option<T>,
    ) -> anyhow::Result<T>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Debug + serde::de::DeserializeOwned,
    {
        loop {
            let object = self.api::<K>().get(name).await?;
            if let Some(answer) = done(&object) {
                return Ok(answer);
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// An object from JSON that this program wrote.
pub(crate) fn object<K: serde::de::DeserializeOwned>(json: Value) -> anyhow::Result<K> {
    serde_json::from_value(json).context("an object that this program made")
}
