//! Checkpoints of RocksDB: directories that share its immutable files.

use std::path::Path;

use dengine_kv::StoreError;
use dengine_snapshot::Checkpoint;
use rocksdb::checkpoint::Checkpoint as RocksCheckpoint;

use super::rocks::{RocksStore, failed};

impl Checkpoint<Path> for RocksStore {
    /// `place` must not exist; its parent must. Because RocksDB's own log is off, it writes its
    /// memtable out first, so this costs as much as a flush. The table files are hard links: they
    /// cost no space until RocksDB has merged them into others.
    fn checkpoint(&self, place: &Path) -> Result<(), StoreError> {
        RocksCheckpoint::new(self.database())
            .and_then(|checkpoint| checkpoint.create_checkpoint(place))
            .map_err(|error| failed("making a checkpoint", error))
    }

    fn open_checkpoint(place: &Path) -> Result<Self, StoreError> {
        Self::open_read_only(place)
    }
}
