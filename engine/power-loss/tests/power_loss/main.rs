//! A real server on a disk that loses power, at every sync and at some of the writes in between.
//!
//! `make power-loss` runs this; nothing else does, for it takes minutes, root and `/dev/fuse`. A script of writes, flushes
//! and compactions runs against a member of its own cluster until the disk is cut off. The process is killed, parts of
//! what was not synced survive, and the server starts again on that. It must come up, with every write that was
//! acknowledged and nothing that nobody wrote, and go on.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
#![expect(
    clippy::print_stderr,
    reason = "a run of minutes says what it is doing, and where it left what"
)]

mod life;
mod past;
mod process;
mod script;
mod settings;
mod state;
mod trial;

use dengine_power_loss::{Counts, Cut, CutAt, Disk, Lie, Moment};
use settings::Settings;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use trial::Trial;

/// More than there are processors, for servers that start mostly wait.
const AT_ONCE: usize = 4;

#[test]
fn every_cut_leaves_what_was_acknowledged() {
    let settings = Settings::read();
    let whole = run(Trial::new(settings.seed, None));
    eprintln!(
        "power loss: the script makes {} syncs of files, {} of directories, {} writes and {} other changes; SEED={}",
        whole.file_syncs, whole.directory_syncs, whole.writes, whole.others, settings.seed
    );
    let cuts = settings.cuts(whole);
    let begun = Instant::now();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(cut) = cuts.get(next.fetch_add(1, Ordering::Relaxed)) {
            run(Trial::new(settings.seed, Some(*cut)));
            let done = next.load(Ordering::Relaxed).min(cuts.len());
            if done % 50 == 0 {
                eprintln!(
                    "power loss: {done} of {} cuts, {:?}",
                    cuts.len(),
                    begun.elapsed()
                );
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    let of_syncs = cuts
        .iter()
        .filter(|cut| matches!(cut.at, CutAt::Sync(_)))
        .count();
    eprintln!(
        "power loss: {of_syncs} cuts at syncs and {} at other changes, each opened in three ways, in {:?}: nothing lost",
        cuts.len() - of_syncs,
        begun.elapsed()
    );
}

/// These tests can fail: a disk that acknowledges what it does not sync loses what the member promised.
#[test]
fn a_disk_that_lies_about_files_is_found_out() {
    found_out(Lie::Files);
}

/// The same for the names in directories.
#[test]
fn a_disk_that_lies_about_directories_is_found_out() {
    found_out(Lie::Directories);
}

fn found_out(lie: Lie) {
    let cut = Cut {
        at: CutAt::Sync(60),
        moment: Moment::Before,
    };
    let mut disk = Disk::new();
    disk.set_lie(Some(lie));
    let trial = Trial::new(1, Some(cut)).on(disk);
    let broken = runtime().block_on(trial.broken());
    eprintln!(
        "power loss: {lie:?} are not synced, found out: {}",
        broken.expect("the lie is found out")
    );
}

fn run(trial: Trial) -> Counts {
    runtime().block_on(trial.run())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}
