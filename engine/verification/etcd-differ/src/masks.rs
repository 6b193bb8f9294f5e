//! What is not compared, and why. Everything else is.

use bytes::Bytes;

use crate::generate::SHORT_LEASES;
use crate::operation::Operation;
use crate::pb;
use crate::pb::request_op::Request;
use crate::pb::response_op::Response;
use crate::reply::Reply;

/// One thing that may differ between two systems that are both right.
pub struct Mask {
    pub name: &'static str,
    /// What of an answer is left out.
    pub what: &'static str,
    pub why: &'static str,
}

/// All of them; docs/etcd.md names each.
pub const MASKS: &[Mask] = &[
    Mask {
        name: "ids",
        what: "cluster_id, member_id and leader, but for being 0",
        why: "each cluster draws its own",
    },
    Mask {
        name: "term",
        what: "raft_term, but for being 0",
        why: "elections are as many as there were",
    },
    Mask {
        name: "raft-index",
        what: "raftIndex and raftAppliedIndex, but for being 0",
        why: "what else the log holds is a system's own matter",
    },
    Mask {
        name: "sizes",
        what: "dbSize, dbSizeInUse and dbSizeQuota, but for being 0",
        why: "another store has other files",
    },
    Mask {
        name: "versions",
        what: "version and storageVersion of Status, but for being empty",
        why: "they name the program; the level of the API is compared by its behaviour",
    },
    Mask {
        name: "members",
        what: "how many members there are, their names and addresses, but for being empty",
        why: "clusters of one and of three are compared",
    },
    Mask {
        name: "drawn-lease-ids",
        what: "lease ids that the system drew, but for being drawn",
        why: "each system draws its own",
    },
    Mask {
        name: "lease-time",
        what: "TTL of LeaseTimeToLive within 60 s of grantedTTL, and whether leases of the \
               shortest time are still listed",
        why: "time passes between two calls",
    },
    Mask {
        name: "lease-order",
        what: "the order of LeaseLeases and of the keys of LeaseTimeToLive",
        why: "etcd's is that of a hash map",
    },
    Mask {
        name: "sort-ties",
        what: "the order of keys that are equal in what a Range of more than 12 is sorted by, and \
               which of the last of them a limit cuts",
        why: "etcd's sort is not stable beyond 12 elements",
    },
    Mask {
        name: "pieces",
        what: "into which pieces a RangeStream is cut; what only the last one says, that none is \
               empty beside others and that their keys ascend is demanded of both sides",
        why: "etcd aims at the size of a message, DEngine bounds what it holds",
    },
    Mask {
        name: "hash",
        what: "hash of HashKV, but for being 0",
        why: "it is made of what the store keeps, to compare members of one cluster",
    },
    Mask {
        name: "never-compacted",
        what: "compact_revision of HashKV, whether it is -1 or 0",
        why: "etcd counts from -1 where nothing was compacted",
    },
    Mask {
        name: "batching",
        what: "how events are spread over messages, and fragments",
        why: "it depends on how fast each side is",
    },
    Mask {
        name: "event-header",
        what: "the head of messages with events, and of an end by compaction; that it is not below \
               its events is demanded of both sides",
        why: "while a watch catches up, etcd names the store's revision",
    },
    Mask {
        name: "progress-count",
        what: "how many answers requests for progress got; that each is true is demanded of both \
               sides",
        why: "etcd drops a request while a watch of the stream is behind",
    },
    Mask {
        name: "cancelled-after-compaction",
        what: "whether cancelling a watch that a compaction has ended is answered",
        why: "etcd keeps such a watch until then, and its clients know that it has ended",
    },
    Mask {
        name: "watch-order",
        what: "the order of events of different watches of a stream",
        why: "etcd serves them in the order of a hash map",
    },
];

/// Beyond so many elements, Go's sort may exchange equal ones.
const STABLE_SORT_MAX: i64 = 12;
/// Ids that the system drew are longer than any that is asked for.
const ASKED_LEASE_MAX: i64 = 1_000;
const DRAWN_LEASE: i64 = i64::MAX;
/// How long after its grant or renewal a lease may be asked for, in seconds.
const LEASE_SECONDS: i64 = 60;

/// Takes out of an answer what the masks name.
pub(crate) fn apply(operation: &Operation, reply: &mut Reply) {
    match (operation, reply) {
        (Operation::Range(request) | Operation::RangeStream(request), Reply::Range(response)) => {
            range(request, response);
        }
        (_, Reply::Put(response)) => header(&mut response.header),
        (_, Reply::Delete(response)) => header(&mut response.header),
        (Operation::Txn(request), Reply::Txn(response)) => txn(request, response),
        (_, Reply::Compact(response)) => header(&mut response.header),
        (_, Reply::Watch(response)) => header(&mut response.header),
        (Operation::Grant(request), Reply::Grant(response)) => {
            header(&mut response.header);
            if request.id == 0 {
                response.id = drawn(response.id);
            }
        }
        (_, Reply::Revoke(response)) => header(&mut response.header),
        (_, Reply::KeepAlive(Some(response))) => header(&mut response.header),
        (_, Reply::TimeToLive(response)) => time_to_live(response),
        (_, Reply::Leases(response)) => leases(response),
        (_, Reply::Lock(response)) => header(&mut response.header),
        (_, Reply::Unlock(response)) => header(&mut response.header),
        (_, Reply::Campaign(response)) => header(&mut response.header),
        (_, Reply::Proclaim(response)) => header(&mut response.header),
        (_, Reply::Leader(response)) => header(&mut response.header),
        (_, Reply::Resign(response)) => header(&mut response.header),
        (_, Reply::HashKv(response)) => hash_kv(response),
        (_, Reply::Members(response)) => members(response),
        (_, Reply::Status(response)) => status(response),
        (_, Reply::Alarm(response)) => {
            header(&mut response.header);
            let alarms = response.alarms.iter_mut();
            alarms.for_each(|alarm| alarm.member_id = one(alarm.member_id));
        }
        _ => {}
    }
}

pub(crate) fn header(header: &mut Option<pb::ResponseHeader>) {
    if let Some(header) = header {
        header.cluster_id = one(header.cluster_id);
        header.member_id = one(header.member_id);
        header.raft_term = one(header.raft_term);
    }
}

/// 0 stays, for it says that nothing was filled in.
fn one(number: u64) -> u64 {
    number.min(1)
}

fn range(request: &pb::RangeRequest, response: &mut pb::RangeResponse) {
    header(&mut response.header);
    if response.count > STABLE_SORT_MAX {
        order_ties(request, response);
    }
}

/// Equal elements in the order of their keys; those that a limit may have chosen are left out.
fn order_ties(request: &pb::RangeRequest, response: &mut pb::RangeResponse) {
    let target = request.sort_target;
    let tie = |kv: &pb::KeyValue| tie(target, kv);
    if tie(&pb::KeyValue::default()).is_none() {
        return;
    }
    let kvs = &mut response.kvs;
    if response.more
        && let Some(last) = kvs.last().map(tie)
    {
        for kv in kvs.iter_mut().filter(|kv| tie(kv) == last) {
            *kv = pb::KeyValue::default();
        }
    }
    // Stable, and only within ties: their order among each other stays as it was answered.
    for group in kvs.chunk_by_mut(|a, b| tie(a) == tie(b)) {
        group.sort_by(|a, b| a.key.cmp(&b.key));
    }
}

/// By what a key is sorted; `None`: by itself.
fn tie(target: i32, kv: &pb::KeyValue) -> Option<(i64, Bytes)> {
    match target {
        1 => Some((kv.version, Bytes::new())),
        2 => Some((kv.create_revision, Bytes::new())),
        3 => Some((kv.mod_revision, Bytes::new())),
        4 => Some((0, kv.value.clone())),
        _ => None,
    }
}

fn txn(request: &pb::TxnRequest, response: &mut pb::TxnResponse) {
    header(&mut response.header);
    let requests = match response.succeeded {
        true => &request.success,
        false => &request.failure,
    };
    for (request, response) in requests.iter().zip(&mut response.responses) {
        match (&request.request, &mut response.response) {
            (Some(Request::RequestRange(request)), Some(Response::ResponseRange(response))) => {
                range(request, response);
            }
            (Some(Request::RequestTxn(request)), Some(Response::ResponseTxn(response))) => {
                txn(request, response);
            }
            (_, Some(Response::ResponsePut(response))) => header(&mut response.header),
            (_, Some(Response::ResponseDeleteRange(response))) => header(&mut response.header),
            _ => {}
        }
    }
}

fn drawn(id: i64) -> i64 {
    if id > ASKED_LEASE_MAX {
        DRAWN_LEASE
    } else {
        id
    }
}

fn time_to_live(response: &mut pb::LeaseTimeToLiveResponse) {
    header(&mut response.header);
    response.id = drawn(response.id);
    response.keys.sort();
    let granted = response.granted_ttl;
    if (granted - LEASE_SECONDS..=granted).contains(&response.ttl) {
        response.ttl = granted;
    }
}

fn leases(response: &mut pb::LeaseLeasesResponse) {
    header(&mut response.header);
    let lasts = |lease: &pb::LeaseStatus| !SHORT_LEASES.contains(&lease.id);
    response.leases.retain(lasts);
    for lease in &mut response.leases {
        lease.id = drawn(lease.id);
    }
    response.leases.sort_by_key(|lease| lease.id);
}

fn hash_kv(response: &mut pb::HashKvResponse) {
    header(&mut response.header);
    response.hash = response.hash.min(1);
    response.compact_revision = response.compact_revision.max(0);
}

/// One of them stands for all, if they are alike.
fn members(response: &mut pb::MemberListResponse) {
    header(&mut response.header);
    for member in &mut response.members {
        member.id = one(member.id);
        member.name = filled(&member.name);
        for urls in [&mut member.peer_ur_ls, &mut member.client_ur_ls] {
            urls.iter_mut().for_each(|url| *url = filled(url));
            urls.dedup();
        }
    }
    response.members.dedup();
}

fn filled(text: &str) -> String {
    let shown = if text.is_empty() { "" } else { "filled in" };
    shown.to_owned()
}

fn status(response: &mut pb::StatusResponse) {
    header(&mut response.header);
    response.version = filled(&response.version);
    response.storage_version = filled(&response.storage_version);
    for size in [
        &mut response.db_size,
        &mut response.db_size_in_use,
        &mut response.db_size_quota,
    ] {
        *size = (*size).min(1);
    }
    for number in [
        &mut response.leader,
        &mut response.raft_index,
        &mut response.raft_term,
        &mut response.raft_applied_index,
    ] {
        *number = one(*number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: u8, version: i64) -> pb::KeyValue {
        pb::KeyValue {
            key: vec![name].into(),
            version,
            ..Default::default()
        }
    }

    fn sorted(count: i64, more: bool, kvs: Vec<pb::KeyValue>) -> String {
        let request = pb::RangeRequest {
            sort_target: 1,
            sort_order: 1,
            ..Default::default()
        };
        let mut reply = Reply::Range(pb::RangeResponse {
            count,
            more,
            kvs,
            ..Default::default()
        });
        apply(&Operation::Range(request), &mut reply);
        crate::reply::in_lines(&reply)
    }

    #[test]
    fn ties_of_a_long_sort_may_be_in_any_order_and_nothing_else_may() {
        let of = |more, names: [u8; 3], last| {
            let [a, b, c] = names;
            sorted(13, more, vec![key(a, 1), key(b, 1), key(c, last)])
        };
        assert_eq!(of(false, *b"abc", 2), of(false, *b"bac", 2));
        assert_ne!(of(false, *b"abc", 2), of(false, *b"abd", 2));
        assert_ne!(of(false, *b"abc", 2), of(false, *b"cab", 2));
        // A limit took one of several.
        assert_eq!(of(true, *b"abc", 2), of(true, *b"bad", 2));
        let short = |names: [u8; 2]| sorted(12, false, names.map(|it| key(it, 1)).to_vec());
        assert_ne!(short(*b"ab"), short(*b"ba"));
    }

    #[test]
    fn what_was_not_filled_in_is_seen() {
        let put = |cluster_id, revision| {
            let mut reply = Reply::Put(pb::PutResponse {
                header: Some(pb::ResponseHeader {
                    cluster_id,
                    revision,
                    ..Default::default()
                }),
                prev_kv: None,
            });
            apply(&Operation::Put(pb::PutRequest::default()), &mut reply);
            reply
        };
        assert_eq!(put(4, 2), put(5, 2));
        assert_ne!(put(4, 2), put(0, 2));
        assert_ne!(put(4, 2), put(4, 3));
    }

    #[test]
    fn a_lease_may_have_lost_a_little_time_and_no_more() {
        let left = |ttl| {
            let mut reply = Reply::TimeToLive(pb::LeaseTimeToLiveResponse {
                ttl,
                granted_ttl: 1_000,
                ..Default::default()
            });
            let asked = Operation::TimeToLive(pb::LeaseTimeToLiveRequest::default());
            apply(&asked, &mut reply);
            reply
        };
        assert_eq!(left(1_000), left(998));
        assert_ne!(left(1_000), left(-1));
        assert_ne!(left(1_000), left(1_001));
    }

    #[test]
    fn each_mask_has_a_name_of_its_own() {
        let mut names: Vec<&str> = MASKS.iter().map(|mask| mask.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), MASKS.len());
    }
}
