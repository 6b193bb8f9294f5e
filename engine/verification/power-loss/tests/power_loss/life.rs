//! A member from one start to its end, on a disk that may lose its power meanwhile.

use std::path::Path;
use std::time::{Duration, Instant};

use dengine_client::{AdminClient, Client, ClientOptions, RetryPolicy};
use dengine_power_loss::{Disk, Mount};
use dengine_testkit::{Listen, Process};

use crate::process;

/// Longest wait for anything; on an idle machine nothing here takes a second.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(3);
/// How long an answer may still take when the power is lost.
const GRACE: Duration = Duration::from_millis(200);
const CLUSTER: u64 = 7;
pub(crate) const DATA_FOLDER: &str = "data";

/// Why a life ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The disk has no power any more.
    PowerLost,
    /// The member does not do what it has to.
    Broken(String),
}

pub(crate) struct Life {
    // Ends before its disk goes.
    process: Process,
    mount: Mount,
    listen: Listen,
}

impl Life {
    pub(crate) fn begin(name: &str, disk: Disk, listen: Listen, log: &Path) -> Self {
        let mount = Mount::new(disk).unwrap_or_else(|error| panic!("{error}"));
        Self {
            // Not the root of the disk: the member has to make its own directory durable too.
            process: process::start(name, &listen, &mount.path().join(DATA_FOLDER), log),
            mount,
            listen,
        }
    }

    /// The process is killed; this is its disk.
    pub(crate) fn end(self) -> Disk {
        let Self { process, mount, .. } = self;
        drop(process);
        mount.disk().clone()
    }

    /// Its `Admin` service, once it answers.
    pub(crate) async fn admin(&mut self) -> Result<AdminClient, End> {
        let address = self.listen.client.to_string();
        self.eventually("it answers", async || {
            let admin = AdminClient::connect(&address).await.ok()?;
            admin.status().await.ok().map(|_| admin)
        })
        .await
    }

    /// Makes it a cluster's first member, if it is not yet, and waits until it serves.
    pub(crate) async fn bootstrap(&mut self, admin: &AdminClient) -> Result<(), End> {
        let asked = async || {
            let status = admin.status().await.ok()?;
            if status.cluster_id == 0 {
                admin.bootstrap(CLUSTER, status.folder_id).await.ok()?;
            }
            Some(())
        };
        self.eventually("it becomes a member", asked).await?;
        let ready = async || admin.status().await.ok()?.ready.then_some(());
        self.eventually("it is ready", ready).await
    }

    /// A client without retries.
    pub(crate) async fn client(&mut self) -> Result<Client, End> {
        let options = ClientOptions {
            retry: RetryPolicy::NONE,
            ..ClientOptions::default()
        };
        self.connect(options).await
    }

    /// A client that retries, whatever happens to the member.
    pub(crate) async fn patient_client(&mut self) -> Result<Client, End> {
        let options = ClientOptions {
            request_timeout: PATIENCE,
            retry: RetryPolicy {
                retries_max: 1_000_000,
                delay_max: Duration::from_millis(20),
                ..RetryPolicy::STANDARD
            },
            ..ClientOptions::default()
        };
        self.connect(options).await
    }

    async fn connect(&mut self, options: ClientOptions) -> Result<Client, End> {
        let address = self.listen.client.to_string();
        self.eventually("it accepts clients", async || {
            Client::connect_with([address.clone()], options.clone())
                .await
                .ok()
        })
        .await
    }

    /// Waits for an answer, but not long after the power is gone.
    pub(crate) async fn answer<T>(
        &mut self,
        mut answer: impl Future<Output = T> + Unpin,
    ) -> Option<T> {
        let begun = Instant::now();
        while !self.mount.disk().is_cut() && begun.elapsed() < PATIENCE {
            if let Ok(answer) = tokio::time::timeout(LOOK_EVERY, &mut answer).await {
                return Some(answer);
            }
        }
        tokio::time::timeout(GRACE, answer).await.ok()
    }

    /// Makes a call that must succeed as long as there is power.
    pub(crate) async fn ask<T>(
        &self,
        question: impl Future<Output = dengine_client::Result<T>>,
    ) -> Result<T, End> {
        match question.await {
            Ok(answer) => Ok(answer),
            Err(_) if self.is_cut() => Err(End::PowerLost),
            Err(error) => Err(End::Broken(error.to_string())),
        }
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.mount.disk().is_cut()
    }

    /// From now on the power stays.
    pub(crate) fn never_cut(&self) -> Result<(), End> {
        let mut disk = self.mount.disk();
        disk.set_cut(None);
        match disk.is_cut() {
            true => Err(End::PowerLost),
            false => Ok(()),
        }
    }

    async fn eventually<T>(
        &mut self,
        what: &str,
        look: impl AsyncFnMut() -> Option<T>,
    ) -> Result<T, End> {
        eventually(what, look, || self.over()).await
    }

    /// Why nothing more is to be expected of it, if so.
    pub(crate) fn over(&mut self) -> Option<End> {
        if self.is_cut() {
            return Some(End::PowerLost);
        }
        let status = self.process.ended()?;
        Some(End::Broken(format!("the server ended: {status}")))
    }
}

/// Waits until `look` returns something, as long as `over` gives no reason to stop.
pub(crate) async fn eventually<T>(
    what: &str,
    mut look: impl AsyncFnMut() -> Option<T>,
    mut over: impl FnMut() -> Option<End>,
) -> Result<T, End> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return Ok(found);
        }
        if let Some(over) = over() {
            return Err(over);
        }
        if begun.elapsed() > PATIENCE {
            return Err(End::Broken(format!("{what}: not within {PATIENCE:?}")));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
