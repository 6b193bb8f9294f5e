//! Names, units and meanings of what the front door measures, and the meanings of what the node does
//! ([`crate::node::metrics`] names those). Nothing else in the crate spells one out.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

use crate::node::metrics as node;

/// Time from the arrival of a client's request to its answer. Labels: [`METHOD`], [`CODE`].
pub const REQUEST_SECONDS: &str = "dengine_request_seconds";
/// Requests of clients that are being served.
pub const REQUESTS_IN_FLIGHT: &str = "dengine_requests_in_flight";
/// Requests that this member passed on to the leader. Label: [`METHOD`].
pub const REQUESTS_FORWARDED_TOTAL: &str = "dengine_requests_forwarded_total";

/// Watches that are open, of all streams.
pub const WATCHES: &str = "dengine_watches";
/// Streams of watches that were ended because their clients did not read.
pub const WATCH_STREAMS_SHED_TOTAL: &str = "dengine_watch_streams_shed_total";

/// Sessions of clients that are open, by this member's state.
pub const SESSIONS: &str = "dengine_sessions";
/// How many may be open.
pub const SESSIONS_MAX: &str = "dengine_sessions_max";

/// 1 while the member can answer a linearizable read, else 0.
pub const READY: &str = "dengine_ready";
/// 1 while the member leads, else 0.
pub const LEADER: &str = "dengine_leader";
/// The latest term that the member knows.
pub const TERM: &str = "dengine_term";
/// Index of the last entry in the member's log.
pub const LAST_INDEX: &str = "dengine_last_index";
/// Index up to which the member knows the log to be committed.
pub const COMMIT_INDEX: &str = "dengine_commit_index";
/// Index up to which the member has applied the log.
pub const APPLIED_INDEX: &str = "dengine_applied_index";
/// Revision of the member's store.
pub const REVISION: &str = "dengine_revision";
/// Size of the member's log on disk.
pub const LOG_SIZE_BYTES: &str = "dengine_log_size_bytes";
/// Approximate size of the member's state on disk.
pub const STATE_SIZE_BYTES: &str = "dengine_state_size_bytes";
/// Always 1. Label: [`VERSION`].
pub const BUILD_INFO: &str = "dengine_build_info";
/// Memory that the process holds.
pub const RESIDENT_MEMORY_BYTES: &str = "process_resident_memory_bytes";

/// Label: the gRPC method, such as `Put`.
pub const METHOD: &str = "method";
/// Label: the gRPC status code, such as `OK`.
pub const CODE: &str = "code";
/// Label: version of the program.
pub const VERSION: &str = "version";

/// Gives every metric its unit and meaning in what `/metrics` shows.
pub(super) fn describe() {
    describe_requests();
    describe_node();
    describe_status();
}

fn describe_requests() {
    describe_histogram!(
        REQUEST_SECONDS,
        Unit::Seconds,
        "Time to answer a client's request"
    );
    describe_gauge!(
        REQUESTS_IN_FLIGHT,
        "Requests of clients that are being served"
    );
    describe_gauge!(WATCHES, "Watches that are open");
    describe_counter!(
        WATCH_STREAMS_SHED_TOTAL,
        "Streams of watches ended because their clients did not read"
    );
    describe_counter!(
        REQUESTS_FORWARDED_TOTAL,
        "Requests that were passed on to the leader"
    );
}

fn describe_node() {
    describe_histogram!(node::LOG_BATCH_ENTRIES, "Entries in one write to the log");
    describe_histogram!(
        node::LOG_SYNC_SECONDS,
        Unit::Seconds,
        "Time of one fdatasync of the log"
    );
    describe_histogram!(
        node::APPLY_SECONDS,
        Unit::Seconds,
        "Time to apply one batch of entries"
    );
    describe_histogram!(
        node::COMMIT_SECONDS,
        Unit::Seconds,
        "Time from handing a batch to log and peers until a quorum has it"
    );
    describe_histogram!(
        node::REPLICA_TURN_SECONDS,
        Unit::Seconds,
        "Time of one turn of the thread that decides"
    );
    describe_histogram!(
        node::READ_CONFIRM_SECONDS,
        Unit::Seconds,
        "Time that a read waited for a quorum's word"
    );
    describe_counter!(node::APPLIED_ENTRIES_TOTAL, "Entries applied");
    describe_counter!(
        node::PEER_MESSAGES_REFUSED_TOTAL,
        "Peer messages that no peer may send"
    );
    describe_counter!(
        node::PEER_MESSAGES_DROPPED_TOTAL,
        "Peer messages dropped for a full queue"
    );
    describe_counter!(
        node::LEADER_CHANGES_TOTAL,
        "Times that the leader was seen to change"
    );
    describe_counter!(
        node::READ_ROUNDS_TOTAL,
        "Rounds that confirmed linearizable reads"
    );
    describe_counter!(
        node::READS_CONFIRMED_TOTAL,
        "Linearizable and lease reads that were confirmed"
    );
    describe_gauge!(
        node::DISK_FREE_BYTES,
        Unit::Bytes,
        "Bytes that are free on the disk of the data folder"
    );
    describe_gauge!(
        node::LOW_ON_SPACE,
        "1 while the member refuses writes that need space, for its disk is nearly full"
    );
    describe_gauge!(
        node::EXPIRY_BEHIND_SECONDS,
        Unit::Seconds,
        "For how long a key has been due that the leader has not expired yet"
    );
    describe_counter!(
        node::LEASE_READS_TOTAL,
        "Reads that the leader's lease answered without a round"
    );
}

fn describe_status() {
    describe_gauge!(READY, "1 while the member can answer a linearizable read");
    describe_gauge!(LEADER, "1 while the member leads");
    describe_gauge!(TERM, "The latest term that the member knows");
    describe_gauge!(LAST_INDEX, "Index of the last entry in the log");
    describe_gauge!(
        COMMIT_INDEX,
        "Index up to which the log is known to be committed"
    );
    describe_gauge!(APPLIED_INDEX, "Index up to which the log is applied");
    describe_gauge!(REVISION, "Revision of the store");
    describe_gauge!(SESSIONS, "Sessions of clients that are open");
    describe_gauge!(SESSIONS_MAX, "Sessions that may be open");
    describe_gauge!(LOG_SIZE_BYTES, Unit::Bytes, "Size of the log on disk");
    describe_gauge!(
        STATE_SIZE_BYTES,
        Unit::Bytes,
        "Approximate size of the state on disk"
    );
    describe_gauge!(BUILD_INFO, "Always 1; the label names the version");
    describe_gauge!(
        RESIDENT_MEMORY_BYTES,
        Unit::Bytes,
        "Memory that the process holds"
    );
}
