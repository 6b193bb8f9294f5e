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
        // Its options, at each start, come as the last of these.
        let is_told = !matches!(level, LogLevel::Debug | LogLevel::Info | LogLevel::Header);
        if is_told && let Some(left_out) = limit.next() {
            let (line, left_out) = (line.trim_end(), (left_out > 0).then_some(left_out));
            match level {
                LogLevel::Warn => tracing::info!(left_out, "RocksDB: {line}"),
                // Whether the member can go on is not for RocksDB to say.
                _ => tracing::warn!(left_out, "RocksDB: {line}"),
            }
        }
    })
}
