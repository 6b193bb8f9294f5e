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

use super::{ENDPOINTS_VARIABLE, EXIT_FAILED, EXIT_OK, say};

/// What `dengine health` takes.
#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    /// Client or monitor addresses of members, comma-separated. Each is asked, and all must be
    /// well.
    #[arg(
        long,
        visible_alias = "endpoint",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        required = true,
        env = ENDPOINTS_VARIABLE
    )]
    endpoints: Vec<String>,

    /// What to ask for: `ready` (can it answer a linearizable read now?) or `live` (do its threads
    /// run?).
    #[arg(long, default_value = health::READY)]
    service: String,

    /// Longest wait for each answer, as in 500ms or 3s.
    #[arg(long, default_value = "3s", value_parser = dengine_commands::time_limit)]
    timeout: Duration,
}

/// Asks each once.
pub(super) fn run(args: &HealthArgs) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut serving = true;
    for address in &args.endpoints {
        let status = runtime.block_on(ask(address, args))?;
        // Of one member there is no doubt who is meant.
        let place = match &args.endpoints[..] {
            [_] => String::new(),
            _ => format!("{address}: "),
        };
        say(&format!(
            "{place}{}: {}",
            args.service,
            status.as_str_name()
        ));
        serving &= status == ServingStatus::Serving;
    }
    Ok(if serving { EXIT_OK } else { EXIT_FAILED })
}

async fn ask(address: &str, args: &HealthArgs) -> anyhow::Result<ServingStatus> {
    let timeout = args.timeout;
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .with_context(|| format!("{address:?} is no HOST:PORT"))?;
    let answer = async {
        let channel = endpoint
            .connect_timeout(timeout)
            .connect()
            .await
            .with_context(|| format!("{address} can't be reached"))?;
        let request = HealthCheckRequest {
            service: args.service.clone(),
        };
        HealthClient::new(channel)
            .check(request)
            .await
            .map_err(|status| match status.code() {
                Code::NotFound => {
                    anyhow::anyhow!("{address} knows no service {:?}", args.service)
                }
                _ => anyhow::anyhow!("{address} did not answer: {}", status.message()),
            })
    };
    let response = tokio::time::timeout(timeout, answer)
        .await
        .with_context(|| format!("{address} did not answer within {timeout:?}"))??;
    Ok(response.into_inner().status())
}
