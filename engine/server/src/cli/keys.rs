//! `dengine put`, `get`, `del`, `range`, `watch`, `txn` and `compact`, at the endpoints that were
//! named. What they do is in the crate `dengine-commands`.

use clap::Args;
use dengine_client::{Client, ClientOptions};
use dengine_commands::{Cluster, KeyCommand};

use super::ENDPOINTS_VARIABLE;

/// Where the cluster is.
#[derive(Debug, Args)]
pub(super) struct Endpoints {
    /// Client addresses of members, comma-separated. One that can be reached is enough.
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        default_value = "127.0.0.1:4100",
        env = ENDPOINTS_VARIABLE
    )]
    endpoints: Vec<String>,
}

impl Cluster for Endpoints {
    async fn connect(&self, options: ClientOptions) -> anyhow::Result<Client> {
        let endpoints = self.endpoints.iter().map(|it| it.trim());
        Ok(Client::connect_with(endpoints, options).await?)
    }

    fn nobody_serves(&self) -> String {
        let named = self.endpoints.join(",");
        format!("no member serves clients at {named} now (--endpoints names client addresses)")
    }
}

/// Does it. One thread is enough for one call at a time.
pub(super) fn run(command: KeyCommand<(), Endpoints>) -> anyhow::Result<u8> {
    let (request, (), endpoints) = command.split();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let done = runtime.block_on(request.run(&endpoints));
    // Not to wait for the look-up of an address that a member named, and that leads nowhere here.
    runtime.shutdown_background();
    done
}
