//! Which streams are told that there may be something new.

use super::member::Member;
use super::*;
use crate::watch::wanted::SOON_SEEN;
use crate::{Changes, PageLimits};

const OTHER: StreamId = StreamId(2);

fn one(key: &'static str) -> WatchSpec {
    spec(KeyRange::One(Bytes::from_static(key.as_bytes())), 1_000)
}

/// A page of revision 2.
fn page_of(wanted: &Wanted, events: Vec<Event>, next: Stamp) -> Page {
    let changes = Changes {
        events,
        next,
        revision: Revision(2),
    };
    let from = Stamp::start_of(Revision(2));
    Page::new(from, Part::Present, wanted.mark(), changes)
}

fn whole(wanted: &Wanted, keys: &[&str]) -> Page {
    let events = (0..).zip(keys).map(|(sub, key)| event(2, sub, key));
    page_of(wanted, events.collect(), Stamp::end_of(Revision(2)))
}

fn only(streams: impl IntoIterator<Item = StreamId>) -> Woken {
    Woken::Only(streams.into_iter().collect())
}

#[test]
fn a_page_wakes_those_who_want_something_of_it() {
    let mut wanted = Wanted::default();
    let with_prev = WatchSpec {
        prev_kv: true,
        ..one("b")
    };
    wanted.add(STREAM, Part::Present, &one("a"));
    wanted.add(STREAM, Part::Present, &one("a"));
    wanted.add(OTHER, Part::Present, &with_prev);
    wanted.add(OTHER, Part::Past, &one("c"));
    let woken = |wanted: &Wanted, keys| wanted.woken(&whole(wanted, keys));
    assert_eq!(woken(&wanted, &["a"]), only([STREAM]));
    assert_eq!(woken(&wanted, &["b"]), only([OTHER]));
    assert_eq!(woken(&wanted, &["b", "a", "b", "c"]), only([STREAM, OTHER]));
    assert_eq!(woken(&wanted, &["c"]), only([]));
    wanted.set_of_all(OTHER, true);
    assert_eq!(woken(&wanted, &["c"]), only([OTHER]));
    wanted.set_of_all(OTHER, false);
    wanted.remove(STREAM, Part::Present, &one("a"));
    assert_eq!(woken(&wanted, &["a"]), only([STREAM]));
    wanted.remove(STREAM, Part::Present, &one("a"));
    assert_eq!(woken(&wanted, &["a", "c"]), only([]));
}

#[test]
fn a_page_wakes_who_began_to_watch_while_it_was_read() {
    let mut wanted = Wanted::default();
    wanted.add(STREAM, Part::Present, &one("a"));
    let lacks_something = whole(&wanted, &[]);
    wanted.add(OTHER, Part::Present, &one("b"));
    assert_eq!(wanted.woken(&lacks_something), only([OTHER]));
    assert_eq!(wanted.woken(&whole(&wanted, &[])), only([]));
    wanted.remove(OTHER, Part::Present, &one("b"));
    assert_eq!(wanted.woken(&lacks_something), only([]));
}

/// Watches wait with the beginning of a revision, and the next page may have nothing else of it.
#[test]
fn a_page_that_ends_within_a_revision_wakes_all() {
    let wanted = Wanted::default();
    let amid = Stamp {
        revision: Revision(2),
        sub: 1,
    };
    assert_eq!(
        wanted.woken(&page_of(&wanted, Vec::new(), amid)),
        Woken::All
    );
}

#[test]
fn a_page_of_many_events_wakes_all() {
    let wanted = Wanted::default();
    assert_eq!(wanted.woken(&whole(&wanted, &["a"; SOON_SEEN])), only([]));
    let more = whole(&wanted, &["a"; SOON_SEEN + 1]);
    assert_eq!(wanted.woken(&more), Woken::All);
}

/// It would have to read the past for what it does not want.
#[test]
fn a_stream_passes_what_it_does_not_want_before_the_ring_drops_it() {
    let limits = PageLimits {
        bytes: 1_000,
        changes: 1,
    };
    for (pages, bytes) in [(16, 1 << 20), (1 << 10, 16_000)] {
        let mut member = Member::new(limits, KeepLimits { bytes, pages }, 0);
        member.watch(1, one("a"), 2);
        member.settle();
        for _ in 0..100 {
            member.change(["other"]);
            member.begin_page();
            member.end_page();
            member.work_if_woken();
            assert!(member.set.has_synced());
        }
        member.change(["a"]);
        member.settle();
        assert_eq!(member.received[&1].messages.len(), 1);
    }
}
