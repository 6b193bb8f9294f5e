//! `kubectl dengine put`, `get`, `del`, `range`, `watch`, `txn` and `compact`: what `dengine` does,
//! through forwarded ports.
//!
//! [`forward`] is the ports of this machine that lead to members, [`pods`] what Kubernetes says of
//! the members and how it leads to one. What the commands do is in the crate `dengine-commands`.

mod forward;
mod pods;

use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use dengine_client::{Client, ClientOptions};
use dengine_commands::{Cluster, KeyCommand};
use dengine_crds::names;
use dengine_protocol::ports;

use self::forward::{Forwards, Member, Ways as _};
use self::pods::Pods;
use crate::access::Access;

/// Which cluster.
#[derive(Args, Debug)]
pub(crate) struct Name {
    /// Name of the cluster.
    cluster: String,
}

pub(crate) async fn run(access: &Access, command: KeyCommand<Name, ()>) -> anyhow::Result<u8> {
    let (request, name, ()) = command.split();
    let forwarded = Forwarded {
        access,
        cluster: name.cluster.clone(),
        forwards: Forwards::new(Pods::of(access, name.cluster)),
    };
    request.run(&forwarded).await
}

/// A cluster of the namespace, through ports of this machine.
struct Forwarded<'a> {
    access: &'a Access,
    cluster: String,
    forwards: Arc<Forwards<Pods>>,
}

impl Forwarded<'_> {
    /// Its members, of which at least one runs.
    async fn members(&self) -> anyhow::Result<Vec<Member>> {
        let members = self.forwards.ways().members().await?;
        let cluster = &self.cluster;
        if members.is_empty() {
            bail!(pods::why_there_are_none(self.access, cluster).await);
        }
        if !members.iter().any(|it| it.state.runs()) {
            let states = members.iter().map(ToString::to_string);
            bail!(
                "no member of {cluster} runs: {}; `kubectl dengine status {cluster}` says what is \
                 done about it",
                states.collect::<Vec<_>>().join(", ")
            );
        }
        Ok(members)
    }
}

impl Cluster for Forwarded<'_> {
    async fn connect(&self, options: ClientOptions) -> anyhow::Result<Client> {
        let members = self.members().await?;
        let opened = self.forwards.open(members).await;
        let opened = opened.with_context(|| format!("no member of {} is reached", self.cluster))?;
        let host =
            |pod: &str| names::cluster::member_host(&self.cluster, &self.access.namespace, pod);
        let reached_at = opened.iter().map(|(pod, at)| {
            let named = format!("{}:{}", host(pod), ports::CLIENT);
            (named, at.to_string())
        });
        let options = ClientOptions {
            reached_at: Some(reached_at.collect()),
            ..options
        };
        let endpoints = opened.iter().map(|(_, at)| at.to_string());
        Ok(Client::connect_with(endpoints, options).await?)
    }

    fn nobody_serves(&self) -> String {
        let cluster = &self.cluster;
        let why = match self.forwards.failure() {
            None => String::new(),
            Some(why) => format!(" ({why})"),
        };
        format!(
            "no member of {cluster} serves clients now{why}; `kubectl dengine status {cluster}` \
             shows its state"
        )
    }
}
