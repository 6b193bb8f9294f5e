//! The `dengine-operator` program.

use clap::Parser;
use dengine_operator::{options::Options, run, telemetry};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    telemetry::log(options.log_format, &options.log_level)?;
    run::run(options).await
}
