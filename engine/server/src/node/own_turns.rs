//! Which turns of workers a thread takes in the place of theirs, and what it does after one.
//!
//! A turn of the replica waits for nothing, and its caller takes it at once. What follows from it
//! may wait for a disk: entries are to be written and synced, and others to be applied. The thread
//! of peers takes those turns too, once the replica's is over and let go of, so that nobody else
//! waits for them with it; and only while it has little else to do, for what others send waits.
//! Those of clients do not: a disk that hangs would keep them from calls that need none, and from
//! those that another leader could answer. Peers have nothing to expect from a member whose disk
//! hangs.

use std::cell::{Cell, RefCell};

/// A thread that has handed over more than this to replicas since it last had something for a disk
/// has more to do than a lone write, which is one for a follower and two for the leader.
const FEW_SENT: u32 = 4;

/// The turns that a thread takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Takes {
    /// None.
    Nothing,
    /// Those that wait for nothing.
    Replica,
    /// Those that may wait for a disk besides.
    All,
}

/// In which order a thread does what follows from one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum After {
    /// First: callers are answered then.
    Answers,
    /// Others are told then that it is on this disk.
    Durable,
    /// Nobody waits for it.
    Rest,
}

type Job = Box<dyn FnOnce()>;

thread_local! {
    static TAKES: Cell<Takes> = const { Cell::new(Takes::Nothing) };
    /// What this thread does once its turn is over; `None` while it takes none.
    static LATER: RefCell<Option<Vec<(After, Job)>>> = const { RefCell::new(None) };
    /// How often this thread had something for a replica since it last had something for a disk.
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

/// Whether this thread is within a turn that it takes in another's place, and may wait for a disk
/// after it.
pub(super) fn may_wait_afterwards() -> bool {
    let within = LATER.with_borrow(Option::is_some);
    within && TAKES.get() == Takes::All && SENT.replace(0) <= FEW_SENT
}

/// Does this once the turn is over, within which this thread is.
pub(super) fn afterwards(after: After, job: impl FnOnce() + 'static) {
    LATER.with_borrow_mut(|later| {
        let later = later.get_or_insert_default();
        later.push((after, Box::new(job)));
    });
}

/// Takes a turn, and then does what is to be done after it, and after what that leads to.
pub(super) fn take(turn: impl FnOnce()) {
    if LATER.with_borrow(Option::is_some) {
        return turn();
    }
    LATER.set(Some(Vec::new()));
    let _ends = Ends;
    turn();
    while let Some(job) = next() {
        job();
    }
}

fn next() -> Option<Job> {
    LATER.with_borrow_mut(|later| {
        let later = later.as_mut()?;
        let first = (0..later.len()).min_by_key(|at| later[*at].0)?;
        Some(later.remove(first).1)
    })
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
    fn what_follows_from_a_turn_is_done_after_it_and_answers_come_first() {
        let told = Rc::new(RefCell::new(Vec::new()));
        let tells = |what: &'static str| {
            let told = Rc::clone(&told);
            move || told.borrow_mut().push(what)
        };
        take(|| {
            afterwards(After::Rest, tells("rest"));
            let (again, within) = (tells("answers"), tells("within"));
            afterwards(After::Durable, move || {
                take(within);
                afterwards(After::Answers, again);
            });
            afterwards(After::Durable, tells("durable"));
            tells("turn")();
        });
        let order = ["turn", "within", "answers", "durable", "rest"];
        assert_eq!(*told.borrow(), order);
    }

    #[test]
    fn who_hears_much_leaves_the_disk_to_its_thread() {
        let may = || {
            let may = Cell::new(false);
            take(|| may.set(may_wait_afterwards()));
            may.get()
        };
        take_turns_in_this_thread(Takes::All);
        assert!(may());
        assert!(!may_wait_afterwards(), "nothing would do it then");
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
