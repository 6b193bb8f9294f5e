//! Many calls over one stream: each is served, and fails, as if it were alone.

use std::collections::HashMap;
use std::time::Duration;

use dengine_client::{Client, ClientOptions, Consistency, Wire};
use dengine_protocol::FRAME_BYTES_MAX;
use dengine_protocol::v1::compare_and_swap_request::Expected;
use dengine_protocol::v1::kv_client::KvClient;
use dengine_protocol::v1::pipelined_answer::Answer;
use dengine_protocol::v1::pipelined_call::Call;
use dengine_protocol::v1::{
    CloseSessionRequest, CompareAndSwapRequest, DeleteRequest, GetRequest, PipelineRequest,
    PipelineResponse, PipelinedCall, PutRequest, RangeRequest,
};
use futures::future::join_all;
use prost::Message as _;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Code, Streaming};

use crate::durability::Shim;
use crate::harness::{Cluster, Member, becomes, eventually};

/// A stream to one member, spoken by hand.
struct Stream {
    calls: Option<mpsc::Sender<PipelineRequest>>,
    answers: Streaming<PipelineResponse>,
}

impl Stream {
    async fn open(member: &Member) -> Self {
        let address = format!("http://{}", member.address());
        let mut kv = KvClient::connect(address).await.unwrap();
        let (calls, frames) = mpsc::channel(4);
        let answers = kv.pipeline(ReceiverStream::new(frames)).await.unwrap();
        Self {
            calls: Some(calls),
            answers: answers.into_inner(),
        }
    }

    async fn send(&self, calls: impl IntoIterator<Item = Option<Call>>) {
        let calls = calls.into_iter().zip(1..);
        let calls = calls.map(|(call, id)| PipelinedCall {
            id,
            call,
            ..PipelinedCall::default()
        });
        self.send_frame(PipelineRequest {
            calls: calls.collect(),
            cancelled: Vec::new(),
        })
        .await;
    }

    async fn send_frame(&self, frame: PipelineRequest) {
        let open = self.calls.as_ref().unwrap();
        open.send(frame).await.unwrap();
    }

    /// So many answers, by id, and who was said to lead.
    async fn answers(&mut self, count: usize) -> (HashMap<u64, Answer>, String) {
        let (mut answers, mut leader) = (HashMap::new(), String::new());
        while answers.len() < count {
            let frame = self.answers.message().await.unwrap().unwrap();
            for answered in frame.answers {
                let twice = answers.insert(answered.id, answered.answer.unwrap());
                assert!(twice.is_none(), "call {} was answered twice", answered.id);
            }
            if !frame.leader.is_empty() {
                leader = frame.leader;
            }
        }
        (answers, leader)
    }
}

fn code(answer: &Answer) -> Code {
    match answer {
        Answer::Error(error) => Code::from_i32(error.code),
        _ => Code::Ok,
    }
}

fn put(key: &str) -> Call {
    Call::Put(PutRequest {
        key: key.to_owned().into(),
        value: "v".into(),
        ..PutRequest::default()
    })
}

/// One of each kind, and what each comes to.
fn mixed() -> Vec<(Option<Call>, Code)> {
    let swap = CompareAndSwapRequest {
        key: "swapped".into(),
        value: "v".into(),
        expected: Some(Expected::ModRevision(0)),
        ..CompareAndSwapRequest::default()
    };
    let delete = DeleteRequest {
        key: "a".into(),
        range_end: "b".into(),
        prev_kv: true,
        ..DeleteRequest::default()
    };
    let get = |consistency| GetRequest {
        key: "k".into(),
        consistency,
        ..GetRequest::default()
    };
    let range = RangeRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        ..RangeRequest::default()
    };
    let close = CloseSessionRequest { session_id: 77 };
    vec![
        (Some(put("k")), Code::Ok),
        (Some(put("")), Code::InvalidArgument),
        (Some(Call::CompareAndSwap(swap)), Code::Ok),
        (Some(Call::Delete(delete)), Code::Ok),
        (Some(Call::Get(get(0))), Code::Ok),
        (Some(Call::Get(get(2))), Code::Ok),
        (Some(Call::Get(get(3))), Code::Ok),
        (Some(Call::Get(get(4))), Code::Ok),
        (Some(Call::Get(get(99))), Code::InvalidArgument),
        (
            Some(Call::Get(GetRequest::default())),
            Code::InvalidArgument,
        ),
        (Some(Call::Range(range)), Code::Ok),
        (Some(Call::CloseSession(close)), Code::Ok),
        (None, Code::Unimplemented),
    ]
}

#[tokio::test]
async fn calls_of_one_frame_are_served_and_fail_each_for_itself() {
    let cluster = Cluster::form(3).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    for place in [leader, follower] {
        let (calls, expected): (Vec<_>, Vec<_>) = mixed().into_iter().unzip();
        let mut stream = Stream::open(&cluster.members[place]).await;
        stream.send(calls).await;
        let (answers, told) = stream.answers(expected.len()).await;
        for (id, expected) in (1..).zip(expected) {
            assert_eq!(
                code(&answers[&id]),
                expected,
                "call {id}: {:?}",
                answers[&id]
            );
        }
        let hint = if place == leader {
            String::new()
        } else {
            cluster.members[leader].address()
        };
        assert_eq!(told, hint, "a follower says where writes are served");
        stream.calls = None;
        assert!(stream.answers.message().await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_frame_beyond_the_bound_ends_its_stream_and_changes_nothing() {
    let cluster = Cluster::form(1).await;
    let mut stream = Stream::open(&cluster.members[0]).await;
    let large = PutRequest {
        key: "large".into(),
        value: vec![0; 8 << 20].into(),
        ..PutRequest::default()
    };
    stream.send([Some(put("k")), Some(Call::Put(large))]).await;
    let status = stream.answers.message().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    let client = cluster.client().await;
    let read = client.get("k", Consistency::Linearizable).await.unwrap();
    assert!(read.kv.is_none());
    // Nor does a client's own call of that size, which it makes alone, disturb its others.
    let others = join_all((0..50).map(|n| client.put(format!("k{n}"), "v")));
    let (refused, others) = tokio::join!(client.put("large", vec![0; 2 << 20]), others);
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("--max-value-bytes")
    );
    others.into_iter().for_each(|put| drop(put.unwrap()));
}

/// How many writes it has passed on to the leader as messages.
async fn passed_on(member: &Member) -> u64 {
    let metrics = crate::health::scrape(member.monitor_port).await;
    let lines = metrics.lines();
    let of_writes = lines.filter(|it| it.starts_with("dengine_writes_passed_on_total "));
    of_writes
        .map(|it| it.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

/// It went to the leader only after what this member's own disk held up had been answered.
#[tokio::test]
async fn what_is_forwarded_does_not_wait_for_what_is_passed_on() {
    let shim = Shim::build();
    let cluster = Cluster::form_with(3, |member| shim.between(member)).await;
    let member = &cluster.members[cluster.follower().await];
    let mut stream = Stream::open(member).await;
    eventually("it passes writes on", || async {
        member.client().await.put("before", "v").await.unwrap();
        (passed_on(member).await > 0).then_some(())
    })
    .await;
    shim.hang(member);
    let put_of = |bytes: usize| {
        Some(Call::Put(PutRequest {
            key: "large".into(),
            value: vec![0; bytes].into(),
            ..PutRequest::default()
        }))
    };
    // The last ones are beyond what one client may have on its way.
    let sizes = [1, 100 << 10].into_iter().chain([50 << 10; 14]);
    stream.send(sizes.map(put_of)).await;
    let answers = tokio::time::timeout(Duration::from_secs(3), stream.answers(2)).await;
    let (answers, _) = answers.expect("they wait for nothing here");
    assert!(
        matches!(answers.get(&2), Some(Answer::Put(_))),
        "{answers:?}"
    );
    shim.go_on(member);
    let (answers, _) = stream.answers(16 - answers.len()).await;
    assert!(
        answers.values().all(|it| matches!(it, Answer::Put(_))),
        "{answers:?}"
    );
}

#[tokio::test]
async fn clients_find_the_leader_by_what_followers_tell() {
    let cluster = Cluster::form(3).await;
    let follower = cluster.follower().await;
    let forwarded = || passed_on(&cluster.members[follower]);
    for (wire, first) in [(Wire::Pipelined, 1), (Wire::Unary, 2)] {
        let options = ClientOptions {
            connections: 3,
            wire,
            ..ClientOptions::default()
        };
        let client = Client::connect_with(cluster.endpoints(), options);
        let client = client.await.unwrap().with_affinity(follower);
        client.put("k", "v").await.unwrap();
        // It is told with the member's next tick.
        let told = async {
            while forwarded().await < first {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let told = tokio::time::timeout(Duration::from_secs(10), told).await;
        told.unwrap_or_else(|_| panic!("{wire:?}: the first was not passed on"));
        for _ in 0..20 {
            client.put("k", "v").await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let all = forwarded().await;
        assert_eq!(all, first, "{wire:?}: the rest went straight to the leader");
    }
}

/// It ended the stream by which a follower passes on what all of its clients write.
#[tokio::test]
async fn a_write_that_is_too_large_for_the_leader_alone_is_refused_alone() {
    let small = |member: &mut Member| member.env("DENGINE_MAX_VALUE_BYTES", "100000");
    let mut cluster = Cluster::form_with(3, small).await;
    let follower = cluster.follower().await;
    // In the midst of a change of settings, member by member.
    let member = &mut cluster.members[follower];
    member.terminate();
    member.env("DENGINE_MAX_VALUE_BYTES", "2000000");
    member.start();
    member.ready().await;
    let address = format!("http://{}", member.address());
    let kv = KvClient::connect(address).await.unwrap();
    let put = |bytes: usize| {
        let mut kv = kv.clone();
        let put = PutRequest {
            key: "k".into(),
            value: vec![0; bytes].into(),
            ..PutRequest::default()
        };
        async move { kv.put(put).await.map_err(|status| status.code()) }
    };
    let large = put(1_900_000);
    let (large, others) = tokio::join!(large, join_all((0..50).map(put)));
    assert_eq!(large.unwrap_err(), Code::InvalidArgument);
    others.into_iter().for_each(|put| drop(put.unwrap()));
}

#[tokio::test]
async fn a_member_that_stops_answers_what_it_was_sent() {
    let mut cluster = Cluster::form(1).await;
    let mut stream = Stream::open(&cluster.members[0]).await;
    stream
        .send((0..500).map(|n| Some(put(&format!("k{n}")))))
        .await;
    let stopping = std::thread::spawn(move || cluster.members[0].terminate());
    let mut answered = 0;
    let mut closing = false;
    while let Some(frame) = stream.answers.message().await.unwrap() {
        let ok = frame
            .answers
            .iter()
            .filter(|it| code(it.answer.as_ref().unwrap()) == Code::Ok);
        answered += ok.count();
        if frame.closing {
            closing = true;
            stream.calls = None;
        }
    }
    assert!(closing, "it asks its clients to go elsewhere");
    assert_eq!(answered, 500);
    assert!(stopping.join().unwrap().success());
}

#[tokio::test]
async fn both_wires_serve_the_same_keys() {
    let cluster = Cluster::form(1).await;
    let mut seen = Vec::new();
    for wire in [Wire::Unary, Wire::Pipelined] {
        let options = ClientOptions {
            wire,
            request_timeout: Duration::from_secs(30),
            ..ClientOptions::default()
        };
        let client = Client::connect_with(cluster.endpoints(), options)
            .await
            .unwrap();
        let puts = join_all((0..2000).map(|n| client.put(format!("k{n}"), "v"))).await;
        puts.into_iter().for_each(|put| drop(put.unwrap()));
        seen.push(
            client
                .get("k1999", Consistency::Linearizable)
                .await
                .unwrap(),
        );
    }
    let versions: Vec<_> = seen
        .iter()
        .map(|it| it.kv.as_ref().unwrap().version)
        .collect();
    assert_eq!(versions, [1, 2]);
    becomes("all calls are counted down", true, || async {
        let metrics = crate::health::scrape(cluster.members[0].monitor_port).await;
        metrics.contains("dengine_requests_in_flight 0")
    })
    .await;
}

/// Reads a key from there.
async fn get_from(member: &Member, address: [u8; 4], key: &str) -> Result<(), tonic::Status> {
    let endpoint = Endpoint::from_shared(format!("http://{}", member.address()));
    let endpoint = endpoint.unwrap().local_address(Some(address.into()));
    let get = GetRequest {
        key: key.to_owned().into(),
        ..GetRequest::default()
    };
    let mut kv = KvClient::new(endpoint.connect().await.unwrap());
    kv.get(get).await.map(drop)
}

/// Its connection lives, for it answers pings. What it asked for must not stand in the way of
/// others forever.
#[tokio::test]
async fn a_client_that_does_not_read_its_answers_gives_its_places_back() {
    const CALLS: usize = 64;
    let cluster = Cluster::form_with(1, |member| {
        // Long enough to be seen, however busy the machine is.
        member.add_args(["--stream-stall-timeout-ms", "6000"]);
        member.add_args(["--max-concurrent-requests", &CALLS.to_string()]);
    })
    .await;
    let client = cluster.client().await;
    client.put("large", vec![7; 256 << 10]).await.unwrap();
    let one_try = ClientOptions {
        retry: dengine_client::RetryPolicy::NONE,
        ..ClientOptions::default()
    };
    let other = Client::connect_with([cluster.members[0].address()], one_try);
    let other = other.await.unwrap();
    let mut stream = Stream::open(&cluster.members[0]).await;
    let get = GetRequest {
        key: "large".into(),
        ..GetRequest::default()
    };
    // More than the windows of the connection hold.
    stream.send(vec![Some(Call::Get(get)); CALLS]).await;
    let get = || async { other.get("large", Consistency::Linearizable).await };
    // Asked where no place is needed: whoever takes the last one has all these calls refused. One
    // address has three quarters of what no other has.
    const OF_ONE: usize = CALLS / 4 * 3;
    becomes("all places of this address are taken", true, || async {
        let metrics = crate::health::scrape(cluster.members[0].monitor_port).await;
        metrics.contains(&format!("dengine_requests_in_flight {OF_ONE}\n"))
    })
    .await;
    get_from(&cluster.members[0], [127, 0, 0, 2], "large")
        .await
        .expect("another address has places");
    get().await.unwrap_err();
    eventually("another client is served", || async { get().await.ok() }).await;
    let end = loop {
        match stream.answers.message().await {
            Ok(frame) => assert!(frame.is_some(), "it is told why its stream ends"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::ResourceExhausted, "{end}");
}

/// A key of 100 KiB, and so many swaps that fail on it.
async fn failing_swaps(cluster: &Cluster, count: usize) -> Vec<Option<Call>> {
    let client = cluster.client().await;
    client.put("large", vec![b'x'; 100 << 10]).await.unwrap();
    let swap = CompareAndSwapRequest {
        key: "large".into(),
        value: "v".into(),
        expected: Some(Expected::ModRevision(0)),
        ..CompareAndSwapRequest::default()
    };
    vec![Some(Call::CompareAndSwap(swap)); count]
}

/// A frame of three kilobytes was answered by one of as many megabytes as it had calls, which broke
/// the stream.
#[tokio::test]
async fn answers_that_are_large_together_come_in_frames_of_bounded_size() {
    let cluster = Cluster::form(1).await;
    let calls = failing_swaps(&cluster, 200).await;
    let stream = Stream::open(&cluster.members[0]).await;
    stream.send(calls).await;
    let (mut answers, mut answered) = (stream.answers, 0);
    while answered < 200 {
        let frame = answers.message().await.unwrap().unwrap();
        assert!(frame.encoded_len() <= FRAME_BYTES_MAX + 4096);
        answered += frame.answers.len();
    }
}

#[tokio::test]
async fn without_memory_for_its_pairs_a_write_is_still_told_that_it_was_served() {
    let brief = |member: &mut Member| {
        let kib = |kib: usize| (kib << 10).to_string();
        member.add_args(["--max-answer-bytes", &kib(400)]);
        member.add_args([
            "--max-value-bytes",
            &kib(200),
            "--max-range-bytes",
            &kib(200),
        ]);
    };
    let cluster = Cluster::form_with(1, brief).await;
    let calls = failing_swaps(&cluster, 50).await;
    let mut stream = Stream::open(&cluster.members[0]).await;
    stream.send(calls).await;
    let (answers, _) = stream.answers(50).await;
    let trimmed = answers.values().filter(|answer| match answer {
        Answer::CompareAndSwap(it) => it.header.as_ref().unwrap().trimmed,
        other => panic!("{other:?}"),
    });
    assert!((40..50).contains(&trimmed.count()));
}

#[tokio::test]
async fn a_frame_of_more_calls_than_are_served_at_once_is_served_in_parts() {
    let few = |member: &mut Member| member.add_args(["--max-concurrent-requests", "1"]);
    let cluster = Cluster::form_with(1, few).await;
    let mut stream = Stream::open(&cluster.members[0]).await;
    let get = Call::Get(GetRequest {
        key: "k".into(),
        ..GetRequest::default()
    });
    let puts = (0..100).map(|n| Some(put(&format!("k{n}"))));
    stream
        .send(puts.chain((0..100).map(|_| Some(get.clone()))))
        .await;
    let (answers, _) = stream.answers(200).await;
    assert!(answers.values().all(|answer| code(answer) == Code::Ok));
}

/// Carries what a client says, and nothing of what it is told. Ends when the member closes the
/// connection.
async fn mute(listener: TcpListener, member: String) {
    let (client, _) = listener.accept().await.unwrap();
    let (mut said, _kept) = client.into_split();
    let (mut told, mut to_member) = TcpStream::connect(member).await.unwrap().into_split();
    let carried = tokio::spawn(async move { tokio::io::copy(&mut said, &mut to_member).await });
    while told.read(&mut [0; 65536]).await.is_ok_and(|read| read > 0) {}
    carried.abort();
}

/// What it was to be sent would otherwise be kept for as long as it likes.
#[tokio::test]
async fn a_client_that_does_not_read_its_answer_loses_its_connection() {
    let hasty = |member: &mut Member| member.add_args(["--stream-stall-timeout-ms", "500"]);
    let cluster = Cluster::form_with(1, hasty).await;
    let client = cluster.client().await;
    client.put("large", vec![b'x'; 1 << 20]).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let closed = tokio::spawn(mute(listener, cluster.members[0].address()));
    // Less than the answer, or all of it would be on its way whether it is read or not.
    let channel = Endpoint::from_shared(address)
        .unwrap()
        .initial_stream_window_size(65_535);
    let mut kv = KvClient::new(channel.connect().await.unwrap());
    let unread = tokio::spawn(async move {
        let get = GetRequest {
            key: "large".into(),
            consistency: 2,
            ..GetRequest::default()
        };
        kv.get(get).await
    });
    tokio::time::timeout(Duration::from_secs(15), closed)
        .await
        .expect("the member closes the connection")
        .unwrap();
    unread.await.unwrap().unwrap_err();
    client
        .get("large", Consistency::Linearizable)
        .await
        .unwrap();
}

/// What the client gave up on went on for as long as the member waits: five seconds, with its
/// place.
#[tokio::test]
async fn a_call_ends_when_its_client_gives_it_up_or_its_time_is_over() {
    let mut cluster = Cluster::form(3).await;
    let leader = cluster.leader().await;
    let cluster_id = cluster.members[leader].status().await.cluster_id;
    let mut stream = Stream::open(&cluster.members[leader]).await;
    for place in (0..3).filter(|place| *place != leader) {
        cluster.members[place].kill();
    }
    let never = |consistency| {
        Call::Get(GetRequest {
            key: "k".into(),
            consistency,
            at_least: Some(dengine_protocol::v1::Position {
                cluster_id,
                revision: u64::MAX,
            }),
            ..GetRequest::default()
        })
    };
    let calls = [
        // A session read, a linearizable one and a write, none of which can be served now: each
        // with a short time,
        (1, never(4), 200),
        (2, never(0), 200),
        (3, put("k"), 200),
        // and each without one.
        (4, never(4), 0),
        (5, put("k"), 0),
    ];
    let calls = calls.map(|(id, call, timeout_ms)| PipelinedCall {
        id,
        call: Some(call),
        timeout_ms,
        ..PipelinedCall::default()
    });
    let begun = std::time::Instant::now();
    stream
        .send_frame(PipelineRequest {
            calls: calls.to_vec(),
            cancelled: Vec::new(),
        })
        .await;
    let (answers, _) = stream.answers(2).await;
    for id in [1, 2] {
        let answer = answers.get(&id).unwrap_or_else(|| panic!("{answers:?}"));
        assert_eq!(code(answer), Code::DeadlineExceeded, "{answer:?}");
    }
    stream
        .send_frame(PipelineRequest {
            calls: Vec::new(),
            cancelled: vec![4, 99],
        })
        .await;
    let (answers, _) = stream.answers(1).await;
    assert_eq!(code(&answers[&4]), Code::Cancelled);
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
    let (answers, _) = stream.answers(2).await;
    for id in [3, 5] {
        assert_ne!(code(&answers[&id]), Code::Ok);
    }
}
