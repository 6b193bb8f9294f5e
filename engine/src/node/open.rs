//! From what a data folder holds to a member: its log, its state, and the replica on top of both.

use super::input::Channels;
use super::running::Start;
use crate::config::Config;
use crate::error::StartError;
use crate::storage::{self, OpenWatch, RocksStore};
use crate::transport;
use dengine_core::consensus::ConsensusConfig;
use dengine_core::kv::StateMachine;
use dengine_core::log::{Log, LogOptions, LogReader, RealDisk, Recovered};
use dengine_core::replica::{Replica, ReplicaConfig};
use dengine_core::snapshot;
use dengine_folder::Identity;
use std::path::Path;

/// Opens a member's log, which must not be opened twice at a time.
pub(super) fn open_log(
    path: &Path,
    config: &Config,
    identity: Identity,
) -> Result<(Log<RealDisk>, Recovered), StartError> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| StartError::Log {
        path: path.to_owned(),
        source,
    };
    let disk = RealDisk::open(path).map_err(|error| failed(error.into()))?;
    let options = LogOptions {
        segment_bytes: u32::try_from(config.log.segment_bytes).unwrap_or(u32::MAX),
        ..LogOptions::new(identity.cluster_id, identity.member_id, rand::random())
    };
    Log::open(disk, options).map_err(|error| failed(error.into()))
}

/// Opens the state, after a snapshot whose installation was decided has become it.
pub(super) fn open_state(
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
    let store = storage::open(&start.state_path).map_err(failed)?;
    let watch = store.watch();
    Ok((StateMachine::open(store).map_err(failed)?, watch))
}

/// The member as its log and its state remember it.
///
/// # Errors
/// The log is gone, or does not belong to the state.
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
    if recovered.created {
        return Err(StartError::LogMissing {
            path: start.log_path.clone(),
        });
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
    };
    let hard_state = recovered.hard_state;
    Ok(
        Replica::new(replica, config, hard_state, log.reader(), machine)
            .expect("Config::validated checked everything that consensus does"),
    )
}
