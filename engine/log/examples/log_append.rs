//! Measures appends to a log on this disk: `cargo run --release -p dengine-log --example log_append
//! -- DIRECTORY [ENTRIES_PER_BATCH] [BYTES_PER_ENTRY] [BATCHES]`. Every batch is synced.

use std::io::Write as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dengine_log::{Batch, Log, LogOptions, RealDisk};
use dengine_types::{ClusterId, Entry, EntryKind, Index, MemberId, Term};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let parent = arguments.next().ok_or("which directory?")?;
    let directory = tempfile::tempdir_in(parent)?;
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (entries, bytes, batches) = (number(1)?, number(256)?, number(5000)?);
    let options = LogOptions::new(ClusterId(1), MemberId(1), 1);
    let (mut log, _) = Log::open(RealDisk::open(directory.path().join("log"))?, options)?;

    let data = Bytes::from(vec![7; usize::try_from(bytes)?]);
    let (mut appends, mut syncs, mut prepares) = (Vec::new(), Vec::new(), Vec::new());
    let start = Instant::now();
    for batch in 0..batches {
        let entry = |index| Entry {
            index: Index(index),
            term: Term(1),
            kind: EntryKind::Command,
            context: Bytes::new(),
            data: data.clone(),
        };
        let first = batch * entries + 1;
        let batch = Batch {
            hard_state: None,
            entries: (first..first + entries).map(entry).collect(),
        };
        let before = Instant::now();
        log.append(&batch)?;
        let appended = Instant::now();
        log.sync()?;
        let synced = Instant::now();
        log.prepare()?;
        appends.push(appended - before);
        syncs.push(synced - appended);
        prepares.push(synced.elapsed());
    }
    let seconds = start.elapsed().as_secs_f64();
    let megabytes = (batches * entries * bytes) as f64 / 1e6;
    writeln!(
        std::io::stdout(),
        "{batches} batches of {entries} x {bytes} bytes: {:.0} batches/s, {:.1} MB/s\n\
         append  {}\nsync    {}\nprepare {}",
        batches as f64 / seconds,
        megabytes / seconds,
        percentiles(appends),
        percentiles(syncs),
        percentiles(prepares),
    )?;
    Ok(())
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_micros();
    format!(
        "µs: p50 {}, p99 {}, p99.9 {}, max {}",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    )
}
