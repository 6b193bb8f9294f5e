//! What the data of a [`Command`](crate::types::EntryKind::Command) entry holds.
//!
//! One byte of format version, then a protobuf message. Protobuf readers skip fields they do not know,
//! which members of one cluster must never do with a command: whoever adds a field or a kind raises the
//! version, and members that do not know that version stop instead of applying something else.

use super::{KeyRange, StoreError};
use crate::types::Revision;
use bytes::{Bytes, BytesMut};
use prost::Message as _;

/// The version that this program writes, and the highest that it reads.
pub const COMMAND_VERSION: u8 = 1;

/// A request to change the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Sets a key.
    Put {
        /// The key.
        key: Bytes,
        /// Its new value.
        value: Bytes,
        /// Answer with the pair as it was before.
        prev_kv: bool,
    },
    /// Deletes keys.
    Delete {
        /// Which.
        keys: KeyRange,
        /// Answer with the pairs that were deleted.
        prev_kv: bool,
    },
    /// Sets a key if it is in the expected state.
    CompareAndSwap {
        /// The key.
        key: Bytes,
        /// What it must be.
        expected: Expected,
        /// Its new value.
        value: Bytes,
    },
}

/// The state in which a compare-and-swap wants the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Last changed by this revision; `Revision(0)`: absent.
    ModRevision(Revision),
    /// Present, with exactly this value.
    Value(Bytes),
}

/// Why bytes are not a command. Every member finds the same, so the entry is refused, not fatal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Not even a message.
    #[error("the entry does not hold a command: {0}")]
    Malformed(String),
    /// A message that leaves open what to do.
    #[error("the command lacks its {0}")]
    Incomplete(&'static str),
}

impl Command {
    /// The data of a log entry.
    #[must_use]
    pub fn encode(self) -> Bytes {
        let record = Record {
            kind: Some(self.into()),
        };
        let mut data = BytesMut::with_capacity(1 + record.encoded_len());
        data.extend_from_slice(&[COMMAND_VERSION]);
        record
            .encode(&mut data)
            .expect("a growing buffer takes every message");
        data.freeze()
    }

    /// Reads the data of a log entry. Keys and values share its memory.
    ///
    /// # Errors
    /// The outer one if a newer program wrote it, the inner one if it is no command at all.
    pub fn decode(mut data: Bytes) -> Result<Result<Self, CommandError>, StoreError> {
        if data.is_empty() {
            return Ok(Err(CommandError::Incomplete("version")));
        }
        match data.split_to(1)[0] {
            COMMAND_VERSION => Ok(Self::decode_record(data)),
            0 => Ok(Err(CommandError::Malformed("version 0".to_owned()))),
            found => Err(StoreError::NewerFormat {
                what: "a command in the log",
                found: u32::from(found),
                supported: u32::from(COMMAND_VERSION),
            }),
        }
    }

    fn decode_record(data: Bytes) -> Result<Self, CommandError> {
        let record =
            Record::decode(data).map_err(|error| CommandError::Malformed(error.to_string()))?;
        match record.kind.ok_or(CommandError::Incomplete("kind"))? {
            Kind::Put(put) => Ok(Self::Put {
                key: put.key,
                value: put.value,
                prev_kv: put.prev_kv,
            }),
            Kind::Delete(delete) => Ok(Self::Delete {
                keys: match delete.end {
                    None => KeyRange::One(delete.key),
                    Some(EndRecord::Before(end)) => KeyRange::Between {
                        start: delete.key,
                        end,
                    },
                    Some(EndRecord::Open(_)) => KeyRange::From(delete.key),
                },
                prev_kv: delete.prev_kv,
            }),
            Kind::CompareAndSwap(swap) => Ok(Self::CompareAndSwap {
                key: swap.key,
                expected: match swap.expected {
                    Some(ExpectedRecord::ModRevision(it)) => Expected::ModRevision(Revision(it)),
                    Some(ExpectedRecord::Value(it)) => Expected::Value(it),
                    None => return Err(CommandError::Incomplete("expected state")),
                },
                value: swap.value,
            }),
        }
    }
}

impl From<Command> for Kind {
    fn from(command: Command) -> Self {
        match command {
            Command::Put {
                key,
                value,
                prev_kv,
            } => Self::Put(PutRecord {
                key,
                value,
                prev_kv,
            }),
            Command::Delete { keys, prev_kv } => {
                let (key, end) = match keys {
                    KeyRange::One(key) => (key, None),
                    KeyRange::Between { start, end } => (start, Some(EndRecord::Before(end))),
                    KeyRange::From(start) => (start, Some(EndRecord::Open(true))),
                };
                Self::Delete(DeleteRecord { key, end, prev_kv })
            }
            Command::CompareAndSwap {
                key,
                expected,
                value,
            } => Self::CompareAndSwap(CompareAndSwapRecord {
                key,
                expected: Some(match expected {
                    Expected::ModRevision(it) => ExpectedRecord::ModRevision(it.0),
                    Expected::Value(it) => ExpectedRecord::Value(it),
                }),
                value,
            }),
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct Record {
    #[prost(oneof = "Kind", tags = "1, 2, 3")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Kind {
    #[prost(message, tag = "1")]
    Put(PutRecord),
    #[prost(message, tag = "2")]
    Delete(DeleteRecord),
    #[prost(message, tag = "3")]
    CompareAndSwap(CompareAndSwapRecord),
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutRecord {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
    #[prost(bool, tag = "3")]
    prev_kv: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DeleteRecord {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    /// None: `key` alone.
    #[prost(oneof = "EndRecord", tags = "2, 4")]
    end: Option<EndRecord>,
    #[prost(bool, tag = "3")]
    prev_kv: bool,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum EndRecord {
    #[prost(bytes = "bytes", tag = "2")]
    Before(Bytes),
    /// Every key from `key` on; the flag itself means nothing.
    #[prost(bool, tag = "4")]
    Open(bool),
}

#[derive(Clone, PartialEq, prost::Message)]
struct CompareAndSwapRecord {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(oneof = "ExpectedRecord", tags = "2, 3")]
    expected: Option<ExpectedRecord>,
    #[prost(bytes = "bytes", tag = "4")]
    value: Bytes,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum ExpectedRecord {
    #[prost(uint64, tag = "2")]
    ModRevision(u64),
    #[prost(bytes = "bytes", tag = "3")]
    Value(Bytes),
}
