//! One of everything that a client can write, and what was answered.

use std::fmt;
use std::path::Path;
use std::process::Command;

use dengine_client::AdminClient;
use dengine_protocol::v1::compare_and_swap_request::Expected;
use dengine_protocol::v1::kv_client::KvClient;
use dengine_protocol::v1::{
    BatchRequest, BatchResponse, CloseSessionRequest, CompactRequest, Compare,
    CompareAndSwapRequest, CompareAndSwapResponse, DeleteRequest, GetRequest, HashResponse,
    KeepAliveSessionRequest, Operation, PutRequest, PutResponse, RangeRequest, RangeResponse,
    SessionStamp, compare, operation,
};
use prost::Message;
use serde::{Deserialize, Serialize};
use tonic::transport::Channel;

use crate::harness::{Member, dengine, eventually};

/// File of what was acknowledged, beside the folder.
const KEPT: &str = "kept.json";
const HOUR_MS: u64 = 3_600_000;

/// How the older program ended.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum End {
    /// At once, with nothing of its state on disk.
    Killed,
    /// As it was asked to, some way after its state was made durable.
    Stopped,
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Killed => "killed",
            Self::Stopped => "stopped",
        })
    }
}

/// What the older program answered. Messages are kept as they travel, in hexadecimal.
#[derive(Serialize, Deserialize)]
pub(super) struct Kept {
    session: u64,
    put: String,
    swap: String,
    batch: String,
    /// All pairs, at the end and at an earlier revision that is still readable.
    now: String,
    earlier: String,
    hash: String,
}

impl Kept {
    /// What lies beside the folder in `home`.
    pub(super) fn read(home: &Path) -> Self {
        serde_json::from_slice(&fs_err::read(home.join(KEPT)).unwrap()).unwrap()
    }

    /// That the member that runs on the folder holds all of it.
    pub(super) async fn check(&self, member: &Member, when: &str) {
        let mut kv = kv(member).await;
        let now: RangeResponse = from_hex(&self.now);
        let earlier: RangeResponse = from_hex(&self.earlier);
        for expect in [&now, &earlier] {
            let revision = expect.header.unwrap().revision;
            let found = all_pairs(&mut kv, revision).await;
            assert_eq!(found.kvs, expect.kvs, "{when}, at revision {revision}");
        }
        // Exactly once: what the older program did is not done again, and is answered as it
        // answered.
        let (put, swap, batch) = stamped(self.session);
        let found = kv.put(put).await.unwrap().into_inner();
        let expect: PutResponse = from_hex(&self.put);
        assert_eq!(revision(found.header), revision(expect.header), "{when}");
        assert_eq!(found.prev_kv, expect.prev_kv, "{when}");
        let found = kv.compare_and_swap(swap).await.unwrap().into_inner();
        let expect: CompareAndSwapResponse = from_hex(&self.swap);
        assert_eq!(
            (revision(found.header), found.succeeded, found.prev_kv),
            (revision(expect.header), expect.succeeded, expect.prev_kv),
            "{when}"
        );
        let found = kv.batch(batch).await.unwrap().into_inner();
        let expect: BatchResponse = from_hex(&self.batch);
        assert_eq!(
            (revision(found.header), found.succeeded, found.results),
            (revision(expect.header), expect.succeeded, expect.results),
            "{when}"
        );
        let written = kv.put(put_of("after", when)).await.unwrap().into_inner();
        assert!(revision(written.header) > revision(now.header));
        let deleted = kv.delete(delete("after", "")).await.unwrap().into_inner();
        assert_eq!(deleted.deleted, 1);
    }

    /// All else that it holds, as long as nothing was written: sessions with their answers, times
    /// to live, history, members.
    pub(super) async fn check_hash(&self, member: &Member) {
        let expect: HashResponse = from_hex(&self.hash);
        let found = hash(member).await;
        assert_eq!(
            (found.applied_index, found.revision, found.hash),
            (expect.applied_index, expect.revision, expect.hash)
        );
    }
}

/// Has `program` write a folder in `home`, and keeps beside it what it answered.
pub(super) async fn write_folder(home: &Path, program: &Path, end: End) {
    let mut member = Member::new(home, "m0");
    member.downgrade(program);
    member.start();
    member.admin().await;
    let init = dengine()
        .args(["init", "--endpoints", &member.address()])
        .status();
    assert!(init.unwrap().success());
    member.ready().await;
    let mut kv = kv(&member).await;
    write_pairs(&mut kv).await;
    let earlier = all_pairs(&mut kv, 0).await;
    change_members(&member).await;
    if end == End::Stopped {
        member.admin().await.snapshot().await.unwrap();
    }
    change_pairs(&mut kv).await;
    let (session, put, swap, batch) = use_sessions(&mut kv).await;
    let now = all_pairs(&mut kv, 0).await;
    match end {
        End::Killed => member.kill(),
        End::Stopped => assert_eq!(member.terminate().code(), Some(0)),
    }
    let kept = Kept {
        session,
        put,
        swap,
        batch,
        now: to_hex(&now),
        earlier: to_hex(&earlier),
        hash: to_hex(&hash_when_started_again(home, program).await),
    };
    let text = serde_json::to_string_pretty(&kept).unwrap();
    fs_err::write(home.join(KEPT), text).unwrap();
}

/// Who starts again leads a later term, and its first entry counts too. So a copy is asked.
async fn hash_when_started_again(home: &Path, program: &Path) -> HashResponse {
    let again = home.join("again");
    fs_err::create_dir(&again).unwrap();
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(home.join("m0")).arg(&again);
    assert!(copy.status().unwrap().success());
    let mut member = Member::new(&again, "m0");
    member.downgrade(program);
    member.start();
    member.ready().await;
    let hash = hash(&member).await;
    drop(member);
    fs_err::remove_dir_all(again).unwrap();
    hash
}

async fn write_pairs(kv: &mut KvClient<Channel>) {
    for round in ["first", "second"] {
        for n in 0..20 {
            kv.put(put_of(&format!("key/{n:02}"), round)).await.unwrap();
        }
    }
    let large = PutRequest {
        value: vec![b'l'; 1 << 20].into(),
        ..put_of("large", "")
    };
    kv.put(large).await.unwrap();
    let for_an_hour = PutRequest {
        ttl_ms: HOUR_MS,
        ..put_of("for an hour", "kept")
    };
    kv.put(for_an_hour).await.unwrap();
    let for_a_moment = PutRequest {
        ttl_ms: 100,
        ..put_of("for a moment", "expires")
    };
    kv.put(for_a_moment).await.unwrap();
    eventually("the key expires", || {
        let mut kv = kv.clone();
        async move {
            let get = GetRequest {
                key: "for a moment".into(),
                ..GetRequest::default()
            };
            let found = kv.get(get).await.unwrap().into_inner();
            found.kv.is_none().then_some(())
        }
    })
    .await;
    let compact = CompactRequest {
        revision: 10,
        session: None,
    };
    kv.compact(compact).await.unwrap();
}

async fn change_members(member: &Member) {
    let admin = member.admin().await;
    let folder = "0123456789abcdef0123456789abcdef";
    let learner = dengine_protocol::v1::AddLearnerRequest {
        folder_id: folder.to_owned(),
        name: "never-was".to_owned(),
        peer_address: "127.0.0.1:1".to_owned(),
        client_address: "127.0.0.1:1".to_owned(),
    };
    let added = admin.add_learner(learner).await.unwrap();
    admin.remove(added.member.unwrap().id).await.unwrap();
}

async fn change_pairs(kv: &mut KvClient<Channel>) {
    kv.delete(delete("key/03", "")).await.unwrap();
    kv.delete(delete("key/10", "key/15")).await.unwrap();
    for (expected, holds) in [("second", true), ("something else", false)] {
        let swap = CompareAndSwapRequest {
            key: "key/04".into(),
            value: "swapped".into(),
            expected: Some(Expected::CurrentValue(expected.into())),
            ..Default::default()
        };
        let swapped = kv.compare_and_swap(swap).await.unwrap().into_inner();
        assert_eq!(swapped.succeeded, holds);
    }
    for version in [2, 7] {
        kv.batch(batch_of("key/05", version, None)).await.unwrap();
    }
}

/// Two sessions, one of them closed; what the other was answered.
async fn use_sessions(kv: &mut KvClient<Channel>) -> (u64, String, String, String) {
    let open = dengine_protocol::v1::OpenSessionRequest { ttl_ms: HOUR_MS };
    let closed = kv.open_session(open).await.unwrap().into_inner().session_id;
    kv.put(PutRequest {
        session: stamp(closed, 1),
        ..put_of("by a closed session", "v")
    })
    .await
    .unwrap();
    let close = CloseSessionRequest { session_id: closed };
    kv.close_session(close).await.unwrap();
    let session_id = kv.open_session(open).await.unwrap().into_inner().session_id;
    let (put, swap, batch) = stamped(session_id);
    let put = kv.put(put).await.unwrap().into_inner();
    let swap = kv.compare_and_swap(swap).await.unwrap().into_inner();
    let batch = kv.batch(batch).await.unwrap().into_inner();
    kv.keep_alive_session(KeepAliveSessionRequest { session_id })
        .await
        .unwrap();
    (session_id, to_hex(&put), to_hex(&swap), to_hex(&batch))
}

/// Writes of a session that can be told apart from doing them twice.
fn stamped(session: u64) -> (PutRequest, CompareAndSwapRequest, BatchRequest) {
    let put = PutRequest {
        prev_kv: true,
        session: stamp(session, 1),
        ..put_of("key/06", "by a session")
    };
    let swap = CompareAndSwapRequest {
        key: "key/06".into(),
        value: "swapped by a session".into(),
        expected: Some(Expected::CurrentValue("by a session".into())),
        session: stamp(session, 2),
        ..Default::default()
    };
    let batch = batch_of("key/07", 2, stamp(session, 3));
    (put, swap, batch)
}

/// Changes two keys and reads one if `key` has the version, and deletes it otherwise.
fn batch_of(key: &str, version: u64, session: Option<SessionStamp>) -> BatchRequest {
    let operation = |operation| Operation {
        operation: Some(operation),
    };
    let put = |key: &str, ttl_ms| {
        operation(operation::Operation::Put(operation::Put {
            key: key.to_owned().into(),
            value: "by a batch".into(),
            prev_kv: true,
            ttl_ms,
        }))
    };
    let get = operation(operation::Operation::Get(operation::Get {
        key: "key/00".into(),
        range_end: "key/04".into(),
        ..Default::default()
    }));
    let delete = operation(operation::Operation::Delete(operation::Delete {
        key: key.to_owned().into(),
        ..Default::default()
    }));
    BatchRequest {
        compares: vec![Compare {
            key: key.to_owned().into(),
            relation: compare::Relation::Equal.into(),
            target: Some(compare::Target::Version(version)),
            ..Default::default()
        }],
        then: vec![put(key, 0), put("batched for an hour", HOUR_MS), get],
        otherwise: vec![delete],
        session,
    }
}

fn put_of(key: &str, value: &str) -> PutRequest {
    PutRequest {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        ..PutRequest::default()
    }
}

fn delete(key: &str, range_end: &str) -> DeleteRequest {
    DeleteRequest {
        key: key.to_owned().into(),
        range_end: range_end.to_owned().into(),
        ..DeleteRequest::default()
    }
}

fn stamp(session_id: u64, sequence: u64) -> Option<SessionStamp> {
    Some(SessionStamp {
        session_id,
        sequence,
        acknowledged: 0,
    })
}

fn revision(header: Option<dengine_protocol::v1::ResponseHeader>) -> u64 {
    header.unwrap().revision
}

async fn kv(member: &Member) -> KvClient<Channel> {
    let channel = KvClient::connect(format!("http://{}", member.address())).await;
    channel.unwrap().max_decoding_message_size(64 << 20)
}

/// All of them at a revision, 0 for now.
async fn all_pairs(kv: &mut KvClient<Channel>, revision: u64) -> RangeResponse {
    let range = RangeRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        revision,
        ..RangeRequest::default()
    };
    let found = kv.range(range).await.unwrap().into_inner();
    assert!(!found.more, "they fit into one answer");
    found
}

async fn hash(member: &Member) -> HashResponse {
    let admin = AdminClient::connect(&member.address()).await.unwrap();
    match admin.hash().await {
        Ok(hash) => hash,
        // Served on a port of its own since.
        Err(_) => {
            let address = format!("127.0.0.1:{}", member.admin_port);
            let admin = AdminClient::connect(&address).await.unwrap();
            admin.hash().await.unwrap()
        }
    }
}

fn to_hex(message: &impl Message) -> String {
    let bytes = message.encode_to_vec();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex<M: Message + Default>(text: &str) -> M {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect();
    M::decode(&bytes[..]).unwrap()
}
