//! Metrics of requests and of a member's status; [`crate::node::metrics`] are those of its threads.

use super::table::metrics_table;

metrics_table! {
    /// Time to answer a client's request
    ///
    /// From its arrival. Labels: [`METHOD`], [`CODE`].
    Histogram REQUEST_SECONDS = "dengine_request_seconds";

    /// Requests of clients that are being served
    Gauge REQUESTS_IN_FLIGHT = "dengine_requests_in_flight";

    /// Requests that were passed on to the leader
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
/// Label: version of the program.
pub const VERSION: &str = "version";
