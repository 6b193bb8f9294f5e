//! Reads: what is asked for, how fresh it has to be, and the answers.

use dengine_kv::{KeyRange, KeyValue, RangeQuery, RangeResult};
use dengine_types::{ClusterId, Revision};
use tonic::Status;

use crate::checks::header::Header;
use crate::checks::limits::RequestLimits;
use crate::checks::messages::key_value;
use crate::v1::{Consistency, GetRequest, GetResponse, Position, RangeRequest, RangeResponse};

/// For so many bytes that a response may hold it may hold one pair. It is encoded at one go, by a
/// thread that has others to serve: 8,192 tiny pairs, where 2 MiB are allowed, in a millisecond.
const BYTES_FOR_EACH_PAIR: usize = 256;

/// What to read of a range.
///
/// # Errors
/// A key is empty or too long.
pub fn range_query(range: RangeRequest, limits: &RequestLimits) -> Result<RangeQuery, Status> {
    let RangeRequest {
        key,
        range_end,
        limit,
        keys_only,
        count_only,
        revision,
        ..
    } = range;
    limits.check_range_start(&key, &range_end)?;
    limits.check_range_end(&range_end)?;
    let pairs_max = (limits.max_range_bytes / BYTES_FOR_EACH_PAIR).max(1);
    Ok(RangeQuery {
        keys: KeyRange::from_wire(&key, &range_end),
        limit: match limit {
            0 => pairs_max,
            limit => pairs_max.min(limit as usize),
        },
        max_bytes: limits.max_range_bytes,
        keys_only,
        count_only,
        revision: requested(revision),
    })
}

/// The answer to a range.
#[must_use]
pub fn range_response(header: Header, result: RangeResult) -> RangeResponse {
    RangeResponse {
        header: header.at(result.revision),
        kvs: result.kvs.into_iter().map(key_value).collect(),
        more: result.more,
        count: result.count,
    }
}

/// At which revision to look for the key; `None`: the newest.
#[must_use]
#[inline]
pub fn get_revision(get: &GetRequest) -> Option<Revision> {
    requested(get.revision)
}

/// The answer to a read of one key, found or not, when the store was at `revision`.
#[must_use]
#[inline]
pub fn get_response(header: Header, revision: Revision, found: Option<KeyValue>) -> GetResponse {
    GetResponse {
        header: header.at(revision),
        kv: found.map(key_value),
    }
}

/// How fresh a read has to be.
///
/// # Errors
/// It is a level that this version does not know.
pub fn consistency(number: i32) -> Result<Consistency, Status> {
    match Consistency::try_from(number) {
        Ok(Consistency::Unspecified) => Ok(Consistency::Linearizable),
        Ok(known) => Ok(known),
        Err(unknown) => Err(Status::invalid_argument(format!(
            "consistency {} is not known to this version of the server",
            unknown.0
        ))),
    }
}

/// The revision that a member of the cluster `own` has to reach before it serves a client that has
/// seen `position`; `None`: any will do. One without a cluster id is reached everywhere: the client
/// has seen nothing yet.
///
/// # Errors
/// The position is of another cluster, or the member of none.
pub fn revision_to_reach(own: ClusterId, position: Position) -> Result<Option<Revision>, Status> {
    if position.cluster_id == 0 {
        return Ok(None);
    }
    if own.0 == 0 {
        return Err(Status::unavailable(
            "this member is of no cluster yet, so it cannot tell whether it has what you saw",
        ));
    }
    if position.cluster_id != own.0 {
        return Err(Status::failed_precondition(format!(
            "the position is of cluster {}, this member is of cluster {own}: forget it, or ask the \
             right one",
            position.cluster_id
        )));
    }
    Ok(Some(Revision(position.revision)))
}

#[inline]
fn requested(revision: u64) -> Option<Revision> {
    (revision != 0).then_some(Revision(revision))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::checks::limits::TEST_LIMITS;

    #[test]
    fn a_range_is_bounded_whatever_is_asked_for() {
        for (limit, expect) in [(0, 16), (5, 5), (u32::MAX, 16)] {
            let range = RangeRequest {
                key: "a".into(),
                limit,
                ..RangeRequest::default()
            };
            let query = range_query(range, &TEST_LIMITS).unwrap();
            assert_eq!(
                (query.limit, query.max_bytes),
                (expect, TEST_LIMITS.max_range_bytes)
            );
        }
        assert!(range_query(RangeRequest::default(), &TEST_LIMITS).is_err());
    }

    /// The next page begins at the last key with one byte more.
    #[test]
    fn a_page_may_begin_behind_the_longest_key() {
        let query = |bytes: usize, range_end: &'static str| {
            let range = RangeRequest {
                key: vec![b'k'; bytes].into(),
                range_end: range_end.into(),
                ..RangeRequest::default()
            };
            range_query(range, &TEST_LIMITS)
        };
        let longest = TEST_LIMITS.max_key_bytes;
        assert!(query(longest, "").is_ok());
        assert!(query(longest + 1, "").is_err());
        assert!(query(longest + 1, "\0").is_ok());
        assert!(query(longest + 2, "\0").is_err());
    }

    #[test]
    fn a_page_counts_only_if_it_is_the_last() {
        let result = |more| RangeResult {
            revision: Revision(7),
            kvs: Vec::new(),
            more,
            count: (!more).then_some(0),
        };
        let header = Header::default();
        assert_eq!(range_response(header, result(true)).count, None);
        assert_eq!(range_response(header, result(false)).count, Some(0));
    }

    #[test]
    fn linearizable_is_what_nobody_asked_for_otherwise() {
        let check = |number, expect| assert_eq!(consistency(number).ok(), expect);
        check(0, Some(Consistency::Linearizable));
        check(1, Some(Consistency::Linearizable));
        check(4, Some(Consistency::Session));
        check(5, None);
        check(-1, None);
    }

    #[test]
    fn a_position_belongs_to_its_cluster() {
        let check = |own, cluster_id, expect: Result<Option<u64>, Code>| {
            let position = Position {
                cluster_id,
                revision: 5,
            };
            let found = revision_to_reach(ClusterId(own), position);
            assert_eq!(
                found
                    .map(|it| it.map(|it| it.0))
                    .map_err(|status| status.code()),
                expect
            );
        };
        check(7, 0, Ok(None));
        check(0, 0, Ok(None));
        check(7, 7, Ok(Some(5)));
        check(0, 7, Err(Code::Unavailable));
        check(7, 8, Err(Code::FailedPrecondition));
    }
}
