//! Reads of a range: what to ask of the store, and what becomes of its answer.
//!
//! The store knows ranges, revisions and a limit. Sorting and the bounds of revisions are done with
//! what it returns, as etcd does.

use bytes::Bytes;
use dengine_kv::{
    KeyRange, RangeQuery, RangeResult, RevisionBounds, Selected, Selection, SortBy, SortOrder,
};
use dengine_types::Revision;

use crate::errors::EtcdError;
use crate::etcdserverpb::{RangeRequest, RangeResponse, range_request as wire};
use crate::header::{Header, signed};
use crate::messages::key_value;

/// A read of a range.
#[derive(Clone, Debug)]
pub struct Range {
    /// What to ask of the store. Its bytes are not limited: etcd never cuts an answer.
    pub query: RangeQuery,
    /// What this member has applied will do.
    pub serializable: bool,
    selection: Selection,
    limit: u64,
    keys_only: bool,
}

/// What was found besides pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// At which it was read.
    pub revision: Revision,
    /// There are keys behind those that were read.
    pub more: bool,
    /// Keys of the range.
    pub count: u64,
}

impl Range {
    /// Checks what is asked for.
    ///
    /// # Errors
    /// The key is empty, or the order is not one of etcd's.
    pub fn new(request: &RangeRequest) -> Result<Self, EtcdError> {
        check(request)?;
        let (selection, limit) = (selection(request), limit(request));
        Ok(Self {
            query: RangeQuery {
                limit: fetched(selection, limit).unwrap_or(usize::MAX),
                keys_only: request.keys_only && !selection.needs_values(),
                count_only: request.count_only,
                revision: requested(request.revision),
                ..RangeQuery::new(KeyRange::from_wire(&request.key, &request.range_end))
            },
            serializable: request.serializable,
            selection,
            limit,
            keys_only: request.keys_only,
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

    /// The answer to what was read at once. `count` is the answer to [`Self::count_query`], if that
    /// was asked.
    #[must_use]
    pub fn response(&self, header: Header, result: RangeResult, count: u64) -> RangeResponse {
        let mut selected = self.selected();
        for kv in result.kvs {
            selected.offer(kv);
        }
        let found = Found {
            revision: result.revision,
            more: result.more,
            count: result.count.unwrap_or(count),
        };
        self.answer(header, selected, found)
    }

    /// What the answer will have of the pairs that are read, which need not all be kept meanwhile:
    /// of a range that is sorted and cut, no more than the limit.
    #[must_use]
    pub fn selected(&self) -> Selected {
        Selected::new(self.selection, self.limit)
    }

    /// The answer, of what was selected.
    #[must_use]
    pub fn answer(&self, header: Header, selected: Selected, found: Found) -> RangeResponse {
        let (kvs, more) = selected.finish();
        let mut kvs: Vec<_> = kvs.into_iter().map(key_value).collect();
        if self.keys_only {
            for kv in &mut kvs {
                kv.value = Bytes::new();
            }
        }
        RangeResponse {
            header: header.at(found.revision),
            kvs,
            more: more || found.more,
            count: signed(found.count),
        }
    }
}

/// At which revision to read; `None`: the newest.
pub(crate) fn requested(revision: i64) -> Option<Revision> {
    let revision = u64::try_from(revision).ok()?;
    (revision != 0).then_some(Revision(revision))
}

/// Checks what can be judged by the request alone.
pub(crate) fn check(request: &RangeRequest) -> Result<(), EtcdError> {
    if request.key.is_empty() {
        return Err(EtcdError::EmptyKey);
    }
    if wire::SortOrder::try_from(request.sort_order).is_err()
        || wire::SortTarget::try_from(request.sort_target).is_err()
    {
        return Err(EtcdError::InvalidSortOption);
    }
    Ok(())
}

/// Which pairs of the range are in the answer, of a request that was checked.
pub(crate) fn selection(request: &RangeRequest) -> Selection {
    Selection {
        order: match request.sort_order() {
            wire::SortOrder::None => SortOrder::None,
            wire::SortOrder::Ascend => SortOrder::Ascending,
            wire::SortOrder::Descend => SortOrder::Descending,
        },
        by: match request.sort_target() {
            wire::SortTarget::Key => SortBy::Key,
            wire::SortTarget::Version => SortBy::Version,
            wire::SortTarget::Create => SortBy::CreateRevision,
            wire::SortTarget::Mod => SortBy::ModRevision,
            wire::SortTarget::Value => SortBy::Value,
        },
        mod_revisions: bounds(request.min_mod_revision, request.max_mod_revision),
        create_revisions: bounds(request.min_create_revision, request.max_create_revision),
    }
}

/// 0: no bound. No key is of a revision below 1.
fn bounds(min: i64, max: i64) -> RevisionBounds {
    let bound = |revision: i64| {
        let bound = Revision(u64::try_from(revision).unwrap_or(0));
        (revision != 0).then_some(bound)
    };
    RevisionBounds {
        min: bound(min),
        max: bound(max),
    }
}

/// The most pairs of the answer; 0: all.
pub(crate) fn limit(request: &RangeRequest) -> u64 {
    u64::try_from(request.limit).unwrap_or(0)
}

/// How many pairs to ask the store for, which knows no selection; `None`: all.
fn fetched(selection: Selection, limit: u64) -> Option<usize> {
    let unordered = Selection {
        by: selection.by,
        ..Selection::default()
    };
    if limit == 0 || selection != unordered {
        return None;
    }
    // A target without an order is sorted by, among these.
    let more = u64::from(selection.by != SortBy::Key);
    usize::try_from(limit.saturating_add(more)).ok()
}

#[cfg(test)]
mod tests {
    use dengine_kv::KeyValue;
    use dengine_types::LeaseId;

    use super::*;
    use crate::etcdserverpb::range_request::{SortOrder, SortTarget};

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
                lease: LeaseId::NONE,
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

    fn check_answer(mut request: RangeRequest, keys: &str, more: bool) {
        request.key = Bytes::from_static(b"a");
        request.range_end = Bytes::from_static(b"\0");
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
