//! The operator as a process: it waits for the lease, works while it holds it, and ends on a signal
//! or when it loses the lease. After losing it, the process ends and is restarted, which is simpler
//! than stopping every controller safely.

use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::http::Request;
use futures::future::join_all;
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use kube_lease_manager::LeaseManagerBuilder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;
use tower::util::MapRequestLayer;

use crate::cluster::validate::Defaults;
use crate::context::Context;
use crate::deadlines::Deadlines;
use crate::options::Options;
use crate::scope::Scope;
use crate::{benchmark, cluster, http, lease, readiness, telemetry};

/// How long an unresponsive API server can delay the end of the process.
const GIVING_BACK: Duration = Duration::from_secs(5);

/// Runs until a signal ends it or the lease is lost.
///
/// # Errors
/// If the Kubernetes API is not reachable, the port is taken, or the lease was lost.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let metrics = telemetry::metrics()?;
    let (stop, stopped) = watch::channel(false);
    stop_on_signal(stop.clone())?;
    let server = tokio::spawn(http::serve(options.listen, metrics, until(stopped.clone())));

    let client = client().await?;
    let holder = holder();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        holder,
        "waiting for the lease"
    );
    let manager = LeaseManagerBuilder::new(client.clone(), &options.lease_name)
        .with_namespace(&options.lease_namespace)
        .with_identity(&holder)
        .with_duration(options.lease_seconds)
        .with_grace((options.lease_seconds / 3).max(1))
        .build()
        .await
        .context("the lease cannot be read")?;
    let (mut holds, lease_task) = manager.watch().await;
    telemetry::set_leader(false);

    let acquired = tokio::select! {
        acquired = acquire(&mut holds) => acquired.map(|()| true)?,
        () = until(stopped.clone()) => false,
    };
    let outcome = if acquired {
        work(client, &options, &holder, holds.clone(), stop, stopped).await
    } else {
        Ok(())
    };
    // Closing the channel releases the lease, so that another operator need not wait for its
    // expiry.
    drop(holds);
    match timeout(GIVING_BACK, lease_task).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the lease was not released"),
        Err(_) => tracing::warn!("the API server did not confirm that the lease was released"),
    }
    server
        .await
        .context("the HTTP server")?
        .context("the HTTP server")?;
    outcome
}

/// The Kubernetes API as kubectl finds it, or as a pod does; requests are counted and have
/// deadlines.
async fn client() -> anyhow::Result<Client> {
    let config = Config::infer().await;
    let config = config.context("the Kubernetes API is not configured")?;
    let counted = MapRequestLayer::new(|request: Request<Body>| {
        telemetry::count_request(request.method(), request.uri());
        request
    });
    let client = ClientBuilder::try_from(config).context("the Kubernetes API cannot be used")?;
    Ok(client.with_layer(&counted).with_layer(&Deadlines).build())
}

async fn acquire(holds: &mut watch::Receiver<bool>) -> anyhow::Result<()> {
    let acquired = holds.wait_for(|holds| *holds).await;
    acquired.map(|_| ()).context("the lease cannot be watched")
}

async fn work(
    client: Client,
    options: &Options,
    holder: &str,
    mut holds: watch::Receiver<bool>,
    stop: watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    tracing::info!("holding the lease");
    telemetry::set_leader(true);
    let defaults = Defaults {
        image: options.default_image.clone(),
        bench_image: options.default_bench_image.clone(),
        user: options.pod_user,
    };
    let context = Context::new(client.clone(), defaults, options.poll_interval())
        .with_identity(options.identity())
        .exit_after_writes(options.exit_after_writes);
    let scopes = Scope::of(&options.namespace_scope);
    readiness::to_list(&scopes);
    let controllers = scopes
        .into_iter()
        .map(|scope| controllers(&context, scope, options.concurrency, &stopped));
    let lost = tokio::select! {
        _ = join_all(controllers) => false,
        _ = holds.wait_for(|holds| !*holds) => true,
        () = lease::lost(&client, options, holder) => true,
    };
    telemetry::set_leader(false);
    // Tasks that wait on it end with this process.
    let _ = stop.send(true);
    if lost {
        bail!("lost the lease; another operator may hold it now");
    }
    tracing::info!("stopped");
    Ok(())
}

/// Both controllers of a scope, until the operator should stop.
async fn controllers(
    context: &Context,
    scope: Scope,
    concurrency: u16,
    stopped: &watch::Receiver<bool>,
) {
    let until = || until(stopped.clone());
    tokio::join!(
        cluster::controller::run(context.clone(), scope.clone(), concurrency, until()),
        benchmark::controller::run(context.clone(), scope, concurrency, until()),
    );
}

/// Resolves once the operator should stop.
async fn until(mut stopped: watch::Receiver<bool>) {
    // A closed channel means that the sender is gone.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

fn stop_on_signal(stop: watch::Sender<bool>) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("received a signal to stop");
        let _ = stop.send(true);
    });
    Ok(())
}

/// The pod's name and a random suffix, since a container may restart in the same pod.
fn holder() -> String {
    let pod = std::env::var("POD_NAME").unwrap_or_else(|_| "dengine-operator".to_owned());
    format!("{pod}-{:08x}", rand::random::<u32>())
}
