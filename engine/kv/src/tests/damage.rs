//! Damage that a reader finds is reported to the member, too.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use dengine_types::{LeaseId, Revision, SessionId};

use super::{between, bytes, everything, put_for};
use crate::store::{Cursor, MemoryStore, Scope, WriteBatch};
use crate::{
    Batch, BatchOperation, ChangesQuery, Command, KeyRange, RangeQuery, ReadError, Reader,
    StateMachine, Store, StoreError,
};

/// A store that fails once a failure is set.
#[derive(Clone, Default)]
struct Failing {
    store: MemoryStore,
    with: Arc<Mutex<Option<StoreError>>>,
}

struct FailingCursor<'a> {
    cursor: <MemoryStore as Store>::Cursor<'a>,
    store: &'a Failing,
}

impl Failing {
    fn check(&self) -> Result<(), StoreError> {
        let with = self.with.lock().expect("no panic").clone();
        with.map_or(Ok(()), Err)
    }
}

impl Store for Failing {
    type Cursor<'a> = FailingCursor<'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.check()?;
        self.store.get(key)
    }

    fn cursor(&self, scope: Scope) -> FailingCursor<'_> {
        FailingCursor {
            cursor: self.store.cursor(scope),
            store: self,
        }
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        self.store.write(batch)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.check()
    }

    fn approximate_bytes(&self) -> u64 {
        self.store.approximate_bytes()
    }
}

impl Cursor for FailingCursor<'_> {
    fn seek(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.store.check()?;
        self.cursor.seek(key)
    }

    fn next(&mut self) -> Result<(), StoreError> {
        self.store.check()?;
        self.cursor.next()
    }

    fn record(&self) -> Option<(&[u8], &[u8])> {
        self.cursor.record()
    }
}

type Read = fn(&Reader<Failing>) -> Result<(), ReadError>;

/// Every way to read.
fn reads() -> Vec<(&'static str, Read)> {
    fn batch_that_reads(keys: KeyRange) -> Batch {
        Batch {
            compares: Vec::new(),
            then: vec![BatchOperation::Get {
                keys,
                limit: 1,
                keys_only: false,
                count_only: false,
            }],
            otherwise: Vec::new(),
        }
    }
    vec![
        ("get", |it| it.get(&bytes("a"), None).map(drop)),
        ("range", |it| {
            it.range(&RangeQuery::new(everything())).map(drop)
        }),
        ("range of one", |it| {
            let one = KeyRange::One(bytes("a"));
            it.range(&RangeQuery::new(one)).map(drop)
        }),
        ("changes", |it| {
            let past = ChangesQuery::new(Revision(1), everything());
            it.changes(&past).map(drop)
        }),
        ("hash", |it| it.logical_hash().map(drop)),
        ("survey", |it| it.survey(&[between("a", "z")], 1).map(drop)),
        ("batch of a range", |it| {
            it.batch(&batch_that_reads(everything())).map(drop)
        }),
        ("batch of a key", |it| {
            let one = KeyRange::One(bytes("a"));
            it.batch(&batch_that_reads(one)).map(drop)
        }),
        ("expiring keys", |it| it.expiring_keys(None, 1).map(drop)),
        ("expiring keys of revisions", |it| {
            let all = Revision(1)..=Revision(9);
            it.expiring_keys_of(all, None, 1).map(drop)
        }),
        ("may expire", |it| {
            it.may_expire(b"a", Revision(2)).map(drop)
        }),
        ("sessions", |it| it.sessions(SessionId(0), 1).map(drop)),
        ("session ids", |it| it.session_ids().map(drop)),
        ("session", |it| it.session(SessionId(2)).map(drop)),
        ("lease", |it| it.lease(LeaseId(3)).map(drop)),
        ("leases", |it| it.leases(None, 1).map(drop)),
        ("lease with keys", |it| {
            it.lease_with_keys(LeaseId(3), None, 1).map(drop)
        }),
    ]
}

/// The caller got the error, and the member went on.
#[test]
fn only_damage_found_by_a_reader_is_reported_to_the_member() {
    let store = Failing::default();
    let mut machine = StateMachine::open_with_key_cache(store.clone(), 0).expect("open");
    let entries = [
        super::command_entry(1, put_for("a", "1", 1000)),
        super::command_entry(2, Command::OpenSession { ttl_ms: 1000 }),
    ];
    machine.apply(&entries).expect("apply");
    let reported = Arc::new(Mutex::new(Vec::new()));
    let report = Arc::clone(&reported);
    machine.on_damage(move |error| report.lock().expect("no panic").push(error));
    let reported = || std::mem::take(&mut *reported.lock().expect("no panic"));
    let fail = |with| *store.with.lock().expect("no panic") = with;
    let damaged = StoreError::Corrupt("a block".to_owned());
    let failed = StoreError::Failed {
        doing: "reading",
        reason: "Input/output error".to_owned(),
    };
    let reader = machine.reader();
    for (name, read) in reads() {
        fail(None);
        read(&reader).unwrap_or_else(|error| panic!("{name}: {error}"));
        fail(Some(failed.clone()));
        assert_eq!(read(&reader), Err(failed.clone().into()), "{name}");
        assert_eq!(reported(), [], "{name}");
        fail(Some(damaged.clone()));
        assert_eq!(read(&reader), Err(damaged.clone().into()), "{name}");
        assert_eq!(reported(), std::slice::from_ref(&damaged), "{name}");
    }
    machine.flush().expect_err("it is damaged");
    assert_eq!(reported(), [damaged]);
}
