//! Writers that remember what was acknowledged, and the way to a cluster from outside of Kubernetes.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use dengine_client::{Client, ClientOptions, Consistency, Error};
use dengine_crds::names;
use dengine_e2e::cluster::Cluster;
use k8s_openapi::api::core::v1::Service;
use tokio::{task::JoinSet, time::Instant};

use crate::{
    forward,
    support::{READY_PATIENCE, World},
};

/// Between two attempts to get through.
const PAUSE: Duration = Duration::from_millis(200);
const WRITERS: usize = 8;
const CLIENT_PORT: u16 = 4100;

/// A client of a cluster's client Service: by its address on the local Kubernetes, through `kubectl port-forward` on another.
pub(crate) async fn connect(world: &World, cluster: &str) -> Result<Client> {
    let service = names::cluster::client_service(cluster);
    let endpoint = match world.cluster() {
        Cluster::Local(_) => {
            let found = world.api::<Service>().get(&service).await?;
            let address = found
                .spec
                .and_then(|spec| spec.cluster_ip)
                .context("a client Service has an address")?;
            format!("{address}:{CLIENT_PORT}")
        }
        Cluster::Current { .. } => forward::to(world, &service, CLIENT_PORT).await?,
    };
    let options = ClientOptions {
        connections: 2,
        ..ClientOptions::default()
    };
    let client = Client::connect_with([endpoint], options).await?;
    await_route(&client).await?;
    Ok(client)
}

/// A Service that has just been made has an address before every node knows the way to it.
async fn await_route(client: &Client) -> Result<()> {
    let answers = async {
        while let Err(Error::Unavailable { .. }) = client.get("any", Consistency::Eventual).await {
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(READY_PATIENCE, answers)
        .await
        .context("no node knows the way to the client Service")
}

/// Concurrent writers, each with keys of its own.
pub(crate) struct Load {
    acknowledged: Arc<Mutex<Vec<(String, String)>>>,
    stopping: Arc<AtomicBool>,
    writers: JoinSet<()>,
}

impl Load {
    pub(crate) fn start(client: &Client) -> Self {
        let (acknowledged, stopping) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            writers.spawn(write(
                client.with_affinity(writer),
                writer,
                Arc::clone(&acknowledged),
                Arc::clone(&stopping),
            ));
        }
        Self {
            acknowledged,
            stopping,
            writers,
        }
    }

    /// How many writes were acknowledged so far.
    pub(crate) fn acknowledged(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    pub(crate) async fn await_acknowledged(&self, count: usize, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        while self.acknowledged() < count {
            if Instant::now() > deadline {
                bail!(
                    "{} of {count} writes acknowledged in {} s",
                    self.acknowledged(),
                    patience.as_secs()
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Ends the writers; the keys and values that were acknowledged.
    pub(crate) async fn stop(mut self) -> Result<Vec<(String, String)>> {
        self.stopping.store(true, Ordering::Relaxed);
        while let Some(ended) = self.writers.join_next().await {
            ended.context("a writer panicked")?;
        }
        Ok(std::mem::take(&mut self.acknowledged.lock().unwrap()))
    }
}

/// A new key for every attempt: one whose outcome is unknown is neither counted nor written again.
async fn write(
    client: Client,
    writer: usize,
    acknowledged: Arc<Mutex<Vec<(String, String)>>>,
    stopping: Arc<AtomicBool>,
) {
    let mut sequence = 0_u64;
    while !stopping.load(Ordering::Relaxed) {
        sequence += 1;
        let (key, value) = (
            format!("writer-{writer}/{sequence}"),
            format!("value {sequence} of {writer}"),
        );
        match client.put(key.clone(), value.clone()).await {
            Ok(_) => acknowledged.lock().unwrap().push((key, value)),
            // While there is no leader the next attempt would fail at once.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}
