//! Where the state machine's records lie. In memory until the RocksDB store replaces this alias.

use dengine_core::kv::StoreError;
use dengine_core::kv::store::MemoryStore;

/// The store of a member.
pub type RocksStore = MemoryStore;

pub(crate) fn open(_path: &std::path::Path) -> Result<RocksStore, StoreError> {
    Ok(RocksStore::default())
}
