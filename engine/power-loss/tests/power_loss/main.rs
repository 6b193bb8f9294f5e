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

use dengine_power_loss::{Cut, CutAt, Disk, Lie, Moment};
use settings::Settings;
use std::time::Instant;
use trial::Trial;

#[test]
fn every_cut_leaves_what_was_acknowledged() {
    let settings = Settings::read();
    let runtime = runtime();
    let whole = runtime.block_on(Trial::new(settings.seed, None).run());
    eprintln!(
        "power loss: the script makes {} syncs of files, {} of directories, {} writes and {} other changes; SEED={}",
        whole.file_syncs, whole.directory_syncs, whole.writes, whole.others, settings.seed
    );
    let begun = Instant::now();
    let cuts = settings.cuts(whole);
    for (place, cut) in cuts.iter().enumerate() {
        runtime.block_on(Trial::new(settings.seed, Some(*cut)).run());
        if (place + 1) % 25 == 0 {
            eprintln!(
                "power loss: {} of {} cuts, {:?}",
                place + 1,
                cuts.len(),
                begun.elapsed()
            );
        }
    }
    let of_syncs = cuts
        .iter()
        .filter(|cut| matches!(cut.at, CutAt::Sync(_)))
        .count();
    eprintln!(
        "power loss: {of_syncs} cuts at syncs and {} at other changes, in {:?}: nothing lost",
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
        "power loss: {lie:?} not synced, found out: {}",
        broken.expect("the lie is found out")
    );
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}
