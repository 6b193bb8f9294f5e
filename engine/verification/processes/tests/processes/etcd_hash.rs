//! Hashes by which clients of etcd compare members.

use dengine_etcd::etcdserverpb::kv_client::KvClient;
use dengine_etcd::etcdserverpb::maintenance_client::MaintenanceClient;
use dengine_etcd::etcdserverpb::{CompactionRequest, HashKvRequest, HashKvResponse, PutRequest};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::harness::{Cluster, Member, becomes};

async fn channel(member: &Member) -> Channel {
    let port = member.etcd_port.expect("it serves clients of etcd");
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    endpoint.connect().await.unwrap()
}

async fn hash(member: &Member, revision: i64) -> Result<HashKvResponse, Status> {
    let mut care = MaintenanceClient::new(channel(member).await);
    let hashed = care.hash_kv(HashKvRequest { revision }).await;
    hashed.map(tonic::Response::into_inner)
}

/// Sets a key; of when that is.
async fn put(kv: &mut KvClient<Channel>, value: &str) -> i64 {
    let put = PutRequest {
        key: "k".into(),
        value: value.to_owned().into(),
        ..PutRequest::default()
    };
    let put = kv.put(put).await.unwrap().into_inner();
    put.header.unwrap().revision
}

/// Hashes of the present are equal only where nobody writes.
#[tokio::test]
async fn members_have_one_hash_of_a_revision_of_the_past() {
    let cluster = Cluster::form_with(3, Member::serve_etcd).await;
    let mut kv = KvClient::new(channel(&cluster.members[0]).await);
    let at = put(&mut kv, "one").await;
    let first = hash(&cluster.members[0], at).await.unwrap();
    let newest = put(&mut kv, "two").await;
    for member in &cluster.members {
        becomes("the member has applied it", newest, async || {
            let now = hash(member, 0).await.unwrap();
            now.hash_revision
        })
        .await;
        let then = hash(member, at).await.unwrap();
        assert_eq!((then.hash, then.hash_revision), (first.hash, at));
        assert_eq!(then.header.unwrap().revision, newest);
        assert_eq!(then.compact_revision, first.compact_revision);
        assert_ne!(hash(member, newest).await.unwrap().hash, first.hash);
    }
    let compact = CompactionRequest {
        revision: newest,
        physical: false,
    };
    kv.compact(compact).await.unwrap();
    let member = &cluster.members[0];
    let compacted = hash(member, newest).await.unwrap().compact_revision;
    assert_eq!(compacted, newest);
    for (revision, message) in [
        (at, "etcdserver: mvcc: required revision has been compacted"),
        (
            newest + 1,
            "etcdserver: mvcc: required revision is a future revision",
        ),
    ] {
        let status = hash(member, revision).await.unwrap_err();
        let told = (status.code(), status.message());
        assert_eq!(told, (Code::OutOfRange, message));
    }
}
