//! Which batches would change a key twice.
//!
//! The order of such changes within one revision would be undefined, and their records would
//! replace each other. So these batches are refused, whichever lists would be done: those that put
//! a key twice, and those that put it and delete it, in any order, in batches within them too. Of
//! the two lists of one batch only one is done, so they may change the same keys. Deleting twice is
//! harmless.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use super::{Batch, BatchOperation, Put};
use crate::KeyRange;

impl Batch {
    /// A key that it would change twice: put twice, or put and deleted.
    #[must_use]
    pub fn duplicate_key(&self) -> Option<&Bytes> {
        self.changes().err()
    }

    fn changes(&self) -> Result<Changes<'_>, &Bytes> {
        let mut either = Changes::of(&self.then)?;
        either.merge(Changes::of(&self.otherwise)?);
        Ok(either)
    }
}

/// The keys that are put.
type Puts<'a> = BTreeMap<&'a [u8], &'a Bytes>;

/// What is changed by operations of which all may be done, or either some or others.
#[derive(Default)]
struct Changes<'a> {
    puts: Puts<'a>,
    deletes: Deletes<'a>,
}

impl<'a> Changes<'a> {
    /// Of a list, of which all operations are done; or a key that it changes twice.
    fn of(operations: &'a [BatchOperation]) -> Result<Self, &'a Bytes> {
        let mut all = Self::default();
        for operation in operations {
            match operation {
                BatchOperation::Put(Put { key, .. }) => {
                    all.check_put(key)?;
                    all.puts.insert(key, key);
                }
                BatchOperation::Delete { keys, .. } => {
                    if let Some((start, end)) = range_of(keys) {
                        all.check_delete(start, end)?;
                        all.deletes.add(start, end);
                    }
                }
                BatchOperation::Batch(batch) => all.add(batch.changes()?)?,
                BatchOperation::Get { .. } | BatchOperation::Range(_) => {}
            }
        }
        Ok(all)
    }

    /// Adds what is done besides.
    fn add(&mut self, other: Self) -> Result<(), &'a Bytes> {
        other
            .puts
            .values()
            .try_for_each(|key| self.check_put(key))?;
        let mut deletes = other.deletes.0.iter();
        deletes.try_for_each(|(start, end)| self.check_delete(start, *end))?;
        self.merge(other);
        Ok(())
    }

    /// Whether a key may be put besides.
    fn check_put(&self, key: &'a Bytes) -> Result<(), &'a Bytes> {
        match self.puts.contains_key(&key[..]) || self.deletes.contains(key) {
            true => Err(key),
            false => Ok(()),
        }
    }

    /// Whether a range may be deleted besides.
    fn check_delete(&self, start: &[u8], end: End<'_>) -> Result<(), &'a Bytes> {
        let from = (Bound::Included(start), Bound::Unbounded);
        // Only the first key at or after the start can be in the range.
        match self.puts.range::<[u8], _>(from).next() {
            Some((_, key)) if has(end, key) => Err(key),
            _ => Ok(()),
        }
    }

    fn merge(&mut self, other: Self) {
        self.puts.extend(other.puts);
        for (start, end) in other.deletes.0 {
            self.deletes.add(start, end);
        }
    }
}

/// The end of a range of keys.
#[derive(Clone, Copy)]
enum End<'a> {
    /// Behind the key that is the start.
    Included(&'a [u8]),
    Before(&'a [u8]),
    Never,
}

/// Ranges, by their starts. They do not overlap, so that a key is looked for in one of them.
#[derive(Default)]
struct Deletes<'a>(BTreeMap<&'a [u8], End<'a>>);

impl<'a> Deletes<'a> {
    fn add(&mut self, mut start: &'a [u8], mut end: End<'a>) {
        // The one that this begins in, if there is one, and those that begin in this.
        if let Some((&first, &other)) = self.last_up_to(start)
            && has(other, start)
        {
            start = first;
            end = later(end, other);
        }
        let from = (Bound::Included(start), Bound::Unbounded);
        while let Some((&next, &other)) = self.0.range::<[u8], _>(from).next()
            && has(end, next)
        {
            end = later(end, other);
            self.0.remove(next);
        }
        self.0.insert(start, end);
    }

    fn contains(&self, key: &[u8]) -> bool {
        let last = self.last_up_to(key);
        last.is_some_and(|(_, end)| has(*end, key))
    }

    /// The last range that begins at this key or before it.
    fn last_up_to(&self, key: &[u8]) -> Option<(&&'a [u8], &End<'a>)> {
        let before = (Bound::Unbounded, Bound::Included(key));
        self.0.range::<[u8], _>(before).next_back()
    }
}

/// The start and the end of a range; `None` if it is empty.
fn range_of(keys: &KeyRange) -> Option<(&[u8], End<'_>)> {
    let end = match keys {
        KeyRange::One(key) => End::Included(key),
        KeyRange::Between { start, end } if end <= start => return None,
        KeyRange::Between { end, .. } => End::Before(end),
        KeyRange::From(_) => End::Never,
    };
    Some((keys.start(), end))
}

/// Whether a key at or behind the start of a range is in it.
fn has(end: End<'_>, key: &[u8]) -> bool {
    match end {
        End::Included(last) => key <= last,
        End::Before(end) => key < end,
        End::Never => true,
    }
}

/// The end that is reached later.
fn later<'a>(one: End<'a>, other: End<'a>) -> End<'a> {
    match (one, other) {
        (End::Never, _) | (_, End::Never) => End::Never,
        (End::Included(a), End::Included(b)) => End::Included(a.max(b)),
        (End::Before(a), End::Before(b)) => End::Before(a.max(b)),
        (End::Included(last), End::Before(end)) | (End::Before(end), End::Included(last)) => {
            match last < end {
                true => End::Before(end),
                false => End::Included(last),
            }
        }
    }
}
