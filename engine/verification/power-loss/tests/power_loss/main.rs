//! A real server on a disk that loses power, at every sync and at some of the writes in between.
//!
//! `make power-loss` runs this; nothing else does, for it takes minutes, root and `/dev/fuse`. A
//! script of writes, flushes and compactions runs against a member of its own cluster until the
//! disk is cut off. The process is killed, parts of what was not synced survive, and the server
//! starts again on that. It must start, with every acknowledged write and nothing that was never
//! asked for, and accept writes.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
#![expect(
    clippy::print_stderr,
    reason = "a run of minutes says what it is doing, and where it left what"
)]

mod joining;
mod life;
mod namespace;
mod past;
mod process;
mod script;
mod settings;
mod state;
mod trial;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dengine_power_loss::{Counts, Cut, CutAt, Disk, Lie, Moment};
use dengine_testkit::Listen;
use tokio::runtime::Runtime;

use joining::{Cluster, Side};
use past::{NOT_AS_PROMISED, Past};
use settings::Settings;
use trial::Trial;

/// More than there are processors, for a server that starts mostly waits.
const AT_ONCE: usize = 4;
const TELL_EVERY: Duration = Duration::from_secs(20);

#[test]
fn every_cut_leaves_what_was_acknowledged() {
    namespace::inside("every_cut_leaves_what_was_acknowledged", every_cut);
}

/// Of the member that sends the snapshot, and of the one that joins with it.
#[test]
fn every_cut_of_a_snapshot_on_its_way_leaves_two_members() {
    let name = "every_cut_of_a_snapshot_on_its_way_leaves_two_members";
    namespace::inside(name, || {
        every_cut_while_joining(Side::Sender);
        every_cut_while_joining(Side::Receiver);
    });
}

/// These tests can fail: a disk that acknowledges what it does not sync loses what the member
/// promised.
#[test]
fn a_disk_that_lies_about_files_is_found_out() {
    namespace::inside("a_disk_that_lies_about_files_is_found_out", || {
        found_out(Lie::Files);
    });
}

/// The same while a member joins by a snapshot.
#[test]
fn a_newcomers_disk_that_lies_is_found_out() {
    let name = "a_newcomers_disk_that_lies_is_found_out";
    namespace::inside(name, newcomer_found_out);
}

/// The same for the names in directories.
#[test]
fn a_disk_that_lies_about_directories_is_found_out() {
    namespace::inside("a_disk_that_lies_about_directories_is_found_out", || {
        found_out(Lie::Directories);
    });
}

fn every_cut() {
    let settings = Settings::read();
    let seed = settings.seed;
    let (whole, _) = run(Trial::new(seed, None, Listen::free())).unwrap();
    script::check_length(&whole);
    run_all("the script", &settings, whole.counts(), || {
        let listen = Listen::free();
        move |cut| run(Trial::new(seed, Some(cut), listen)).map(drop)
    });
}

fn every_cut_while_joining(side: Side) {
    let settings = Settings::read();
    let seed = settings.seed;
    let worker = || {
        let runtime = runtime();
        let mut cluster = runtime.block_on(Cluster::make(seed));
        move |cut| runtime.block_on(cluster.join(side, cut, Disk::new()))
    };
    let whole = worker()(None).unwrap();
    run_all(&format!("{side:?}"), &settings, whole, || {
        let mut join = worker();
        move |cut| join(Some(cut)).map(drop)
    });
}

/// Tries each of the cuts of something that makes so many changes of its disk.
///
/// # Panics
/// A promise was broken after one of them.
fn run_all<W>(what: &str, settings: &Settings, counts: Counts, worker: impl Fn() -> W + Sync)
where
    W: FnMut(Cut) -> Result<(), String>,
{
    eprintln!(
        "power loss: {what}: {} syncs of files, {} of directories, {} writes and {} other changes; \
         SEED={}",
        counts.file_syncs, counts.directory_syncs, counts.writes, counts.others, settings.seed
    );
    let cuts = settings.cuts(counts);
    let begun = Instant::now();
    let broken = try_all(&cuts, worker);
    let of_syncs = cuts
        .iter()
        .filter(|cut| matches!(cut.at, CutAt::Sync(_)))
        .count();
    eprintln!(
        "power loss: {what}: {of_syncs} cuts at syncs and {} at other changes, each opened in \
         three ways, in {:?}",
        cuts.len() - of_syncs,
        begun.elapsed()
    );
    assert_eq!(broken, 0, "promises were broken, see above");
}

/// Returns after how many of the cuts a promise was broken.
fn try_all<W>(cuts: &[Cut], worker: impl Fn() -> W + Sync) -> usize
where
    W: FnMut(Cut) -> Result<(), String>,
{
    let (begun, broken) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        let mut attempt = worker();
        while let Some(cut) = cuts.get(begun.fetch_add(1, Ordering::Relaxed)) {
            if let Err(what) = attempt(*cut) {
                broken.fetch_add(1, Ordering::Relaxed);
                eprintln!("power loss: {what}");
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
        scope.spawn(|| {
            while begun.load(Ordering::Relaxed) < cuts.len() {
                std::thread::sleep(TELL_EVERY);
                eprintln!(
                    "power loss: {} of {} cuts begun",
                    begun.load(Ordering::Relaxed).min(cuts.len()),
                    cuts.len()
                );
            }
        });
    });
    broken.into_inner()
}

/// On disks that begin to lie somewhere in the script, and lose power a few syncs later. Some of
/// the servers refuse to start, for what they need is missing; others have lost what they
/// acknowledged.
fn found_out(lie: Lie) {
    let listen = Listen::free();
    let tried = (150..250).step_by(5);
    let broken = tried.clone().filter_map(|honest| {
        let mut disk = Disk::new();
        disk.set_lie(lie, honest);
        let cut = Cut {
            at: CutAt::Sync(honest + 4),
            moment: Moment::Before,
        };
        run(Trial::new(1, Some(cut), listen).on(disk)).err()
    });
    let broken: Vec<String> = broken.collect();
    let lost = broken.iter().filter(|it| it.contains(NOT_AS_PROMISED));
    eprintln!(
        "power loss: {lie:?} not synced: {} of {} found out, {} by lost writes; the first: {}",
        broken.len(),
        tried.count(),
        lost.clone().count(),
        broken.first().expect("the lie is found out")
    );
    // Names are seldom made, so a lie about them often costs the server more than a write, or
    // nothing.
    let must_lose = lie == Lie::Files;
    assert!(!must_lose || lost.count() > 0, "no lost write was found");
}

/// A new member that has lost a part of what it received must not take part as if it had all of it.
fn newcomer_found_out() {
    let runtime = runtime();
    let mut cluster = runtime.block_on(Cluster::make(1));
    let mut join = |honest: u64, lie: Lie| {
        let mut disk = Disk::new();
        disk.set_lie(lie, honest);
        let cut = Cut {
            at: CutAt::Sync(honest + 4),
            moment: Moment::Before,
        };
        let joined = cluster.join(Side::Receiver, Some(cut), disk);
        runtime.block_on(joined).err()
    };
    for lie in [Lie::Files, Lie::Directories] {
        // A new member notices most of what it lost, and fetches it again; so it takes a few places
        // to find one that matters.
        let found = (2..40).find_map(|honest| join(honest, lie));
        let found = found.expect("the lie is found out");
        eprintln!("power loss: newcomer, {lie:?} not synced: {found}");
    }
}

fn run(trial: Trial) -> Result<(Disk, Past), String> {
    runtime().block_on(trial.run())
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}
