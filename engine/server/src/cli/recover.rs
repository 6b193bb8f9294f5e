//! `dengine recover`: accepts, by a person's decision, a data directory that may lack acknowledged
//! writes.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use dengine_data_dir::{DataDir, DataDirError};

use super::{EXIT_OK, say};

/// What `dengine recover` takes.
#[derive(Debug, Args)]
pub(super) struct RecoverArgs {
    /// The member's data directory. The member must not be running.
    #[arg(long, value_name = "PATH", env = "DENGINE_DATA_DIR")]
    data_dir: PathBuf,

    /// Continue with what is in the data directory. Acknowledged writes that are on the disks of no
    /// majority are lost permanently.
    #[arg(long)]
    accept_lost_writes: bool,
}

pub(super) fn run(args: &RecoverArgs) -> anyhow::Result<u8> {
    if !args.data_dir.is_dir() {
        bail!("there is no directory {}", args.data_dir.display());
    }
    let folder = DataDir::open(&args.data_dir)?;
    match folder.check() {
        Ok(()) => say("this data directory is not suspect; nothing was changed"),
        Err(DataDirError::Suspect { .. }) if args.accept_lost_writes => {
            folder.accept_lost_writes()?;
            say("this member will continue with what is in its data directory");
        }
        // If the data directory cannot be read, it is not known what is missing.
        Err(error) => return Err(error.into()),
    }
    Ok(EXIT_OK)
}
