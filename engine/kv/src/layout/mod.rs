//! The bytes that the state machine keeps in its store. `docs/formats.md` describes the same.
//!
//! The first byte of a key is its space:
//!
//! ```text
//! 'a' lease(8) user key                        → nothing: the key is attached to the lease
//! 'c' revision(8) sub(4)                       → what changed, in the order of history
//! 'd' escaped user key, 00 00, !revision(8)    → a version of the key
//! 'l' lease(8)                                 → a lease
//! 'm' name                                     → the state machine's own records
//! 'r' session id(8) sequence(8)                → the reply that a session stores for a command
//! 's' session id(8)                            → an open session
//! 't' revision(8) user key                     → time to live: a key whose last change gave it one
//! ```
//!
//! Numbers are big-endian. Revisions of data records are inverted, so the newest version of a key
//! comes first, and the newest one not above a revision is one seek away. No revision changes a key
//! twice. Zero bytes of a user key are written as `00 FF`, so `00 00` ends a key that may be a
//! prefix of another one, and the order is kept.

mod leases;

use std::ops::Range;

use dengine_types::{Index, LeaseId, NUMBER_MAX, Revision, SessionId, Term};
use prost::encoding::{decode_varint, encode_varint};

use super::store::StoreError;
use crate::membership::Membership;
use crate::{LEASES_MAX, SESSIONS_MAX};

pub use leases::{
    Lease, attached_key, attached_range, decode_lease, encode_lease, lease_key, lease_range,
    split_attached_key, split_lease_key,
};

/// The newest format that this program reads, and the one that it writes once a command of
/// [`CommandVersion::V4`](crate::CommandVersion::V4) is applied, or the first entry of a cluster
/// that begins at another revision than 1: a program that does not read this format could not apply
/// either.
pub const FORMAT_VERSION: u32 = 4;
/// The format of a state to which only older commands were applied.
pub const FORMAT_OLDEST: u32 = 3;

/// The key of the format version, the first record of a store.
pub const FORMAT_KEY: &[u8] = b"mformat";
/// The key of the [`MachineState`].
pub const STATE_KEY: &[u8] = b"mstate";
/// The key of the [`Membership`]; absent until the cluster is bootstrapped.
pub const MEMBERSHIP_KEY: &[u8] = b"mmembership";

const ATTACHED: u8 = b'a';
const CHANGES: u8 = b'c';
const DATA: u8 = b'd';
const LEASES: u8 = b'l';
const REPLIES: u8 = b'r';
const SESSIONS: u8 = b's';
const EXPIRING: u8 = b't';
const TERMINATOR: [u8; 2] = [0, 0];
const ESCAPED_ZERO: [u8; 2] = [0, 0xff];
const REVISION_BYTES: usize = 8;
const STAMP_BYTES: usize = 12;
/// Space, terminator and revision: every data key has them besides the user's key.
const DATA_KEY_BYTES_MIN: usize = 1 + TERMINATOR.len() + REVISION_BYTES;

const FLAG_LIVE: u8 = 0;
const FLAG_TOMBSTONE: u8 = 1;
const FLAG_EXPIRING: u8 = 2;
const FLAG_ATTACHED: u8 = 3;
const CHANGE_PUT: u8 = 0;
const CHANGE_DELETE: u8 = 1;
/// Of [`FORMAT_OLDEST`].
const STATE_BYTES_OLDEST: usize = 40;
const STATE_BYTES: usize = 56;
const LEASE_ID_BYTES: usize = 8;

/// A place in history: the revision, and the number of the change in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    pub revision: Revision,
    /// Counts the changes of that revision from 0.
    pub sub: u32,
}

impl Stamp {
    /// Before the first change of `revision`.
    #[must_use]
    pub fn start_of(revision: Revision) -> Self {
        Self { revision, sub: 0 }
    }

    /// After the last change of `revision`.
    #[must_use]
    pub fn end_of(revision: Revision) -> Self {
        Self::start_of(Revision(revision.0.saturating_add(1)))
    }

    /// After this change.
    #[must_use]
    pub fn next(self) -> Self {
        Self {
            sub: self.sub + 1,
            ..self
        }
    }
}

/// One change in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    pub key: &'a [u8],
    /// Whether it deleted the key.
    pub deletes: bool,
    /// The previous change of the key, if the key existed: the version that this change made
    /// obsolete.
    pub replaces: Option<Revision>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version<'a> {
    /// The key has a value.
    Live {
        /// See [`KeyValue::create_revision`](super::KeyValue::create_revision).
        create_revision: Revision,
        /// See [`KeyValue::version`](super::KeyValue::version).
        version: u64,
        /// See [`KeyValue::ttl_ms`](super::KeyValue::ttl_ms).
        ttl_ms: u64,
        /// See [`KeyValue::lease`](super::KeyValue::lease).
        lease: LeaseId,
        value: &'a [u8],
    },
    /// The key is deleted.
    Tombstone,
}

/// The state of the machine besides data and membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineState {
    /// The format of the store: [`FORMAT_OLDEST`] or [`FORMAT_VERSION`].
    pub format: u32,
    /// The last entry whose effects are in the store.
    pub applied_index: Index,
    /// The term of that entry.
    pub applied_term: Term,
    /// The revision of the store: at most the first one and the index together, because an entry
    /// takes at most one revision.
    pub revision: Revision,
    /// History below this revision is compacted; 0 if all of it is there.
    pub compact_revision: Revision,
    /// How many sessions are open.
    pub sessions: u64,
    /// How many leases there are.
    pub leases: u64,
    /// The revision of the store when it was empty: 1, unless the cluster takes the place of
    /// another.
    pub first_revision: Revision,
}

impl MachineState {
    /// Before the first entry.
    pub const EMPTY: Self = Self {
        format: FORMAT_OLDEST,
        applied_index: Index(0),
        applied_term: Term(0),
        revision: Revision(1),
        compact_revision: Revision(0),
        sessions: 0,
        leases: 0,
        first_revision: Revision(1),
    };
}

/// The prefix of a data key that all versions of one user key share; `None` for other keys. Filters
/// and [`Scope::OneKey`](super::store::Scope::OneKey) use it.
#[must_use]
pub fn version_prefix(key: &[u8]) -> Option<&[u8]> {
    is_data_key(key).then(|| &key[..key.len() - REVISION_BYTES])
}

/// Whether it is the key of a version.
pub(crate) fn is_data_key(key: &[u8]) -> bool {
    key.first() == Some(&DATA) && key.len() >= DATA_KEY_BYTES_MIN
}

/// Appends the key of the version of `user_key` at `revision`.
pub fn put_data_key(out: &mut Vec<u8>, user_key: &[u8], revision: Revision) {
    put_range_bound(out, user_key);
    out.extend_from_slice(&TERMINATOR);
    put_inverted(out, revision);
}

/// Appends the inverted revision that ends a data key.
pub fn put_inverted(out: &mut Vec<u8>, revision: Revision) {
    out.extend_from_slice(&(!revision.0).to_be_bytes());
}

/// Appends the bytes that sort after all versions of keys below `user_key`, and before those of
/// `user_key` and above.
pub fn put_range_bound(out: &mut Vec<u8>, user_key: &[u8]) {
    out.push(DATA);
    let mut pieces = user_key.split(|byte| *byte == 0);
    out.extend_from_slice(pieces.next().unwrap_or_default());
    for piece in pieces {
        out.extend_from_slice(&ESCAPED_ZERO);
        out.extend_from_slice(piece);
    }
}

/// The range of all versions of all keys from `start` to `end`.
#[must_use]
pub fn data_range(start: &[u8], end: Option<&[u8]>) -> Range<Vec<u8>> {
    let mut lower = Vec::with_capacity(start.len() + 1);
    put_range_bound(&mut lower, start);
    let mut upper = Vec::new();
    match end {
        Some(end) => put_range_bound(&mut upper, end),
        None => upper.push(DATA + 1),
    }
    lower..upper
}

/// Splits a data key into its prefix and its revision.
pub fn split_data_key(key: &[u8]) -> Result<(&[u8], Revision), StoreError> {
    let prefix = version_prefix(key)
        .filter(|prefix| prefix.ends_with(&TERMINATOR))
        .ok_or_else(|| corrupt("data key", key))?;
    Ok((prefix, Revision(!be_u64(&key[prefix.len()..]))))
}

/// The user's key in a prefix that [`split_data_key`] returned.
pub fn user_key(prefix: &[u8]) -> Result<Vec<u8>, StoreError> {
    let body = prefix
        .get(1..)
        .and_then(|rest| rest.strip_suffix(&TERMINATOR))
        .ok_or_else(|| corrupt("data key", prefix))?;
    let mut key = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some(zero) = rest.iter().position(|byte| *byte == 0) {
        key.extend_from_slice(&rest[..=zero]);
        rest = rest[zero..]
            .strip_prefix(&ESCAPED_ZERO)
            .ok_or_else(|| corrupt("data key", prefix))?;
    }
    key.extend_from_slice(rest);
    Ok(key)
}

/// Appends the key of the change at `stamp`.
pub fn put_change_key(out: &mut Vec<u8>, stamp: Stamp) {
    out.push(CHANGES);
    out.extend_from_slice(&stamp.revision.0.to_be_bytes());
    out.extend_from_slice(&stamp.sub.to_be_bytes());
}

/// Whether this is the key of a change.
#[must_use]
pub fn is_change_key(key: &[u8]) -> bool {
    key.first() == Some(&CHANGES)
}

/// Decodes a change key.
pub fn split_change_key(key: &[u8]) -> Result<Stamp, StoreError> {
    match key.split_first() {
        Some((&CHANGES, stamp)) if stamp.len() == STAMP_BYTES => Ok(Stamp {
            revision: Revision(be_u64(&stamp[..8])),
            sub: be_u32(&stamp[8..]),
        }),
        _ => Err(corrupt("change key", key)),
    }
}

/// Appends the record of a change.
pub fn put_change(out: &mut Vec<u8>, change: Change<'_>) {
    out.push(if change.deletes {
        CHANGE_DELETE
    } else {
        CHANGE_PUT
    });
    encode_varint(change.replaces.map_or(0, |revision| revision.0), out);
    out.extend_from_slice(change.key);
}

/// Decodes the record of a change.
pub fn change(record: &[u8]) -> Result<Change<'_>, StoreError> {
    match record.split_first() {
        Some((kind @ &(CHANGE_PUT | CHANGE_DELETE), mut key)) => {
            let replaces = decode_varint(&mut key).map_err(|_| corrupt("change", record))?;
            Ok(Change {
                key,
                deletes: *kind == CHANGE_DELETE,
                replaces: (replaces != 0).then_some(Revision(replaces)),
            })
        }
        _ => Err(corrupt("change", record)),
    }
}

/// The range of the changes from `from` to the end of `to`.
#[must_use]
pub fn change_range(from: Stamp, to: Revision) -> Range<Vec<u8>> {
    let mut lower = Vec::with_capacity(1 + STAMP_BYTES);
    put_change_key(&mut lower, from);
    let mut upper = Vec::with_capacity(1 + STAMP_BYTES);
    match to.0.checked_add(1) {
        Some(next) => put_change_key(
            &mut upper,
            Stamp {
                revision: Revision(next),
                sub: 0,
            },
        ),
        None => upper.push(CHANGES + 1),
    }
    lower..upper
}

/// Appends the index key of a time to live that the change of `user_key` at `revision` set.
pub fn put_expiring_key(out: &mut Vec<u8>, revision: Revision, user_key: &[u8]) {
    out.push(EXPIRING);
    out.extend_from_slice(&revision.0.to_be_bytes());
    out.extend_from_slice(user_key);
}

/// Splits a key of the index of expiring keys into revision and user's key.
pub fn split_expiring_key(key: &[u8]) -> Result<(Revision, &[u8]), StoreError> {
    match key.split_first() {
        Some((&EXPIRING, rest)) if rest.len() >= 8 => {
            Ok((Revision(be_u64(&rest[..8])), &rest[8..]))
        }
        _ => Err(corrupt("key of an expiring key", key)),
    }
}

/// The range of the index of expiring keys.
#[must_use]
pub fn expiring_range() -> Range<Vec<u8>> {
    vec![EXPIRING]..vec![EXPIRING + 1]
}

/// The record in the index of expiring keys.
pub fn put_ttl(out: &mut Vec<u8>, ttl_ms: u64) {
    encode_varint(ttl_ms, out);
}

/// Decodes the record in the index of expiring keys.
pub fn ttl(record: &[u8]) -> Result<u64, StoreError> {
    let mut rest = record;
    match decode_varint(&mut rest) {
        Ok(ttl_ms) if rest.is_empty() => Ok(ttl_ms),
        _ => Err(corrupt("time to live", record)),
    }
}

/// The key of a session.
#[must_use]
pub fn session_key(id: SessionId) -> [u8; 9] {
    let mut key = [SESSIONS; 9];
    key[1..].copy_from_slice(&id.0.to_be_bytes());
    key
}

/// Decodes the key of a session.
pub fn split_session_key(key: &[u8]) -> Result<SessionId, StoreError> {
    match key.split_first() {
        Some((&SESSIONS, id)) if id.len() == 8 => Ok(SessionId(be_u64(id))),
        _ => Err(corrupt("session key", key)),
    }
}

/// The range of the sessions after `after`.
#[must_use]
pub fn session_range(after: SessionId) -> Range<Vec<u8>> {
    let mut lower = session_key(after).to_vec();
    // The first bytes after that key.
    lower.push(0);
    lower..vec![SESSIONS + 1]
}

/// The key of the reply to a command of a session.
#[must_use]
pub fn reply_key(id: SessionId, sequence: u64) -> [u8; 17] {
    let mut key = [REPLIES; 17];
    key[1..9].copy_from_slice(&id.0.to_be_bytes());
    key[9..].copy_from_slice(&sequence.to_be_bytes());
    key
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// A change, in the order of history.
    Changes,
    /// A version of a key.
    Data,
    /// A record of the state machine itself.
    Meta,
    /// A session, a stored reply, a lease, or an entry in the index of expiring or attached keys.
    Other,
}

/// The kind of the record under `key`.
pub fn space(key: &[u8]) -> Result<Space, StoreError> {
    match key.first() {
        Some(&CHANGES) => Ok(Space::Changes),
        Some(&DATA) => Ok(Space::Data),
        Some(b'm') => Ok(Space::Meta),
        Some(&(REPLIES | SESSIONS | EXPIRING | LEASES | ATTACHED)) => Ok(Space::Other),
        _ => Err(corrupt("key", key)),
    }
}

/// The range of all records.
#[must_use]
pub fn everything() -> Range<Vec<u8>> {
    Vec::new()..vec![0xff]
}

/// Appends the record of a version.
pub fn put_version(out: &mut Vec<u8>, version: &Version<'_>) {
    match *version {
        Version::Tombstone => out.push(FLAG_TOMBSTONE),
        Version::Live {
            create_revision,
            version,
            ttl_ms,
            lease,
            value,
        } => {
            let (attached, expiring) = (lease != LeaseId::NONE, ttl_ms != 0);
            out.push(match (attached, expiring) {
                (true, _) => FLAG_ATTACHED,
                (false, true) => FLAG_EXPIRING,
                (false, false) => FLAG_LIVE,
            });
            encode_varint(create_revision.0, out);
            encode_varint(version, out);
            if attached {
                out.extend_from_slice(&lease.0.to_be_bytes());
            }
            if attached || expiring {
                encode_varint(ttl_ms, out);
            }
            out.extend_from_slice(value);
        }
    }
}

/// Decodes the record of a version.
pub fn version(record: &[u8]) -> Result<Version<'_>, StoreError> {
    match record.split_first() {
        Some((&FLAG_TOMBSTONE, [])) => Ok(Version::Tombstone),
        Some((flag @ &(FLAG_LIVE | FLAG_EXPIRING | FLAG_ATTACHED), mut value)) => {
            let damaged = || corrupt("version", record);
            let number = |value: &mut &[u8]| decode_varint(value).map_err(|_| damaged());
            let create_revision = Revision(number(&mut value)?);
            let version = number(&mut value)?;
            let lease = match *flag {
                FLAG_ATTACHED => {
                    let (id, rest) = value.split_first_chunk().ok_or_else(damaged)?;
                    value = rest;
                    LeaseId(i64::from_be_bytes(*id))
                }
                _ => LeaseId::NONE,
            };
            let ttl_ms = match *flag {
                FLAG_LIVE => 0,
                _ => number(&mut value)?,
            };
            Ok(Version::Live {
                create_revision,
                version,
                ttl_ms,
                lease,
                value,
            })
        }
        _ => Err(corrupt("version", record)),
    }
}

/// The record under [`STATE_KEY`].
#[must_use]
pub fn encode_state(state: &MachineState) -> Vec<u8> {
    let numbers = [
        state.applied_index.0,
        state.applied_term.0,
        state.revision.0,
        state.compact_revision.0,
        state.sessions,
        state.leases,
        state.first_revision.0,
    ];
    let bytes = match state.format {
        FORMAT_OLDEST => STATE_BYTES_OLDEST,
        _ => STATE_BYTES,
    };
    let mut record: Vec<u8> = numbers.into_iter().flat_map(u64::to_be_bytes).collect();
    record.truncate(bytes);
    record
}

/// Decodes the record under [`STATE_KEY`], whose length says of which format it is.
///
/// # Errors
///
/// If it is not one, or no entries can lead to this state.
pub fn decode_state(record: &[u8]) -> Result<MachineState, StoreError> {
    let number = |at: usize| be_u64(&record[at * 8..at * 8 + 8]);
    let (format, leases, first) = match record.len() {
        STATE_BYTES_OLDEST => (FORMAT_OLDEST, 0, MachineState::EMPTY.first_revision),
        STATE_BYTES => (FORMAT_VERSION, number(5), Revision(number(6))),
        _ => return Err(corrupt("state", record)),
    };
    let state = MachineState {
        format,
        applied_index: Index(number(0)),
        applied_term: Term(number(1)),
        revision: Revision(number(2)),
        compact_revision: Revision(number(3)),
        sessions: number(4),
        leases,
        first_revision: first,
    };
    match is_possible(&state) {
        true => Ok(state),
        false => Err(corrupt("state", record)),
    }
}

/// Whether entries can lead to this state.
fn is_possible(state: &MachineState) -> bool {
    let (index, first) = (state.applied_index.0, state.first_revision);
    index <= NUMBER_MAX
        && state.applied_term.0 <= NUMBER_MAX
        && (1..=NUMBER_MAX).contains(&first.0)
        // It also keeps the counting of revisions from overflowing.
        && (first..=Revision(first.0 + index)).contains(&state.revision)
        // Otherwise readers would wait for a newest revision that is never readable.
        && state.compact_revision <= state.revision
        && state.sessions <= SESSIONS_MAX
        && state.leases <= LEASES_MAX
}

/// The record under [`FORMAT_KEY`] of a store of this format.
#[must_use]
pub fn encode_format(format: u32) -> [u8; 4] {
    format.to_be_bytes()
}

/// Checks the record under [`FORMAT_KEY`], and returns the format.
///
/// # Errors
///
/// If it is newer than this program, or not a format.
pub fn check_format(record: &[u8]) -> Result<u32, StoreError> {
    if record.len() != 4 {
        return Err(corrupt("format", record));
    }
    match be_u32(record) {
        found @ FORMAT_OLDEST..=FORMAT_VERSION => Ok(found),
        found if found > FORMAT_VERSION => Err(StoreError::NewerFormat {
            what: "the state in the data directory",
            found,
            supported: FORMAT_VERSION,
        }),
        found => Err(StoreError::Foreign(format!(
            "it has format {found}, which no release of this program ever wrote"
        ))),
    }
}

/// Decodes the record under [`MEMBERSHIP_KEY`].
pub fn decode_membership(record: &[u8]) -> Result<Membership, StoreError> {
    Membership::decode(record).map_err(|error| StoreError::Corrupt(format!("membership: {error}")))
}

fn be_u64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("the caller passes eight bytes"))
}

fn be_u32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("the caller passes four bytes"))
}

/// Shows the record's first bytes, which is enough to find it.
pub(super) fn corrupt(what: &str, bytes: &[u8]) -> StoreError {
    let shown = &bytes[..bytes.len().min(64)];
    StoreError::Corrupt(format!(
        "{what} of {} bytes does not read: {}",
        bytes.len(),
        shown.escape_ascii()
    ))
}
