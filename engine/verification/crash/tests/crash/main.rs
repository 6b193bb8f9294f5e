//! A member's storage, cut off at every single operation of a scripted life, and opened again.
//!
//! The script appends entries and hard states, replaces a suffix, truncates, resets, fills many
//! segments, applies and flushes. Before each thing that it asks of the disk the process dies
//! ([`Crash::Process`]), or the machine loses power and keeps any part of what was not synced
//! ([`Crash::Power`]). What is opened then must be the old or the new state, never an error, and
//! hold everything that was acknowledged.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod disk;
mod life;
mod store;

use disk::{Counts, CutDisk};
use life::Life;

/// How everything ends.
#[derive(Clone, Copy, Debug)]
enum Crash {
    /// The process is killed: the operating system still writes what it was given.
    Process,
    /// The power is cut: of what was not synced this share of the sectors, in percent, is kept.
    Power { percent: u64, seed: u64 },
}

/// Lives until the disk is cut off before operation `cut`, crashes and opens again.
fn crash_and_open(cut: u64, torn: bool, crash: Crash) {
    let disk = CutDisk::new(cut, torn);
    let life = Life::begin(disk.clone());
    end(life, &disk, crash);
}

fn end(mut life: Life, disk: &CutDisk, crash: Crash) {
    life.live();
    assert!(disk.is_cut(), "the script has fewer operations");
    life.crash_and_open(crash);
}

/// Runs the whole script; returns what it asked of the disk.
fn whole_life() -> Counts {
    let disk = CutDisk::new(u64::MAX, false);
    let mut life = Life::begin(disk.clone());
    life.live();
    assert!(!disk.is_cut());
    assert!(
        life.segments_dropped(),
        "the script is long enough to rotate and truncate"
    );
    life.crash_and_open(Crash::Process);
    disk.counts()
}

/// Coins that fall differently for every cut.
fn powers(cut: u64) -> impl Iterator<Item = Crash> {
    [0, 20, 50, 80, 100]
        .into_iter()
        .map(move |percent| Crash::Power {
            percent,
            seed: cut.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ percent,
        })
}

#[test]
#[expect(clippy::print_stdout, reason = "how many cuts there were is the point")]
fn every_cut_leaves_the_old_or_the_new_state() {
    let counts = whole_life();
    for cut in 0..counts.all() {
        crash_and_open(cut, false, Crash::Process);
        powers(cut).for_each(|power| crash_and_open(cut, false, power));
    }
    println!(
        "crash: cut before each of {} syncs of files, {} of the directory, {} writes and {} other \
         changes, 6 ways each",
        counts.syncs, counts.dir_syncs, counts.writes, counts.others
    );
}

/// The operation under way is a write, and part of it is done.
#[test]
fn every_torn_write_leaves_the_old_or_the_new_state() {
    for cut in 0..whole_life().all() {
        crash_and_open(cut, true, Crash::Process);
        powers(cut).for_each(|power| crash_and_open(cut, true, power));
    }
}

/// These tests can fail: a member that promises what it did not sync is found out.
#[test]
#[should_panic = "promised"]
fn promises_without_a_sync_are_found_broken() {
    for cut in 20..whole_life().all() {
        let disk = CutDisk::new(cut, false);
        let life = Life::begin_hasty(disk.clone());
        if disk.is_cut() {
            continue;
        }
        end(
            life,
            &disk,
            Crash::Power {
                percent: 0,
                seed: cut,
            },
        );
    }
}
