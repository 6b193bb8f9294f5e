//! Reads of a range: what to ask of the store, and what becomes of its answer.
//!
//! The store knows ranges, revisions and a limit. Sorting and the bounds of revisions are done with
//! what it returns, as etcd does.

use std::cmp::Ordering;

use bytes::Bytes;
use dengine_kv::{KeyRange, KeyValue, RangeQuery, RangeResult};
use dengine_types::Revision;

use crate::errors::EtcdError;
use crate::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::etcdserverpb::{RangeRequest, RangeResponse};
use crate::header::{Header, signed};
use crate::messages::key_value;

/// A read of a range.
#[derive(Clone, Debug)]
pub struct Range {
    /// What to ask of the store. Its bytes are not limited: etcd never cuts an answer.
    pub query: RangeQuery,
    /// What this member has applied will do.
    pub serializable: bool,
    shape: Shape,
}

impl Range {
    /// Checks what is asked for.
    ///
    /// # Errors
    /// The key is empty, or the order is not one of etcd's.
    pub fn new(request: &RangeRequest) -> Result<Self, EtcdError> {
        check(request)?;
        let shape = Shape::new(request);
        Ok(Self {
            query: RangeQuery {
                limit: shape.fetched().unwrap_or(usize::MAX),
                keys_only: shape.needs_no_values(),
                count_only: request.count_only,
                revision: requested(request.revision),
                ..RangeQuery::new(KeyRange::from_wire(&request.key, &request.range_end))
            },
            serializable: request.serializable,
            shape,
        })
    }

    /// What to ask as well after the store has answered: how many keys the range has, if it did not
    /// say so. `None`: it did.
    #[must_use]
    pub fn count_query(&self, result: &RangeResult) -> Option<RangeQuery> {
        result.count.is_none().then(|| RangeQuery {
            count_only: true,
            revision: self.query.revision.or(Some(result.revision)),
            ..self.query.clone()
        })
    }

    /// The answer. `count` is the answer to [`Self::count_query`], if that was asked.
    #[must_use]
    pub fn response(&self, header: Header, result: RangeResult, count: u64) -> RangeResponse {
        RangeResponse {
            header: header.at(result.revision),
            count: signed(result.count.unwrap_or(count)),
            ..self.shape.apply(result.kvs, result.more)
        }
    }
}

/// At which revision to read; `None`: the newest.
fn requested(revision: i64) -> Option<Revision> {
    let revision = u64::try_from(revision).ok()?;
    (revision != 0).then_some(Revision(revision))
}

/// Checks what can be judged by the request alone.
pub(crate) fn check(request: &RangeRequest) -> Result<(), EtcdError> {
    if request.key.is_empty() {
        return Err(EtcdError::EmptyKey);
    }
    if SortOrder::try_from(request.sort_order).is_err()
        || SortTarget::try_from(request.sort_target).is_err()
    {
        return Err(EtcdError::InvalidSortOption);
    }
    Ok(())
}

/// What becomes of the pairs that the store returns, in the order of their keys.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Only the first pairs of the range are looked at, one more than the limit.
    begins: bool,
    min_mod_revision: Option<i64>,
    max_mod_revision: Option<i64>,
    min_create_revision: Option<i64>,
    max_create_revision: Option<i64>,
    sort: Sort,
    /// The most pairs of the answer; `None`: all.
    limit: Option<usize>,
    keys_only: bool,
}

#[derive(Clone, Copy, Debug)]
struct Sort {
    target: SortTarget,
    /// [`SortOrder::None`]: they are in order.
    order: SortOrder,
}

impl Shape {
    /// For a request that was checked.
    pub(crate) fn new(request: &RangeRequest) -> Self {
        let bound = |revision: i64| (revision != 0).then_some(revision);
        let limit = usize::try_from(request.limit).ok().filter(|it| *it > 0);
        let is_bounded = [
            request.min_mod_revision,
            request.max_mod_revision,
            request.min_create_revision,
            request.max_create_revision,
        ]
        .into_iter()
        .any(|revision| revision != 0);
        Self {
            // A target without an order is sorted by, but not looked for in all of the range.
            begins: !is_bounded && request.sort_order() == SortOrder::None,
            min_mod_revision: bound(request.min_mod_revision),
            max_mod_revision: bound(request.max_mod_revision),
            min_create_revision: bound(request.min_create_revision),
            max_create_revision: bound(request.max_create_revision),
            sort: Sort::new(request.sort_target(), request.sort_order()),
            limit,
            keys_only: request.keys_only,
        }
    }

    /// How many pairs to ask the store for, at least; `None`: all.
    fn fetched(&self) -> Option<usize> {
        let limit = self.limit.filter(|_| self.begins)?;
        match self.sort.order {
            SortOrder::None => Some(limit),
            SortOrder::Ascend | SortOrder::Descend => Some(limit.saturating_add(1)),
        }
    }

    /// Whether the store may leave out values.
    pub(crate) fn needs_no_values(&self) -> bool {
        self.keys_only && self.sort.target != SortTarget::Value
    }

    /// The answer without its header and count, from at least as many pairs as are needed;
    /// `more`: the range has more than these.
    pub(crate) fn apply(&self, mut kvs: Vec<KeyValue>, more: bool) -> RangeResponse {
        if self.begins
            && let Some(limit) = self.limit
        {
            kvs.truncate(limit.saturating_add(1));
        }
        kvs.retain(|kv| self.is_within(kv));
        self.sort.apply(&mut kvs);
        let is_cut = self.limit.is_some_and(|limit| kvs.len() > limit);
        if let Some(limit) = self.limit {
            kvs.truncate(limit);
        }
        if self.keys_only {
            for kv in &mut kvs {
                kv.value = Bytes::new();
            }
        }
        RangeResponse {
            kvs: kvs.into_iter().map(key_value).collect(),
            more: is_cut || more,
            ..RangeResponse::default()
        }
    }

    fn is_within(&self, kv: &KeyValue) -> bool {
        let within = |revision: Revision, min: Option<i64>, max: Option<i64>| {
            let revision = signed(revision.0);
            min.is_none_or(|min| min <= revision) && max.is_none_or(|max| revision <= max)
        };
        within(
            kv.mod_revision,
            self.min_mod_revision,
            self.max_mod_revision,
        ) && within(
            kv.create_revision,
            self.min_create_revision,
            self.max_create_revision,
        )
    }
}

impl Sort {
    fn new(target: SortTarget, order: SortOrder) -> Self {
        let order = match (target, order) {
            (SortTarget::Key, SortOrder::Ascend) => SortOrder::None,
            (SortTarget::Key, order) => order,
            (_, SortOrder::None) => SortOrder::Ascend,
            (_, order) => order,
        };
        Self { target, order }
    }

    /// Equal ones stay in the order of their keys, where etcd has none.
    fn apply(self, kvs: &mut [KeyValue]) {
        match self.order {
            SortOrder::None => {}
            SortOrder::Ascend => kvs.sort_by(|a, b| self.compare(a, b)),
            SortOrder::Descend => kvs.sort_by(|a, b| self.compare(b, a)),
        }
    }

    fn compare(self, a: &KeyValue, b: &KeyValue) -> Ordering {
        match self.target {
            SortTarget::Key => a.key.cmp(&b.key),
            SortTarget::Version => a.version.cmp(&b.version),
            SortTarget::Create => a.create_revision.cmp(&b.create_revision),
            SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
            SortTarget::Value => a.value.cmp(&b.value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys a to d. Made in the revisions 2 to 5, changed in 9 to 6, with values of the order
    /// b, a, d, c.
    fn pairs() -> Vec<KeyValue> {
        (0..4_u8)
            .map(|at| KeyValue {
                key: Bytes::copy_from_slice(&[b'a' + at]),
                value: Bytes::copy_from_slice(&[at ^ 1]),
                create_revision: Revision(2 + u64::from(at)),
                mod_revision: Revision(9 - u64::from(at)),
                version: u64::from(4 - at),
                ttl_ms: 0,
            })
            .collect()
    }

    /// As a store with these pairs answers.
    fn answer(request: &RangeRequest) -> RangeResponse {
        let range = Range::new(request).unwrap();
        let (mut kvs, limit) = (pairs(), range.query.limit);
        let more = kvs.len() > limit;
        kvs.truncate(limit);
        let result = RangeResult {
            revision: Revision(9),
            kvs: if request.count_only { Vec::new() } else { kvs },
            more: more && !request.count_only,
            count: (!more || request.count_only).then_some(4),
        };
        let asked = range.count_query(&result).is_some();
        assert_eq!(asked, more && !request.count_only);
        range.response(Header::default(), result, 4)
    }

    fn check_answer(request: RangeRequest, keys: &str, more: bool) {
        let request = RangeRequest {
            key: Bytes::from_static(b"a"),
            range_end: Bytes::from_static(b"\0"),
            ..request
        };
        let found = answer(&request);
        let found_keys: Vec<u8> = found.kvs.iter().map(|kv| kv.key[0]).collect();
        assert_eq!(String::from_utf8(found_keys).unwrap(), keys, "{request:?}");
        assert_eq!((found.more, found.count), (more, 4), "{request:?}");
        assert_eq!(found.header.unwrap().revision, 9);
    }

    fn sorted(target: SortTarget, order: SortOrder, limit: i64) -> RangeRequest {
        RangeRequest {
            sort_target: target.into(),
            sort_order: order.into(),
            limit,
            ..RangeRequest::default()
        }
    }

    #[test]
    fn the_whole_range_is_sorted_before_it_is_cut() {
        let check = |target, order, keys, first| {
            check_answer(sorted(target, order, 0), keys, false);
            check_answer(sorted(target, order, 1), first, true);
        };
        check(SortTarget::Key, SortOrder::Ascend, "abcd", "a");
        check(SortTarget::Key, SortOrder::Descend, "dcba", "d");
        check(SortTarget::Version, SortOrder::Ascend, "dcba", "d");
        check(SortTarget::Create, SortOrder::Descend, "dcba", "d");
        check(SortTarget::Mod, SortOrder::Descend, "abcd", "a");
        check(SortTarget::Value, SortOrder::Ascend, "badc", "b");
    }

    /// etcd fetches one key more than the limit, and sorts these.
    #[test]
    fn a_target_without_an_order_sorts_what_was_fetched() {
        check_answer(
            sorted(SortTarget::Version, SortOrder::None, 0),
            "dcba",
            false,
        );
        check_answer(sorted(SortTarget::Version, SortOrder::None, 2), "cb", true);
        check_answer(
            sorted(SortTarget::Version, SortOrder::None, 4),
            "dcba",
            false,
        );
    }

    #[test]
    fn a_limit_of_nothing_is_none() {
        check_answer(sorted(SortTarget::Key, SortOrder::None, 0), "abcd", false);
        check_answer(sorted(SortTarget::Key, SortOrder::None, -1), "abcd", false);
        check_answer(sorted(SortTarget::Key, SortOrder::None, 4), "abcd", false);
        check_answer(sorted(SortTarget::Key, SortOrder::None, 3), "abc", true);
        check_answer(
            sorted(SortTarget::Key, SortOrder::None, i64::MAX),
            "abcd",
            false,
        );
        check_answer(
            sorted(SortTarget::Mod, SortOrder::None, i64::MAX),
            "dcba",
            false,
        );
    }

    #[test]
    fn bounds_leave_out_pairs_that_are_counted_all_the_same() {
        let all = RangeRequest::default;
        let check = |request: RangeRequest, keys| check_answer(request, keys, false);
        check(
            RangeRequest {
                min_mod_revision: 8,
                ..all()
            },
            "ab",
        );
        check(
            RangeRequest {
                max_mod_revision: 7,
                ..all()
            },
            "cd",
        );
        check(
            RangeRequest {
                min_create_revision: 4,
                ..all()
            },
            "cd",
        );
        check(
            RangeRequest {
                max_create_revision: 2,
                ..all()
            },
            "a",
        );
        check(
            RangeRequest {
                max_create_revision: -1,
                ..all()
            },
            "",
        );
        let bounded = RangeRequest {
            max_mod_revision: 8,
            limit: 1,
            ..all()
        };
        check_answer(bounded, "b", true);
    }

    #[test]
    fn values_are_sorted_by_though_they_are_not_returned() {
        let request = RangeRequest {
            key: Bytes::from_static(b"a"),
            range_end: Bytes::from_static(b"\0"),
            keys_only: true,
            ..sorted(SortTarget::Value, SortOrder::Ascend, 0)
        };
        assert!(!Range::new(&request).unwrap().query.keys_only);
        let found = answer(&request);
        assert_eq!(found.kvs[0].key, "b");
        assert!(found.kvs.iter().all(|kv| kv.value.is_empty()));
    }

    #[test]
    fn a_count_has_no_pairs_and_no_more() {
        let request = RangeRequest {
            count_only: true,
            limit: 1,
            ..RangeRequest::default()
        };
        check_answer(request, "", false);
    }

    #[test]
    fn what_is_asked_of_the_store_is_what_the_request_says() {
        let query = |revision: i64, range_end: &'static [u8]| {
            let request = RangeRequest {
                key: Bytes::from_static(b"k"),
                range_end: Bytes::from_static(range_end),
                revision,
                ..RangeRequest::default()
            };
            Range::new(&request).unwrap().query
        };
        assert_eq!(query(-1, b"").revision, None);
        assert_eq!(query(0, b"").revision, None);
        assert_eq!(query(7, b"").revision, Some(Revision(7)));
        assert!(matches!(query(0, b"").keys, KeyRange::One(_)));
        assert!(matches!(query(0, b"\0").keys, KeyRange::From(_)));
        assert!(matches!(query(0, b"l").keys, KeyRange::Between { .. }));
        assert_eq!(query(0, b"").max_bytes, usize::MAX);
    }

    #[test]
    fn bad_requests_are_refused_in_etcds_order() {
        let refused = |request: &RangeRequest| Range::new(request).map(drop).unwrap_err();
        let mut request = RangeRequest {
            sort_order: 3,
            ..RangeRequest::default()
        };
        assert_eq!(refused(&request), EtcdError::EmptyKey);
        request.key = Bytes::from_static(b"k");
        assert_eq!(refused(&request), EtcdError::InvalidSortOption);
        request.sort_order = 0;
        request.sort_target = -1;
        assert_eq!(refused(&request), EtcdError::InvalidSortOption);
    }
}
