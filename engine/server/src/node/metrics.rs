//! Metrics that a member's threads record; [`crate::server`] exposes them.

use ::metrics::{Counter, Histogram, counter, histogram};

use crate::telemetry::table::metrics_table;

metrics_table! {
    /// Entries in one write to the log
    Histogram LOG_BATCH_ENTRIES = "dengine_log_batch_entries";

    /// Time of one fdatasync of the log
    Histogram LOG_SYNC_SECONDS = "dengine_log_sync_seconds";

    /// Time that writes waited for a turn of the replica
    ///
    /// Once for all that came in one frame, or in one call. Those that are refused then are among
    /// them, and changes of the members.
    Histogram WRITE_WAIT_SECONDS = "dengine_write_wait_seconds";

    /// Time from handing a batch to log and peers until a quorum has it
    Histogram COMMIT_SECONDS = "dengine_commit_seconds";

    /// Time of one turn of the replica
    ///
    /// A turn handles everything that was queued.
    Histogram REPLICA_TURN_SECONDS = "dengine_replica_turn_seconds";

    /// Turns of the replica that a caller took in the place of its thread
    ///
    /// While little is under way nearly all of them.
    Counter REPLICA_TURNS_BY_CALLERS_TOTAL = "dengine_replica_turns_by_callers_total";

    /// Turns of the applier that a caller took in the place of its thread
    ///
    /// While writes come one by one, with little else; also those that it left to the thread,
    /// because the store would have had to wait.
    Counter APPLY_TURNS_BY_CALLERS_TOTAL = "dengine_apply_turns_by_callers_total";

    /// Time that a read waited for confirmation by a quorum
    ///
    /// Of linearizable and lease reads.
    Histogram READ_CONFIRM_SECONDS = "dengine_read_confirm_seconds";

    /// Time from handing committed entries to the applier until their application begins
    ///
    /// Of the first entry of each batch. While much waits to be applied, entries that are committed
    /// are handed over later: see the difference of the indexes then.
    Histogram APPLY_WAIT_SECONDS = "dengine_apply_wait_seconds";

    /// Time to apply one batch of entries
    Histogram APPLY_SECONDS = "dengine_apply_seconds";

    /// Entries applied
    Counter APPLIED_ENTRIES_TOTAL = "dengine_applied_entries_total";

    /// Invalid peer messages that were refused
    ///
    /// They were refused.
    Counter PEER_MESSAGES_REFUSED_TOTAL = "dengine_peer_messages_refused_total";

    /// Peer messages dropped for a full queue
    Counter PEER_MESSAGES_DROPPED_TOTAL = "dengine_peer_messages_dropped_total";

    /// Times that the leader was seen to change
    Counter LEADER_CHANGES_TOTAL = "dengine_leader_changes_total";

    /// Times that this member led and handed over for its disk was slow
    ///
    /// Its appends took at least `--slow-disk-ms`, and three times as long as the others'.
    Counter SLOW_DISK_HAND_OVERS_TOTAL = "dengine_slow_disk_hand_overs_total";

    /// Rounds that confirmed linearizable reads
    Counter READ_ROUNDS_TOTAL = "dengine_read_rounds_total";

    /// Reads that the leader's lease answered without a round
    Counter LEASE_READS_TOTAL = "dengine_lease_reads_total";

    /// Writes that the leader was asked to propose, as messages between members
    Counter WRITES_PASSED_ON_TOTAL = "dengine_writes_passed_on_total";

    /// Linearizable and lease reads that were confirmed
    Counter READS_CONFIRMED_TOTAL = "dengine_reads_confirmed_total";

    /// Bytes that are free on the disk of the data directory
    Gauge DISK_FREE_BYTES = "dengine_disk_free_bytes";

    /// 1 while the member refuses writes that need space, for its disk is nearly full
    ///
    /// That is, while less than `--min-free-bytes` is free.
    Gauge LOW_ON_SPACE = "dengine_low_on_space";

    /// For how long a key has been due that the leader has not expired yet
    ///
    /// 0 while expiry keeps up.
    Gauge EXPIRY_BEHIND_SECONDS = "dengine_expiry_behind_seconds";

    /// The newest command version that this member could propose
    ///
    /// The newest that all members read, as far as it knows.
    Gauge COMMAND_VERSION = "dengine_command_version";
}

/// What is recorded at each turn of a worker, or for each read. Looked up once: to look one up by
/// its name costs more than to record something.
#[derive(Clone)]
pub(super) struct TurnMetrics {
    pub(super) write_wait: Histogram,
    pub(super) replica_turn: Histogram,
    pub(super) commit: Histogram,
    pub(super) log_sync: Histogram,
    pub(super) log_batch_entries: Histogram,
    pub(super) apply_wait: Histogram,
    pub(super) apply: Histogram,
    pub(super) applied_entries: Counter,
    pub(super) read_confirm: Histogram,
}

impl TurnMetrics {
    /// Of the recorder that is there now.
    pub(super) fn look_up() -> Self {
        Self {
            write_wait: histogram!(WRITE_WAIT_SECONDS),
            replica_turn: histogram!(REPLICA_TURN_SECONDS),
            commit: histogram!(COMMIT_SECONDS),
            log_sync: histogram!(LOG_SYNC_SECONDS),
            log_batch_entries: histogram!(LOG_BATCH_ENTRIES),
            apply_wait: histogram!(APPLY_WAIT_SECONDS),
            apply: histogram!(APPLY_SECONDS),
            applied_entries: counter!(APPLIED_ENTRIES_TOTAL),
            read_confirm: histogram!(READ_CONFIRM_SECONDS),
        }
    }
}
