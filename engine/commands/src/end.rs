//! How a program ends, and what it says: answers on standard output, all else on standard error.

use std::io::{self, Write as _};

use anyhow::Context as _;
use dengine_client::Error;

use crate::Cluster;

/// The program did what it was asked.
pub const EXIT_OK: u8 = 0;
/// It could not, or had to stop.
pub const EXIT_FAILED: u8 = 1;
/// The command line or the configuration is wrong; nothing was started. clap ends with the same.
pub const EXIT_USAGE: u8 = 2;
/// There is no such key, or what a write was conditional on did not hold. Nothing was changed.
pub const EXIT_UNMET: u8 = 5;

/// The command line asks for what can't be done; the words say what to type instead.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Whether whoever was to read the output has read enough.
#[must_use]
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|it| it.kind() == io::ErrorKind::BrokenPipe)
}

/// The error and what it came of, each once: some errors have their cause in their own words.
#[must_use]
pub fn told(error: &anyhow::Error) -> String {
    let mut told = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !told.contains(&cause) {
            told = format!("{told}: {cause}");
        }
    }
    told
}

/// The exit code of a program that ends with this error.
#[must_use]
pub fn code_of(error: &anyhow::Error) -> u8 {
    let options = matches!(error.downcast_ref(), Some(Error::InvalidOptions { .. }));
    match options || error.downcast_ref::<UsageError>().is_some() {
        true => EXIT_USAGE,
        false => EXIT_FAILED,
    }
}

/// The error, with where it was asked if that may be the mistake.
pub(crate) fn explained(error: anyhow::Error, cluster: &impl Cluster) -> anyhow::Error {
    let strange = match error.downcast_ref::<Error>() {
        Some(Error::Unavailable { .. }) => true,
        Some(Error::Refused { code, .. }) => *code == tonic::Code::Unimplemented,
        _ => false,
    };
    match strange {
        true => error.context(cluster.nobody_serves()),
        false => error,
    }
}

/// Writes a line of what was asked for.
///
/// # Errors
/// If not all of it could be written.
pub fn print(line: &str) -> anyhow::Result<()> {
    print_to(io::stdout(), line)
}

fn print_to(mut out: impl io::Write, line: &str) -> anyhow::Result<()> {
    shown(writeln!(out, "{line}"))
}

/// The same error, with where it comes from: a full disk may be a member's too.
pub(crate) fn shown(written: io::Result<()>) -> anyhow::Result<()> {
    written.context("standard output can't be written")
}

/// Whether the answer to a write could be shown; if not, the error says that it was done.
pub(crate) fn after_write(shown: anyhow::Result<()>, revision: u64) -> anyhow::Result<()> {
    shown.with_context(|| format!("the write took effect, at revision {revision}"))
}

/// Writes a line for the person who runs the program. A closed pipe is no reason to fail.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_output_is_no_failed_write() {
        let full = fs_err::File::create("/dev/full").unwrap();
        let error = after_write(print_to(full, "revision 7"), 7).unwrap_err();
        let words = "the write took effect, at revision 7: standard output can't be written: ";
        assert!(told(&error).starts_with(words), "{error:#}");
        assert!(!is_closed_pipe(&error));
    }

    #[test]
    fn who_reads_no_more_is_known_behind_other_words() {
        let closed = Err(io::Error::from(io::ErrorKind::BrokenPipe));
        let error = after_write(shown(closed), 7).unwrap_err();
        assert!(is_closed_pipe(&error), "{error:#}");
    }
}
