//! The storage of the state machine on disk.
//!
//! Only this module knows RocksDB. It implements [`dengine_core::kv::Store`] and passes that trait's
//! conformance suite; what the bytes mean is none of its business.

mod checkpoint;
mod rocks;
#[cfg(test)]
mod tests;

pub(crate) use rocks::OpenWatch;
pub use rocks::{RocksCursor, RocksOptions, RocksStore};

use dengine_core::kv::StoreError;
use std::path::Path;

/// Opens the store of a member.
pub(crate) fn open(folder: &Path) -> Result<RocksStore, StoreError> {
    RocksStore::open(folder, &RocksOptions::default())
}
