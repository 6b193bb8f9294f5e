//! A range in pieces, all of them at one revision: what to ask of the store for the next one, and
//! what becomes of its answer.
//!
//! Merged in their order, the pieces are what [`Range`] answers. So only the last one says of when
//! it is, how many keys the range has, and whether some were left out.

use bytes::Bytes;
use dengine_kv::{KeyRange, RangeQuery, RangeResult, Selection, SortBy, SortOrder};
use dengine_types::Revision;

use crate::errors::EtcdError;
use crate::etcdserverpb::{RangeRequest, RangeResponse, RangeStreamResponse};
use crate::header::{Header, signed};
use crate::messages::key_value;
use crate::range::{Range, limit, selection};

/// The most pairs of a piece.
const PIECE_PAIRS: usize = 4096;
/// The most bytes of its keys and values, if it is more than one pair: so much is held for a client
/// that does not read.
const PIECE_BYTES: usize = 256 << 10;

/// A range of which the next piece is to be read.
#[derive(Clone, Debug)]
pub struct RangeStream {
    /// What this member has applied will do.
    pub serializable: bool,
    /// What no piece had yet.
    rest: RangeQuery,
    /// The newest revision when the first piece was read, whichever is asked for.
    newest: Option<Revision>,
    /// How many pairs the pieces had so far.
    told: u64,
}

impl RangeStream {
    /// Checks what is asked for.
    ///
    /// # Errors
    /// It is no range that is served ([`Range::new`]), or not one that is told as it is read.
    pub fn new(request: &RangeRequest) -> Result<Self, EtcdError> {
        let Range {
            query,
            serializable,
            ..
        } = Range::new(request)?;
        let selection = selection(request);
        let by_key = selection.by == SortBy::Key;
        match selection.order {
            SortOrder::Ascending if !by_key => return Err(EtcdError::StreamSorted),
            SortOrder::Descending => return Err(EtcdError::StreamSorted),
            SortOrder::None | SortOrder::Ascending => {}
        }
        let without_bounds = Selection {
            order: selection.order,
            by: selection.by,
            ..Selection::default()
        };
        if selection != without_bounds {
            return Err(EtcdError::StreamBounded);
        }
        // By a target without an order etcd sorts each piece, and goes on behind its last pair: it
        // tells some keys twice, and others never. So this is refused, after what etcd refuses.
        if !by_key {
            return Err(EtcdError::StreamSorted);
        }
        let limit = usize::try_from(limit(request)).ok();
        Ok(Self {
            serializable,
            rest: RangeQuery {
                limit: limit.filter(|limit| *limit > 0).unwrap_or(usize::MAX),
                ..query
            },
            newest: None,
            told: 0,
        })
    }

    /// The keys that no piece had yet.
    #[must_use]
    pub fn keys(&self) -> &KeyRange {
        &self.rest.keys
    }

    /// What to ask of the store for the next piece.
    #[must_use]
    pub fn query(&self) -> RangeQuery {
        RangeQuery {
            limit: self.rest.limit.min(PIECE_PAIRS),
            max_bytes: PIECE_BYTES,
            ..self.rest.clone()
        }
    }

    /// What to ask as well after the store has answered: how many keys the limit leaves out.
    /// `None`: it leaves out none, or there is another piece.
    #[must_use]
    pub fn count_query(&self, page: &RangeResult) -> Option<RangeQuery> {
        let left_out = self.behind(page).filter(|it| it.limit == 0)?;
        Some(RangeQuery {
            count_only: true,
            ..left_out
        })
    }

    /// The piece that the store's answer makes, and what is left afterwards; `None`: it is the
    /// last. `left_out` is the answer to [`Self::count_query`], if that was asked.
    #[must_use]
    pub fn piece(
        self,
        header: Header,
        page: RangeResult,
        left_out: u64,
    ) -> (RangeStreamResponse, Option<Self>) {
        let newest = self.newest.unwrap_or(page.revision);
        let told = self.told + page.kvs.len() as u64;
        let rest = self.behind(&page).filter(|it| it.limit > 0);
        let mut piece = RangeResponse::default();
        if rest.is_none() {
            let count = match self.rest.count_only {
                true => page.count.unwrap_or_default(),
                false => told + left_out,
            };
            piece.header = header.at(newest);
            piece.more = page.more;
            piece.count = signed(count);
        }
        piece.kvs = page.kvs.into_iter().map(key_value).collect();
        if self.rest.keys_only {
            for kv in &mut piece.kvs {
                kv.value = Bytes::new();
            }
        }
        let response = RangeStreamResponse {
            range_response: Some(piece),
        };
        let rest = rest.map(|rest| Self {
            rest,
            newest: Some(newest),
            told,
            ..self
        });
        (response, rest)
    }

    /// What comes after a page; `None`: nothing does.
    fn behind(&self, page: &RangeResult) -> Option<RangeQuery> {
        let last = page.kvs.last().filter(|_| page.more)?;
        Some(RangeQuery {
            keys: self.rest.keys.after(&last.key),
            limit: self.rest.limit.saturating_sub(page.kvs.len()),
            revision: self.rest.revision.or(Some(page.revision)),
            ..self.rest.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use dengine_kv::store::MemoryStore;
    use dengine_kv::{Command, CommandVersion, Request, StateMachine};
    use dengine_types::{Entry, EntryKind, Term};

    use super::*;
    use crate::etcdserverpb::range_request::{SortOrder, SortTarget};

    /// More than two pieces, and not a multiple of one.
    const KEYS: usize = 2 * PIECE_PAIRS + 3;

    fn put(machine: &mut StateMachine<MemoryStore>, key: String, value: usize) {
        let put = Command::put(key, vec![7; value]);
        let entry = Entry {
            index: machine.reader().applied_index().next(),
            term: Term(1),
            kind: EntryKind::Command,
            context: Bytes::new(),
            data: Request::from(put).encode(CommandVersion::OLDEST),
        };
        machine.apply(&[entry]).unwrap();
    }

    fn machine(keys: usize, value: usize) -> StateMachine<MemoryStore> {
        let mut machine = StateMachine::open(MemoryStore::default()).unwrap();
        for at in 0..keys {
            put(&mut machine, format!("k{at:06}"), value);
        }
        machine
    }

    fn all() -> RangeRequest {
        RangeRequest {
            key: "k".into(),
            range_end: "l".into(),
            ..RangeRequest::default()
        }
    }

    /// What is told while another key is written after each piece.
    fn told(machine: &mut StateMachine<MemoryStore>, request: &RangeRequest) -> Vec<RangeResponse> {
        let mut rest = Some(RangeStream::new(request).unwrap());
        let mut pieces = Vec::new();
        while let Some(stream) = rest {
            let page = machine.reader().range(&stream.query()).unwrap();
            let counted = stream.count_query(&page);
            let counted = counted.map(|it| machine.reader().range(&it).unwrap());
            let left_out = counted.and_then(|it| it.count).unwrap_or(0);
            let (piece, left) = stream.piece(Header::default(), page, left_out);
            pieces.push(piece.range_response.unwrap());
            put(machine, "kx".into(), 1);
            rest = left;
        }
        pieces
    }

    /// As a store answers that is asked for all at once.
    fn whole(machine: &StateMachine<MemoryStore>, request: &RangeRequest) -> RangeResponse {
        let range = Range::new(request).unwrap();
        let result = machine.reader().range(&range.query).unwrap();
        let counted = range.count_query(&result);
        let counted = counted.map(|it| machine.reader().range(&it).unwrap());
        let count = counted.and_then(|it| it.count).unwrap_or(0);
        range.response(Header::default(), result, count)
    }

    fn merged(pieces: Vec<RangeResponse>) -> RangeResponse {
        let last = pieces.last().unwrap().clone();
        RangeResponse {
            kvs: pieces.into_iter().flat_map(|it| it.kvs).collect(),
            ..last
        }
    }

    #[test]
    fn pieces_are_the_range_as_it_was_at_the_beginning() {
        let mut machine = machine(KEYS, 1);
        let limits = [0, 1, PIECE_PAIRS, PIECE_PAIRS + 1, KEYS, KEYS + 1];
        for limit in limits.map(|it| i64::try_from(it).unwrap()) {
            for range_end in ["l", "\0"] {
                let request = RangeRequest {
                    limit,
                    range_end: range_end.into(),
                    ..all()
                };
                let expect = whole(&machine, &request);
                let pieces = told(&mut machine, &request);
                assert_eq!(
                    pieces.len(),
                    expect.kvs.len().div_ceil(PIECE_PAIRS),
                    "{limit}"
                );
                let (_, but_last) = pieces.split_last().unwrap();
                for piece in but_last {
                    let parts = (&piece.header, piece.more, piece.count);
                    assert_eq!(parts, (&None, false, 0));
                }
                assert_eq!(merged(pieces), expect, "{limit}");
            }
        }
    }

    #[test]
    fn a_piece_of_large_values_is_a_short_one() {
        let mut machine = machine(5, PIECE_BYTES / 2);
        for (keys_only, pieces) in [(false, 5), (true, 1)] {
            let request = RangeRequest { keys_only, ..all() };
            let told = told(&mut machine, &request);
            assert_eq!(told.len(), pieces);
            let first = &told[0].kvs[0];
            assert_eq!(first.value.is_empty(), keys_only);
        }
    }

    /// etcd's header names the present, whichever revision is read.
    #[test]
    fn a_revision_of_the_past_is_told_with_the_newest_at_the_beginning() {
        let mut machine = machine(9, 1);
        let newest = machine.reader().revision();
        let request = RangeRequest {
            revision: signed(newest.0) - 4,
            ..all()
        };
        let pieces = told(&mut machine, &request);
        let [piece] = &pieces[..] else {
            panic!("{pieces:?}");
        };
        assert_eq!((piece.kvs.len(), piece.count), (5, 5));
        let header = piece.header.as_ref().unwrap();
        assert_eq!(header.revision, signed(newest.0));
    }

    #[test]
    fn a_single_piece_tells_of_one_key_of_none_and_of_how_many() {
        let mut machine = machine(9, 1);
        let mut check = |request: RangeRequest, pairs: usize, count: i64| {
            let pieces = told(&mut machine, &request);
            let [piece] = &pieces[..] else {
                panic!("{pieces:?}");
            };
            assert_eq!((piece.kvs.len(), piece.count), (pairs, count));
            assert!(piece.header.is_some() && !piece.more);
        };
        let one = RangeRequest {
            key: "k000004".into(),
            range_end: Bytes::new(),
            ..all()
        };
        check(one, 1, 1);
        let none = RangeRequest {
            key: "a".into(),
            range_end: "b".into(),
            ..all()
        };
        check(none, 0, 0);
        let counted = RangeRequest {
            count_only: true,
            limit: 3,
            ..all()
        };
        // One more was written after each of the pieces above.
        check(counted, 0, 10);
    }

    #[test]
    fn what_is_not_told_as_it_is_read_is_refused() {
        let refused = |request: RangeRequest| RangeStream::new(&request).map(drop).unwrap_err();
        let sorted = |target: SortTarget, order: SortOrder| RangeRequest {
            sort_target: target.into(),
            sort_order: order.into(),
            ..all()
        };
        assert!(RangeStream::new(&sorted(SortTarget::Key, SortOrder::Ascend)).is_ok());
        for (target, order) in [
            (SortTarget::Key, SortOrder::Descend),
            (SortTarget::Mod, SortOrder::Ascend),
            (SortTarget::Value, SortOrder::None),
        ] {
            assert_eq!(refused(sorted(target, order)), EtcdError::StreamSorted);
        }
        let bounded = RangeRequest {
            max_create_revision: -1,
            ..all()
        };
        assert_eq!(refused(bounded.clone()), EtcdError::StreamBounded);
        // For etcd, a target alone is no order.
        for (order, error) in [
            (SortOrder::None, EtcdError::StreamBounded),
            (SortOrder::Ascend, EtcdError::StreamSorted),
        ] {
            let both = RangeRequest {
                sort_target: SortTarget::Create.into(),
                sort_order: order.into(),
                ..bounded.clone()
            };
            assert_eq!(refused(both), error);
        }
        assert_eq!(refused(RangeRequest::default()), EtcdError::EmptyKey);
        let limited = RangeRequest {
            limit: 3,
            ..sorted(SortTarget::Key, SortOrder::Ascend)
        };
        assert_eq!(RangeStream::new(&limited).unwrap().query().limit, 3);
    }
}
