//! Names of the metrics that a member's threads emit; [`crate::server`] exposes them.

/// Entries in one write to the log (histogram).
pub const LOG_BATCH_ENTRIES: &str = "dengine_log_batch_entries";
/// Duration of one `fdatasync` of the log (histogram, seconds).
pub const LOG_SYNC_SECONDS: &str = "dengine_log_sync_seconds";
/// From the hand-over of a batch to log writer and peers until a quorum has it (histogram, seconds).
pub const COMMIT_SECONDS: &str = "dengine_commit_seconds";
/// What one turn of the replica thread takes: to decide on everything that queued (histogram, seconds).
pub const REPLICA_TURN_SECONDS: &str = "dengine_replica_turn_seconds";
/// How long a linearizable or lease read waited until it might be served (histogram, seconds).
pub const READ_CONFIRM_SECONDS: &str = "dengine_read_confirm_seconds";
/// Duration of applying one batch of entries (histogram, seconds).
pub const APPLY_SECONDS: &str = "dengine_apply_seconds";
/// Entries applied (counter).
pub const APPLIED_ENTRIES_TOTAL: &str = "dengine_applied_entries_total";
/// Peer messages that were refused because a peer must never send them (counter).
pub const PEER_MESSAGES_REFUSED_TOTAL: &str = "dengine_peer_messages_refused_total";
/// Peer messages dropped because the queue to that peer was full (counter).
pub const PEER_MESSAGES_DROPPED_TOTAL: &str = "dengine_peer_messages_dropped_total";
/// Times that this member saw the leader change (counter).
pub const LEADER_CHANGES_TOTAL: &str = "dengine_leader_changes_total";
/// The newest version in which this member could propose commands: what all members read, as far as it knows (gauge).
pub const COMMAND_VERSION: &str = "dengine_command_version";
/// Rounds of messages that confirmed linearizable reads (counter).
pub const READ_ROUNDS_TOTAL: &str = "dengine_read_rounds_total";
/// Reads that the leader's lease answered, without a round (counter).
pub const LEASE_READS_TOTAL: &str = "dengine_lease_reads_total";
/// Linearizable and lease reads that were confirmed (counter).
pub const READS_CONFIRMED_TOTAL: &str = "dengine_reads_confirmed_total";
/// Bytes that are free on the disk of the data folder (gauge).
pub const DISK_FREE_BYTES: &str = "dengine_disk_free_bytes";
/// 1 while less than the reserve (`--min-free-bytes`) is free, so that writes that need space are refused (gauge).
pub const LOW_ON_SPACE: &str = "dengine_low_on_space";
/// For how long a key has been due that this leader has not expired yet; 0 while expiry keeps up (gauge, seconds).
pub const EXPIRY_BEHIND_SECONDS: &str = "dengine_expiry_behind_seconds";
