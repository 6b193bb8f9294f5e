//! Finds the versions of keys that are visible at a revision.

use std::ops::ControlFlow;

use bytes::Bytes;
use dengine_types::{LeaseId, Revision};

use super::layout::{
    Version, corrupt, data_range, put_data_key, put_inverted, split_data_key, user_key, version,
};
use super::store::{Cursor, Scope, Store, StoreError};
use super::{KeyRange, KeyValue};

/// How many records to step over before a seek is cheaper.
const STEPS_MAX: usize = 8;

/// What a scan finds of one key.
pub(super) enum Seen<'a> {
    Live(Found<'a>),
    /// It was deleted, and history still has the deletion.
    Deleted {
        /// The prefix of its records.
        prefix: &'a [u8],
        /// The revision that deleted it.
        revision: Revision,
    },
    /// Its newest version is of a later revision; an older one may follow.
    Later,
}

/// A live version of a key, still in the storage's memory.
pub(super) struct Found<'a> {
    prefix: &'a [u8],
    revision: Revision,
    create_revision: Revision,
    version: u64,
    ttl_ms: u64,
    lease: LeaseId,
    value: &'a [u8],
}

impl Found<'_> {
    /// The approximate size that the pair adds to a response.
    pub(super) fn size_bytes(&self, keys_only: bool) -> usize {
        self.prefix.len() + if keys_only { 0 } else { self.value.len() }
    }

    pub(super) fn value_bytes(&self) -> usize {
        self.value.len()
    }

    pub(super) fn key(&self) -> Result<Bytes, StoreError> {
        user_key(self.prefix).map(Bytes::from)
    }

    /// A copy; without its value unless that is wanted.
    pub(super) fn to_key_value(&self, key: Bytes, with_value: bool) -> KeyValue {
        KeyValue {
            key,
            value: if with_value {
                Bytes::copy_from_slice(self.value)
            } else {
                Bytes::new()
            },
            create_revision: self.create_revision,
            mod_revision: self.revision,
            version: self.version,
            ttl_ms: self.ttl_ms,
            lease: self.lease,
        }
    }
}

/// The version of one key that is visible at `at`, through a cursor of scope [`Scope::OneKey`].
/// `buffer` is scratch space that saves an allocation.
pub(super) fn find<'c, C: Cursor>(
    cursor: &'c mut C,
    buffer: &mut Vec<u8>,
    key: &[u8],
    at: Revision,
) -> Result<Option<Found<'c>>, StoreError> {
    buffer.clear();
    put_data_key(buffer, key, at);
    cursor.seek(buffer)?;
    cursor
        .record()
        .map_or(Ok(None), |(key, record)| live(key, record))
}

/// An iteration over the live versions of a range. It sees the store as it was at the creation of
/// the scan.
pub(super) struct Scan<'k, C> {
    cursor: C,
    way: Way<'k>,
}

enum Way<'k> {
    One(&'k [u8]),
    /// From these bytes to the end of the cursor's scope.
    Range(Vec<u8>),
}

impl<'k, C: Cursor> Scan<'k, C> {
    pub(super) fn new<'s, S: Store<Cursor<'s> = C>>(store: &'s S, keys: &'k KeyRange) -> Self {
        Self::with(keys, |scope| store.cursor(scope))
    }

    /// For who [reads the range through](Store::cursor_of_one_pass).
    pub(super) fn of_one_pass<'s, S>(store: &'s S, keys: &'k KeyRange) -> Self
    where
        S: Store<Cursor<'s> = C>,
    {
        Self::with(keys, |scope| store.cursor_of_one_pass(scope))
    }

    /// Who reads a range at a revision lists it page by page, and so reads it through.
    pub(super) fn at<'s, S>(store: &'s S, keys: &'k KeyRange, revision: Option<Revision>) -> Self
    where
        S: Store<Cursor<'s> = C>,
    {
        match revision {
            None => Self::new(store, keys),
            Some(_) => Self::of_one_pass(store, keys),
        }
    }

    fn with(keys: &'k KeyRange, cursor: impl FnOnce(Scope) -> C) -> Self {
        let mut range = match keys {
            KeyRange::One(key) => {
                return Self {
                    cursor: cursor(Scope::OneKey),
                    way: Way::One(key),
                };
            }
            KeyRange::Between { start, end } => data_range(start, Some(end)),
            KeyRange::From(start) => data_range(start, None),
        };
        if range.is_empty() {
            range.end.clone_from(&range.start);
        }
        Self {
            cursor: cursor(Scope::Between(range.clone())),
            way: Way::Range(range.start),
        }
    }

    /// Visits every key, as of `at`, in the order of the keys, until `visit` breaks. Deleted keys
    /// are visited too where skipping them takes time, so that a caller that counts visits bounds
    /// the time. Returns how many records were [not visited](Cursor::stepped_over).
    pub(super) fn run(
        mut self,
        at: Revision,
        mut visit: impl FnMut(&Seen<'_>) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<usize, StoreError> {
        match self.way {
            Way::One(key) => {
                if let Some(found) = find(&mut self.cursor, &mut Vec::new(), key, at)? {
                    let _: ControlFlow<()> = visit(&Seen::Live(found))?;
                }
            }
            Way::Range(start) => walk(&mut self.cursor, start, at, visit)?,
        }
        Ok(self.cursor.stepped_over())
    }
}

fn walk(
    cursor: &mut impl Cursor,
    start: Vec<u8>,
    at: Revision,
    mut visit: impl FnMut(&Seen<'_>) -> Result<ControlFlow<()>, StoreError>,
) -> Result<(), StoreError> {
    let mut target = start;
    cursor.seek(&target)?;
    while let Some((key, record)) = cursor.record() {
        let (prefix, revision) = split_data_key(key)?;
        target.clear();
        target.extend_from_slice(prefix);
        let is_later = revision > at;
        let seen = match is_later {
            true => Seen::Later,
            false => live(key, record)?.map_or(Seen::Deleted { prefix, revision }, Seen::Live),
        };
        if visit(&seen)?.is_break() {
            return Ok(());
        }
        if is_later {
            put_inverted(&mut target, at);
        } else {
            // After all versions of this key: the terminator ends in 0, and what follows it is
            // lower.
            *target.last_mut().expect("a prefix is never empty") += 1;
        }
        advance(cursor, &target)?;
    }
    Ok(())
}

/// Moves forward to the first record at or after `target`.
fn advance(cursor: &mut impl Cursor, target: &[u8]) -> Result<(), StoreError> {
    for _ in 0..STEPS_MAX {
        cursor.next()?;
        if cursor.record().is_none_or(|(key, _)| key >= target) {
            return Ok(());
        }
    }
    cursor.seek(target)
}

/// Decodes the record of a version; `None` if it is a tombstone.
///
/// # Errors
///
/// If it is not one, or its numbers contradict each other, because the next put continues from
/// them.
pub(super) fn live<'a>(key: &'a [u8], record: &'a [u8]) -> Result<Option<Found<'a>>, StoreError> {
    let (prefix, revision) = split_data_key(key)?;
    let Version::Live {
        create_revision,
        version,
        ttl_ms,
        lease,
        value,
    } = version(record)?
    else {
        return Ok(None);
    };
    // The first change creates the key, and every other one took a revision of its own.
    let age = revision.0.checked_sub(create_revision.0);
    if create_revision.0 == 0 || version == 0 || age.is_none_or(|age| version - 1 > age) {
        return Err(corrupt("version", key));
    }
    Ok(Some(Found {
        prefix,
        revision,
        create_revision,
        version,
        ttl_ms,
        lease,
        value,
    }))
}
