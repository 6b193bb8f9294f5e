//! What the client sends, repeats and returns, against a scripted peer on loopback.

use std::time::{Duration, Instant};

use dengine_client::policy::RENEW_AFTER;
use dengine_client::{
    Client, ClientOptions, Consistency, Error, Expected, KeyRange, RangeQuery, RetryPolicy, Wire,
};
use dengine_fake_kv::{Between, Peer, ScriptStep, balanced};
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Code;
use tonic::service::Routes;
use tonic::transport::Server;

/// The same promises hold however calls travel.
macro_rules! over_both_wires {
    ($($test:ident),* $(,)?) => {
        mod pipelined {
            $(#[tokio::test]
            async fn $test() {
                super::$test(dengine_client::Wire::Pipelined).await;
            })*
        }

        mod unary {
            $(#[tokio::test]
            async fn $test() {
                super::$test(dengine_client::Wire::Unary).await;
            })*
        }
    };
}

over_both_wires!(
    pages_go_through_a_range_at_one_revision,
    results_are_typed,
    what_was_not_served_is_sent_again,
    a_write_of_unknown_outcome_is_never_sent_again,
    errors_that_no_repetition_mends_are_returned_at_once,
    a_full_disk_is_no_load_that_passes,
    a_deadline_leaves_a_write_unknown_and_a_read_unanswered,
    a_timeout_tells_of_all_that_was_waited,
    a_clone_may_have_less_time,
    a_connection_lost_after_a_write_was_sent_leaves_it_unknown,
    a_connection_lost_during_a_read_is_replaced_by_another,
    a_dead_endpoint_costs_no_call,
    a_port_that_is_no_members_is_named_with_what_to_name_instead,
    a_member_that_has_answered_is_taken_for_no_stranger,
    the_leader_that_a_member_names_is_asked_next,
    a_hint_that_leads_nowhere_falls_back_to_the_endpoints,
    retries_end_with_the_deadline_and_pause_in_between,
    a_silent_member_costs_a_read_one_attempt,
    who_writes_to_a_silent_member_waits_and_others_are_sent_elsewhere,
    a_slow_write_keeps_no_other_from_a_member_that_answers,
    a_bad_request_does_not_forget_who_leads,
    retries_can_be_turned_off,
    calls_are_spread_over_all_connections_or_stay_on_one,
    a_member_that_serves_nobody_is_left_for_another_behind_the_same_address,
    a_member_that_does_not_answer_is_left_for_another_behind_the_same_address,
);

fn options(wire: Wire) -> ClientOptions {
    let delay_min = Duration::from_millis(1);
    ClientOptions {
        retry: RetryPolicy {
            delay_min,
            ..RetryPolicy::STANDARD
        },
        wire,
        ..ClientOptions::default()
    }
}

async fn connect(wire: Wire, peers: &[&Peer]) -> Client {
    Client::connect_with(peers.iter().map(|peer| peer.address.clone()), options(wire))
        .await
        .unwrap()
}

/// An address that nothing listens on.
async fn closed_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

async fn pages_go_through_a_range_at_one_revision(wire: Wire) {
    let peer = Peer::start().await;
    let client = connect(wire, &[&peer]).await;
    for n in 0..7 {
        client.put(format!("k{n}"), "v").await.unwrap();
    }
    let revision = client.put("other", "v").await.unwrap().header.revision;
    let mut pages = client.pages(RangeQuery::new(KeyRange::prefix("k")).limit(3));
    let mut sizes = Vec::new();
    let mut keys = Vec::new();
    while let Some(page) = pages.next().await.unwrap() {
        sizes.push(page.len());
        keys.extend(page.into_iter().map(|kv| kv.key));
    }
    let expected: Vec<_> = (0..7).map(|n| format!("k{n}")).collect();
    assert_eq!(
        (sizes, keys),
        (
            vec![3, 3, 1],
            expected
                .iter()
                .map(|key| key.clone().into())
                .collect::<Vec<bytes::Bytes>>()
        )
    );
    assert_eq!(pages.next().await.unwrap(), None);
    let revisions = peer.revisions_of_ranges();
    assert_eq!(
        revisions,
        [0, revision, revision],
        "all pages are of the first one's"
    );
    let all = client.pages(KeyRange::prefix("k")).all().await.unwrap();
    assert_eq!(all.len(), 7);
    assert_eq!(client.pages(KeyRange::none()).all().await.unwrap(), []);
}

async fn results_are_typed(wire: Wire) {
    let peer = Peer::start().await;
    let client = connect(wire, &[&peer]).await;

    let put = client.put("a", "1").await.unwrap();
    assert_eq!(
        (put.header.cluster_id, put.header.revision, put.header.term),
        (7, 2, 2)
    );
    let again = client.put_returning_previous("a", "2").await.unwrap();
    assert_eq!(again.previous.unwrap().value, "1");

    let kv = client
        .get("a", Consistency::Linearizable)
        .await
        .unwrap()
        .kv
        .unwrap();
    assert_eq!(
        (kv.value.as_ref(), kv.create_revision, kv.mod_revision),
        (&b"2"[..], 2, 3)
    );
    assert_eq!(kv.version, 2);
    assert_eq!(
        client.get("b", Consistency::Eventual).await.unwrap().kv,
        None
    );

    let swap = client
        .compare_and_swap("a", Expected::Absent, "x")
        .await
        .unwrap();
    assert!(!swap.succeeded);
    assert_eq!(swap.previous.unwrap().mod_revision, 3);
    assert!(
        client
            .compare_and_swap("b", Expected::Absent, "3")
            .await
            .unwrap()
            .succeeded,
        "b did not exist"
    );

    let some = client
        .range(RangeQuery::new(KeyRange::all()).limit(1))
        .await
        .unwrap();
    assert_eq!((some.kvs.len(), some.more, some.count), (1, true, None));
    assert_eq!(client.delete("a").await.unwrap().deleted, 1);
    assert_eq!(
        client
            .delete_range(KeyRange::prefix(""))
            .await
            .unwrap()
            .deleted,
        1
    );
}

async fn what_was_not_served_is_sent_again(wire: Wire) {
    let script = [
        ScriptStep::Fail(Code::Unavailable),
        ScriptStep::Fail(Code::ResourceExhausted),
    ];
    let peer = Peer::scripted(script).await;
    connect(wire, &[&peer]).await.put("a", "1").await.unwrap();
    assert_eq!(peer.requests(), 3);
}

/// It was sent 32 times, and done each time, and then its caller was told that nothing had changed.
#[tokio::test]
async fn a_write_that_a_proxy_answers_in_a_members_place_is_sent_once_and_unknown() {
    for between in [
        Between::Http(502),
        Between::Http(503),
        Between::Http(504),
        Between::Grpc(Code::Unavailable),
        Between::Grpc(Code::ResourceExhausted),
    ] {
        let peer = Peer::start().await;
        peer.is_behind_what_answers(between);
        let client = connect(Wire::Unary, &[&peer]).await;
        let error = client.put("a", "1").await.unwrap_err();
        assert!(matches!(error, Error::UnknownOutcome { .. }), "{error}");
        assert_eq!(peer.requests(), 1);
    }
}

async fn a_write_of_unknown_outcome_is_never_sent_again(wire: Wire) {
    for code in [
        Code::DeadlineExceeded,
        Code::Cancelled,
        Code::Internal,
        Code::Aborted,
    ] {
        let peer = Peer::scripted([ScriptStep::Fail(code)]).await;
        let error = connect(wire, &[&peer])
            .await
            .put("a", "1")
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::UnknownOutcome { .. }),
            "{code:?}: {error}"
        );
        assert_eq!(peer.requests(), 1, "{code:?}");
    }
}

async fn errors_that_no_repetition_mends_are_returned_at_once(wire: Wire) {
    for code in [
        Code::InvalidArgument,
        Code::OutOfRange,
        Code::FailedPrecondition,
    ] {
        let peer = Peer::scripted([ScriptStep::Fail(code)]).await;
        let error = connect(wire, &[&peer])
            .await
            .get("a", Consistency::Linearizable)
            .await
            .unwrap_err();
        assert!(error.to_string().contains("scripted"), "{error}");
        assert_eq!(peer.requests(), 1, "{code:?}");
    }
}

async fn a_full_disk_is_no_load_that_passes(wire: Wire) {
    let peer = Peer::scripted((0..20).map(|_| ScriptStep::LowOnSpace)).await;
    let client = connect(wire, &[&peer]).await;
    let error = client.put("a", "1").await.unwrap_err();
    assert!(matches!(error, Error::LowOnSpace { .. }), "{error}");
    assert_eq!(peer.requests(), 5, "as long as a leader hands over");
    // What is deleted makes room, and the leader may be another one by then.
    let peer = Peer::scripted([ScriptStep::LowOnSpace]).await;
    connect(wire, &[&peer]).await.put("a", "1").await.unwrap();
}

async fn a_deadline_leaves_a_write_unknown_and_a_read_unanswered(wire: Wire) {
    let peer = Peer::scripted([ScriptStep::Hang, ScriptStep::Hang]).await;
    let short = ClientOptions {
        request_timeout: Duration::from_millis(100),
        ..options(wire)
    };
    let client = Client::connect_with([peer.address.clone()], short)
        .await
        .unwrap();

    let write = client.put("a", "1").await.unwrap_err();
    assert!(matches!(write, Error::UnknownOutcome { .. }), "{write}");
    let read = client.get("a", Consistency::Eventual).await.unwrap_err();
    assert!(matches!(read, Error::Timeout { .. }), "{read}");
    assert_eq!(peer.requests(), 2);
}

/// And not only of the last attempt's part.
async fn a_timeout_tells_of_all_that_was_waited(wire: Wire) {
    let peer = Peer::scripted((0..100).map(|_| ScriptStep::Hang)).await;
    let retry = RetryPolicy {
        attempt_timeout: Duration::from_millis(20),
        ..RetryPolicy::STANDARD
    };
    let impatient = ClientOptions {
        request_timeout: Duration::from_millis(300),
        retry,
        ..options(wire)
    };
    let client = Client::connect_with([peer.address.clone()], impatient).await;
    let read = client.unwrap().get("a", Consistency::Eventual).await;
    let told = read.unwrap_err().to_string();
    let waited = told.split_once("no answer within ").unwrap().1;
    let waited = humantime::parse_duration(waited).unwrap();
    assert!(waited > Duration::from_millis(150), "{told}");
    assert!(waited <= Duration::from_millis(300), "{told}");
}

async fn a_clone_may_have_less_time(wire: Wire) {
    let peer = Peer::scripted([ScriptStep::Hang]).await;
    let client = connect(wire, &[&peer]).await;
    let hasty = client.with_request_timeout(Duration::from_millis(50));
    let write = hasty.put("a", "1").await.unwrap_err();
    assert!(matches!(write, Error::UnknownOutcome { .. }), "{write}");
    assert!(write.to_string().contains("50 ms"), "{write}");
    let late = client.with_request_timeout(Duration::ZERO);
    let write = late.put("a", "1").await.unwrap_err();
    assert!(matches!(write, Error::Unavailable { .. }), "{write}");
    client.put("a", "1").await.unwrap();
    assert_eq!(peer.requests(), 2);
}

/// Closes its first connections once each has carried `key` to it, and counts them.
async fn peer_that_hangs_up(key: &'static [u8], connections: usize) -> (String, CountTask) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let task = tokio::spawn(async move {
        for _ in 0..connections {
            let (stream, _) = listener.accept().await.unwrap();
            read_until(stream, key).await;
        }
    });
    (address, task)
}

type CountTask = tokio::task::JoinHandle<()>;

async fn read_until(mut stream: TcpStream, key: &[u8]) {
    let mut seen = Vec::new();
    while !seen.windows(key.len()).any(|window| window == key) {
        assert!(
            stream.read_buf(&mut seen).await.unwrap() > 0,
            "closed before the request came"
        );
    }
}

async fn a_connection_lost_after_a_write_was_sent_leaves_it_unknown(wire: Wire) {
    let (address, served) = peer_that_hangs_up(b"needle", 1).await;
    let second = Peer::start().await;
    let client = Client::connect_with([address, second.address.clone()], options(wire))
        .await
        .unwrap();
    let error = client
        .with_affinity(0)
        .put("needle", "1")
        .await
        .unwrap_err();
    assert!(matches!(error, Error::UnknownOutcome { .. }), "{error}");
    served.await.unwrap();
    assert_eq!(second.requests(), 0);
}

async fn a_connection_lost_during_a_read_is_replaced_by_another(wire: Wire) {
    let (address, served) = peer_that_hangs_up(b"needle", 1).await;
    let second = Peer::start().await;
    let client = Client::connect_with([address, second.address.clone()], options(wire))
        .await
        .unwrap();
    client
        .with_affinity(0)
        .get("needle", Consistency::Linearizable)
        .await
        .unwrap();
    served.await.unwrap();
    assert_eq!(second.requests(), 1);
}

async fn a_dead_endpoint_costs_no_call(wire: Wire) {
    let peer = Peer::start().await;
    let endpoints = [closed_address().await, peer.address.clone()];
    let client = Client::connect_with(endpoints, options(wire))
        .await
        .unwrap();
    for _ in 0..10 {
        client.put("a", "1").await.unwrap();
    }
    assert_eq!(peer.requests(), 10);
}

/// Listens as something else than a member does.
async fn stranger(of: Stranger) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    if of == Stranger::ServesOtherCalls {
        let other = Server::builder().add_routes(Routes::default());
        tokio::spawn(other.serve_with_incoming(TcpListenerStream::new(listener)));
        return address;
    }
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut preface = [0; 24];
                stream.read_exact(&mut preface).await.unwrap();
                if of == Stranger::SpeaksHttp1 {
                    let refusal = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
                    stream.write_all(refusal).await.unwrap();
                }
            });
        }
    });
    address
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stranger {
    HangsUp,
    SpeaksHttp1,
    ServesOtherCalls,
}

/// All that was told was "unavailable: ", or a code.
async fn a_port_that_is_no_members_is_named_with_what_to_name_instead(wire: Wire) {
    for of in [
        Stranger::HangsUp,
        Stranger::SpeaksHttp1,
        Stranger::ServesOtherCalls,
    ] {
        let address = stranger(of).await;
        let once = ClientOptions {
            retry: RetryPolicy::NONE,
            ..options(wire)
        };
        let client = Client::connect_with([address.clone()], once).await.unwrap();
        for error in [
            client.put("a", "1").await.unwrap_err(),
            client.get("a", Consistency::Eventual).await.unwrap_err(),
            client.watch(KeyRange::prefix("a")).await.unwrap_err(),
        ] {
            let told = error.to_string();
            assert!(!told.contains(": ;"), "{of:?}: {told}");
            assert!(told.contains(&address), "{of:?}: {told}");
            assert!(told.contains("--listen-client"), "{of:?}: {told}");
        }
    }
}

async fn a_member_that_has_answered_is_taken_for_no_stranger(wire: Wire) {
    let peer = Peer::start().await;
    let once = ClientOptions {
        retry: RetryPolicy::NONE,
        ..options(wire)
    };
    let client = Client::connect_with([peer.address.clone()], once)
        .await
        .unwrap();
    client.put("a", "1").await.unwrap();
    peer.is_behind_what_answers(Between::Http(503));
    // Over another stream.
    let large = vec![0; dengine_protocol::FRAME_BYTES_MAX];
    let told = client.put("a", large).await.unwrap_err().to_string();
    assert!(told.contains("503"), "{told}");
    assert!(!told.contains("--listen-client"), "{told}");
}

#[tokio::test]
async fn no_endpoint_at_all_is_said_when_connecting() {
    let error = Client::connect([closed_address().await]).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("onnection refused"), "{error}");
}

async fn the_leader_that_a_member_names_is_asked_next(wire: Wire) {
    let leader = Peer::start().await;
    let follower = Peer::scripted([ScriptStep::NotLeader(leader.address.clone())]).await;
    connect(wire, &[&follower])
        .await
        .put("a", "1")
        .await
        .unwrap();
    assert_eq!((follower.requests(), leader.requests()), (1, 1));
}

async fn a_hint_that_leads_nowhere_falls_back_to_the_endpoints(wire: Wire) {
    let hint = ScriptStep::NotLeader(closed_address().await);
    let follower = Peer::scripted([hint]).await;
    connect(wire, &[&follower])
        .await
        .put("a", "1")
        .await
        .unwrap();
    assert_eq!(follower.requests(), 2);
}

async fn retries_end_with_the_deadline_and_pause_in_between(wire: Wire) {
    let peer = Peer::start().await;
    peer.always(Code::Unavailable);
    let policy = RetryPolicy {
        delay_min: Duration::from_millis(20),
        ..RetryPolicy::STANDARD
    };
    let timeout = Duration::from_millis(300);
    let bounded = ClientOptions {
        request_timeout: timeout,
        retry: policy,
        ..options(wire)
    };
    let client = Client::connect_with([peer.address.clone()], bounded)
        .await
        .unwrap();

    let started = Instant::now();
    let error = client.put("a", "1").await.unwrap_err();
    assert!(
        matches!(error, Error::Unavailable { .. }),
        "not one attempt was served: {error}"
    );
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    assert!(
        (2..=5).contains(&peer.requests()),
        "{} attempts",
        peer.requests()
    );
}

/// Where the last pause was to end just before the deadline, its timer was late, and an attempt
/// followed that had no time at all.
#[tokio::test]
async fn what_nobody_got_has_no_unknown_outcome() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let brief = ClientOptions {
        request_timeout: Duration::from_millis(150),
        ..ClientOptions::default()
    };
    let client = Client::connect_with([address], brief).await.unwrap();
    drop(listener);
    let get = || client.get("a", Consistency::Linearizable);
    while !get().await.unwrap_err().to_string().contains("refused") {}
    let puts = (0..1000).map(|_| client.put("a", "1"));
    let gets = (0..1000).map(|_| get());
    let (puts, gets) = tokio::join!(join_all(puts), join_all(gets));
    let errors = puts.into_iter().map(|it| it.unwrap_err());
    let errors = errors.chain(gets.into_iter().map(|it| it.unwrap_err()));
    let others: Vec<_> = errors
        .filter(|it| !matches!(it, Error::Unavailable { .. }))
        .collect();
    assert!(others.is_empty(), "{} such as {}", others.len(), others[0]);
}

async fn a_silent_member_costs_a_read_one_attempt(wire: Wire) {
    let silent = Peer::scripted([ScriptStep::Hang]).await;
    let serving = Peer::start().await;
    let mut brief = options(wire);
    brief.retry.attempt_timeout = Duration::from_millis(100);
    let endpoints = [silent.address.clone(), serving.address.clone()];
    let client = Client::connect_with(endpoints, brief).await.unwrap();
    let begun = Instant::now();
    client.get("a", Consistency::Linearizable).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(3));
    assert_eq!((silent.requests(), serving.requests()), (1, 1));
}

/// They all waited for all their time at a leader that hung.
async fn who_writes_to_a_silent_member_waits_and_others_are_sent_elsewhere(wire: Wire) {
    let silent = Peer::scripted([ScriptStep::Hang]).await;
    let serving = Peer::start().await;
    let mut options = options(wire);
    options.retry.attempt_timeout = Duration::from_millis(100);
    options.request_timeout = Duration::from_secs(3000);
    let endpoints = [silent.address.clone(), serving.address.clone()];
    let client = Client::connect_with(endpoints, options).await.unwrap();
    let client = client.with_affinity(0);
    let waits = client.put("a", "1");
    let other = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        client.put("b", "1").await
    };
    tokio::select! {
        never = waits => panic!("it is not known what became of it: {never:?}"),
        other = other => other.map(drop).unwrap(),
    }
    assert_eq!((silent.requests(), serving.requests()), (1, 1));
}

/// One write that waited for long kept all others from a leader that answered each of them.
async fn a_slow_write_keeps_no_other_from_a_member_that_answers(wire: Wire) {
    let slow = Peer::scripted([ScriptStep::Hang]).await;
    let other = Peer::start().await;
    let mut options = options(wire);
    options.retry.attempt_timeout = Duration::from_millis(100);
    options.request_timeout = Duration::from_secs(3000);
    let endpoints = [slow.address.clone(), other.address.clone()];
    let client = Client::connect_with(endpoints, options).await.unwrap();
    let client = client.with_affinity(0);
    let waits = client.put("a", "1");
    let others = async {
        for _ in 0..50 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            client.put("b", "1").await.unwrap();
        }
    };
    tokio::select! {
        biased;
        never = waits => panic!("it is not known what became of it: {never:?}"),
        () = others => {}
    }
    assert_eq!((slow.requests(), other.requests()), (51, 0));
}

async fn a_bad_request_does_not_forget_who_leads(wire: Wire) {
    let leader = Peer::start().await;
    let follower = Peer::scripted([ScriptStep::NotLeader(leader.address.clone())]).await;
    let client = connect(wire, &[&follower, &leader]).await.with_affinity(0);
    client.put("a", "1").await.unwrap();
    leader.always(Code::InvalidArgument);
    client.put("a", "").await.unwrap_err();
    client.put("a", "").await.unwrap_err();
    assert_eq!((follower.requests(), leader.requests()), (1, 3));
}

/// An address whose connections are never established: its queue of connections is full.
async fn silent_address() -> (String, TcpListener, Vec<tokio::task::JoinHandle<()>>) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let connect = || async move {
        let _held = TcpStream::connect(address).await;
        std::future::pending::<()>().await;
    };
    let held: Vec<_> = (0..4).map(|_| tokio::spawn(connect())).collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    (address.to_string(), listener, held)
}

#[tokio::test]
async fn an_endpoint_that_is_silent_does_not_hold_up_the_others() {
    let (silent, _listener, held) = silent_address().await;
    let peer = Peer::start().await;
    let patient = ClientOptions {
        connect_timeout: Duration::from_secs(20),
        ..options(Wire::Pipelined)
    };
    let begun = Instant::now();
    let client = Client::connect_with([silent, peer.address.clone()], patient)
        .await
        .unwrap();
    client.put("a", "1").await.unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    held.iter().for_each(tokio::task::JoinHandle::abort);
}

async fn retries_can_be_turned_off(wire: Wire) {
    let peer = Peer::scripted([ScriptStep::Fail(Code::Unavailable)]).await;
    let never = ClientOptions {
        retry: RetryPolicy::NONE,
        ..options(wire)
    };
    let client = Client::connect_with([peer.address.clone()], never)
        .await
        .unwrap();
    client.put("a", "1").await.unwrap_err();
    assert_eq!(peer.requests(), 1);
}

async fn calls_are_spread_over_all_connections_or_stay_on_one(wire: Wire) {
    let peer = Peer::start().await;
    let four = ClientOptions {
        connections: 4,
        ..options(wire)
    };
    let client = Client::connect_with([peer.address.clone()], four.clone())
        .await
        .unwrap();
    for _ in 0..8 {
        client.put("a", "1").await.unwrap();
    }
    assert_eq!(peer.connections(), 4);

    let peer = Peer::start().await;
    let client = Client::connect_with([peer.address.clone()], four)
        .await
        .unwrap();
    for _ in 0..8 {
        client.with_affinity(6).put("a", "1").await.unwrap();
    }
    assert_eq!(peer.connections(), 1);
}

async fn a_member_that_serves_nobody_is_left_for_another_behind_the_same_address(wire: Wire) {
    let (away, serving) = (Peer::start().await, Peer::start().await);
    away.always(Code::Unavailable);
    let address = balanced(&[&away, &serving]).await;
    let client = Client::connect_with([address], options(wire)).await;
    client.unwrap().put("a", "1").await.unwrap();
    assert!(away.requests() > 0, "the first connection led there");
}

async fn a_member_that_does_not_answer_is_left_for_another_behind_the_same_address(wire: Wire) {
    let away = Peer::scripted([ScriptStep::Hang, ScriptStep::Hang]).await;
    let serving = Peer::start().await;
    let address = balanced(&[&away, &serving]).await;
    let brief = ClientOptions {
        request_timeout: RENEW_AFTER,
        ..options(wire)
    };
    let client = Client::connect_with([address], brief).await.unwrap();
    client.put("a", "1").await.unwrap_err();
    client.put("b", "2").await.unwrap();
    assert_eq!(away.requests(), 1);
}

/// Otherwise the member goes on for nobody, for as long as it waits itself.
#[tokio::test]
async fn the_member_is_told_how_long_a_call_is_waited_for_and_when_it_is_given_up() {
    let peer = Peer::scripted([ScriptStep::Hang, ScriptStep::Hang]).await;
    let options = ClientOptions {
        request_timeout: Duration::from_secs(3),
        retry: RetryPolicy::NONE,
        ..ClientOptions::default()
    };
    let client = Client::connect_with([peer.address.clone()], options);
    let client = client.await.unwrap();
    for _ in 0..2 {
        let dropped = client.put("k", "v");
        let dropped = tokio::time::timeout(Duration::from_millis(300), dropped).await;
        dropped.expect_err("the peer hangs");
    }
    client.put("k", "v").await.unwrap();
    // Larger than a frame.
    client.put("k", vec![7; 2 << 20]).await.unwrap();
    let told = async {
        while peer.given_up().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(10), told).await;
    told.expect("both were given up");
    let timeouts = peer.timeouts_ms();
    let is_told = |ms: &u32| (2_000..=3_000).contains(ms);
    assert!(
        timeouts.len() == 4 && timeouts.iter().all(is_told),
        "{timeouts:?}"
    );
    let mut given_up = peer.given_up();
    given_up.sort_unstable();
    given_up.dedup();
    assert_eq!(given_up.len(), 2, "each once");
}
