//! The `dengine-operator` program.

use clap::Parser;
use dengine_operator::options::Options;
use dengine_operator::{check, run, telemetry};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    telemetry::log(options.log_format, &options.log_level)?;
    if options.check {
        return check::run(&options).await;
    }
    run::run(options).await
}
