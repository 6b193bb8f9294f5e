//! What RocksDB has to say, as lines of the member's log.
//!
//! It says most of that while it holds the lock that reads, writes and its own threads need. With a
//! file of its own for it, a disk that hangs held up all of them; and so would a standard error
//! that nobody reads. So nothing waits here: a thread writes the lines, those that come too fast or
//! find no room are left out, and the next one says how many.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, LazyLock};
use std::thread;

use rocksdb::{InfoLogger, LogLevel};

use crate::telemetry::lines::Lines;

/// Lines that wait for the thread.
const WAITING_MAX: usize = 16;

/// For a store that is to be opened.
pub(super) fn info_logger() -> InfoLogger {
    /// All stores of the process share it: what they say is told by one thread.
    static TELLER: LazyLock<Arc<Teller>> = LazyLock::new(|| {
        let (teller, told) = Teller::new();
        let thread = thread::Builder::new().name("dengine-rocksdb".to_owned());
        // Without it, what RocksDB has to say is not told.
        drop(thread.spawn(move || write(&told)));
        Arc::new(teller)
    });
    let teller = Arc::clone(&TELLER);
    InfoLogger::new_callback_logger(LogLevel::Warn, move |level, line| {
        if let Some(severity) = Severity::of(level) {
            teller.tell(severity, line);
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

struct Line {
    severity: Severity,
    text: String,
    /// How many before it are not told.
    left_out: u64,
}

/// The way to the thread that writes lines.
struct Teller {
    queue: SyncSender<Line>,
    limit: Lines,
    lost: AtomicU64,
}

impl Teller {
    fn new() -> (Self, Receiver<Line>) {
        let (queue, told) = sync_channel(WAITING_MAX);
        let teller = Self {
            queue,
            limit: Lines::default(),
            lost: AtomicU64::new(0),
        };
        (teller, told)
    }

    /// Never waits.
    fn tell(&self, severity: Severity, text: &str) {
        let Some(too_fast) = self.limit.next() else {
            return;
        };
        let left_out = too_fast + self.lost.swap(0, Ordering::Relaxed);
        let line = Line {
            severity,
            text: text.trim_end().to_owned(),
            left_out,
        };
        if self.queue.try_send(line).is_err() {
            self.lost.fetch_add(left_out + 1, Ordering::Relaxed);
        }
    }
}

fn write(told: &Receiver<Line>) {
    while let Ok(line) = told.recv() {
        let left_out = (line.left_out > 0).then_some(line.left_out);
        match line.severity {
            Severity::Note => tracing::info!(left_out, "RocksDB: {}", line.text),
            Severity::Failure => tracing::warn!(left_out, "RocksDB: {}", line.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// It would hold up reads and writes, and a leader whose store stands still hands over nothing.
    #[test]
    fn who_has_something_to_say_never_waits() {
        let (teller, told) = Teller::new();
        let begun = Instant::now();
        let mut said = 0;
        // Nobody takes them: several seconds' worth fill the queue.
        while begun.elapsed() < Duration::from_secs(5) {
            teller.tell(Severity::Note, "[db/a.cc:1] something\n");
            said += 1;
            thread::sleep(Duration::from_millis(1));
        }
        assert!(begun.elapsed() < Duration::from_secs(8), "{said}");
        let waiting: Vec<_> = told.try_iter().collect();
        assert_eq!(waiting.len(), WAITING_MAX);
        assert_eq!(waiting[0].text, "[db/a.cc:1] something");
        assert_eq!(waiting[0].severity, Severity::Note);
        thread::sleep(Duration::from_secs(1));
        teller.tell(Severity::Failure, "the last");
        let last = told.recv().expect("there is room");
        let in_all: u64 = waiting
            .iter()
            .chain([&last])
            .map(|it| it.left_out + 1)
            .sum();
        assert_eq!(in_all, said + 1);
    }
}
