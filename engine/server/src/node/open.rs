//! From what a data directory holds to a member: its log, its state, and the replica on top of
//! both.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use dengine_data_dir::Identity;
use dengine_kv::{StateMachine, StoreError};
use dengine_log::{Log, LogError, LogOptions, LogReader, Position, RealDisk, Recovered};
use dengine_protocol::checks::forward;
use dengine_raft::consensus::ConsensusConfig;
use dengine_raft::replica::{
    OpenError, Opened, Replica, ReplicaConfig, ReplicaError, SlowDisk, open_member,
};

use super::space::{Look, Space};
use super::start::Start;
use crate::config::Config;
use crate::error::StartError;
use crate::storage::{self, OpenStore, RocksOptions, RocksStore};
use crate::{memory, transport};

/// Until it is known what keeps the applier busy; more of entries that take it long have
/// everybody's reads wait.
const SHARED_ENTRIES_MIN: usize = 16;

/// Of one client that writes without a pause the next write comes sooner and carries the news. Who
/// reads at a follower may see a write so much later, if nobody watches there.
const COMMIT_NEWS_DELAY: Duration = Duration::from_millis(1);

/// The state machine, and its store.
type OpenState = (StateMachine<RocksStore>, OpenStore);
type OpenedDir = Opened<RealDisk, OpenState>;

/// Makes the log of who becomes a member, or opens the one that an earlier try has made.
pub(super) fn make_log(
    path: &Path,
    config: &Config,
    identity: Identity,
) -> Result<Log<RealDisk>, StartError> {
    let disk = RealDisk::open(path).map_err(|error| log_failed(path, error))?;
    let opened = Log::open(disk, log_options(config, identity));
    Ok(opened.map_err(|error| log_failed(path, error))?.0)
}

/// Opens a member's log, which must not be opened twice at a time. A missing one is refused, and
/// not made.
pub(super) fn open_log(
    path: &Path,
    config: &Config,
    identity: Identity,
) -> Result<(Log<RealDisk>, Recovered), StartError> {
    open_existing(path, config, identity).map_err(|error| log_failed(path, error))
}

fn open_existing(
    path: &Path,
    config: &Config,
    identity: Identity,
) -> Result<(Log<RealDisk>, Recovered), LogError> {
    if !path.is_dir() {
        let folder = path.to_owned();
        return Err(LogError::Missing { dir: folder });
    }
    Log::open_existing(RealDisk::open(path)?, log_options(config, identity))
}

fn log_options(config: &Config, identity: Identity) -> LogOptions {
    let usual = LogOptions::new(identity.cluster_id, identity.member_id, rand::random());
    LogOptions {
        leave_bytes: leave_bytes(config),
        segment_bytes: u32::try_from(config.log.segment_bytes).unwrap_or(u32::MAX),
        spares_max: if is_low_on_space(config) {
            0
        } else {
            usual.spares_max
        },
        ..usual
    }
}

/// For what the state keeps in memory, and for as many entries as lie in a segment, whose records
/// have to be flushed before that is dropped.
fn leave_bytes(config: &Config) -> u64 {
    let memory = RocksOptions::WRITE_BUFFERS_MAX * config.state.write_buffer_bytes;
    // No more than that it is low on space before a segment that leaves so much has no room.
    let most = config
        .min_free_bytes
        .saturating_sub(config.log.segment_bytes);
    (memory + config.log.segment_bytes).min(most)
}

/// Then the space of spare segments is for RocksDB: it can neither open a state on a full disk nor
/// write one out, which is what makes room in the log.
fn is_low_on_space(config: &Config) -> bool {
    let space = Space::of(config);
    space.look().is_ok_and(|look| look == Look::BecameLow)
}

pub(super) fn log_failed(
    path: &Path,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> StartError {
    StartError::Log {
        path: path.to_owned(),
        source: source.into(),
    }
}

/// Opens log and state together.
pub(super) fn open_both(start: &Start) -> Result<OpenedDir, StartError> {
    let open_log = || open_existing(&start.log_path, &start.config, start.identity);
    let found = open_log().map_err(|error| log_failed(&start.log_path, error))?;
    start.snapshot_paths.prepare()?;
    let opened = open_member(
        &start.snapshot_paths,
        start.identity.cluster_id,
        found,
        open_log,
        || open_store(start),
        start.beginning.lost_writes_accepted,
    );
    let opened = opened.map_err(|error| open_failed(start, error))?;
    tell(&opened);
    Ok(opened)
}

fn tell(opened: &OpenedDir) {
    if opened.installed {
        let index = opened.recovered.base.index.0;
        tracing::info!(index, "the snapshot is the state now");
    }
    if let Some(last) = opened.reset_and_recovered {
        let (applied, _) = opened.state.0.applied();
        tracing::warn!(
            last = last.0,
            applied = applied.0,
            "the end of the log was lost in the power loss; the log restarts after the state, \
             because the loss was accepted"
        );
    }
    if let Some(torn) = &opened.recovered.torn {
        tracing::warn!(
            file = %torn.file.display(),
            offset = torn.offset,
            bytes = torn.bytes,
            "cut the torn end of the log; nothing in it was ever acknowledged");
    }
}

fn open_failed(start: &Start, error: OpenError) -> StartError {
    match error {
        OpenError::Log(error) => log_failed(&start.log_path, error),
        OpenError::Snapshot(error) => StartError::Snapshot(error),
        OpenError::State(source) => StartError::State {
            path: start.state_path.clone(),
            source,
        },
        OpenError::LogBehindState { last, applied } => StartError::LogBehindState {
            path: start.log_path.clone(),
            last: last.0,
            applied: applied.0,
        },
    }
}

fn open_store(start: &Start) -> Result<(OpenState, Position), StoreError> {
    let store = storage::open(
        &start.state_path,
        &start.config.state,
        &start.store_counters,
    )?;
    let watch = store.watch();
    let key_cache_bytes = start.config.state.key_cache_bytes.bytes();
    let key_cache_bytes = storage::memory_bytes(key_cache_bytes.unwrap_or_else(memory::for_keys));
    let machine = StateMachine::open_with_key_cache(store, key_cache_bytes)?
        .of_cluster(start.identity.cluster_id)?;
    let (index, term) = machine.applied();
    Ok(((machine, watch), Position { index, term }))
}

/// The member as its log and its state remember it.
///
/// # Errors
/// The state cannot be read.
pub(super) fn restore(
    start: &Start,
    machine: &StateMachine<RocksStore>,
    log: &Log<RealDisk>,
    recovered: &Recovered,
) -> Result<Replica<LogReader<RealDisk>>, StartError> {
    let limits = &start.config.limits;
    let message_bytes = transport::message_bytes(&start.config) as u64;
    let config = ConsensusConfig {
        election_ticks: start.config.election_ticks,
        heartbeat_ticks: start.config.heartbeat_ticks,
        max_message_bytes: message_bytes,
        max_inflight_messages: transport::messages_in_flight(&start.config),
        max_uncommitted_bytes: (limits.max_pending_proposal_bytes as u64).max(message_bytes),
        max_waiting_reads: limits.max_pending_reads,
        boot_nonce: rand::random(),
        tick: start.config.tick(),
        lost_writes_accepted: start.beginning.lost_writes_accepted,
        acknowledges_unsynced: start.beginning.acknowledged_unsynced,
        commit_news_delay: COMMIT_NEWS_DELAY,
        ..ConsensusConfig::new(start.identity.member_id, rand::random())
    };
    let boot_nonce = config.boot_nonce;
    let replica = ReplicaConfig {
        member_id: start.identity.member_id,
        boot_nonce,
        election_timeout: start.config.election_timeout(),
        max_waiting_reads: limits.max_pending_reads,
        log_keep_bytes: start.config.log.keep_bytes,
        log_keep_bytes_for_followers: start.config.log.keep_bytes_for_followers,
        shared_entries_min: SHARED_ENTRIES_MIN,
        slow_disk: start.config.slow_disk().map(SlowDisk::of_at_least),
    };
    let hard_state = recovered.hard_state;
    let restored = Replica::new(replica, config, hard_state, log.reader(), machine);
    let limits = limits.of_requests();
    let takes = move |command: &Bytes| forward::read(command, &limits).ok();
    let restored = restored.map(|mut replica| {
        replica.takes_of_others(Box::new(takes));
        replica
    });
    restored.map_err(|error| match error {
        ReplicaError::Config(error) => {
            unreachable!("Config::validated checked everything that consensus does: {error}")
        }
        ReplicaError::State(source) => StartError::State {
            path: start.state_path.clone(),
            source,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment that waits for more than the reserve holds did so where nobody was told that space
    /// is low.
    #[test]
    fn a_segment_leaves_no_more_than_the_reserve_has_beside_it() {
        const MIB: u64 = 1 << 20;
        for (reserve_mib, segment_mib, leaves_mib) in [
            (128, 64, 64),
            (64, 64, 0),
            (0, 64, 0),
            (1024, 64, 3 * 16 + 64),
        ] {
            let mut config = Config {
                min_free_bytes: reserve_mib * MIB,
                ..Config::default()
            };
            config.log.segment_bytes = segment_mib * MIB;
            config.state.write_buffer_bytes = 16 * MIB;
            assert_eq!(leave_bytes(&config), leaves_mib * MIB, "{reserve_mib} MiB");
        }
    }
}
