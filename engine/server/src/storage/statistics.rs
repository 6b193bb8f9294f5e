//! What a store tells whoever looks after its member: whether the cache is too small, whether the
//! disk keeps up with merging, and whether writes wait for it.

use std::sync::Arc;
use std::time::Duration;

use rocksdb::statistics::{StatsLevel, Ticker};
use rocksdb::{Options, properties as named};

use super::rocks::RocksStore;

/// A table's filter answers those who look for one key by `get`, and those who seek with a cursor.
const FILTER_CHECKS: [Ticker; 5] = [
    Ticker::BloomFilterPrefixChecked,
    Ticker::LastLevelSeekFiltered,
    Ticker::LastLevelSeekFilterMatch,
    Ticker::NonLastLevelSeekFiltered,
    Ticker::NonLastLevelSeekFilterMatch,
];
const FILTER_SKIPS: [Ticker; 3] = [
    Ticker::BloomFilterPrefixUseful,
    Ticker::LastLevelSeekFiltered,
    Ticker::NonLastLevelSeekFiltered,
];

/// Counts what happens in the stores that are opened with it, one after the other: a member opens
/// its store again when it has received a snapshot, and no counter may go back then.
#[derive(Clone)]
pub(crate) struct StoreCounters(Arc<Options>);

impl StoreCounters {
    /// Counts from 0.
    ///
    /// RocksDB counts for each processor apart, so that a block that is looked up costs additions
    /// and no lock. That takes 64 KiB for each processor of the machine, and for eight at least. No
    /// timers, though any level reads the clock around a read of a file, which takes far longer.
    /// This crate has no name for the level of counters alone: this one asks RocksDB for the next,
    /// which also keeps how sizes are distributed.
    pub(crate) fn start() -> Self {
        let mut options = Options::default();
        options.enable_statistics();
        options.set_statistics_level(StatsLevel::ExceptHistogramOrTimers);
        Self(Arc::new(options))
    }

    /// For a store that nobody asks.
    pub(super) fn none() -> Self {
        Self(Arc::default())
    }

    /// A store that is opened with these, whatever else is set, is counted here.
    pub(super) fn options(&self) -> Options {
        Options::clone(&self.0)
    }

    pub(super) fn count(&self, ticker: Ticker) -> u64 {
        self.0.get_ticker_count(ticker)
    }

    fn sum(&self, tickers: &[Ticker]) -> u64 {
        tickers.iter().map(|ticker| self.count(*ticker)).sum()
    }
}

/// How often blocks were looked up in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lookups {
    pub(crate) hits: u64,
    /// They were read from a file then.
    pub(crate) misses: u64,
}

/// What a store tells. What it counts is of all stores of its [`StoreCounters`], and the rest is as
/// of now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreStatistics {
    pub(crate) cache_capacity_bytes: u64,
    pub(crate) cache_used_bytes: u64,
    /// Merges look for their blocks in the cache too, and leave what they read out of it.
    pub(crate) data: Lookups,
    pub(crate) index: Lookups,
    pub(crate) filter: Lookups,
    /// How often a filter was asked whether a file may hold a key.
    pub(crate) filter_checks: u64,
    /// How often it said that it does not, so that nothing else was read there.
    pub(crate) filter_skips: u64,
    /// With those that are written out, but still read.
    pub(crate) memtable_bytes: u64,
    /// Of the files that hold the state; merged ones that are still read are not among them.
    pub(crate) table_bytes: u64,
    /// An estimate of what has to be rewritten until all levels have their size.
    pub(crate) pending_merge_bytes: u64,
    pub(crate) running_flushes: u64,
    pub(crate) running_merges: u64,
    pub(crate) flush_written_bytes: u64,
    pub(crate) merge_read_bytes: u64,
    pub(crate) merge_written_bytes: u64,
    /// Whether writes are slowed down until flushes and merges have caught up.
    pub(crate) are_writes_slowed: bool,
    /// Whether they wait for it.
    pub(crate) are_writes_stopped: bool,
    /// How long writes were slowed or stopped.
    pub(crate) stalled: Duration,
}

impl RocksStore {
    /// RocksDB answers part of this under a lock that its own threads and writes take too.
    pub(crate) fn statistics(&self) -> StoreStatistics {
        let counters = self.counters();
        let lookups = |hits, misses| Lookups {
            hits: counters.count(hits),
            misses: counters.count(misses),
        };
        StoreStatistics {
            cache_capacity_bytes: self.property(named::BLOCK_CACHE_CAPACITY),
            cache_used_bytes: self.property(named::BLOCK_CACHE_USAGE),
            data: lookups(Ticker::BlockCacheDataHit, Ticker::BlockCacheDataMiss),
            index: lookups(Ticker::BlockCacheIndexHit, Ticker::BlockCacheIndexMiss),
            filter: lookups(Ticker::BlockCacheFilterHit, Ticker::BlockCacheFilterMiss),
            filter_checks: counters.sum(&FILTER_CHECKS),
            filter_skips: counters.sum(&FILTER_SKIPS),
            memtable_bytes: self.property(named::SIZE_ALL_MEM_TABLES),
            table_bytes: self.property(named::LIVE_SST_FILES_SIZE),
            pending_merge_bytes: self.property(named::ESTIMATE_PENDING_COMPACTION_BYTES),
            running_flushes: self.property(named::NUM_RUNNING_FLUSHES),
            running_merges: self.property(named::NUM_RUNNING_COMPACTIONS),
            flush_written_bytes: counters.count(Ticker::FlushWriteBytes),
            merge_read_bytes: counters.count(Ticker::CompactReadBytes),
            merge_written_bytes: counters.count(Ticker::CompactWriteBytes),
            are_writes_slowed: self.property(named::ACTUAL_DELAYED_WRITE_RATE) > 0,
            are_writes_stopped: self.property(named::IS_WRITE_STOPPED) > 0,
            stalled: Duration::from_micros(counters.count(Ticker::StallMicros)),
        }
    }
}
