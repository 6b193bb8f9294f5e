//! What callers pass in and get back. Conversions from and to the wire live here and nowhere else.

use std::time::Duration;

use bytes::Bytes;
use dengine_protocol::v1;

use crate::error::{Error, Result};
use crate::policy::{Operation, Position};

/// How fresh a read is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Consistency {
    /// Sees every write that was acknowledged before the read began; costs a round of a quorum.
    #[default]
    Linearizable,
    /// The state of the member that is asked, however old.
    Eventual,
    /// As fresh as linearizable, mostly without that round: the leader holds a lease instead, which
    /// trusts that the members' clocks run about equally fast.
    Lease,
    /// The state of the member that is asked, once it has reached everything that this client, or a
    /// clone of it, has seen: it reads its own writes and never goes back. See
    /// [`Client::position`](crate::Client::position).
    Session,
}

impl Consistency {
    fn wire(self) -> i32 {
        match self {
            Consistency::Linearizable => v1::Consistency::Linearizable as i32,
            Consistency::Eventual => v1::Consistency::Eventual as i32,
            Consistency::Lease => v1::Consistency::Lease as i32,
            Consistency::Session => v1::Consistency::Session as i32,
        }
    }
}

/// What a session read names; the client fills it in when it sends the read.
pub(crate) fn position(seen: Position) -> Option<v1::Position> {
    (seen.cluster_id != 0).then_some(v1::Position {
        cluster_id: seen.cluster_id,
        revision: seen.revision,
    })
}

/// A time to live in milliseconds, as the protocol has it; rounded up, so that no key expires
/// early.
pub(crate) fn ttl_ms(ttl: Option<Duration>) -> u64 {
    let millis = |ttl: Duration| ttl.as_nanos().div_ceil(1_000_000).max(1);
    ttl.map_or(0, |ttl| u64::try_from(millis(ttl)).unwrap_or(u64::MAX))
}

/// Where and at which point of history an answer was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// The cluster that answered.
    pub cluster_id: u64,
    /// The member that answered.
    pub member_id: u64,
    /// For a write the revision that it took, or the current one if it took none; for a read the
    /// store's revision when it was read.
    pub revision: u64,
    /// Raft's term at the member that answered.
    pub term: u64,
    /// The write took effect, and the pairs that its answer was to hold are left out: it was sent
    /// more than once, and they were too large to be kept; or they were too large together for the
    /// member or its clients the first time.
    pub trimmed: bool,
}

impl Header {
    pub(crate) fn of(operation: Operation, header: Option<v1::ResponseHeader>) -> Result<Self> {
        let header = header.ok_or_else(|| Error::malformed(operation, "header"))?;
        Ok(Header {
            cluster_id: header.cluster_id,
            member_id: header.member_id,
            revision: header.revision,
            term: header.term,
            trimmed: header.trimmed,
        })
    }
}

/// A key with its value and history.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value; empty if only keys were asked for.
    pub value: Bytes,
    /// The revision that created the key (again, if it was deleted in between).
    pub create_revision: u64,
    /// The revision that last changed the key.
    pub mod_revision: u64,
    /// 1 on creation, one more with each change; starts over after a delete.
    pub version: u64,
    /// Time to live, counted from its last change; `None`: no expiry.
    pub ttl: Option<Duration>,
}

impl From<v1::KeyValue> for KeyValue {
    fn from(kv: v1::KeyValue) -> Self {
        KeyValue {
            key: kv.key,
            value: kv.value,
            create_revision: kv.create_revision,
            mod_revision: kv.mod_revision,
            version: kv.version,
            ttl: (kv.ttl_ms > 0).then(|| Duration::from_millis(kv.ttl_ms)),
        }
    }
}

pub(crate) fn all(kvs: Vec<v1::KeyValue>) -> Vec<KeyValue> {
    kvs.into_iter().map(KeyValue::from).collect()
}

/// An answer that says at which point of history it was made.
pub(crate) trait Answer: Sized {
    fn header(&self) -> &Header;
}

macro_rules! answers {
    ($($result:ident),*) => {
        $(impl Answer for $result {
            fn header(&self) -> &Header {
                &self.header
            }
        })*
    };
}

answers!(
    PutResult,
    DeleteResult,
    SwapResult,
    GetResult,
    RangeResult,
    CompactResult
);

/// How to set a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// Answer with the pair as it was before.
    pub previous: bool,
    /// Time to live, counted from this put; the key never expires earlier. `None`: no expiry.
    pub ttl: Option<Duration>,
}

/// Answer to a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutResult {
    /// `header.revision` is the revision that the put took.
    pub header: Header,
    /// The pair as it was before, if it was asked for and existed.
    pub previous: Option<KeyValue>,
}

impl TryFrom<v1::PutResponse> for PutResult {
    type Error = Error;

    fn try_from(response: v1::PutResponse) -> Result<Self> {
        Ok(PutResult {
            header: Header::of(Operation::Write, response.header)?,
            previous: response.prev_kv.map(KeyValue::from),
        })
    }
}

/// Answer to a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteResult {
    /// `header.revision` is the revision that the delete took, or the current one if there was
    /// nothing to delete.
    pub header: Header,
    /// How many keys were deleted.
    pub deleted: u64,
    /// What they were, if that was asked for.
    pub previous: Vec<KeyValue>,
}

impl TryFrom<v1::DeleteResponse> for DeleteResult {
    type Error = Error;

    fn try_from(response: v1::DeleteResponse) -> Result<Self> {
        Ok(DeleteResult {
            header: Header::of(Operation::Write, response.header)?,
            deleted: response.deleted,
            previous: all(response.prev_kvs),
        })
    }
}

/// What a key must be for a compare-and-swap to take place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The key does not exist.
    Absent,
    /// The key was last changed by this revision.
    ModRevision(u64),
    /// The key exists and holds exactly this.
    Value(Bytes),
}

impl Expected {
    pub(crate) fn wire(self) -> v1::compare_and_swap_request::Expected {
        use v1::compare_and_swap_request::Expected as Wire;
        match self {
            Expected::Absent => Wire::ModRevision(0),
            Expected::ModRevision(revision) => Wire::ModRevision(revision),
            Expected::Value(value) => Wire::CurrentValue(value),
        }
    }
}

/// Answer to a compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapResult {
    /// `header.revision` is the revision that the swap took, or the current one if it did not
    /// take place.
    pub header: Header,
    /// Whether the key was as expected and now holds the new value.
    pub succeeded: bool,
    /// The pair as it was when compared; `None` if the key did not exist.
    pub previous: Option<KeyValue>,
}

impl TryFrom<v1::CompareAndSwapResponse> for SwapResult {
    type Error = Error;

    fn try_from(response: v1::CompareAndSwapResponse) -> Result<Self> {
        Ok(SwapResult {
            header: Header::of(Operation::Write, response.header)?,
            succeeded: response.succeeded,
            previous: response.prev_kv.map(KeyValue::from),
        })
    }
}

/// Answer to a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactResult {
    /// `header.revision` is the store's revision.
    pub header: Header,
}

impl TryFrom<v1::CompactResponse> for CompactResult {
    type Error = Error;

    fn try_from(response: v1::CompactResponse) -> Result<Self> {
        Ok(CompactResult {
            header: Header::of(Operation::Write, response.header)?,
        })
    }
}

/// Answer to a get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetResult {
    /// `header.revision` is the store's revision when it was read.
    pub header: Header,
    /// `None` if the key does not exist.
    pub kv: Option<KeyValue>,
}

impl TryFrom<v1::GetResponse> for GetResult {
    type Error = Error;

    fn try_from(response: v1::GetResponse) -> Result<Self> {
        Ok(GetResult {
            header: Header::of(Operation::Read, response.header)?,
            kv: response.kv.map(KeyValue::from),
        })
    }
}

pub(crate) fn get_request(key: Bytes, revision: u64, consistency: Consistency) -> v1::GetRequest {
    v1::GetRequest {
        key,
        revision,
        consistency: consistency.wire(),
        at_least: None,
    }
}

/// A set of keys that lie next to each other.
///
/// ```
/// use dengine_client::KeyRange;
///
/// assert_eq!(KeyRange::prefix("user/"), KeyRange::between("user/", "user0"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    pub(crate) start: Bytes,
    /// Empty: only `start`; one zero byte: to the end.
    pub(crate) end: Bytes,
}

impl KeyRange {
    /// One key.
    pub fn key(key: impl Into<Bytes>) -> Self {
        KeyRange {
            start: key.into(),
            end: Bytes::new(),
        }
    }

    /// Every key from `start` to just before `end`; none if `end` does not lie behind `start`.
    ///
    /// ```
    /// use dengine_client::KeyRange;
    ///
    /// // No key lies before these ends, whatever they mean on the wire: a computed end takes
    /// // nothing too much.
    /// assert_eq!(KeyRange::between("a", ""), KeyRange::none());
    /// assert_eq!(KeyRange::between("a", "\0"), KeyRange::none());
    /// ```
    pub fn between(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        let end = end.into();
        // On the wire an empty end means `start` alone, and a single zero byte means to the end of
        // all keys.
        if matches!(&end[..], [] | [0]) {
            return Self::none();
        }
        KeyRange {
            start: start.into(),
            end,
        }
    }

    /// No key at all.
    #[must_use]
    pub fn none() -> Self {
        KeyRange {
            start: Bytes::from_static(b"\x01"),
            end: Bytes::from_static(b"\x01"),
        }
    }

    /// Every key that is `start` or greater.
    pub fn from(start: impl Into<Bytes>) -> Self {
        KeyRange {
            start: start.into(),
            end: Bytes::from_static(b"\0"),
        }
    }

    /// Every key there is.
    #[must_use]
    pub fn all() -> Self {
        // The empty key cannot exist, so the least possible key is a single zero byte.
        Self::from(&b"\0"[..])
    }

    /// Every key that begins with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        if start.is_empty() {
            return Self::all();
        }
        // The least key above all that begin with the prefix: its last byte that can grow, grown.
        match start.iter().rposition(|&byte| byte < 0xff) {
            Some(last) => {
                let mut end = start[..=last].to_vec();
                end[last] += 1;
                KeyRange {
                    start,
                    end: end.into(),
                }
            }
            None => Self::from(start),
        }
    }
}

/// What a range read returns.
///
/// ```
/// use dengine_client::{Consistency, KeyRange, RangeQuery};
///
/// let query = RangeQuery::new(KeyRange::prefix("user/"))
///     .limit(100)
///     .consistency(Consistency::Eventual);
/// # let _ = query;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeQuery(v1::RangeRequest);

impl RangeQuery {
    /// A linearizable read of the newest state.
    #[must_use]
    pub fn new(range: KeyRange) -> Self {
        RangeQuery(v1::RangeRequest {
            key: range.start,
            range_end: range.end,
            consistency: Consistency::Linearizable.wire(),
            ..v1::RangeRequest::default()
        })
    }

    /// How fresh the answer must be.
    #[must_use]
    pub fn consistency(mut self, consistency: Consistency) -> Self {
        self.0.consistency = consistency.wire();
        self
    }

    /// At most so many keys; 0 (the default) leaves it to the server's bound, which counts in any
    /// case: [`RangeResult::more`] says whether the range goes on, and
    /// [`Client::pages`](crate::Client::pages) reads all of it.
    #[must_use]
    pub fn limit(mut self, keys: u32) -> Self {
        self.0.limit = keys;
        self
    }

    /// The state after this revision; 0 (the default) is the newest.
    #[must_use]
    pub fn revision(mut self, revision: u64) -> Self {
        self.0.revision = revision;
        self
    }

    /// Leaves the values out.
    #[must_use]
    pub fn keys_only(mut self) -> Self {
        self.0.keys_only = true;
        self
    }

    /// Returns only how many keys there are.
    #[must_use]
    pub fn count_only(mut self) -> Self {
        self.0.count_only = true;
        self
    }

    pub(crate) fn wire(self) -> v1::RangeRequest {
        self.0
    }

    /// The page behind `last`, of the same moment as the one that ended with it, which had this
    /// revision.
    pub(crate) fn behind(&mut self, last: &[u8], revision: u64) {
        if self.0.revision == 0 {
            self.0.revision = revision;
        }
        // What that revision holds does not change any more, so any member that has it will do.
        self.0.consistency = Consistency::Session.wire();
        let mut next = Vec::with_capacity(last.len() + 1);
        next.extend_from_slice(last);
        next.push(0);
        self.0.key = next.into();
    }
}

impl From<KeyRange> for RangeQuery {
    fn from(range: KeyRange) -> Self {
        RangeQuery::new(range)
    }
}

/// Answer to a range read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeResult {
    /// `header.revision` is the store's revision when it was read.
    pub header: Header,
    /// In ascending order of keys.
    pub kvs: Vec<KeyValue>,
    /// Whether the range holds more keys than were returned.
    pub more: bool,
    /// Keys in the whole range; `None` if there are more than were returned, unless only the count
    /// was asked for ([`RangeQuery::count_only`]).
    pub count: Option<u64>,
}

impl TryFrom<v1::RangeResponse> for RangeResult {
    type Error = Error;

    fn try_from(response: v1::RangeResponse) -> Result<Self> {
        Ok(RangeResult {
            header: Header::of(Operation::Read, response.header)?,
            kvs: all(response.kvs),
            more: response.more,
            count: response.count,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_key_that_does_not_begin_with_it() {
        let end = |prefix: &'static [u8]| KeyRange::prefix(prefix).end.to_vec();
        assert_eq!(end(b"a"), b"b");
        assert_eq!(end(b"a\xff"), b"b");
        assert_eq!(end(b"a\xffb\xff\xff"), b"a\xffc");
        assert_eq!(end(b"\xff\xff"), b"\0", "to the end");
        assert_eq!(KeyRange::prefix(""), KeyRange::all());
    }

    #[test]
    fn a_response_without_header_is_not_taken_for_an_answer() {
        let write = PutResult::try_from(v1::PutResponse::default()).unwrap_err();
        assert!(matches!(write, Error::UnknownOutcome { .. }), "{write}");
        let read = GetResult::try_from(v1::GetResponse::default()).unwrap_err();
        assert!(matches!(read, Error::Unexpected { .. }), "{read}");
    }
}
