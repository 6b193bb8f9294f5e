//! Hashes of the logical content of a store, for comparing members.

use std::ops::ControlFlow;

use bytes::Bytes;
use dengine_types::{Index, Revision};

use super::{ReadError, Reader};
use crate::layout::{
    FORMAT_KEY, MachineState, STATE_KEY, Space, Version, decode_state, everything, space,
    split_change_key, split_data_key, version,
};
use crate::scan::{Scan, Seen};
use crate::store::{Cursor, Scope};
use crate::{KeyRange, KeyValue, Store, StoreError};

/// A hash of the logical content of the store, not of its bytes: garbage that is not collected yet
/// does not count. Members that applied the same entries have equal hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogicalHash {
    /// The last applied entry. Hashes at different indexes are not comparable.
    pub applied_index: Index,
    /// The store's revision there.
    pub revision: Revision,
    /// The first revision of history.
    pub compact_revision: Revision,
    pub hash: u64,
}

/// A hash of the pairs of one revision. Members that can read the revision have equal hashes,
/// however much of history each has, and whatever it has applied since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevisionHash {
    /// Of which the pairs are.
    pub revision: Revision,
    /// The store's revision at the read.
    pub newest: Revision,
    /// The first revision of history at the read.
    pub compact_revision: Revision,
    pub hash: u64,
}

impl<S: Store> Reader<S> {
    /// Reads everything once. Entries that are applied meanwhile are not included.
    ///
    /// # Errors
    ///
    /// If the read was stopped, or the storage fails or is damaged.
    pub fn logical_hash(&self) -> Result<LogicalHash, ReadError> {
        // One cursor, so the records of all spaces are of one applied index.
        let all = Scope::Between(everything());
        let mut cursor = self.shared.store.cursor_of_one_pass(all);
        let state = self.shared.reported(read_state(&mut cursor))?;
        let mut hasher = Hasher::new(state);
        self.shared.reported(cursor.seek(&[]))?;
        let mut records = 0;
        while let Some((key, record)) = cursor.record() {
            if !self.goes_on(records) {
                return Err(ReadError::Stopped { records });
            }
            let added = hasher.add(key, record);
            self.shared.reported(added.and_then(|()| cursor.next()))?;
            records += 1;
        }
        Ok(LogicalHash {
            applied_index: state.applied_index,
            revision: state.revision,
            compact_revision: state.compact_revision,
            hash: hasher.hash.0,
        })
    }

    /// Reads all pairs of a revision once.
    ///
    /// # Errors
    ///
    /// If the revision cannot be read, the read was stopped, or the storage fails or is damaged.
    pub fn revision_hash(&self, revision: Revision) -> Result<RevisionHash, ReadError> {
        let everything = KeyRange::From(Bytes::new());
        let (scan, newest, at) = self.begin(Some(revision), || {
            Scan::of_one_pass(&self.shared.store, &everything)
        })?;
        let compact_revision = self.compact_revision();
        let (mut hash, mut records, mut stopped) = (Fnv::new(), 0, false);
        let run = scan.run(at, |seen| {
            if !self.goes_on(records) {
                stopped = true;
                return Ok(ControlFlow::Break(()));
            }
            records += 1;
            if let Seen::Live(found) = seen {
                hash.pair(&found.to_key_value(found.key()?, true));
            }
            Ok(ControlFlow::Continue(()))
        });
        self.shared.reported(run)?;
        if stopped {
            return Err(ReadError::Stopped { records });
        }
        Ok(RevisionHash {
            revision: at,
            newest,
            compact_revision,
            hash: hash.0,
        })
    }
}

fn read_state(cursor: &mut impl Cursor) -> Result<MachineState, StoreError> {
    cursor.seek(STATE_KEY)?;
    match cursor.record() {
        Some((STATE_KEY, record)) => decode_state(record),
        _ => Err(StoreError::Corrupt(
            "the state record is missing".to_owned(),
        )),
    }
}

/// FNV-1a. It has to distinguish members that differ by accident, and to be the same in every
/// build.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn write(&mut self, bytes: &[u8]) {
        let length = (bytes.len() as u64).to_be_bytes();
        for byte in length.iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn pair(&mut self, pair: &KeyValue) {
        self.write(&pair.key);
        self.write(&pair.value);
        for number in [
            pair.create_revision.0,
            pair.mod_revision.0,
            pair.version,
            pair.ttl_ms,
        ] {
            self.write(&number.to_be_bytes());
        }
        self.write(&pair.lease.0.to_be_bytes());
    }
}

/// The hash of all records, as they are read.
struct Hasher {
    hash: Fnv,
    compacted: Revision,
    /// The key whose versions are being read, and whether the rest of them is garbage.
    key: Vec<u8>,
    rest_is_garbage: bool,
}

impl Hasher {
    fn new(state: MachineState) -> Self {
        Self {
            hash: Fnv::new(),
            compacted: state.compact_revision,
            key: Vec::new(),
            rest_is_garbage: false,
        }
    }

    /// Adds a record, unless it is garbage.
    fn add(&mut self, key: &[u8], record: &[u8]) -> Result<(), StoreError> {
        let counts = match space(key)? {
            Space::Changes => split_change_key(key)?.revision >= self.compacted,
            Space::Data => self.is_kept(key, record)?,
            Space::Meta => key != FORMAT_KEY,
            Space::Other => true,
        };
        if counts {
            self.hash.write(key);
            self.hash.write(record);
        }
        Ok(())
    }

    /// Whether a read or watch that is still allowed may see this version. Versions of a key are
    /// read newest first.
    fn is_kept(&mut self, key: &[u8], record: &[u8]) -> Result<bool, StoreError> {
        let (prefix, revision) = split_data_key(key)?;
        if self.key != prefix {
            self.key.clear();
            self.key.extend_from_slice(prefix);
            self.rest_is_garbage = false;
        }
        if revision > self.compacted {
            return Ok(true);
        }
        let kept = !self.rest_is_garbage
            && (revision == self.compacted || version(record)? != Version::Tombstone);
        self.rest_is_garbage = true;
        Ok(kept)
    }
}
