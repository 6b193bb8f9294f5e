//! Decodes what a peer sends, so that it takes no more memory than what was sent justifies: an
//! empty element of a list is two bytes on the wire and eighty in memory, so lists are counted
//! before they are held.

use prost_raft::encoding::{DecodeContext, decode_key, skip_field};
use prost_raft::{DecodeError, Message as _};
use raft::eraftpb;

use super::validate::PeerMessageError;

/// The numbers are those of the `raft` crate's `eraftpb.proto`.
const MESSAGE_ENTRIES: u32 = 7;
const MESSAGE_SNAPSHOT: u32 = 9;
const CHANGE_CHANGES: u32 = 2;

/// What an entry takes in a message, at least: a term and an index of three bytes each, and the
/// fields before them.
const ENTRY_BYTES_MIN: usize = 8;
/// The first entries of a cluster may be smaller.
const FIRST_ENTRIES: usize = 256;
/// Entries of one message, of a MiB. A larger one holds a single entry, unless its sender is of a
/// version before messages were bounded: its entries are whole ones.
const ENTRIES_MAX: usize = 128 << 10;
/// What an entry of a client takes, at least: the context of each has 24 bytes.
const CLIENTS_ENTRY_BYTES_MIN: usize = 32;
/// What a message says of a snapshot: where it ends, and up to 31 members.
const SNAPSHOT_BYTES_MAX: usize = 4 << 10;

/// # Errors
/// The bytes are no Raft message, or one that no member makes.
pub(super) fn message(bytes: &[u8]) -> Result<eraftpb::Message, PeerMessageError> {
    let entries = Found::of(MESSAGE_ENTRIES, bytes)?.count;
    let small = ENTRIES_MAX.min(bytes.len() / ENTRY_BYTES_MIN);
    if entries > FIRST_ENTRIES + small.max(bytes.len() / CLIENTS_ENTRY_BYTES_MIN) {
        return Err(PeerMessageError::TooManyEntries(entries));
    }
    if Found::of(MESSAGE_SNAPSHOT, bytes)?.bytes > SNAPSHOT_BYTES_MAX {
        return Err(PeerMessageError::SnapshotMeta);
    }
    Ok(eraftpb::Message::decode(bytes)?)
}

/// # Errors
/// The bytes are no change of members, or one of several at a time.
pub(super) fn change(bytes: &[u8]) -> Result<eraftpb::ConfChangeV2, DecodeError> {
    if Found::of(CHANGE_CHANGES, bytes)?.count > 1 {
        return Err(DecodeError::new("more than one change at a time"));
    }
    eraftpb::ConfChangeV2::decode(bytes)
}

/// How often a field is in a message, and what it takes there with all that is in it.
#[derive(Default)]
struct Found {
    count: usize,
    bytes: usize,
}

impl Found {
    fn of(field: u32, mut message: &[u8]) -> Result<Self, DecodeError> {
        let mut found = Self::default();
        while !message.is_empty() {
            let before = message.len();
            let (number, kind) = decode_key(&mut message)?;
            skip_field(kind, number, &mut message, DecodeContext::default())?;
            if number == field {
                found.count += 1;
                found.bytes += before - message.len();
            }
        }
        Ok(found)
    }
}
