//! Which turns of workers a thread takes in the place of theirs, and what it does after one.
//!
//! A turn of the replica waits for nothing, and its caller takes it at once. What is to be applied
//! after it may wait for a disk. A thread that takes the applier's turns too does so once the
//! replica's is over and let go of, so that nobody else waits with it; and only while it has little
//! else to do, for what others send waits.

use std::cell::{Cell, RefCell};

/// A thread that has handed over more than this to replicas since it last had something to apply
/// has more to do than a lone write, which is one for a follower and two for the leader.
const FEW_SENT: u32 = 4;

/// The turns that a thread takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Takes {
    /// None.
    Nothing,
    /// Those of replicas, which wait for nothing.
    Replica,
    /// Those of appliers besides, which may wait for a disk.
    All,
}

type Job = Box<dyn FnOnce()>;

thread_local! {
    static TAKES: Cell<Takes> = const { Cell::new(Takes::Nothing) };
    /// What this thread does once its turn is over; `None` while it takes none.
    static LATER: RefCell<Option<Vec<Job>>> = const { RefCell::new(None) };
    /// How often this thread had something for a replica since it last had something to apply.
    static SENT: Cell<u32> = const { Cell::new(0) };
}

/// From now on this thread takes these turns: of replicas to which it sends something, and what
/// follows from those. Its priority is to be the usual one: the worker's thread waits meanwhile.
pub(crate) fn take_turns_in_this_thread(takes: Takes) {
    TAKES.set(takes);
}

/// Notes that this thread had something for a replica.
pub(super) fn note_sent() {
    SENT.set(SENT.get().saturating_add(1));
}

/// Whether this thread takes turns that wait for nothing.
pub(super) fn takes_turns() -> bool {
    TAKES.get() >= Takes::Replica
}

/// Whether this thread is within a turn that it takes in another's place, and may take another one
/// after it.
pub(super) fn has_time_afterwards() -> bool {
    let within = LATER.with_borrow(Option::is_some);
    within && TAKES.get() == Takes::All && SENT.replace(0) <= FEW_SENT
}

/// Does this once the turn is over, within which this thread is.
pub(super) fn afterwards(job: impl FnOnce() + 'static) {
    LATER.with_borrow_mut(|later| later.get_or_insert_default().push(Box::new(job)));
}

/// Takes a turn, and then does what is to be done after it, and after what that leads to.
pub(super) fn take(turn: impl FnOnce()) {
    if LATER.with_borrow(Option::is_some) {
        return turn();
    }
    LATER.set(Some(Vec::new()));
    let _ends = Ends;
    turn();
    loop {
        let jobs = LATER.replace(Some(Vec::new())).unwrap_or_default();
        if jobs.is_empty() {
            return;
        }
        jobs.into_iter().for_each(|job| job());
    }
}

/// Also in a panic: the thread goes on, and takes turns again.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        let left = LATER.take();
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn what_follows_from_a_turn_is_done_after_it() {
        let told = Rc::new(RefCell::new(Vec::new()));
        let tells = |what: &'static str| {
            let told = Rc::clone(&told);
            move || told.borrow_mut().push(what)
        };
        take(|| {
            let (within, again) = (tells("within"), tells("again"));
            afterwards(move || {
                take(within);
                afterwards(again);
            });
            afterwards(tells("other"));
            tells("turn")();
        });
        assert_eq!(*told.borrow(), ["turn", "within", "other", "again"]);
    }

    #[test]
    fn who_hears_much_leaves_the_rest_to_its_thread() {
        let may = || {
            let may = Cell::new(false);
            take(|| may.set(has_time_afterwards()));
            may.get()
        };
        take_turns_in_this_thread(Takes::All);
        assert!(may());
        assert!(!has_time_afterwards(), "nothing would do it then");
        (0..=FEW_SENT).for_each(|_| note_sent());
        assert!(!may());
        assert!(may(), "that was before the last time");
        take_turns_in_this_thread(Takes::Replica);
        assert!(takes_turns() && !may());
    }

    #[test]
    fn a_thread_whose_turn_panicked_takes_turns_again() {
        let panicked = std::panic::catch_unwind(|| take(|| panic!("on purpose")));
        assert!(panicked.is_err());
        let done = Cell::new(0);
        take(|| done.set(1));
        assert_eq!(done.get(), 1);
    }
}
