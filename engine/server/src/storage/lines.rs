//! What RocksDB has to say, as lines of the member's log.
//!
//! It says most of that while it holds the lock that reads, writes and its own threads need: with a
//! file of its own for it, a disk that hung held up all of them. `dengine serve` writes no line in
//! the thread that has something to say ([`telemetry`](crate::telemetry)).

use rocksdb::{InfoLogger, LogLevel};

use crate::telemetry::lines::Lines;

/// For a store that is to be opened.
pub(super) fn info_logger() -> InfoLogger {
    let limit = Lines::default();
    InfoLogger::new_callback_logger(LogLevel::Warn, move |level, line| {
        if let Some(severity) = Severity::of(level)
            && let Some(left_out) = limit.next()
        {
            tell(severity, line.trim_end(), left_out);
        }
    })
}

/// How bad something is for the member. Whether it can go on is not for RocksDB to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Severity {
    Note,
    Failure,
}

impl Severity {
    fn of(level: LogLevel) -> Option<Self> {
        match level {
            // The last are its options, at each start.
            LogLevel::Debug | LogLevel::Info | LogLevel::Header => None,
            LogLevel::Warn => Some(Self::Note),
            LogLevel::Error | LogLevel::Fatal => Some(Self::Failure),
        }
    }
}

/// After so many that came too fast.
fn tell(severity: Severity, line: &str, left_out: u64) {
    let left_out = (left_out > 0).then_some(left_out);
    match severity {
        Severity::Note => tracing::info!(left_out, "RocksDB: {line}"),
        Severity::Failure => tracing::warn!(left_out, "RocksDB: {line}"),
    }
}
