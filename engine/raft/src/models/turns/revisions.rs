//! Session reads that wait for a revision ([`RevisionWaits`]), while the member comes to it.

use std::sync::Arc;

use dengine_kv::revision_waits::RevisionWaits;
use dengine_planted::{Bug, plant};
use dengine_types::Revision;
use dengine_types::sync::atomic::{AtomicU64, Ordering};
use shuttle::future::block_on;
use shuttle::thread;

use super::any_turns;

const LAST: u64 = 3;

/// What the member shows, and the readers that wait for it.
#[derive(Default)]
struct Member {
    revision: AtomicU64,
    waits: RevisionWaits,
}

impl Member {
    fn revision(&self) -> Revision {
        Revision(self.revision.load(Ordering::Relaxed))
    }

    async fn reached(&self, wanted: u64) -> bool {
        let reached = self
            .waits
            .reached(Revision(wanted), || self.revision())
            .await;
        assert!(!reached || self.revision().0 >= wanted, "woken too early");
        reached
    }

    /// As a follower of the member: what it shows when it looks, which may be a later one than it
    /// was told of.
    fn follow(&self) {
        for revision in 1..=LAST {
            self.revision.store(revision, Ordering::Relaxed);
            self.waits.advance(self.revision());
        }
    }
}

/// A reader that waits forever shows as a deadlock.
fn all_are_woken_whom_a_revision_is_for() {
    let member = Arc::<Member>::default();
    let waiting: Vec<_> = [1, LAST, LAST, LAST + 1]
        .map(|wanted| {
            let member = Arc::clone(&member);
            thread::spawn(move || block_on(member.reached(wanted)))
        })
        .into_iter()
        .collect();
    member.follow();
    // Some come only now, and are told what the others are.
    member.waits.end();
    let reached = waiting.into_iter().map(|it| it.join().expect("it waited"));
    assert_eq!(reached.collect::<Vec<_>>(), [true, true, true, false]);
}

#[test]
fn nobody_waits_for_what_is_there() {
    any_turns(2_000, all_are_woken_whom_a_revision_is_for);
}

/// The member goes on: nothing but the revision wakes them.
fn one_is_woken() {
    let member = Arc::<Member>::default();
    let waiting = {
        let member = Arc::clone(&member);
        thread::spawn(move || block_on(member.reached(LAST)))
    };
    member.follow();
    assert!(waiting.join().expect("it waited"));
}

#[test]
fn a_revision_alone_wakes() {
    any_turns(2_000, one_is_woken);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_look_before_it_waits_is_found() {
    plant(Some(Bug::LookedBeforeWaiting));
    any_turns(2_000, one_is_woken);
}
