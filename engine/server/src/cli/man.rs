//! `dengine completions` and `man`: the command line, told to shells and to `man`.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use super::{EXIT_OK, command};

/// What `dengine completions` takes.
#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// For which shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// What `dengine man` takes.
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// The directory, which is created if it is missing.
    directory: PathBuf,
}

pub(super) fn completions(args: &CompletionsArgs) -> anyhow::Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "dengine", &mut script);
    io::stdout().write_all(&script)?;
    Ok(EXIT_OK)
}

pub(super) fn pages(args: &ManArgs) -> anyhow::Result<u8> {
    fs_err::create_dir_all(&args.directory)?;
    clap_mangen::generate_to(command(), &args.directory)?;
    Ok(EXIT_OK)
}
