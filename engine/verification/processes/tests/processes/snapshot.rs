//! The log stays bounded, and whoever needs what it no longer has gets a snapshot: whatever is
//! killed meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dengine_client::proto::{AddLearnerRequest, JoinRequest};
use dengine_client::{Client, Consistency, KeyRange, RangeQuery};
use dengine_log::Position;
use dengine_protocol::peer::peer_client::PeerClient;
use dengine_protocol::peer::snapshot_frame::Kind;
use dengine_protocol::peer::{
    Hello, SnapshotChunk, SnapshotEnd, SnapshotFrame, SnapshotOffer, snapshot_answer,
};
use dengine_protocol::v1::kv_client::KvClient;
use dengine_protocol::v1::{GetRequest, PutRequest};
use dengine_snapshot::{Chunk, FileEntry, Manifest, Place, SnapshotId};
use dengine_testkit::Random;
use dengine_types::{ClusterId, Index, Term};
use futures::{StreamExt as _, stream};
use tonic::Code;

use crate::harness::{Cluster, Disk, Member, becomes, eventually, hand_over};

const VALUE_BYTES: usize = 64 << 10;
/// As the harness sets it.
const SEGMENT_BYTES: u64 = 8 << 20;
/// With what [`bounded`] sets: the segment being written, what is kept, and what is yet to be
/// flushed.
const LOG_BYTES_MAX: u64 = 4 * SEGMENT_BYTES;

/// Settings under which a few megabytes are more than the log keeps.
fn bounded(member: &mut Member) {
    member.add_args([
        "--log-flush-bytes=1048576",
        "--log-keep-bytes=1048576",
        "--log-keep-bytes-for-followers=2097152",
    ]);
}

/// The same, and a snapshot takes some seconds on its way.
fn bounded_and_slow(member: &mut Member) {
    bounded(member);
    member.add_args(["--snapshot-bytes-per-second=4194304"]);
}

/// Bytes that do not compress, different for every `seed`.
fn noise(seed: u64) -> Vec<u8> {
    Random::new(seed).bytes(VALUE_BYTES)
}

/// Puts values under keys of their own; the last of them is acknowledged when it returns.
async fn fill(client: &Client, numbers: std::ops::Range<u64>) {
    stream::iter(numbers)
        .map(|n| client.put(format!("key {n:05}"), noise(n)))
        .buffer_unordered(16)
        .for_each(|put| async {
            put.unwrap();
        })
        .await;
}

/// This member's own state has exactly these values.
async fn check_state(member: &Member, numbers: std::ops::Range<u64>) {
    let client = member.client().await;
    becomes(
        &format!("{} has every key", member.name),
        (numbers.end - numbers.start) as usize,
        || async {
            let keys = RangeQuery::new(KeyRange::prefix("key ")).keys_only();
            let found = client.range(keys.consistency(Consistency::Eventual)).await;
            found.map_or(0, |found| found.kvs.len())
        },
    )
    .await;
    for n in numbers.step_by(17) {
        let found = client
            .get(format!("key {n:05}"), Consistency::Eventual)
            .await;
        let value = found.unwrap().kv.expect("the key is there").value;
        assert!(
            value == noise(n),
            "{} has another value under {n}",
            member.name
        );
    }
}

/// How often a member has logged something.
fn count(member: &Member, said: &str) -> usize {
    member.logged().matches(said).count()
}

async fn log_bytes(member: &Member) -> u64 {
    member.status().await.log_bytes
}

const INSTALLING: &str = "installing a snapshot";
const INSTALLED: &str = "the snapshot is the state now";

/// Writes until entries that the member at `down` lacks are gone from the leader's log.
async fn outrun(cluster: &Cluster, down: usize, numbers: std::ops::Range<u64>) {
    let client = cluster.client().await;
    fill(&client, numbers).await;
    for (place, member) in cluster.members.iter().enumerate() {
        if place != down {
            let what = format!("{} truncates its log", member.name);
            eventually(&what, || async {
                (log_bytes(member).await <= LOG_BYTES_MAX).then_some(())
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_stays_bounded_under_writes() {
    let cluster = Cluster::form_with(3, bounded).await;
    let client = cluster.client().await;
    for round in 0..4 {
        fill(&client, round * 300..(round + 1) * 300).await;
        for member in &cluster.members {
            let bytes = log_bytes(member).await;
            // A follower may be behind, and its own flush with it.
            assert!(
                bytes <= 2 * LOG_BYTES_MAX,
                "{} holds {bytes} bytes",
                member.name
            );
        }
    }
    for member in &cluster.members {
        check_state(member, 0..1200).await;
    }
    // 75 MiB were written.
    for member in &cluster.members {
        eventually(&format!("{} truncates its log", member.name), || async {
            (log_bytes(member).await <= LOG_BYTES_MAX).then_some(())
        })
        .await;
    }
}

/// Reads and writes at one member, in turn, until it has answered a hundred times; what it was told
/// instead.
async fn call_on(address: String) -> Vec<tonic::Status> {
    let address = format!("http://{address}");
    let (mut refused, mut answered) = (Vec::new(), 0);
    while answered < 100 {
        let Ok(mut kv) = KvClient::connect(address.clone()).await else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let get = GetRequest {
            key: "key 00001".into(),
            ..GetRequest::default()
        };
        let put = PutRequest {
            key: "called meanwhile".into(),
            ..PutRequest::default()
        };
        let told = match answered % 2 {
            0 => kv.get(get).await.map(drop),
            _ => kv.put(put).await.map(drop),
        };
        match told {
            Ok(()) => answered += 1,
            Err(status) => refused.push(status),
        }
    }
    refused
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_down_while_the_log_was_truncated_catches_up() {
    let mut cluster = Cluster::form_with(3, bounded).await;
    let client = cluster.client().await;
    fill(&client, 0..20).await;
    let down = cluster.follower().await;
    cluster.members[down].kill();
    outrun(&cluster, down, 20..600).await;
    let member = &mut cluster.members[down];
    member.start();
    let callers: Vec<_> = (0..8)
        .map(|_| tokio::spawn(call_on(member.address())))
        .collect();
    check_state(member, 0..600).await;
    assert_eq!(count(member, INSTALLED), 1);
    member.ready().await;
    // It did not stop: whoever called meanwhile was told to try again, and why.
    for caller in callers {
        for status in caller.await.unwrap() {
            assert!(!status.message().contains("shutting down"), "{status}");
        }
    }
    // It is an ordinary member again, also after a crash, and has nothing left over.
    fill(&client, 600..620).await;
    member.kill();
    member.start();
    check_state(member, 0..620).await;
    assert_eq!(count(member, INSTALLED), 1);
    let left = fs_err::read_dir(member.data_dir.join("snapshot/incoming")).unwrap();
    assert_eq!(left.count(), 0);
    // And can lead.
    let id = member.status().await.member_id;
    hand_over(&member.admin().await, id).await;
    fill(&client, 620..630).await;
    for member in &cluster.members {
        check_state(member, 0..630).await;
    }
}

/// It said so in its log alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_space_for_a_snapshot_says_so_and_takes_it_once_there_is_some() {
    let disks = [(); 3].map(|()| Disk::mount());
    let next = AtomicUsize::new(0);
    let mut cluster = Cluster::form_with(3, |member| {
        bounded(member);
        let disk = &disks[next.fetch_add(1, Ordering::Relaxed)];
        member.data_dir = disk.folder.path().join("data");
        member.add_args(["--min-free-bytes=1048576"]);
    })
    .await;
    let down = cluster.follower().await;
    cluster.members[down].kill();
    outrun(&cluster, down, 0..600).await;
    disks[down].fill(8 << 20);
    let member = &mut cluster.members[down];
    member.start();
    let lacks = || async { member.status().await.snapshot_lacks_bytes };
    let lacking = eventually("it says what it lacks", || async {
        Some(lacks().await).filter(|lacking| *lacking > 0)
    })
    .await;
    // Twice the state, less what is free.
    assert!((32 << 20..128 << 20).contains(&lacking), "{lacking}");
    assert!(!member.status().await.ready);
    disks[down].free();
    check_state(member, 0..600).await;
    becomes("what it lacks", 0, lacks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_member_joins_a_cluster_whose_log_is_truncated() {
    let cluster = Cluster::form_with(1, bounded).await;
    outrun(&cluster, usize::MAX, 0..600).await;
    let mut newcomer = Member::new(cluster.home.path(), "newcomer");
    bounded(&mut newcomer);
    newcomer.start();
    let status = newcomer.status().await;
    let admin = cluster.members[0].admin().await;
    let learner = AddLearnerRequest {
        name: status.name,
        peer_address: status.peer_address,
        client_address: status.client_address,
        folder_id: status.folder_id.clone(),
    };
    let added = admin.add_learner(learner).await.unwrap();
    let join = JoinRequest {
        cluster_id: added.cluster_id,
        member_id: added.member.unwrap().id,
        folder_id: status.folder_id,
    };
    let id = join.member_id;
    newcomer.admin().await.join(join).await.unwrap();
    check_state(&newcomer, 0..600).await;
    assert_eq!(count(&newcomer, INSTALLED), 1);
    eventually("it can be promoted", || async {
        admin.promote(id).await.ok()
    })
    .await;
    fill(&cluster.client().await, 600..610).await;
    check_state(&newcomer, 0..610).await;
}

/// What the folder of snapshots holds, by name, in `incoming`.
fn staged(member: &Member) -> Vec<String> {
    let Ok(items) = fs_err::read_dir(member.data_dir.join("snapshot/incoming")) else {
        return Vec::new();
    };
    let name = |item: std::io::Result<fs_err::DirEntry>| item.ok()?.file_name().into_string().ok();
    items.filter_map(name).collect()
}

fn staged_bytes(member: &Member) -> u64 {
    let incoming = member.data_dir.join("snapshot/incoming");
    let bytes = |name: &String| fs_err::metadata(incoming.join(name)).map_or(0, |it| it.len());
    staged(member).iter().map(bytes).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_is_killed_in_the_middle_goes_on_where_it_was() {
    let mut cluster = Cluster::form_with(3, bounded_and_slow).await;
    let down = cluster.follower().await;
    cluster.members[down].kill();
    outrun(&cluster, down, 0..600).await;
    let leader = cluster.leader().await;
    for kills in 1..=2 {
        let member = &mut cluster.members[down];
        member.start();
        // Of some 38 MB, so that it ends neither time: how many files that is, is up to the store.
        let some = kills * (10 << 20);
        eventually("some of the snapshot is there", || async {
            (staged_bytes(member) > some).then_some(())
        })
        .await;
        member.kill();
    }
    let member = &mut cluster.members[down];
    member.start();
    check_state(member, 0..600).await;
    assert_eq!(count(member, INSTALLED), 1);
    // It was one snapshot from the beginning to the end.
    assert_eq!(count(&cluster.members[leader], "made a snapshot"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_is_killed_while_it_installs_completes_that() {
    let mut cluster = Cluster::form_with(3, bounded).await;
    let down = cluster.follower().await;
    // Where it is killed: once all is received, at the commit point, and when the folders were
    // moved. The first may pass between two looks; then it is killed a little later. What a kill
    // left unsaid is never said, so each counts from where it began.
    let moments: [fn(&Member, [usize; 2]) -> bool; 3] = [
        |member, [installing, _]| {
            let complete = |name: &String| name.ends_with(".complete");
            staged(member).iter().any(complete) || count(member, INSTALLING) > installing
        },
        |member, [installing, _]| count(member, INSTALLING) > installing,
        |member, [_, installed]| count(member, INSTALLED) > installed,
    ];
    let mut written = 0;
    for moment in moments {
        cluster.members[down].kill();
        outrun(&cluster, down, written..written + 500).await;
        written += 500;
        let member = &mut cluster.members[down];
        let said = [count(member, INSTALLING), count(member, INSTALLED)];
        member.start();
        eventually("the moment has come", || async {
            moment(member, said).then_some(())
        })
        .await;
        member.kill();
        member.start();
        check_state(member, 0..written).await;
    }
    fill(&cluster.client().await, written..written + 10).await;
    check_state(&cluster.members[down], 0..written + 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_that_is_killed_is_replaced_by_the_next_leader() {
    let mut cluster = Cluster::form_with(3, bounded_and_slow).await;
    let down = cluster.follower().await;
    cluster.members[down].kill();
    outrun(&cluster, down, 0..600).await;
    let leader = cluster.leader().await;
    cluster.members[down].start();
    eventually("some of the snapshot is there", || async {
        (staged_bytes(&cluster.members[down]) > 10 << 20).then_some(())
    })
    .await;
    cluster.members[leader].kill();
    check_state(&cluster.members[down], 0..600).await;
    cluster.members[leader].start();
    // What it was sending is gone.
    cluster.members[leader].ready().await;
    let outgoing = cluster.members[leader].data_dir.join("snapshot/outgoing");
    assert_eq!(fs_err::read_dir(outgoing).unwrap().count(), 0);
    fill(&cluster.client().await, 600..610).await;
    for member in &cluster.members {
        check_state(member, 0..610).await;
    }
}

/// A peer that says whatever it likes, under the identity of a member that exists.
struct Liar {
    to: String,
    hello: Hello,
}

impl Liar {
    /// Speaks to `victim` in the name of `from`.
    async fn new(victim: &Member, from: &Member) -> Self {
        let (own, other) = (victim.status().await, from.status().await);
        Self {
            to: own.peer_address,
            hello: Hello {
                protocol: 1,
                cluster_id: own.cluster_id,
                from: other.member_id,
                to: own.member_id,
                peer_address: other.peer_address,
                folder_id: other.folder_id,
                commands_read_max: 0,
            },
        }
    }

    /// Sends these frames and returns how the victim ended the stream.
    async fn send(&self, kinds: Vec<Kind>) -> Code {
        let frames = kinds
            .into_iter()
            .map(|kind| SnapshotFrame { kind: Some(kind) });
        let mut client = PeerClient::connect(format!("http://{}", self.to))
            .await
            .unwrap();
        let mut answers = match client.send_snapshot(stream::iter(frames)).await {
            Ok(answers) => answers.into_inner(),
            Err(status) => return status.code(),
        };
        loop {
            match answers.message().await {
                Ok(Some(answer)) => {
                    let done = matches!(answer.kind, Some(snapshot_answer::Kind::Done(_)));
                    assert!(!done, "a lie was believed");
                }
                Ok(None) => panic!("the victim said nothing"),
                Err(status) => return status.code(),
            }
        }
    }

    fn hello(&self) -> Kind {
        Kind::Hello(self.hello.clone())
    }

    fn offer(&self, files: &[(&str, u64)]) -> Kind {
        let entry = |(name, bytes): &(&str, u64)| FileEntry {
            name: (*name).to_owned(),
            bytes: *bytes,
            crc: 1,
        };
        let last = Position {
            index: Index(1 << 40),
            term: Term(1 << 40),
        };
        let cluster = ClusterId(self.hello.cluster_id);
        let files = files.iter().map(entry).collect();
        let manifest = Manifest::new(cluster, SnapshotId(7), last, files).unwrap();
        Kind::Offer(SnapshotOffer {
            manifest: manifest.encode().into(),
            message: b"not a message either".as_slice().into(),
        })
    }
}

fn checksum(content: &[u8]) -> u32 {
    Chunk::new(Place::default(), content.to_vec().into()).crc
}

fn chunk(file: u32, offset: u64, content: Vec<u8>) -> Kind {
    Kind::Chunk(SnapshotChunk {
        file,
        offset,
        crc: checksum(&content),
        content: content.into(),
    })
}

/// What a liar sends, and how its victim ends the stream.
type Lie = (Vec<Kind>, Code);

fn small(liar: &Liar) -> Kind {
    liar.offer(&[("CURRENT", 100), ("b", 100)])
}

fn end() -> Kind {
    Kind::End(SnapshotEnd {})
}

/// Lies about who they are.
fn lies_about_the_peer(liar: &Liar) -> Vec<Lie> {
    let stranger = |change: fn(&mut Hello)| {
        let mut hello = liar.hello.clone();
        change(&mut hello);
        vec![Kind::Hello(hello), small(liar)]
    };
    vec![
        (vec![small(liar)], Code::InvalidArgument),
        (stranger(|h| h.cluster_id ^= 1), Code::FailedPrecondition),
        (stranger(|h| h.to ^= 8), Code::FailedPrecondition),
        (
            stranger(|h| h.folder_id.push('x')),
            Code::FailedPrecondition,
        ),
    ]
}

/// Lies about what they have.
fn lies_about_the_snapshot(liar: &Liar) -> Vec<Lie> {
    let mut damaged = liar.offer(&[("CURRENT", 100)]);
    if let Kind::Offer(offer) = &mut damaged {
        let mut bytes = offer.manifest.to_vec();
        bytes[30] ^= 1;
        offer.manifest = bytes.into();
    }
    let other_cluster = Liar {
        to: liar.to.clone(),
        hello: Hello {
            cluster_id: liar.hello.cluster_id ^ 1,
            ..liar.hello.clone()
        },
    };
    let offers = |offer| vec![liar.hello(), offer];
    let foreign = other_cluster.offer(&[("a", 1)]);
    let too_large = |bytes| liar.offer(&[("a", bytes)]);
    vec![
        (vec![liar.hello()], Code::Cancelled),
        (offers(end()), Code::InvalidArgument),
        (offers(damaged), Code::InvalidArgument),
        (offers(foreign), Code::FailedPrecondition),
        (offers(too_large(1_000_001)), Code::ResourceExhausted),
        (offers(too_large(u64::MAX)), Code::ResourceExhausted),
    ]
}

/// Lies about what they send of it.
fn lies_about_the_content(liar: &Liar) -> Vec<Lie> {
    let sends = |kind| vec![liar.hello(), small(liar), kind];
    let sends_chunk = |file, offset, content| sends(chunk(file, offset, content));
    vec![
        (vec![liar.hello(), small(liar)], Code::Cancelled),
        (sends(small(liar)), Code::InvalidArgument),
        (sends(end()), Code::Unavailable),
        (sends_chunk(1, 0, vec![1; 100]), Code::InvalidArgument),
        (sends_chunk(0, 50, vec![1; 50]), Code::InvalidArgument),
        (sends_chunk(0, 0, vec![1; 101]), Code::InvalidArgument),
        (sends_chunk(0, 0, Vec::new()), Code::InvalidArgument),
        (sends_chunk(0, 0, vec![1; 2 << 20]), Code::InvalidArgument),
        (sends_chunk(0, 0, vec![1; 100]), Code::DataLoss),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_lies_about_a_snapshot_is_refused_and_fills_no_disk() {
    let cluster = Cluster::form_with(3, |member| {
        bounded(member);
        member.add_args(["--snapshot-max-bytes=1000000"]);
    })
    .await;
    let client = cluster.client().await;
    fill(&client, 0..10).await;
    let victim = &cluster.members[cluster.follower().await];
    let peer = &cluster.members[cluster.leader().await];
    let liar = Liar::new(victim, peer).await;
    let lies = [
        lies_about_the_peer(&liar),
        lies_about_the_snapshot(&liar),
        lies_about_the_content(&liar),
    ];
    for (number, (frames, expected)) in lies.into_iter().flatten().enumerate() {
        assert_eq!(liar.send(frames).await, expected, "lie {number}");
    }
    let incoming = victim.data_dir.join("snapshot/incoming");
    let bytes = |item: std::io::Result<fs_err::DirEntry>| item.unwrap().metadata().unwrap().len();
    let used: u64 = fs_err::read_dir(incoming).unwrap().map(bytes).sum();
    assert!(used <= 1000, "{used} bytes are left");
    fill(&client, 10..20).await;
    check_state(victim, 0..20).await;
    assert_eq!(count(victim, INSTALLED), 0);
}

/// A snapshot whose files are whole and whose state is none is thrown away before anybody hears of
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_without_a_state_is_never_installed() {
    let cluster = Cluster::form_with(3, bounded).await;
    fill(&cluster.client().await, 0..10).await;
    let victim = &cluster.members[cluster.follower().await];
    let liar = Liar::new(victim, &cluster.members[cluster.leader().await]).await;
    let content = b"no state".to_vec();
    let mut offer = liar.offer(&[("CURRENT", 8)]);
    if let Kind::Offer(offer) = &mut offer {
        let mut manifest = Manifest::decode(&offer.manifest).unwrap();
        let file = FileEntry {
            crc: checksum(&content),
            ..manifest.files()[0].clone()
        };
        manifest = Manifest::new(
            manifest.cluster(),
            manifest.id(),
            manifest.last(),
            vec![file],
        )
        .unwrap();
        offer.manifest = manifest.encode().into();
    }
    let frames = vec![liar.hello(), offer, chunk(0, 0, content), end()];
    assert_eq!(liar.send(frames).await, Code::DataLoss);
    assert_eq!(staged(victim), Vec::<String>::new());
    check_state(victim, 0..10).await;
}
