//! The lease's word ([`LeaseView`]): given by the replica, believed by whoever reads.

use std::sync::Arc;

use dengine_kv::StateMachine;
use dengine_planted::{Bug, plant};
use dengine_types::sync::atomic::{AtomicBool, Ordering};
use dengine_types::{Index, Moment};
use loom::thread;

use super::store::OrderedStore;
use super::{entry, every_order, put};
use crate::models::KEY;
use crate::replica::LeaseView;

const UNTIL: Option<Moment> = Some(Moment(100));

/// A leader that holds a lease commits an entry and tells others, one of which tells a client; and
/// that client, or whoever it tells, reads at the leader by the lease. The queues between replica
/// and applier order no less than one thread does, so one does the work of both.
fn a_read_by_lease_shows_what_anybody_was_told() {
    let store = OrderedStore::default();
    // The reads must be the store's.
    let machine = StateMachine::open_with_key_cache(store, 0);
    let mut machine = machine.expect("an empty store opens");
    let view = Arc::new(LeaseView::default());
    view.publish(UNTIL, Index(0), Index(0));
    let told = Arc::new(AtomicBool::new(false));
    let client = {
        let (reader, view, told) = (machine.reader(), Arc::clone(&view), Arc::clone(&told));
        thread::spawn(move || {
            let told = told.load(Ordering::Acquire);
            if view.covers(|| Moment(1)) {
                let (_, found) = reader.get(&KEY, None).expect("memory can be read");
                assert!(found.is_some() || !told, "a stale read by the lease");
            }
        })
    };
    view.publish(UNTIL, Index(0), Index(1));
    told.store(true, Ordering::Release);
    machine
        .apply(&[entry(1, put(1))])
        .expect("memory can be written");
    view.publish(UNTIL, Index(1), Index(1));
    client.join().expect("it read");
}

#[test]
fn a_read_by_lease_is_never_stale() {
    every_order(a_read_by_lease_shows_what_anybody_was_told);
}

#[test]
#[should_panic(expected = "a stale read by the lease")]
fn a_word_without_order_is_found() {
    plant(Some(Bug::LeaseWordUnordered));
    every_order(a_read_by_lease_shows_what_anybody_was_told);
}

#[test]
#[should_panic(expected = "a stale read by the lease")]
fn a_word_that_is_not_taken_back_is_found() {
    plant(Some(Bug::LeaseReadBeforeApply));
    every_order(a_read_by_lease_shows_what_anybody_was_told);
}
