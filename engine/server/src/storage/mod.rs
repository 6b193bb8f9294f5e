//! The storage of the state machine on disk.
//!
//! Only this module knows RocksDB. It implements [`dengine_kv::Store`] and passes that trait's
//! conformance suite; what the bytes mean is none of its business.

mod checkpoint;
mod lines;
mod pieces;
mod reclaim;
mod rocks;
mod space;
mod statistics;
#[cfg(test)]
mod tests;

pub use rocks::{RocksCursor, RocksOptions, RocksStore};
pub(crate) use space::OpenStore;
pub(crate) use statistics::{Lookups, StoreCounters, StoreStatistics};

use std::path::Path;

use dengine_kv::StoreError;

use crate::config::StateConfig;

/// Opens the store of a member; what happens in it is counted by `counters`.
pub(crate) fn open(
    folder: &Path,
    settings: &StateConfig,
    counters: &StoreCounters,
) -> Result<RocksStore, StoreError> {
    let options = RocksOptions {
        write_buffer_bytes: memory_bytes(settings.write_buffer_bytes),
        block_cache_bytes: memory_bytes(settings.block_cache_bytes),
    };
    RocksStore::open_counted(folder, &options, counters)
}

/// So much memory as a setting says; beyond what a processor can address there is nothing to have.
pub(crate) fn memory_bytes(setting: u64) -> usize {
    usize::try_from(setting).unwrap_or(usize::MAX)
}
