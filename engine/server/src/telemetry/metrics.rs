//! Metrics of requests and of a member's status; [`crate::node::metrics`] are those of its threads.

use super::table::metrics_table;

metrics_table! {
    /// Time to answer a client's request
    ///
    /// From its arrival. Labels: [`METHOD`], [`CODE`].
    Histogram REQUEST_SECONDS = "dengine_request_seconds";

    /// Requests of clients that are being served
    Gauge REQUESTS_IN_FLIGHT = "dengine_requests_in_flight";

    /// 1 while threads that are woken wait for those that run
    ///
    /// Else 0. They are scheduled so (`SCHED_BATCH`) while clients have much under way.
    Gauge BATCH_SCHEDULING = "dengine_batch_scheduling";

    /// Requests that were forwarded to the leader as calls
    ///
    /// Label: [`METHOD`].
    Counter REQUESTS_FORWARDED_TOTAL = "dengine_requests_forwarded_total";

    /// Watches that are open
    ///
    /// Of all streams.
    Gauge WATCHES = "dengine_watches";

    /// Streams of watches ended because their clients did not read
    Counter WATCH_STREAMS_SHED_TOTAL = "dengine_watch_streams_shed_total";

    /// Sessions of clients that are open
    ///
    /// By this member's state.
    Gauge SESSIONS = "dengine_sessions";

    /// Sessions that may be open
    Gauge SESSIONS_MAX = "dengine_sessions_max";

    /// 1 while the member can answer a linearizable read
    ///
    /// Else 0.
    Gauge READY = "dengine_ready";

    /// 1 while the member leads
    ///
    /// Else 0.
    Gauge LEADER = "dengine_leader";

    /// The latest term that the member knows
    Gauge TERM = "dengine_term";

    /// Index of the last entry in the log
    Gauge LAST_INDEX = "dengine_last_index";

    /// Index up to which the log is known to be committed
    ///
    /// To this member.
    Gauge COMMIT_INDEX = "dengine_commit_index";

    /// Index up to which the log is applied
    Gauge APPLIED_INDEX = "dengine_applied_index";

    /// Revision of the store
    Gauge REVISION = "dengine_revision";

    /// Size of the log on disk
    Gauge LOG_SIZE_BYTES = "dengine_log_size_bytes";

    /// Approximate size of the state on disk
    Gauge STATE_SIZE_BYTES = "dengine_state_size_bytes";

    /// Bytes that the cache of keys that were changed or read lately takes, about
    Gauge KEY_CACHE_BYTES = "dengine_key_cache_bytes";

    /// Bytes that it may take
    ///
    /// `state.key_cache_bytes`, and by default a fifth of what the process may have.
    Gauge KEY_CACHE_CAPACITY_BYTES = "dengine_key_cache_capacity_bytes";

    /// Times that a change, or a read of one key, found its key in that cache
    ///
    /// Or that there is no such key.
    Counter KEY_CACHE_HITS_TOTAL = "dengine_key_cache_hits_total";

    /// Times that it did not, and the store was searched
    Counter KEY_CACHE_MISSES_TOTAL = "dengine_key_cache_misses_total";

    /// 1 while the store answers what its metrics ask
    ///
    /// Else 0, as before the member has one and while it takes over a snapshot: its other metrics
    /// are as of its last answer then.
    Gauge STORE_ANSWERS = "dengine_store_answers";

    /// Bytes that the store's block cache may use
    ///
    /// `state.block_cache_bytes`.
    Gauge STORE_CACHE_CAPACITY_BYTES = "dengine_store_cache_capacity_bytes";

    /// Bytes that the store's block cache uses
    Gauge STORE_CACHE_USED_BYTES = "dengine_store_cache_used_bytes";

    /// Blocks that the store found in its cache
    ///
    /// Label: [`BLOCKS`]. Since the process began, also when a snapshot has become the state, as
    /// all counters of the store.
    Counter STORE_CACHE_HITS_TOTAL = "dengine_store_cache_hits_total";

    /// Blocks that the store did not find in its cache
    ///
    /// Label: [`BLOCKS`]. Merges look there too, and leave what they read out of it.
    Counter STORE_CACHE_MISSES_TOTAL = "dengine_store_cache_misses_total";

    /// Times that a filter was asked whether a file of the store may hold a key
    Counter STORE_FILTER_CHECKS_TOTAL = "dengine_store_filter_checks_total";

    /// Times that a filter spared the store a search in a file
    Counter STORE_FILTER_SKIPS_TOTAL = "dengine_store_filter_skips_total";

    /// Bytes of the store's tables of writes in memory
    ///
    /// With those that are written out, but still read. `state.write_buffer_bytes` is the size of
    /// one.
    Gauge STORE_MEMTABLE_BYTES = "dengine_store_memtable_bytes";

    /// Bytes of the files that hold the state
    ///
    /// Merged ones that are still read are not among them.
    Gauge STORE_TABLE_BYTES = "dengine_store_table_bytes";

    /// Bytes that the store has yet to merge, an estimate
    ///
    /// It slows writes at 64 GiB, and stops them at 256.
    Gauge STORE_PENDING_MERGE_BYTES = "dengine_store_pending_merge_bytes";

    /// Tables of writes that are being written to files
    Gauge STORE_RUNNING_FLUSHES = "dengine_store_running_flushes";

    /// Merges (compactions of RocksDB) that run
    Gauge STORE_RUNNING_MERGES = "dengine_store_running_merges";

    /// Bytes of files that were written from tables in memory
    Counter STORE_FLUSH_WRITTEN_BYTES_TOTAL = "dengine_store_flush_written_bytes_total";

    /// Bytes that merges have read from files
    Counter STORE_MERGE_READ_BYTES_TOTAL = "dengine_store_merge_read_bytes_total";

    /// Bytes that merges have written to files
    Counter STORE_MERGE_WRITTEN_BYTES_TOTAL = "dengine_store_merge_written_bytes_total";

    /// 1 while the store slows writes down, for flushes or merges are behind
    ///
    /// Else 0.
    Gauge STORE_WRITES_SLOWED = "dengine_store_writes_slowed";

    /// 1 while the store takes no writes, for flushes or merges are far behind
    ///
    /// Else 0.
    Gauge STORE_WRITES_STOPPED = "dengine_store_writes_stopped";

    /// Time that writes waited because the store slowed or stopped them
    ///
    /// Counted when they wait no more. In milliseconds, for counters are whole numbers.
    Counter STORE_WRITES_STALLED_MILLISECONDS_TOTAL =
        "dengine_store_writes_stalled_milliseconds_total";

    /// Traces of writes that the collector has taken
    ///
    /// With `tracing.endpoint`; each member sends its own part of a trace.
    Counter TRACES_SENT_TOTAL = "dengine_traces_sent_total";

    /// Traces of writes that were dropped
    ///
    /// The collector took them too slowly, or not at all.
    Counter TRACES_DROPPED_TOTAL = "dengine_traces_dropped_total";

    /// Log lines that were lost
    ///
    /// Standard error took them too slowly, or not at all.
    Counter LOG_LINES_LOST_TOTAL = "dengine_log_lines_lost_total";

    /// Always 1; the label names the version
    ///
    /// Label: [`VERSION`].
    Gauge BUILD_INFO = "dengine_build_info";

    /// Memory that the process holds
    Gauge RESIDENT_MEMORY_BYTES = "process_resident_memory_bytes";
}

/// Label: the gRPC method, such as `Put`.
pub const METHOD: &str = "method";
/// Label: the gRPC status code, such as `OK`.
pub const CODE: &str = "code";
/// Label: what the store's blocks hold, `data`, `index` or `filter`.
pub const BLOCKS: &str = "blocks";
/// Label: version of the program.
pub const VERSION: &str = "version";
