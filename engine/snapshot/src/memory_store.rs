//! Checkpoints of the in-memory store, for tests and the simulator: one file, on any [`Disk`].
//!
//! The file contains each record as its two lengths (4 bytes each, little-endian), key and value,
//! and at its end a CRC32C of all of it.

use dengine_kv::layout::split_attached_key;
use dengine_kv::store::{MemoryStore, Store as _, StoreError, WriteBatch};
use dengine_log::{Disk, DiskError, DiskFile as _};
use dengine_planted::planted;

use super::Checkpoint;

const FILE: &str = "records";
const CRC_BYTES: usize = 4;

impl<D: Disk> Checkpoint<D> for MemoryStore {
    fn checkpoint(&self, disk: &D) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        for (key, value) in self.dump() {
            if planted!(AttachmentsLostOnSnapshot) && split_attached_key(&key).is_ok() {
                continue;
            }
            for part in [&key, &value] {
                let length = u32::try_from(part.len()).expect("records in memory are small");
                bytes.extend(length.to_le_bytes());
            }
            bytes.extend_from_slice(&key);
            bytes.extend_from_slice(&value);
        }
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        let write = || {
            let file = disk.create(FILE)?;
            file.write_at(0, &bytes)?;
            file.sync_data()?;
            disk.sync_dir()
        };
        write().map_err(|error| failed("making a checkpoint", &error))
    }

    fn open_checkpoint(disk: &D) -> Result<Self, StoreError> {
        let read = || {
            let file = disk.open(FILE)?;
            let mut bytes = vec![0; usize::try_from(file.len()?).expect("it was in memory once")];
            let read = file.read_at(0, &mut bytes)?;
            bytes.truncate(read);
            Ok(bytes)
        };
        let bytes = read().map_err(|error: DiskError| failed("opening a checkpoint", &error))?;
        decode(&bytes)
            .ok_or_else(|| StoreError::Corrupt("the checkpoint does not read back".to_owned()))
    }
}

fn decode(bytes: &[u8]) -> Option<MemoryStore> {
    let (mut rest, crc) = bytes.split_at_checked(bytes.len().checked_sub(CRC_BYTES)?)?;
    if crc32c::crc32c(rest).to_le_bytes() != crc {
        return None;
    }
    let mut batch = WriteBatch::default();
    while !rest.is_empty() {
        let (key, after) = rest.split_first_chunk()?;
        let (value, after) = after.split_first_chunk()?;
        let (key, after) = after.split_at_checked(u32::from_le_bytes(*key) as usize)?;
        let (value, after) = after.split_at_checked(u32::from_le_bytes(*value) as usize)?;
        batch.put(key, value);
        rest = after;
    }
    let store = MemoryStore::default();
    store.write(&batch).ok()?;
    Some(store)
}

fn failed(doing: &'static str, error: &DiskError) -> StoreError {
    StoreError::Failed {
        doing,
        reason: error.to_string(),
    }
}
