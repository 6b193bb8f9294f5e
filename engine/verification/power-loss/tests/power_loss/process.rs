//! The server as a process.

use std::path::Path;
use std::process::Command;

use dengine_testkit::{Listen, Process, built_program, serve};

use crate::script::LARGE_BYTES;

/// Starts `dengine serve` on a data directory; its output is added to `log`.
pub(crate) fn start(name: &str, listen: &Listen, folder: &Path, log: &Path) -> Process {
    let mut command = Command::new(built_program("make power-loss"));
    serve(&mut command, name, listen, folder);
    Process::start(command.args(smallest()), log)
}

/// The smallest values that are valid, so that a short script reaches every limit; and a sole voter
/// that leads at once.
fn smallest() -> Vec<String> {
    const KEY_BYTES: usize = 64;
    const BATCH_BYTES: usize = 2 * (LARGE_BYTES + KEY_BYTES) + 1024;
    let settings = [
        ("tick-ms", 10),
        ("election-ticks", 3),
        ("max-key-bytes", KEY_BYTES),
        ("max-value-bytes", LARGE_BYTES),
        ("max-batch-operations", 8),
        ("max-batch-request-bytes", LARGE_BYTES),
        ("max-batch-bytes", BATCH_BYTES),
        (
            "log-segment-bytes",
            (2 * BATCH_BYTES).next_multiple_of(4096),
        ),
        ("log-flush-bytes", 1024 * 1024),
        ("log-keep-bytes", 4096),
        ("log-keep-bytes-for-followers", 4096),
    ];
    let flags = settings.map(|(name, value)| [format!("--{name}"), value.to_string()]);
    flags.concat()
}
