//! `dengine recover`: takes up a folder that may lack acknowledged writes, because a person says
//! so.

use super::{EXIT_OK, say};
use anyhow::bail;
use clap::Args;
use dengine_data_dir::{DataDir, DataDirError};
use std::path::PathBuf;

/// What `dengine recover` takes.
#[derive(Debug, Args)]
pub(super) struct RecoverArgs {
    /// The member's data directory. The member must not be running.
    #[arg(long, value_name = "PATH", env = "DENGINE_DATA_DIR")]
    data_dir: PathBuf,

    /// Go on with what is in the folder. Writes that were acknowledged and are on no majority's
    /// disks are lost for ever.
    #[arg(long)]
    accept_lost_writes: bool,
}

pub(super) fn run(args: &RecoverArgs) -> anyhow::Result<u8> {
    if !args.data_dir.is_dir() {
        bail!("there is no directory {}", args.data_dir.display());
    }
    let folder = DataDir::open(&args.data_dir)?;
    match folder.check() {
        Ok(()) => say("this folder is not suspect; nothing was changed"),
        Err(DataDirError::Suspect { .. }) if args.accept_lost_writes => {
            folder.accept_lost_writes()?;
            say("this member will go on with what is in its folder");
        }
        // Of a folder that can't be read nobody knows what is missing.
        Err(error) => return Err(error.into()),
    }
    Ok(EXIT_OK)
}
