//! [`Store`] on RocksDB.
//!
//! RocksDB's own write-ahead log is off: the replicated log is the only one. One column family, so
//! each batch lies in one memtable; memtables reach the disk whole and in order, and what a crash
//! leaves is the state after some batch, never a part of one.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use dengine_kv::layout::{is_change_key, version_prefix};
use dengine_kv::store::{Cursor, Operation, Reclaimed, Scope, Store, StoreError, WriteBatch};
use dengine_log::durable::create_dir_all;
use rocksdb::perf::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, DBRawIterator, ErrorKind, FlushOptions,
    Options, ReadOptions, ReadTier, SliceTransform, WriteOptions, properties,
};

use super::lines::info_logger;
use super::reclaim::Failures;
use super::space::{OpenStore, Patience};
use super::statistics::StoreCounters;
use crate::files::{self, Use};

/// Part of the format: filters made under one name are not used under another.
const PREFIX_EXTRACTOR: &str = "dengine.version-prefix.2";
const BLOOM_BITS_PER_KEY: f64 = 10.0;
/// Share of a memtable for its own filter, which spares most searches for keys that are new.
const MEMTABLE_BLOOM_RATIO: f64 = 0.05;
pub(super) const BLOCK_BYTES: usize = 8 << 10;
/// Who reads more than this part of the cache through leaves it as it is. What is less may be read
/// through again and again.
const PART_OF_CACHE: u64 = 4;
const OPEN_FILES_MAX: usize = 512;
/// Logarithm of the number of shares in which tables are open, each with a lock of its own.
const OPEN_TABLES_SHARD_BITS: i32 = 2;
/// So many files at level 0 are merged with the first level below it.
const LEVEL_0_FILES: i32 = 4;
/// Sizes of files in the first two levels below level 0; files of each level below are four times
/// as large, so that a large state has not too many.
const FILE_BYTES: u64 = 16 << 20;
/// The size of the first level below level 0: what that is merged from, so that not much more is
/// read and written again with it. A merge needs as much space as it writes, and keeps what it
/// reads until it ends: on a small disk the usual ones, of all level 0 with 256 MiB and of 64 MiB
/// with ten times as much, find none. Whoever has memory for larger write buffers has a larger
/// disk, but not one of any size.
const FIRST_LEVEL_BYTES_MIN: u64 = 64 << 20;
const FIRST_LEVEL_BYTES_MAX: u64 = 256 << 20;
/// What a merge below level 0 reads at most, unless one file has more beside it.
pub(super) const MERGE_BYTES: u64 = 128 << 20;
/// A file with more than so many deleted records among so many in a row is merged soon: whoever
/// reads a range steps over each. They are more than the half that keys leave which are written
/// again and again, the older version of each deleted beside the new one: these are not merged more
/// often for it.
const DELETED_MAX: usize = 12 << 10;
const DELETED_AMONG: usize = 16 << 10;
/// Who may leave it steps over no more than so many deleted records in a row: 600,000 took about a
/// second on a busy machine.
const DELETED_STEPPED_OVER_MAX: u64 = 100_000;
/// Hands dirty pages to the disk as they are made, or a long file's sync would hold up the log's.
const BYTES_PER_SYNC: u64 = 1 << 20;
/// How RocksDB words that kind of error, which its C interface tells by words only.
const NO_SPACE: &str = "No space left on device";

/// How much memory RocksDB may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RocksOptions {
    /// Size of a memtable. Up to three exist. Small ones make many small files to merge.
    pub write_buffer_bytes: usize,
    /// Size of the cache for blocks, indexes and filters.
    pub block_cache_bytes: usize,
}

impl RocksOptions {
    /// Filling, full and being flushed. With one more, memory grows; with one less, a slow flush
    /// stops writes.
    pub(crate) const WRITE_BUFFERS_MAX: u64 = 3;
}

impl Default for RocksOptions {
    fn default() -> Self {
        Self {
            write_buffer_bytes: 16 << 20,
            block_cache_bytes: 64 << 20,
        }
    }
}

/// A [`Store`] in a directory.
pub struct RocksStore {
    db: DB,
    write: WriteOptions,
    read: ReadOptions,
    /// Of writes and reads that wait for nothing.
    write_at_hand: WriteOptions,
    read_at_hand: ReadOptions,
    write_buffer_bytes: u64,
    block_cache_bytes: u64,
    tables_open_together: usize,
    counters: StoreCounters,
    failures: Failures,
    /// Dropped after `db`, so that it tells when RocksDB has closed the directory.
    patience: Arc<Patience>,
}

impl std::fmt::Debug for RocksStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RocksStore")
            .field("path", &self.db.path())
            .finish_non_exhaustive()
    }
}

impl RocksStore {
    /// Opens the store in `directory`, creating both if they are missing.
    ///
    /// # Errors
    /// If the directory cannot be used, is in use, is damaged, or holds something else. It is
    /// unchanged then.
    pub fn open(directory: &Path, options: &RocksOptions) -> Result<Self, StoreError> {
        Self::open_counted(directory, options, &StoreCounters::none())
    }

    /// As [`RocksStore::open`]; what happens in the store is counted by `counters`.
    pub(crate) fn open_counted(
        directory: &Path,
        wanted: &RocksOptions,
        counters: &StoreCounters,
    ) -> Result<Self, StoreError> {
        check_folder(directory)?;
        // RocksDB would create the directory too, but not make its name durable.
        create_dir_all(directory).map_err(|error| unusable(&error))?;
        let open_files = files::most(Use::Store, OPEN_FILES_MAX);
        let options = db_options(counters, wanted, open_files);
        let db = DB::open(&options, directory).map_err(|error| opening(directory, error))?;
        Ok(Self::new(db, wanted, open_files, counters.clone()))
    }

    /// Opens a store that nobody writes, and writes nothing either.
    pub(super) fn open_read_only(directory: &Path) -> Result<Self, StoreError> {
        let (wanted, counters) = (RocksOptions::default(), StoreCounters::none());
        let open_files = files::most(Use::Store, OPEN_FILES_MAX);
        let mut options = db_options(&counters, &wanted, open_files);
        options.create_if_missing(false);
        let db = DB::open_for_read_only(&options, directory, false)
            .map_err(|error| opening(directory, error))?;
        Ok(Self::new(db, &wanted, open_files, counters))
    }

    fn new(db: DB, options: &RocksOptions, open_files: usize, counters: StoreCounters) -> Self {
        let mut write = WriteOptions::default();
        write.disable_wal(true);
        let mut write_at_hand = WriteOptions::default();
        write_at_hand.disable_wal(true);
        write_at_hand.set_no_slowdown(true);
        Self {
            db,
            write,
            read: ReadOptions::default(),
            write_at_hand,
            read_at_hand: at_hand(ReadOptions::default()),
            write_buffer_bytes: options.write_buffer_bytes as u64,
            block_cache_bytes: options.block_cache_bytes as u64,
            tables_open_together: open_files / 2,
            counters,
            failures: Failures::default(),
            patience: Arc::default(),
        }
    }

    pub(super) fn database(&self) -> &DB {
        &self.db
    }

    /// How many tables are all open once each was opened: of more, whose shares of what may be open
    /// are not equal, some may be closed again.
    pub(super) fn tables_open_together(&self) -> usize {
        self.tables_open_together
    }

    pub(super) fn write_buffer_bytes(&self) -> u64 {
        self.write_buffer_bytes
    }

    pub(super) fn counters(&self) -> &StoreCounters {
        &self.counters
    }

    pub(super) fn patience(&self) -> &Patience {
        &self.patience
    }

    pub(super) fn failures(&self) -> &Failures {
        &self.failures
    }

    /// What tells when the last user of this store is gone and it is closed.
    pub(crate) fn watch(&self) -> OpenStore {
        OpenStore::new(&self.patience)
    }

    fn get_with(
        &self,
        key: &[u8],
        read: &ReadOptions,
        failed: FailedBy,
    ) -> Result<Option<Bytes>, StoreError> {
        let found = self.db.get_pinned_opt(key, read);
        let found = found.map_err(|error| failed("reading a record", error))?;
        Ok(found.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn write_with(
        &self,
        batch: &WriteBatch,
        write: &WriteOptions,
        failed: FailedBy,
    ) -> Result<(), StoreError> {
        /// What RocksDB adds to an operation: its kind and two lengths.
        const OVERHEAD_BYTES: usize = 11;
        let mut operations = rocksdb::WriteBatch::with_capacity_bytes(
            12 + batch.size_bytes() + batch.len() * OVERHEAD_BYTES,
        );
        // RocksDB finds the place of a record in a memtable by that of the record before it, if
        // that is where it belongs: of changes, in a row, it searches only for the first.
        let is_change = |operation: &Operation<'_>| is_change_key(operation.key());
        let others = batch.operations().filter(|it| !is_change(it));
        let changes = batch.operations().filter(is_change);
        for operation in others.chain(changes) {
            match operation {
                Operation::Put { key, value } => operations.put(key, value),
                Operation::Delete { key } => operations.delete(key),
                Operation::DeleteChanges { from, to } => operations.delete_range(from, to),
            }
        }
        self.db
            .write_opt(operations, write)
            .map_err(|error| failed("writing a batch", error))
    }

    /// Whether it would take a good part of the cache, by the indexes of the files.
    fn is_much(&self, scope: &Scope) -> bool {
        match scope {
            Scope::OneKey => false,
            Scope::Between(range) => {
                let range = rocksdb::Range::new(&range.start, &range.end);
                let bytes: u64 = self.db.get_approximate_sizes(&[range]).iter().sum();
                bytes > self.block_cache_bytes / PART_OF_CACHE
            }
        }
    }

    fn cursor_with(
        &self,
        mut options: ReadOptions,
        scope: Scope,
        failed: FailedBy,
    ) -> RocksCursor<'_> {
        let stepped_over_before = match scope {
            Scope::OneKey => {
                options.set_prefix_same_as_start(true);
                None
            }
            Scope::Between(range) => {
                options.set_total_order_seek(true);
                options.set_iterate_lower_bound(range.start);
                options.set_iterate_upper_bound(range.end);
                Some(stepped_over_by_this_thread())
            }
        };
        RocksCursor {
            iterator: self.db.raw_iterator_opt(options),
            stepped_over_before,
            failed,
        }
    }

    pub(super) fn property(&self, name: &properties::PropName) -> u64 {
        // These properties always exist; an unknown size is no reason to fail.
        self.db
            .property_int_value(name)
            .ok()
            .flatten()
            .unwrap_or_default()
    }
}

impl Store for RocksStore {
    type Cursor<'a> = RocksCursor<'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.get_with(key, &self.read, failed)
    }

    fn cursor(&self, scope: Scope) -> RocksCursor<'_> {
        self.cursor_with(ReadOptions::default(), scope, failed)
    }

    fn get_at_hand(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.get_with(key, &self.read_at_hand, failed_at_hand)
    }

    fn cursor_of_few_deleted(&self, scope: Scope) -> RocksCursor<'_> {
        let mut read = ReadOptions::default();
        read.set_max_skippable_internal_keys(DELETED_STEPPED_OVER_MAX);
        self.cursor_with(read, scope, failed)
    }

    fn cursor_of_one_pass(&self, scope: Scope) -> RocksCursor<'_> {
        let mut read = ReadOptions::default();
        read.fill_cache(!self.is_much(&scope));
        self.cursor_with(read, scope, failed)
    }

    fn cursor_at_hand(&self, scope: Scope) -> RocksCursor<'_> {
        self.cursor_with(at_hand(ReadOptions::default()), scope, failed_at_hand)
    }

    fn write_at_hand(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        match self.write_with(batch, &self.write_at_hand, failed_at_hand) {
            Err(StoreError::NoSpace { .. }) => Err(StoreError::NotAtHand),
            written => written,
        }
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        self.patience.retry(|| self.write_if_room(batch))
    }

    fn write_if_room(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        self.write_with(batch, &self.write, failed)
    }

    fn flush(&self) -> Result<(), StoreError> {
        let mut options = FlushOptions::default();
        options.set_wait(true);
        self.db
            .flush_opt(&options)
            .map_err(|error| failed("flushing", error))
    }

    fn reclaim(&self, free_bytes: u64) -> Result<Reclaimed, StoreError> {
        self.reclaim_some(free_bytes)
    }

    fn unflushed_bytes(&self) -> u64 {
        self.property(properties::CUR_SIZE_ALL_MEM_TABLES)
    }

    fn approximate_bytes(&self) -> u64 {
        self.property(properties::TOTAL_SST_FILES_SIZE)
            + self.property(properties::CUR_SIZE_ALL_MEM_TABLES)
    }
}

/// The [`Cursor`] of a [`RocksStore`].
pub struct RocksCursor<'a> {
    iterator: DBRawIterator<'a>,
    /// By its thread; `None` if it stays among the versions of a key.
    stepped_over_before: Option<u64>,
    failed: FailedBy,
}

/// Fails rather than to read what is not in memory.
fn at_hand(mut options: ReadOptions) -> ReadOptions {
    options.set_read_tier(ReadTier::BlockCache);
    options
}

/// Deletions that RocksDB's iterators on this thread had to pass. RocksDB counts them once it was
/// asked to: an addition for each.
fn stepped_over_by_this_thread() -> u64 {
    set_perf_stats(PerfStatsLevel::EnableCount);
    PerfContext::default().metric(PerfMetric::InternalDeleteSkippedCount)
}

impl RocksCursor<'_> {
    /// An iterator that stands nowhere has come to the end, or has failed.
    fn check(&self) -> Result<(), StoreError> {
        if self.iterator.valid() {
            return Ok(());
        }
        self.iterator
            .status()
            .map_err(|error| (self.failed)("reading records", error))
    }
}

impl Cursor for RocksCursor<'_> {
    fn seek(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.iterator.seek(key);
        self.check()
    }

    fn next(&mut self) -> Result<(), StoreError> {
        self.iterator.next();
        self.check()
    }

    fn record(&self) -> Option<(&[u8], &[u8])> {
        self.iterator.item()
    }

    fn stepped_over(&self) -> usize {
        let before = self.stepped_over_before;
        let now = stepped_over_by_this_thread();
        before.map_or(0, |before| now.saturating_sub(before) as usize)
    }
}

fn db_options(counters: &StoreCounters, wanted: &RocksOptions, open_files: usize) -> Options {
    let mut options = counters.options();
    options.create_if_missing(true);
    options.set_prefix_extractor(SliceTransform::create(
        PREFIX_EXTRACTOR,
        |key| version_prefix(key).unwrap_or_default(),
        Some(|key| version_prefix(key).is_some()),
    ));
    options.set_block_based_table_factory(&table_options(wanted));
    options.set_write_buffer_size(wanted.write_buffer_bytes);
    options.set_max_write_buffer_number(RocksOptions::WRITE_BUFFERS_MAX as i32);
    options.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM_RATIO);
    // One thread applies, so there is nothing to make concurrent.
    options.set_allow_concurrent_memtable_write(false);
    options.set_compression_type(DBCompressionType::Lz4);
    options.add_compact_on_deletion_collector_factory(DELETED_AMONG, DELETED_MAX, 0.0);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_target_file_size_base(FILE_BYTES);
    options.set_target_file_size_multiplier(4);
    options.set_level_zero_file_num_compaction_trigger(LEVEL_0_FILES);
    options.set_max_bytes_for_level_base(first_level_bytes(wanted));
    options.set_max_compaction_bytes(MERGE_BYTES);
    options.set_max_background_jobs(2);
    options.set_bytes_per_sync(BYTES_PER_SYNC);
    options.set_max_open_files(i32::try_from(open_files).unwrap_or(i32::MAX));
    options.set_table_cache_num_shard_bits(OPEN_TABLES_SHARD_BITS);
    options.set_info_logger(info_logger());
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options
}

fn first_level_bytes(wanted: &RocksOptions) -> u64 {
    let level_0_bytes = LEVEL_0_FILES as u64 * wanted.write_buffer_bytes as u64;
    level_0_bytes.clamp(FIRST_LEVEL_BYTES_MIN, FIRST_LEVEL_BYTES_MAX)
}

fn table_options(wanted: &RocksOptions) -> BlockBasedOptions {
    let mut table = BlockBasedOptions::default();
    table.set_block_size(BLOCK_BYTES);
    // Without a lock: every read looks into it several times. 0: it finds out how large its entries
    // are.
    table.set_block_cache(&Cache::new_hyper_clock_cache(wanted.block_cache_bytes, 0));
    // Indexes and filters grow with the data; in the cache they have a bound.
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, false);
    // Data is never looked up by its whole key: the revision is not known beforehand.
    table.set_whole_key_filtering(false);
    table
}

/// Refuses a directory that is not empty, but that RocksDB would take for empty and fill.
fn check_folder(directory: &Path) -> Result<(), StoreError> {
    let entries = match fs_err::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unusable(&error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| unusable(&error))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    if names.iter().any(|name| name == "CURRENT") {
        return check_current(directory, &names);
    }
    if names.iter().any(|name| name.ends_with(".sst")) {
        return Err(StoreError::Corrupt(format!(
            "the file CURRENT is missing in {}",
            directory.display()
        )));
    }
    match names.iter().find(|name| !may_precede_current(name)) {
        None => Ok(()),
        Some(name) => Err(StoreError::Foreign(format!(
            "{} holds {name} and no state; choose an empty directory",
            directory.display()
        ))),
    }
}

/// RocksDB takes a manifest that is not there for a fault of the disk, which it is not: somebody
/// removed it, as the repair of a file system does with what it can't read.
fn check_current(directory: &Path, names: &[String]) -> Result<(), StoreError> {
    let current = fs_err::read(directory.join("CURRENT"));
    let current = current.map_err(|error| unusable(&error))?;
    let manifest = current.trim_ascii();
    let is_named = names.iter().any(|name| name.as_bytes() == manifest);
    if is_named && manifest.starts_with(b"MANIFEST-") {
        return Ok(());
    }
    Err(StoreError::Corrupt(format!(
        "the file CURRENT in {} names {}, which is not there: one of them was damaged or removed",
        directory.display(),
        manifest.escape_ascii()
    )))
}

/// Whether a crash during the very first open can leave this file without a `CURRENT`.
fn may_precede_current(name: &str) -> bool {
    let prefixes = [
        "LOCK",
        "LOG",
        "IDENTITY",
        "MANIFEST-",
        "OPTIONS-",
        "lost+found",
    ];
    let suffixes = [".dbtmp", ".log"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
        || suffixes.iter().any(|suffix| name.ends_with(suffix))
}

fn unusable(error: &io::Error) -> StoreError {
    StoreError::Failed {
        doing: "listing its directory",
        reason: error.to_string(),
    }
}

fn opening(directory: &Path, error: rocksdb::Error) -> StoreError {
    match failed("opening its directory", error) {
        StoreError::Failed { doing, reason } if reason.contains("lock") => StoreError::Failed {
            doing,
            reason: format!(
                "{} is in use; stop the other process that has it open ({reason})",
                directory.display()
            ),
        },
        other => other,
    }
}

/// What an error of RocksDB means to who did this.
type FailedBy = fn(&'static str, rocksdb::Error) -> StoreError;

/// To who waits for nothing.
fn failed_at_hand(doing: &'static str, error: rocksdb::Error) -> StoreError {
    match error.kind() {
        ErrorKind::Incomplete => StoreError::NotAtHand,
        _ => failed(doing, error),
    }
}

pub(super) fn failed(doing: &'static str, error: rocksdb::Error) -> StoreError {
    match error.kind() {
        ErrorKind::Corruption => StoreError::Corrupt(format!("{doing}: {error}")),
        ErrorKind::IOError if error.as_ref().contains(NO_SPACE) => StoreError::NoSpace {
            doing,
            reason: error.into_string(),
        },
        _ => StoreError::Failed {
            doing,
            reason: error.into_string(),
        },
    }
}
