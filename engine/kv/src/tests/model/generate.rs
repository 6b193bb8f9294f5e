//! Random commands, queries and steps, of few and short keys, so that they collide often.

use bytes::Bytes;
use dengine_types::{Index, LeaseId, Revision, SessionId};
use proptest::prelude::*;

use super::Model;
use crate::{
    Batch, BatchOperation, ChangesQuery, Command, Compare, CompareTarget, Expected, ExpiredKey,
    KeyRange, LeaseCheckpoint, PageLimits, Put, PutLease, RangeQuery, RangeRead, Relation, Request,
    RevisionBounds, Selection, SessionStamp, SortBy, SortOrder, Stamp,
};

/// A request that is resolved when it is applied, by the state at that time.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    /// Which session, sequence, and how many below it are acknowledged.
    stamp: Option<(usize, u64, u64)>,
    command: DraftCommand,
}

#[derive(Clone, Debug)]
enum DraftCommand {
    Ready(Command),
    /// How far below the store's revision; negative: above it.
    Compact(i64),
    KeepAlive(usize),
    Close(usize),
    /// `true`: with the actual last use.
    ExpireSession(usize, bool),
    /// `true`: with the actual last change.
    ExpireKeys(Vec<(Bytes, bool)>),
    /// `true`: as its record is.
    ExpireLease(LeaseId, bool),
    /// `true`: as its record is. The same lease may be among them twice.
    CheckpointLeases(Vec<(LeaseId, bool, u64)>),
}

/// The next step. Revisions count from the one before the compact revision.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Applied as one batch.
    Apply(Vec<Draft>),
    Get(Bytes, u64),
    Range(RangeQuery),
    Changes(ChangesQuery),
    Batch(Batch),
    /// This many steps of the collector, of this many changes.
    Collect(usize, usize),
    Reopen,
}

impl Draft {
    /// The request, by the state before the entry `index`.
    pub(super) fn resolve(&self, model: &Model) -> Request {
        // One of the open sessions, or one that never was.
        let session = |which: usize| {
            let open: Vec<_> = model.sessions.keys().collect();
            let found = open.get(which % (open.len() + 1));
            SessionId(found.map_or(u64::MAX, |id| **id))
        };
        let command = match &self.command {
            DraftCommand::Ready(Command::Batch(batch)) => {
                let mut batch = batch.clone();
                at_revisions(&mut batch, &|number| model.revision_at(number));
                Command::Batch(batch)
            }
            DraftCommand::Ready(command) => command.clone(),
            DraftCommand::Compact(behind) => Command::Compact {
                revision: Revision(model.revision.saturating_add_signed(-behind)),
            },
            DraftCommand::KeepAlive(which) => Command::KeepAlive {
                session: session(*which),
            },
            DraftCommand::Close(which) => Command::CloseSession {
                session: session(*which),
            },
            DraftCommand::ExpireSession(which, unused) => {
                let session = session(*which);
                let found = model.sessions.get(&session.0);
                let last_used = found.map_or(0, |found| found.last_used);
                let last_used = Index(last_used.saturating_sub(u64::from(!unused)));
                Command::ExpireSession { session, last_used }
            }
            DraftCommand::ExpireKeys(keys) => Command::ExpireKeys {
                keys: keys.iter().map(|it| expired(model, it)).collect(),
            },
            DraftCommand::ExpireLease(lease, unchanged) => Command::ExpireLease {
                lease: *lease,
                seen: seen(model, *lease, *unchanged),
            },
            DraftCommand::CheckpointLeases(leases) => {
                let checkpoint = |&(lease, unchanged, remaining_ms): &_| LeaseCheckpoint {
                    lease,
                    remaining_ms,
                    seen: seen(model, lease, unchanged),
                };
                Command::CheckpointLeases {
                    leases: leases.iter().map(checkpoint).collect(),
                }
            }
        };
        let stamp = |&(which, sequence, below): &(usize, u64, u64)| SessionStamp {
            id: session(which),
            sequence,
            acknowledged: sequence.saturating_sub(below),
        };
        Request {
            session: self.stamp.as_ref().map(stamp),
            command,
        }
    }
}

/// Counts the revisions that it reads at from the one before the compact revision.
pub(super) fn at_revisions(batch: &mut Batch, revision_at: &impl Fn(u64) -> u64) {
    for operation in batch.then.iter_mut().chain(&mut batch.otherwise) {
        match operation {
            BatchOperation::Range(read) => {
                read.revision = read.revision.map(|it| Revision(revision_at(it.0)));
            }
            BatchOperation::Batch(inner) => at_revisions(inner, revision_at),
            _ => {}
        }
    }
}

fn expired(model: &Model, (key, unchanged): &(Bytes, bool)) -> ExpiredKey {
    let now = model.get(key, model.revision);
    let mod_revision = now.map_or(0, |kv| kv.mod_revision.0);
    ExpiredKey {
        key: key.clone(),
        mod_revision: Revision(mod_revision.saturating_sub(u64::from(!unchanged))),
    }
}

fn seen(model: &Model, lease: LeaseId, unchanged: bool) -> Index {
    let found = model.leases.get(&lease);
    let touched = found.map_or(0, |found| found.touched);
    Index(touched.saturating_sub(u64::from(!unchanged)))
}

/// Made of the bytes that matter to the layout.
pub(super) fn key() -> impl Strategy<Value = Bytes> {
    let byte = prop::sample::select(vec![0_u8, 1, b'a', b'b', 0xfe, 0xff]);
    prop::collection::vec(byte, 0..3).prop_map(Bytes::from)
}

fn value() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(0_u8..3, 0..3).prop_map(Bytes::from)
}

fn ttl_ms() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(0), 1 => 1..3_u64]
}

/// Few enough that one of them is often there.
fn lease() -> impl Strategy<Value = LeaseId> {
    prop::sample::select(vec![LeaseId(-1), LeaseId(1), LeaseId(2)])
}

fn any_put() -> impl Strategy<Value = Put> {
    (key(), value(), put_flags(), ttl_ms(), put_lease()).prop_map(
        |(key, value, (ignore_value, prev_kv), ttl_ms, lease)| Put {
            key,
            value,
            ignore_value,
            prev_kv,
            ttl_ms,
            lease,
        },
    )
}

fn put_lease() -> impl Strategy<Value = PutLease> {
    prop_oneof![
        3 => Just(PutLease::None),
        3 => lease().prop_map(PutLease::Attach),
        1 => Just(PutLease::Keep),
    ]
}

/// What asks no model.
fn lease_command() -> impl Strategy<Value = Command> {
    prop_oneof![
        6 => (prop_oneof![9 => lease(), 1 => Just(LeaseId::NONE)], 0..99_u64)
            .prop_map(|(lease, ttl_ms)| Command::GrantLease { lease, ttl_ms }),
        1 => lease().prop_map(|lease| Command::RevokeLease { lease }),
    ]
}

/// Whether the value is kept, and the previous pair returned.
fn put_flags() -> impl Strategy<Value = (bool, bool)> {
    (prop::bool::weighted(0.2), any::<bool>())
}

pub(super) fn keys() -> impl Strategy<Value = KeyRange> {
    prop_oneof![
        key().prop_map(KeyRange::One),
        (key(), key()).prop_map(|(start, end)| KeyRange::Between { start, end }),
        key().prop_map(KeyRange::From),
    ]
}

fn compare() -> impl Strategy<Value = Compare> {
    let relation = prop::sample::select(vec![
        Relation::Equal,
        Relation::NotEqual,
        Relation::Greater,
        Relation::Less,
    ]);
    let revision = || (0..30_u64).prop_map(Revision);
    let target = prop_oneof![
        (0..3_u64).prop_map(CompareTarget::Version),
        revision().prop_map(CompareTarget::CreateRevision),
        revision().prop_map(CompareTarget::ModRevision),
        value().prop_map(CompareTarget::Value),
        lease().prop_map(CompareTarget::Lease),
    ];
    (keys(), relation, target).prop_map(|(keys, relation, target)| Compare {
        keys,
        relation,
        target,
    })
}

fn single_operation() -> impl Strategy<Value = BatchOperation> {
    prop_oneof![
        3 => any_put().prop_map(BatchOperation::Put),
        1 => (keys(), any::<bool>())
            .prop_map(|(keys, prev_kv)| BatchOperation::Delete { keys, prev_kv }),
        2 => (keys(), 0..3_u64, any::<bool>(), any::<bool>())
            .prop_map(|(keys, limit, keys_only, count_only)| BatchOperation::Get {
                keys, limit, keys_only, count_only,
            }),
    ]
}

fn bounds() -> impl Strategy<Value = RevisionBounds> {
    let bound = || prop::option::weighted(0.2, (0..30_u64).prop_map(Revision));
    (bound(), bound()).prop_map(|(min, max)| RevisionBounds { min, max })
}

fn selection() -> impl Strategy<Value = Selection> {
    let order = prop::sample::select(vec![
        SortOrder::None,
        SortOrder::Ascending,
        SortOrder::Descending,
    ]);
    let by = prop::sample::select(vec![
        SortBy::Key,
        SortBy::Version,
        SortBy::CreateRevision,
        SortBy::ModRevision,
        SortBy::Value,
    ]);
    (order, by, bounds(), bounds()).prop_map(|(order, by, mod_revisions, create_revisions)| {
        Selection {
            order,
            by,
            mod_revisions,
            create_revisions,
        }
    })
}

fn range_read() -> impl Strategy<Value = RangeRead> {
    let revision = prop::option::of((0..12_u64).prop_map(Revision));
    let flags = (any::<bool>(), prop::bool::weighted(0.2));
    (keys(), revision, 0..4_u64, flags, selection()).prop_map(
        |(keys, revision, limit, (keys_only, count_only), selection)| RangeRead {
            keys,
            revision,
            limit,
            keys_only,
            count_only,
            selection,
        },
    )
}

/// With batches within batches up to this depth.
fn operation(depth: usize) -> BoxedStrategy<BatchOperation> {
    let range = || range_read().prop_map(|read| BatchOperation::Range(Box::new(read)));
    if depth == 0 {
        return prop_oneof![5 => single_operation(), 1 => range()].boxed();
    }
    let inner = batch_within(depth - 1).prop_map(|batch| BatchOperation::Batch(Box::new(batch)));
    prop_oneof![5 => single_operation(), 1 => range(), 1 => inner].boxed()
}

fn batch_within(depth: usize) -> BoxedStrategy<Batch> {
    let operations = || prop::collection::vec(operation(depth), 0..4);
    let compares = prop::collection::vec(compare(), 0..2);
    let batch = (compares, operations(), operations());
    batch
        .prop_map(|(compares, then, otherwise)| Batch {
            compares,
            then,
            otherwise,
        })
        .boxed()
}

pub(super) fn batch() -> impl Strategy<Value = Batch> {
    batch_within(2)
}

fn data_command() -> impl Strategy<Value = Command> {
    let expected = prop_oneof![
        (0..40_u64).prop_map(|number| Expected::ModRevision(Revision(number))),
        value().prop_map(Expected::Value),
    ];
    prop_oneof![
        6 => any_put().prop_map(Command::Put),
        2 => (keys(), any::<bool>()).prop_map(|(keys, prev_kv)| Command::Delete { keys, prev_kv }),
        2 => (key(), expected, value(), ttl_ms()).prop_map(|(key, expected, value, ttl_ms)| {
            Command::CompareAndSwap { key, expected, value, ttl_ms }
        }),
        4 => batch().prop_map(Command::Batch),
    ]
}

pub(super) fn draft() -> impl Strategy<Value = Draft> {
    let which = || 0..4_usize;
    let expired = prop::collection::vec((key(), any::<bool>()), 0..4);
    let checkpoints = prop::collection::vec((lease(), any::<bool>(), 0..200_u64), 0..4);
    let command = prop_oneof![
        12 => data_command().prop_map(DraftCommand::Ready),
        2 => (-1..12_i64).prop_map(DraftCommand::Compact),
        2 => Just(DraftCommand::Ready(Command::OpenSession { ttl_ms: 1000 })),
        1 => which().prop_map(DraftCommand::KeepAlive),
        1 => which().prop_map(DraftCommand::Close),
        1 => (which(), any::<bool>())
            .prop_map(|(which, unused)| DraftCommand::ExpireSession(which, unused)),
        2 => expired.prop_map(DraftCommand::ExpireKeys),
        4 => lease_command().prop_map(DraftCommand::Ready),
        1 => (lease(), any::<bool>())
            .prop_map(|(lease, unchanged)| DraftCommand::ExpireLease(lease, unchanged)),
        1 => checkpoints.prop_map(DraftCommand::CheckpointLeases),
    ];
    let stamp = prop::option::of((which(), 1..9_u64, 0..9_u64));
    (stamp, command).prop_map(|(stamp, command)| Draft { stamp, command })
}

fn range_query() -> impl Strategy<Value = RangeQuery> {
    let bound = || prop_oneof![Just(usize::MAX), 0..6_usize];
    let revision = prop::option::of((0..30_u64).prop_map(Revision));
    let flags = (any::<bool>(), any::<bool>());
    (keys(), bound(), bound(), flags, revision).prop_map(
        |(keys, limit, max_bytes, (keys_only, count_only), revision)| RangeQuery {
            keys,
            limit,
            max_bytes,
            keys_only,
            count_only,
            revision,
        },
    )
}

fn changes_query() -> impl Strategy<Value = ChangesQuery> {
    let bound = |max: usize| prop_oneof![Just(usize::MAX), 0..max];
    let limits = (bound(600), bound(6)).prop_map(|(bytes, changes)| PageLimits { bytes, changes });
    let flag = || prop::bool::weighted(0.2);
    let place = (0..16_u64, prop_oneof![3 => Just(0), 1 => 0..3_u32]);
    (place, keys(), any::<bool>(), flag(), flag(), limits).prop_map(
        |((revision, sub), keys, prev_kv, no_put, no_delete, limits)| ChangesQuery {
            from: Stamp {
                revision: Revision(revision),
                sub,
            },
            keys,
            prev_kv,
            no_put,
            no_delete,
            limits,
        },
    )
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec(draft(), 1..6).prop_map(Step::Apply),
        2 => (key(), 0..30_u64).prop_map(|(key, at)| Step::Get(key, at)),
        2 => range_query().prop_map(Step::Range),
        2 => changes_query().prop_map(Step::Changes),
        2 => batch().prop_map(Step::Batch),
        1 => (1..4_usize, 0..20_usize).prop_map(|(steps, max)| Step::Collect(steps, max)),
        1 => Just(Step::Reopen),
    ]
}
