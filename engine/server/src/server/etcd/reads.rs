//! Reads of ranges for clients of etcd: each is whole and of one revision, or refused.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dengine_etcd::EtcdError;
use dengine_etcd::etcdserverpb::RangeResponse;
use dengine_etcd::range::{Found, Range};
use dengine_kv::store::Store;
use dengine_kv::{KeyRange, KeyValue, RangeQuery, RangeResult, ReadError, Reader, Selected};
use dengine_protocol::checks::status::read_status;
use dengine_protocol::v1::Consistency;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::door::Door;
use crate::connections::Source;
use crate::node::answers::{AnswerBudget, Held};
use crate::server::serving::Serving;
use crate::storage::RocksStore;

/// Pairs that are read before it is looked whether there is room for more of them.
const PAGE_PAIRS: usize = 4096;
/// The same in bytes of keys and values.
const PAGE_BYTES: usize = 1 << 20;

/// What was read, or why it cannot be. The outer error is of the store, or says that the read was
/// stopped.
pub(super) type Read<T> = Result<Result<T, Status>, ReadError>;

/// A range as it was read, with what counts the memory of its pairs.
struct Whole {
    selected: Selected,
    found: Found,
    held: Held,
}

impl Door {
    /// Reads a range whole, however large it is, as fresh as was asked for; with what counts its
    /// memory.
    pub(super) async fn range(
        &self,
        range: &Arc<Range>,
        source: &Source,
        patience: Duration,
    ) -> Result<(RangeResponse, Held), Status> {
        let read = self.read(range, source, patience).await;
        let read = read.map_err(|it| self.in_etcds_words(&it))?;
        let response = range.answer(self.header(), read.selected, read.found);
        Ok((response, read.held))
    }

    async fn read(
        &self,
        range: &Arc<Range>,
        source: &Source,
        patience: Duration,
    ) -> Result<Whole, Status> {
        let begun = Instant::now();
        self.freshen(range.serializable, patience).await?;
        let left = patience.saturating_sub(begun.elapsed());
        self.serving().find(range, source, left).await
    }

    /// Has this member be as fresh as a quorum, unless what it has applied will do.
    pub(super) async fn freshen(
        &self,
        serializable: bool,
        patience: Duration,
    ) -> Result<(), Status> {
        if serializable {
            return Ok(());
        }
        let fresh = self.serving().freshen(Consistency::Linearizable);
        let late = |_| Status::from(EtcdError::Timeout);
        timeout(patience, fresh).await.map_err(late)?
    }

    /// How long a read may take: a list of everything takes as long as its client lets it.
    pub(super) fn patience(&self, gone_at: Option<Instant>) -> Duration {
        let longest = self.limits().request_timeout();
        gone_at.map_or(longest, |gone| {
            gone.saturating_duration_since(Instant::now())
        })
    }
}

impl Serving {
    async fn find(
        &self,
        range: &Arc<Range>,
        source: &Source,
        patience: Duration,
    ) -> Result<Whole, Status> {
        let (own, budget, whose) = (Arc::clone(range), self.answers.clone(), source.address());
        let read = move |reader: &Reader<RocksStore>| whole(reader, &own, (&budget, whose));
        self.read_keys(&range.query.keys, source, patience, read)
            .await
    }

    /// Reads what this member has: one key at once, and more where it holds up no other.
    pub(super) async fn read_keys<T: Send + 'static>(
        &self,
        keys: &KeyRange,
        source: &Source,
        patience: Duration,
        read: impl FnOnce(&Reader<RocksStore>) -> Read<T> + Send + 'static,
    ) -> Result<T, Status> {
        if matches!(keys, KeyRange::One(_)) {
            return read(&self.reader()?).map_err(|error| read_status(&error))?;
        }
        let read = self.aside.read(&self.node, Some(source), patience, read);
        read.await.map_err(|status| too_slow(&status))?
    }
}

/// A read that took too long is over for good: upon UNAVAILABLE, and upon DEADLINE_EXCEEDED before
/// they stop waiting, clients send it again and again.
fn too_slow(status: &Status) -> Status {
    match status.code() {
        Code::DeadlineExceeded => EtcdError::TooManyRequests.into(),
        _ => status.clone(),
    }
}

/// Reads pairs, and counts all keys of the range at the same revision, with room for them in the
/// budget of a client's answers.
fn whole<S: Store>(
    reader: &Reader<S>,
    range: &Range,
    room: (&AnswerBudget, IpAddr),
) -> Read<Whole> {
    let is_newest = range.query.revision.is_none();
    loop {
        let read = match pages(reader, range, room) {
            Ok(Some(read)) => read,
            Ok(None) => return Ok(Err(EtcdError::TooManyRequests.into())),
            // The newest revision was compacted meanwhile: it is read again.
            Err(ReadError::Compacted { .. }) if is_newest => continue,
            Err(error) => return refused(error),
        };
        let count = match range.count_query(&read.last).map(|it| reader.range(&it)) {
            None => read.last.count.unwrap_or_default(),
            Some(Ok(counted)) => counted.count.unwrap_or_default(),
            Some(Err(ReadError::Compacted { .. })) if is_newest => continue,
            Some(Err(error)) => return refused(error),
        };
        if let Some(rest) = &read.rest {
            // What the next page of a list will ask for.
            let at = range.query.revision.unwrap_or(read.last.revision);
            let left = count.saturating_sub(read.pairs);
            reader.note_rest(&range.query.keys, rest, at, left);
        }
        return Ok(Ok(Whole {
            selected: read.selected,
            found: Found {
                revision: read.last.revision,
                more: read.last.more,
                count,
            },
            held: read.held,
        }));
    }
}

/// The pages of a range, as far as the answer will have their pairs.
struct Pages {
    selected: Selected,
    /// The last one, without its pairs; it says how many keys all of them have, and the revision
    /// that was the newest at the first.
    last: RangeResult,
    pairs: u64,
    /// The keys that the limit left out.
    rest: Option<KeyRange>,
    held: Held,
}

/// Reads what is asked for at one revision, however much it is, page by page; `None`: there is no
/// room for it. It is not cut but refused: no answer may be larger.
fn pages<S: Store>(
    reader: &Reader<S>,
    range: &Range,
    (budget, whose): (&AnswerBudget, IpAddr),
) -> Result<Option<Pages>, ReadError> {
    let page_of = |query: &RangeQuery, have: usize| RangeQuery {
        limit: PAGE_PAIRS.min(query.limit - have),
        max_bytes: PAGE_BYTES,
        ..query.clone()
    };
    let query = &range.query;
    let (mut selected, mut held, mut pairs) = (range.selected(), budget.none(whose), 0);
    let mut page = read(reader, &page_of(query, 0))?;
    let newest = page.revision;
    loop {
        // Clients watch from the revision of an answer on: it must not have what is newer.
        page.revision = newest;
        page.count = page.count.map(|count| count + pairs as u64);
        pairs += page.kvs.len();
        let last = page.kvs.last().map(|it| it.key.clone());
        for kv in page.kvs.drain(..) {
            selected.offer(kv);
        }
        // All at once: of what a client has none of yet, it may have more than its share.
        drop(held);
        match budget.hold(whose, memory_of(&selected)) {
            Some(room) => held = room,
            None => return Ok(None),
        }
        let rest = last.filter(|_| page.more);
        let rest = rest.map(|last| query.keys.after(&last));
        let Some(keys) = rest.clone().filter(|_| pairs < query.limit) else {
            return Ok(Some(Pages {
                selected,
                last: page,
                pairs: pairs as u64,
                rest,
                held,
            }));
        };
        let rest = RangeQuery {
            keys,
            revision: query.revision.or(Some(newest)),
            ..query.clone()
        };
        page = read(reader, &page_of(&rest, pairs))?;
    }
}

/// One key is found sooner than a range of one.
pub(super) fn read<S: Store>(
    reader: &Reader<S>,
    query: &RangeQuery,
) -> Result<RangeResult, ReadError> {
    let KeyRange::One(key) = &query.keys else {
        return reader.range(query);
    };
    let (revision, found) = reader.get(key, query.revision)?;
    Ok(RangeResult {
        revision,
        count: Some(u64::from(found.is_some())),
        kvs: found.into_iter().filter(|_| !query.count_only).collect(),
        more: false,
    })
}

/// A revision that cannot be read is an answer; anything else ends the read.
pub(super) fn refused<T>(error: ReadError) -> Read<T> {
    match &error {
        ReadError::Compacted { .. } | ReadError::Future { .. } => {
            Ok(Err(EtcdError::from(&error).into()))
        }
        ReadError::Stopped { .. } | ReadError::Store(_) => Err(error),
    }
}

fn memory_of(selected: &Selected) -> usize {
    selected.size_bytes() + selected.len() * size_of::<KeyValue>()
}

pub(super) fn bytes_of(kvs: &[KeyValue]) -> usize {
    let bytes = |kv: &KeyValue| size_of::<KeyValue>() + kv.key.len() + kv.value.len();
    kvs.iter().map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use bytes::Bytes;
    use dengine_etcd::Header;
    use dengine_etcd::etcdserverpb::{RangeRequest, range_request as wire};
    use dengine_kv::store::MemoryStore;
    use dengine_kv::{Command, CommandVersion, StateMachine};
    use dengine_types::{Entry, EntryKind, Index, Term};

    use super::*;
    use crate::node::answers::ANSWER_BYTES_MAX;

    /// More than one page, and not a multiple of one.
    const KEYS: usize = 2 * PAGE_PAIRS + 3;

    fn machine(keys: usize, value: usize) -> StateMachine<MemoryStore> {
        let mut machine = StateMachine::open(MemoryStore::default()).unwrap();
        for at in 0..keys {
            machine.apply(&[put(at, at, value)]).unwrap();
        }
        machine
    }

    /// The entry after so many others that puts the key of this number.
    fn put(after: usize, key: usize, value: usize) -> Entry {
        let put = Command::put(format!("k{key:06}"), vec![7; value]);
        Entry {
            index: Index(after as u64 + 1),
            term: Term(1),
            kind: EntryKind::Command,
            context: Bytes::new(),
            data: dengine_kv::Request::from(put).encode(CommandVersion::OLDEST),
        }
    }

    fn whose() -> IpAddr {
        IpAddr::from([10, 0, 0, 1])
    }

    fn ask(
        machine: &StateMachine<MemoryStore>,
        request: &RangeRequest,
        budget: &AnswerBudget,
    ) -> Result<(RangeResponse, usize), Status> {
        let range = Range::new(request).unwrap();
        let read = whole(&machine.reader(), &range, (budget, whose())).unwrap()?;
        let held = read.held.bytes();
        let response = range.answer(Header::default(), read.selected, read.found);
        Ok((response, held))
    }

    /// Of a key without its value.
    fn memory_of_one() -> usize {
        32 + size_of::<KeyValue>() + "k000000".len()
    }

    fn all(limit: usize) -> RangeRequest {
        RangeRequest {
            key: "k".into(),
            range_end: "l".into(),
            limit: i64::try_from(limit).unwrap(),
            ..RangeRequest::default()
        }
    }

    /// A page looks like any other: none is lost between two, and all count.
    #[test]
    fn a_range_of_many_pages_is_read_whole() {
        let machine = machine(KEYS, 1);
        let budget = AnswerBudget::new(ANSWER_BYTES_MAX, ANSWER_BYTES_MAX);
        let limits = [0, 1, PAGE_PAIRS, PAGE_PAIRS + 1, KEYS - 1, KEYS, KEYS + 1];
        for limit in limits {
            let expect = if limit == 0 { KEYS } else { limit.min(KEYS) };
            let to_the_end = RangeRequest {
                range_end: Bytes::from_static(b"\0"),
                ..all(limit)
            };
            for request in [all(limit), to_the_end] {
                let (response, _) = ask(&machine, &request, &budget).unwrap();
                assert_eq!(response.kvs.len(), expect, "{limit}");
                assert!(response.kvs.is_sorted_by(|one, next| one.key < next.key));
                assert_eq!(response.more, expect < KEYS, "{limit}");
                assert_eq!(usize::try_from(response.count), Ok(KEYS), "{limit}");
            }
        }
        let counted = RangeRequest {
            count_only: true,
            ..all(1)
        };
        let (response, _) = ask(&machine, &counted, &budget).unwrap();
        assert!(response.kvs.is_empty());
        assert_eq!(usize::try_from(response.count), Ok(KEYS));
    }

    /// Its pages were of different revisions, and it told a revision of which it lacked changes.
    #[test]
    fn a_range_of_many_pages_is_of_the_revision_that_it_tells() {
        let mut machine = machine(KEYS, 1);
        let (reader, stop) = (machine.reader(), AtomicBool::new(false));
        let budget = AnswerBudget::new(ANSWER_BYTES_MAX, ANSWER_BYTES_MAX);
        let range = Range::new(&all(0)).unwrap();
        std::thread::scope(|scope| {
            // Each key in turn, so that any revision has the newest versions of all in a row.
            scope.spawn(|| {
                for at in KEYS..100 * KEYS {
                    machine.apply(&[put(at, at % KEYS, 1)]).unwrap();
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            for _ in 0..20 {
                let read = whole(&reader, &range, (&budget, whose())).unwrap();
                let read = read.expect("there is room");
                let response = range.answer(Header::default(), read.selected, read.found);
                let told = response.header.unwrap().revision;
                let revisions = response.kvs.iter().map(|kv| kv.mod_revision);
                let (oldest, newest) = (revisions.clone().min(), revisions.max());
                let all = i64::try_from(KEYS).unwrap();
                assert_eq!((oldest, newest), (Some(told - all + 1), Some(told)));
                assert_eq!(response.count, all);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    /// Keys without values took many times as much as is counted of them, before it was.
    #[test]
    fn a_range_is_read_no_further_than_there_is_room() {
        let machine = machine(KEYS, 1);
        let keys = RangeRequest {
            keys_only: true,
            ..all(0)
        };
        let pair = memory_of_one();
        let budget = AnswerBudget::new(KEYS * pair, KEYS * pair);
        let (_, held) = ask(&machine, &keys, &budget).unwrap();
        assert_eq!(held, KEYS * pair);
        let budget = AnswerBudget::new(KEYS * pair - 1, KEYS * pair - 1);
        let refused = ask(&machine, &keys, &budget).unwrap_err();
        assert_eq!(refused.message(), EtcdError::TooManyRequests.to_string());
        // A page alone is refused as well: nothing is read behind it.
        let page = AnswerBudget::new(PAGE_PAIRS * pair - 1, PAGE_PAIRS * pair - 1);
        assert!(ask(&machine, &keys, &page).is_err());
        assert_eq!(page.held_by(whose()), 0);
    }

    /// Each who waited for a lock had the keys of all who wait in memory, to find the one before
    /// its own.
    #[test]
    fn of_a_range_that_is_sorted_and_cut_no_more_is_kept_than_is_answered() {
        let machine = machine(KEYS, 1);
        let newest = RangeRequest {
            keys_only: true,
            sort_order: wire::SortOrder::Descend.into(),
            sort_target: wire::SortTarget::Create.into(),
            ..all(100)
        };
        let room = 100 * memory_of_one();
        let budget = AnswerBudget::new(room, room);
        let (response, held) = ask(&machine, &newest, &budget).unwrap();
        assert_eq!((response.kvs.len(), held), (100, room));
        assert_eq!(response.kvs[0].key, format!("k{:06}", KEYS - 1));
        assert!(response.more);
        assert_eq!(usize::try_from(response.count), Ok(KEYS));
    }

    #[test]
    fn a_page_of_large_values_is_a_short_one() {
        let machine = machine(5, PAGE_BYTES / 2);
        let page = RangeQuery {
            max_bytes: PAGE_BYTES,
            ..RangeQuery::new(KeyRange::From("k".into()))
        };
        assert!(machine.reader().range(&page).unwrap().more);
        let budget = AnswerBudget::new(ANSWER_BYTES_MAX, ANSWER_BYTES_MAX);
        let (response, _) = ask(&machine, &all(0), &budget).unwrap();
        assert_eq!((response.kvs.len(), response.count), (5, 5));
    }

    /// Clients sent it again each time, for as long as they ran.
    #[test]
    fn a_read_that_took_too_long_is_not_made_again() {
        let stopped = read_status(&ReadError::Stopped { records: 7 });
        let said = too_slow(&stopped);
        assert_eq!(said.code(), Code::ResourceExhausted);
        assert_eq!(said.message(), EtcdError::TooManyRequests.to_string());
        let busy = too_slow(&Status::unavailable("no turn"));
        assert_eq!(busy.message(), "no turn");
    }
}
