//! From what a data folder holds to a member: its log, its state, and the replica on top of both.

use super::input::Channels;
use super::running::Start;
use crate::config::Config;
use crate::error::StartError;
use crate::storage::{self, OpenWatch, RocksStore};
use crate::transport;
use dengine_core::consensus::ConsensusConfig;
use dengine_core::kv::StateMachine;
use dengine_core::log::{
    Log, LogError, LogOptions, LogReader, Position, RealDisk, Recovered, begin_anew,
};
use dengine_core::replica::{Replica, ReplicaConfig};
use dengine_core::snapshot;
use dengine_folder::Identity;
use std::path::Path;

/// Enough for the disk and the applier to have something to do on a machine with two cores, where they take some five milliseconds.
const SHARED_ENTRIES_MIN: usize = 64;

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

/// Opens a member's log, which must not be opened twice at a time. A missing one is refused, and not made.
pub(super) fn open_log(
    path: &Path,
    config: &Config,
    identity: Identity,
) -> Result<(Log<RealDisk>, Recovered), StartError> {
    if !path.is_dir() {
        let folder = path.to_owned();
        return Err(log_failed(path, LogError::Missing { folder }));
    }
    let disk = RealDisk::open(path).map_err(|error| log_failed(path, error))?;
    let opened = Log::open_existing(disk, log_options(config, identity));
    opened.map_err(|error| log_failed(path, error))
}

fn log_options(config: &Config, identity: Identity) -> LogOptions {
    LogOptions {
        segment_bytes: u32::try_from(config.log.segment_bytes).unwrap_or(u32::MAX),
        ..LogOptions::new(identity.cluster_id, identity.member_id, rand::random())
    }
}

fn log_failed(
    path: &Path,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> StartError {
    StartError::Log {
        path: path.to_owned(),
        source: source.into(),
    }
}

/// Opens log and state together. A state that is ahead of its log is refused, unless a person has accepted that
/// `memory-first` lost writes: the log then begins anew after what the state has, as after a snapshot. The state
/// holds committed entries only, and term and vote were synced, so nothing that this member promised is broken.
pub(super) fn open_both(
    start: &Start,
) -> Result<
    (
        Log<RealDisk>,
        Recovered,
        StateMachine<RocksStore>,
        OpenWatch,
    ),
    StartError,
> {
    let open_log = || open_log(&start.log_path, &start.config, start.identity);
    let (mut log, mut recovered) = open_log()?;
    let (machine, watch) = open_state(start, &recovered)?;
    let (index, term) = machine.applied();
    if start.lost_writes_accepted && recovered.last_index < index {
        tracing::warn!(
            last = recovered.last_index.0,
            applied = index.0,
            "the power loss took the end of the log; it begins anew after the state, as was accepted"
        );
        begin_anew(&mut log, Position { index, term })
            .map_err(|error| log_failed(&start.log_path, error))?;
        drop(log);
        (log, recovered) = open_log()?;
    }
    Ok((log, recovered, machine, watch))
}

/// Opens the state, after a snapshot whose installation was decided has become it.
fn open_state(
    start: &Start,
    recovered: &Recovered,
) -> Result<(StateMachine<RocksStore>, OpenWatch), StartError> {
    start.snapshot_paths.prepare()?;
    let open = || {
        let (machine, watch) = open_store(start)?;
        let (applied, _) = machine.applied();
        Ok::<_, StartError>(((machine, watch), applied))
    };
    let cluster = start.identity.cluster_id;
    let (opened, installed) =
        snapshot::open_state(&start.snapshot_paths, cluster, recovered.base, open)?;
    if installed {
        let index = recovered.base.index.0;
        tracing::info!(index, "the snapshot is the state now");
    }
    Ok(opened)
}

fn open_store(start: &Start) -> Result<(StateMachine<RocksStore>, OpenWatch), StartError> {
    let failed = |source| StartError::State {
        path: start.state_path.clone(),
        source,
    };
    let store = storage::open(&start.state_path, &start.config.state).map_err(failed)?;
    let watch = store.watch();
    Ok((StateMachine::open(store).map_err(failed)?, watch))
}

/// The member as its log and its state remember it.
///
/// # Errors
/// The log does not belong to the state.
pub(super) fn restore(
    start: &Start,
    machine: &StateMachine<RocksStore>,
    log: &Log<RealDisk>,
    recovered: &Recovered,
) -> Result<Replica<LogReader<RealDisk>, Channels>, StartError> {
    if let Some(torn) = &recovered.torn {
        tracing::warn!(
            file = %torn.file.display(),
            offset = torn.offset,
            bytes = torn.bytes,
            "cut the torn end of the log; nothing in it was ever acknowledged");
    }
    let (applied, _) = machine.applied();
    if recovered.last_index < applied {
        return Err(StartError::LogBehindState {
            path: start.log_path.clone(),
            last: recovered.last_index.0,
            applied: applied.0,
        });
    }
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
        lost_writes_accepted: start.lost_writes_accepted,
        acknowledges_unsynced: start.acknowledged_unsynced,
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
    };
    let hard_state = recovered.hard_state;
    Ok(
        Replica::new(replica, config, hard_state, log.reader(), machine)
            .expect("Config::validated checked everything that consensus does"),
    )
}
