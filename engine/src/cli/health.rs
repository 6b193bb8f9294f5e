//! `dengine health`: asks a member as a probe does.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use dengine_protocol::health;
use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::{EXIT_FAILED, EXIT_OK, say};

/// What `dengine health` takes.
#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    /// `host:port` of the member's client or monitor port.
    #[arg(long, value_name = "HOST:PORT")]
    endpoint: String,

    /// What to ask for: `ready` (can it answer a linearizable read now?) or `live` (do its threads
    /// run?).
    #[arg(long, default_value = health::READY)]
    service: String,

    /// Longest wait for an answer, in milliseconds.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u64).range(1..))]
    timeout_ms: u64,
}

/// Asks once.
pub(super) fn run(args: &HealthArgs) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let status = runtime.block_on(ask(args))?;
    say(&format!("{}: {}", args.service, status.as_str_name()));
    Ok(if status == ServingStatus::Serving {
        EXIT_OK
    } else {
        EXIT_FAILED
    })
}

async fn ask(args: &HealthArgs) -> anyhow::Result<ServingStatus> {
    let timeout = Duration::from_millis(args.timeout_ms);
    let endpoint = Endpoint::from_shared(format!("http://{}", args.endpoint))
        .with_context(|| format!("{:?} is no HOST:PORT", args.endpoint))?;
    let answer = async {
        let channel = endpoint
            .connect_timeout(timeout)
            .connect()
            .await
            .with_context(|| format!("{} can't be reached", args.endpoint))?;
        let request = HealthCheckRequest {
            service: args.service.clone(),
        };
        HealthClient::new(channel)
            .check(request)
            .await
            .map_err(|status| match status.code() {
                Code::NotFound => {
                    anyhow::anyhow!("{} knows no service {:?}", args.endpoint, args.service)
                }
                _ => anyhow::anyhow!("{} did not answer: {}", args.endpoint, status.message()),
            })
    };
    let response = tokio::time::timeout(timeout, answer)
        .await
        .with_context(|| format!("{} did not answer within {timeout:?}", args.endpoint))??;
    Ok(response.into_inner().status())
}
