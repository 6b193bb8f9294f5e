//! Ranges that clients of etcd are told in pieces.

use bytes::Bytes;
use dengine_etcd::etcdserverpb::kv_client::KvClient;
use dengine_etcd::etcdserverpb::range_request::{SortOrder, SortTarget};
use dengine_etcd::etcdserverpb::{
    CompactionRequest, PutRequest, RangeRequest, RangeResponse, RangeStreamResponse,
};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use crate::harness::{Cluster, Member, becomes};

const KEYS: usize = 12;
/// One of them is a piece.
const VALUE_BYTES: usize = 200 << 10;
/// What a client takes that does not read. Far less than a piece: no member is ahead of its client.
const WINDOW_BYTES: u32 = 64 << 10;

async fn kv(member: &Member) -> KvClient<Channel> {
    let port = member.etcd_port.expect("it serves clients of etcd");
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    let endpoint = endpoint
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    KvClient::new(endpoint.connect().await.unwrap()).max_decoding_message_size(usize::MAX)
}

fn put(key: String, value: impl Into<Bytes>) -> PutRequest {
    PutRequest {
        key: key.into(),
        value: value.into(),
        ..PutRequest::default()
    }
}

fn all() -> RangeRequest {
    RangeRequest {
        key: "k".into(),
        range_end: "l".into(),
        ..RangeRequest::default()
    }
}

/// Sets all keys; the last revision.
async fn fill(kv: &mut KvClient<Channel>, value: u8) -> i64 {
    let mut last = 0;
    for at in 0..KEYS {
        let put = put(format!("k{at:02}"), vec![value; VALUE_BYTES]);
        last = kv
            .put(put)
            .await
            .unwrap()
            .into_inner()
            .header
            .unwrap()
            .revision;
    }
    last
}

async fn begin(
    kv: &mut KvClient<Channel>,
    request: RangeRequest,
) -> Result<Streaming<RangeStreamResponse>, Status> {
    Ok(kv.range_stream(request).await?.into_inner())
}

/// The next piece; `None`: it was the last.
async fn next(
    pieces: &mut Streaming<RangeStreamResponse>,
) -> Result<Option<RangeResponse>, Status> {
    let piece = pieces.message().await?;
    Ok(piece.map(|it| it.range_response.unwrap()))
}

/// All pieces that are left.
async fn rest(pieces: &mut Streaming<RangeStreamResponse>) -> Result<Vec<RangeResponse>, Status> {
    let mut rest = Vec::new();
    while let Some(piece) = next(pieces).await? {
        rest.push(piece);
    }
    Ok(rest)
}

async fn refusal(kv: &mut KvClient<Channel>, request: RangeRequest) -> (Code, String) {
    let refused = match begin(kv, request).await {
        Ok(mut pieces) => rest(&mut pieces).await.map(drop),
        Err(status) => Err(status),
    };
    let status = refused.unwrap_err();
    (status.code(), status.message().to_owned())
}

#[tokio::test]
async fn pieces_are_of_one_revision_while_others_write() {
    let cluster = Cluster::form_with(3, Member::serve_etcd).await;
    let [leader, follower] = [cluster.leader().await, cluster.follower().await];
    for (round, place) in [follower, leader].into_iter().enumerate() {
        let member = &cluster.members[place];
        let (mut reads, mut writes) = (kv(member).await, kv(member).await);
        let at = fill(&mut writes, b'0' + round as u8).await;
        let mut pieces = begin(&mut reads, all()).await.unwrap();
        let mut told = vec![next(&mut pieces).await.unwrap().unwrap()];
        fill(&mut writes, b'x').await;
        let more = put(format!("kx{round}"), "later");
        writes.put(more).await.unwrap();
        told.extend(rest(&mut pieces).await.unwrap());
        assert_eq!(told.len(), KEYS, "one for each large value");
        let last = told.pop().unwrap();
        let header = last.header.unwrap();
        assert_eq!(header.revision, at);
        assert_eq!(header.member_id, member.status().await.member_id);
        for piece in &told {
            assert_eq!((&piece.header, piece.more, piece.count), (&None, false, 0));
        }
        let mut kvs: Vec<_> = told.into_iter().flat_map(|it| it.kvs).collect();
        kvs.extend(last.kvs);
        let then = RangeRequest {
            revision: at,
            ..all()
        };
        let whole = writes.range(then).await.unwrap().into_inner();
        assert!(kvs == whole.kvs, "the same pairs");
        assert_eq!((last.count, last.more), (whole.count, whole.more));
    }
}

#[tokio::test]
async fn a_limit_counts_what_it_leaves_out() {
    let cluster = Cluster::form_with(1, Member::serve_etcd).await;
    let mut kv = kv(&cluster.members[0]).await;
    let at = fill(&mut kv, b'v').await;
    let limited = RangeRequest {
        limit: 2,
        keys_only: true,
        ..all()
    };
    let mut pieces = begin(&mut kv, limited).await.unwrap();
    let told = rest(&mut pieces).await.unwrap();
    let [piece] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!((piece.kvs.len(), piece.more), (2, true));
    assert_eq!(usize::try_from(piece.count), Ok(KEYS));
    assert!(piece.kvs.iter().all(|kv| kv.value.is_empty()));
    let counted = RangeRequest {
        count_only: true,
        ..all()
    };
    let mut pieces = begin(&mut kv, counted).await.unwrap();
    let told = rest(&mut pieces).await.unwrap();
    assert_eq!((told.len(), told[0].kvs.len()), (1, 0));
    assert_eq!(usize::try_from(told[0].count), Ok(KEYS));
    assert_eq!(told[0].header.as_ref().unwrap().revision, at);
}

#[tokio::test]
async fn what_is_not_told_in_pieces_is_refused_in_etcds_words() {
    let cluster = Cluster::form_with(1, Member::serve_etcd).await;
    let mut kv = kv(&cluster.members[0]).await;
    let at = fill(&mut kv, b'v').await;
    let compact = CompactionRequest {
        revision: at,
        physical: false,
    };
    kv.compact(compact).await.unwrap();
    let sorted = RangeRequest {
        sort_target: SortTarget::Key.into(),
        sort_order: SortOrder::Descend.into(),
        ..all()
    };
    let bounded = RangeRequest {
        min_mod_revision: 1,
        ..all()
    };
    let at = |revision| RangeRequest { revision, ..all() };
    for (request, code, message) in [
        (
            RangeRequest::default(),
            Code::InvalidArgument,
            "etcdserver: key is not provided",
        ),
        (
            sorted,
            Code::Unimplemented,
            "RangeStream does not support custom sort orders",
        ),
        (
            bounded,
            Code::Unimplemented,
            "RangeStream does not support revision filters",
        ),
        (
            at(1 << 40),
            Code::OutOfRange,
            "etcdserver: mvcc: required revision is a future revision",
        ),
        (
            at(2),
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted",
        ),
    ] {
        let refused = refusal(&mut kv, request).await;
        assert_eq!(refused, (code, message.to_owned()));
    }
}

#[tokio::test]
async fn a_stream_ends_whose_revision_is_compacted_meanwhile() {
    let cluster = Cluster::form_with(1, Member::serve_etcd).await;
    let member = &cluster.members[0];
    let (mut reads, mut writes) = (kv(member).await, kv(member).await);
    fill(&mut writes, b'1').await;
    let mut pieces = begin(&mut reads, all()).await.unwrap();
    next(&mut pieces).await.unwrap().unwrap();
    let compact = CompactionRequest {
        revision: fill(&mut writes, b'2').await,
        physical: false,
    };
    writes.compact(compact).await.unwrap();
    let ended = rest(&mut pieces).await.unwrap_err();
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    assert_eq!(
        (ended.code(), ended.message()),
        (Code::OutOfRange, compacted)
    );
}

/// It would keep its place and its piece for as long as it likes.
#[tokio::test]
async fn a_client_that_does_not_read_is_let_go() {
    let cluster = Cluster::form_with(1, |member| {
        member.serve_etcd();
        member.add_args(["--stream-stall-timeout-ms", "500"]);
        member.add_args(["--max-watch-streams", "4"]);
        member.add_args(["--max-watch-streams-per-connection", "2"]);
    })
    .await;
    let member = &cluster.members[0];
    let (mut stops, mut reads) = (kv(member).await, kv(member).await);
    fill(&mut reads, b'v').await;
    let mut first = begin(&mut stops, all()).await.unwrap();
    let _second = begin(&mut stops, all()).await.unwrap();
    let many = (
        Code::ResourceExhausted,
        "etcdserver: too many requests".to_owned(),
    );
    assert_eq!(refusal(&mut stops, all()).await, many);
    member
        .says("a connection is closed: its client does not read its answers")
        .await;
    let cut_off = rest(&mut first).await;
    assert!(cut_off.is_err(), "{:?}", cut_off.map(|it| it.len()));
    // Its places are free, and who reads has all of it.
    becomes("another one is told everything", KEYS, || async {
        let mut kv = kv(member).await;
        let Ok(mut pieces) = begin(&mut kv, all()).await else {
            return 0;
        };
        rest(&mut pieces).await.map_or(0, |it| it.len())
    })
    .await;
}
