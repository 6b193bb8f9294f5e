//! Batches: several operations as one, after comparisons.

use std::cmp::Ordering;
use std::time::Duration;

use bytes::Bytes;
use dengine_protocol::v1::compare::{Relation, Target};
use dengine_protocol::v1::{self, operation, operation_result};

use crate::error::{Error, Result};
use crate::policy::Operation as Kind;
use crate::types::{Answer, Header, KeyRange, KeyValue, all, ttl_ms};

/// Compares, and then does one of two lists of operations: all of it at once, at one revision.
///
/// ```
/// use dengine_client::{Batch, Compare, Operation};
///
/// let moved = Batch::new()
///     .when(Compare::exists("from"))
///     .when(Compare::absent("to"))
///     .then(Operation::delete("from"))
///     .then(Operation::put("to", "value"))
///     .otherwise(Operation::get("to"));
/// # let _ = moved;
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct Batch(v1::BatchRequest);

impl Batch {
    /// Does nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a comparison; all of them must hold.
    pub fn when(mut self, compare: Compare) -> Self {
        self.0.compares.push(compare.0);
        self
    }

    /// Adds an operation to what is done if the comparisons hold.
    pub fn then(mut self, operation: Operation) -> Self {
        self.0.then.push(operation.wire());
        self
    }

    /// Adds an operation to what is done if they do not.
    pub fn otherwise(mut self, operation: Operation) -> Self {
        self.0.otherwise.push(operation.wire());
        self
    }

    pub(crate) fn wire(self) -> v1::BatchRequest {
        self.0
    }
}

/// A question about a key as it is before the batch.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Compare(v1::Compare);

impl Compare {
    /// The key exists.
    pub fn exists(key: impl Into<Bytes>) -> Self {
        Self::new(key, Relation::Greater, Target::Version(0))
    }

    /// The key does not exist.
    pub fn absent(key: impl Into<Bytes>) -> Self {
        Self::version(key, Ordering::Equal, 0)
    }

    /// Compares how often the key was changed since its creation with `version`; 0: it does not
    /// exist.
    pub fn version(key: impl Into<Bytes>, relation: Ordering, version: u64) -> Self {
        Self::new(key, wire(relation), Target::Version(version))
    }

    /// Compares the revision that created the key with `revision`; 0: it does not exist.
    pub fn create_revision(key: impl Into<Bytes>, relation: Ordering, revision: u64) -> Self {
        Self::new(key, wire(relation), Target::CreateRevision(revision))
    }

    /// Compares the revision that last changed the key with `revision`; 0: it does not exist.
    pub fn mod_revision(key: impl Into<Bytes>, relation: Ordering, revision: u64) -> Self {
        Self::new(key, wire(relation), Target::ModRevision(revision))
    }

    /// The key exists; compares its value with `value`, byte by byte.
    pub fn value(key: impl Into<Bytes>, relation: Ordering, value: impl Into<Bytes>) -> Self {
        Self::new(key, wire(relation), Target::Value(value.into()))
    }

    /// The key exists, and has another value.
    pub fn value_is_not(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::new(key, Relation::NotEqual, Target::Value(value.into()))
    }

    /// Asks it of every key of a range that exists, instead of one key.
    pub fn of_all(mut self, range: KeyRange) -> Self {
        self.0.key = range.start;
        self.0.range_end = range.end;
        self
    }

    fn new(key: impl Into<Bytes>, relation: Relation, target: Target) -> Self {
        Compare(v1::Compare {
            key: key.into(),
            range_end: Bytes::new(),
            relation: relation.into(),
            target: Some(target),
        })
    }
}

fn wire(relation: Ordering) -> Relation {
    match relation {
        Ordering::Equal => Relation::Equal,
        Ordering::Greater => Relation::Greater,
        Ordering::Less => Relation::Less,
    }
}

/// One step of a batch; it sees what the steps before it did.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Operation(operation::Operation);

impl Operation {
    /// Sets a key.
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Operation(operation::Operation::Put(operation::Put {
            key: key.into(),
            value: value.into(),
            ..operation::Put::default()
        }))
    }

    /// Sets a key with a time to live; the key never expires earlier.
    pub fn put_with_ttl(key: impl Into<Bytes>, value: impl Into<Bytes>, ttl: Duration) -> Self {
        Operation(operation::Operation::Put(operation::Put {
            key: key.into(),
            value: value.into(),
            ttl_ms: ttl_ms(Some(ttl)),
            ..operation::Put::default()
        }))
    }

    /// Deletes a key.
    pub fn delete(key: impl Into<Bytes>) -> Self {
        Self::delete_range(KeyRange::key(key))
    }

    /// Deletes every key of a range.
    pub fn delete_range(range: KeyRange) -> Self {
        Operation(operation::Operation::Delete(operation::Delete {
            key: range.start,
            range_end: range.end,
            prev_kv: false,
        }))
    }

    /// Reads a key. All reads of one batch return about 4 MiB together: [`OperationResult::Get`]
    /// says whether this one was reached by that.
    pub fn get(key: impl Into<Bytes>) -> Self {
        Self::range(KeyRange::key(key), 0)
    }

    /// Reads a range, at most so many keys of it; 0 leaves it to the server's bound, which all
    /// reads of one batch share: about 4 MiB of keys and values.
    pub fn range(range: KeyRange, limit: u32) -> Self {
        Operation(operation::Operation::Get(operation::Get {
            key: range.start,
            range_end: range.end,
            limit,
            ..operation::Get::default()
        }))
    }

    /// Answers a put or a delete with the pairs as they were before. Means nothing for a read.
    pub fn returning_previous(mut self) -> Self {
        match &mut self.0 {
            operation::Operation::Put(put) => put.prev_kv = true,
            operation::Operation::Delete(delete) => delete.prev_kv = true,
            operation::Operation::Get(_) => {}
        }
        self
    }

    fn wire(self) -> v1::Operation {
        v1::Operation {
            operation: Some(self.0),
        }
    }
}

/// Answer to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchResult {
    /// `header.revision` is the revision that the batch took, or the current one if it changed
    /// nothing.
    pub header: Header,
    /// Whether the comparisons held, and so which list was done.
    pub succeeded: bool,
    /// One for each operation of that list; empty if [`Header::trimmed`].
    pub results: Vec<OperationResult>,
}

/// Answer to one operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationResult {
    /// To a put.
    Put {
        /// The pair as it was before, if it was asked for and existed.
        previous: Option<KeyValue>,
    },
    /// To a delete.
    Delete {
        /// How many keys were deleted.
        deleted: u64,
        /// What they were, if that was asked for.
        previous: Vec<KeyValue>,
    },
    /// To a read.
    Get {
        /// In ascending order of keys.
        kvs: Vec<KeyValue>,
        /// Whether the range holds more keys than were returned: its limit was reached, or what all
        /// reads of one batch may return together, about 4 MiB. The reads before this one may have
        /// taken all of that. So no pair and `more`, as for a read of one key, does not say that
        /// the key is absent: read it by a call of its own.
        more: bool,
        /// Keys in the whole range; `None` if there are more than were returned, unless only the
        /// count was asked for.
        count: Option<u64>,
    },
}

impl Answer for BatchResult {
    fn header(&self) -> &Header {
        &self.header
    }
}

impl TryFrom<v1::BatchResponse> for BatchResult {
    type Error = Error;

    fn try_from(response: v1::BatchResponse) -> Result<Self> {
        let results = response.results.into_iter().map(OperationResult::try_from);
        Ok(BatchResult {
            header: Header::of(Kind::Write, response.header)?,
            succeeded: response.succeeded,
            results: results.collect::<Result<_>>()?,
        })
    }
}

impl TryFrom<v1::OperationResult> for OperationResult {
    type Error = Error;

    fn try_from(result: v1::OperationResult) -> Result<Self> {
        use operation_result::Result as Wire;
        match result.result {
            Some(Wire::Put(put)) => Ok(OperationResult::Put {
                previous: put.prev_kv.map(KeyValue::from),
            }),
            Some(Wire::Delete(delete)) => Ok(OperationResult::Delete {
                deleted: delete.deleted,
                previous: all(delete.prev_kvs),
            }),
            Some(Wire::Get(get)) => Ok(OperationResult::Get {
                kvs: all(get.kvs),
                more: get.more,
                count: get.count,
            }),
            None => Err(Error::malformed(Kind::Write, "result")),
        }
    }
}
