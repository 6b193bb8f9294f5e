//! One rule at a time, by example.

use std::sync::Arc;

use super::member::{Member, Received};
use super::*;
use crate::PageLimits;

/// Events of one key of one letter.
const EVENT_BYTES: usize = 64 + 1 + 36;
const LIMITS: PageLimits = PageLimits {
    bytes: 4 * EVENT_BYTES,
    changes: 16,
};
const KEEP: KeepLimits = KeepLimits {
    bytes: 8 * EVENT_BYTES,
    pages: 4,
};

fn member() -> Member {
    Member::new(LIMITS, KEEP, 4 * EVENT_BYTES)
}

fn lines(received: &Received) -> Vec<String> {
    let line = |it: &EventBatch| {
        let keys = it
            .events
            .iter()
            .map(|it| it.kv.key.escape_ascii().to_string());
        let more = if it.fragment { "+" } else { "" };
        format!("{}{more} {}", it.revision, keys.collect::<String>())
    };
    received.messages.iter().map(line).collect()
}

fn check(spec: WatchSpec, first: u64, expect: &[&str]) {
    let mut member = member();
    member.change(["a"]);
    member.change(["b", "c"]);
    member.change(["d", "e", "f", "g", "h", "i", "j"]);
    member.change(["k"]);
    member.watch(1, spec, first);
    member.settle();
    assert_eq!(lines(&member.received[&1]), expect);
    assert_eq!(member.set.next(1), Some(Revision(6)));
}

#[test]
fn revisions_share_a_message_if_they_fit_whole() {
    let large = spec(everything(), 100 * EVENT_BYTES);
    check(large.clone(), 5, &["5 k"]);
    check(large, 1, &["3 abc", "5 defghijk"]);
    let small = spec(everything(), 7 * EVENT_BYTES);
    check(small, 3, &["3 bc", "4 defghij", "5 k"]);
}

/// Most streams are woken by most revisions for nothing.
#[test]
fn pages_with_nothing_for_its_watches_are_no_work_for_a_stream() {
    let mut member = member();
    member.watch(1, spec(KeyRange::One("w".into()), 1_000), 2);
    member.settle();
    for _ in 0..3 * KEEP.pages {
        member.change(["a"]);
        member.begin_page();
        member.end_page();
        assert!(!member.work());
        assert_eq!(member.set.progress(1, member.newest), Some(member.newest));
    }
    member.change(["w"]);
    member.settle();
    assert_eq!(lines(&member.received[&1]), ["14 w"]);
}

#[test]
fn who_reads_the_past_has_a_turn_however_much_is_new() {
    let mut member = member();
    member.change(["a"; 3 * KEEP.pages]);
    member.settle();
    member.watch(1, spec(everything(), 1_000), member.newest.0 + 1);
    member.watch(2, spec(everything(), 1_000), 2);
    for _ in 0..8 {
        member.change(["b"]);
        member.begin_page();
        member.end_page();
        member.work();
    }
    assert!(!member.received[&2].messages.is_empty());
}

#[test]
fn a_revision_larger_than_a_message_is_split_and_marked() {
    let expect = ["2 a", "3 bc", "4+ de", "4+ fg", "4+ hi", "4 j", "5 k"];
    check(spec(everything(), 2 * EVENT_BYTES), 1, &expect);
}

#[test]
fn a_revision_larger_than_the_memory_for_open_ones_is_delivered_whole() {
    let mut member = Member::new(LIMITS, KEEP, 0);
    member.change(["d", "e", "f", "g", "h", "i", "j"]);
    member.watch(1, spec(everything(), 7 * EVENT_BYTES), 1);
    let split = spec(everything(), 3 * EVENT_BYTES);
    member.watch(2, split.clone(), 1);
    let whole = WatchSpec {
        fragment: false,
        ..split
    };
    member.watch(3, whole, 1);
    member.settle();
    assert_eq!(lines(&member.received[&1]), ["2 defghij"]);
    assert_eq!(lines(&member.received[&2]), ["2+ def", "2+ ghi", "2 j"]);
    assert_eq!(member.received[&3].too_large, Some(Revision(2)));
}

#[test]
fn a_watch_of_one_key_does_not_wait_for_the_rest_of_a_revision() {
    let mut member = member();
    member.watch(1, spec(KeyRange::One(Bytes::from_static(b"a")), 1), 2);
    member.watch(2, spec(everything(), 100 * EVENT_BYTES), 2);
    member.change(["a", "b", "c", "d", "e", "f"]);
    member.begin_page();
    member.end_page();
    member.work();
    assert_eq!(lines(&member.received[&1]), ["2 a"]);
    assert!(
        member.received[&2].messages.is_empty(),
        "its revision may go on"
    );
    assert_eq!(member.set.next(2), Some(Revision(2)));
    member.settle();
    assert_eq!(lines(&member.received[&2]), ["2 abcdef"]);
}

fn shared(spec: WatchSpec) -> WatchSpec {
    WatchSpec {
        shared: true,
        ..spec
    }
}

/// How many messages a revision costs that all of these watches are delivered.
fn sent(specs: impl IntoIterator<Item = WatchSpec>) -> usize {
    let mut member = member();
    let mut ids = 0..;
    for (spec, id) in specs.into_iter().zip(&mut ids) {
        member.watch(id, spec, 2);
    }
    member.change(["a", "b"]);
    member.settle();
    for received in member.received.values() {
        assert_eq!(lines(received), ["2 ab"]);
    }
    member.sent
}

#[test]
fn watches_that_are_alike_share_messages_if_they_may() {
    let plain = spec(everything(), 1_000);
    let with_prev = WatchSpec {
        prev_kv: true,
        ..plain.clone()
    };
    let whole = WatchSpec {
        fragment: false,
        ..plain.clone()
    };
    let both = KeyRange::Between {
        start: Bytes::from_static(b"a"),
        end: Bytes::from_static(b"c"),
    };
    let narrow = spec(both, 1_000);
    let may = || shared(plain.clone());
    assert_eq!(sent([plain.clone(), plain.clone(), may()]), 3);
    assert_eq!(sent((0..100).map(|_| may())), 1);
    let specs = [&plain, &with_prev, &whole, &narrow].map(|spec| shared(spec.clone()));
    assert_eq!(sent(specs.iter().chain(&specs).cloned()), 3);
    let many = (0..SHARED_BY_MAX + 1).map(|_| may());
    assert_eq!(sent(many), 2, "ids are a small part of a message");
}

#[test]
fn progress_is_shared_by_those_that_may() {
    let mut member = member();
    let plain = spec(everything(), 1_000);
    for (id, first) in [(5, 2), (1, 2), (3, 9)] {
        member.watch(id, shared(plain.clone()), first);
    }
    member.watch(4, plain, 2);
    member.change(["a"]);
    member.settle();
    let told = member.set.progress_of(1..=9, member.newest);
    assert_eq!(told, [(Revision(2), vec![1, 5]), (Revision(2), vec![4])]);
}

#[test]
fn a_watch_that_begins_inside_what_others_get_shares_only_the_rest() {
    let mut member = member();
    for _ in 0..3 {
        member.change(["a"]);
    }
    for (id, first) in [(1, 2), (2, 2), (3, 4)] {
        member.watch(id, shared(spec(everything(), 1_000)), first);
    }
    member.settle();
    member.change(["b"]);
    member.settle();
    assert_eq!(lines(&member.received[&1]), ["4 aaa", "5 b"]);
    assert_eq!(lines(&member.received[&2]), ["4 aaa", "5 b"]);
    assert_eq!(lines(&member.received[&3]), ["4 a", "5 b"]);
    assert_eq!(member.sent, 3);
}

#[test]
fn watches_that_share_each_wait_for_the_rest_of_a_revision() {
    for open_events in [0, 4, 100] {
        let mut member = Member::new(LIMITS, KEEP, open_events * EVENT_BYTES);
        for id in 1..4 {
            member.watch(id, shared(spec(everything(), 100 * EVENT_BYTES)), 2);
        }
        member.change(["d", "e", "f", "g", "h", "i", "j"]);
        member.settle();
        for received in member.received.values() {
            assert_eq!(lines(received), ["2 defghij"]);
        }
    }
}

#[test]
fn a_watch_that_ends_between_messages_resumes_at_the_undelivered_rest() {
    let mut member = member();
    member.change(["a"]);
    member.change(["b", "c", "d"]);
    member.watch(1, spec(everything(), 2 * EVENT_BYTES), 1);
    let Some(Work::ReadPast(at, mark)) = member.set.work(&member.ring, &mut member.wanted) else {
        panic!("it is behind");
    };
    assert!(member.cache.find(at, mark).is_none());
    let mut nexts = Vec::new();
    member.settle();
    for message in member.received[&1].messages.clone() {
        let mut set = WatchSet::new(STREAM, 0);
        set.insert(
            1,
            spec(everything(), 1),
            Revision(1),
            &mut Wanted::default(),
        );
        set.delivered(1, message.reached());
        nexts.push(set.next(1).unwrap().0);
    }
    assert_eq!(nexts, [3, 3, 4]);
}

#[test]
fn watches_that_are_behind_share_the_pages_of_the_past() {
    let mut member = Member::new(LIMITS, KEEP, 4 * EVENT_BYTES);
    for _ in 0..200 {
        member.change(["a", "b"]);
    }
    for id in 0..100 {
        let keys = KeyRange::One(Bytes::from_static(if id % 2 == 0 { b"a" } else { b"b" }));
        member.watch(id, spec(keys, 1_000), 2 + id % 50);
    }
    member.settle();
    let delivered = member.received.values().map(|it| it.messages.len());
    assert!(delivered.sum::<usize>() > 100);
    assert!(member.examined < 3 * 400, "{} changes", member.examined);
}

#[test]
fn watches_that_missed_pages_catch_up_together() {
    let mut member = member();
    for id in 0..100 {
        member.watch(id, spec(everything(), 1_000), 2);
    }
    member.settle();
    for _ in 0..100 {
        member.change(["a"]);
        member.begin_page();
        member.end_page();
    }
    let before = member.examined;
    member.settle();
    assert!(
        member.examined - before < 300,
        "{}",
        member.examined - before
    );
    assert!(
        member
            .received
            .values()
            .all(|it| it.messages.last().unwrap().revision == Revision(101))
    );
}

#[test]
fn a_watch_near_the_end_does_not_wait_for_one_far_behind() {
    let mut member = Member::new(LIMITS, KEEP, 4 * EVENT_BYTES);
    for _ in 0..1_000 {
        member.change(["a"]);
    }
    // The ring is empty.
    member.ring.gap(member.newest);
    member.watch(1, spec(everything(), 1_000), 2);
    member.watch(2, spec(everything(), 1_000), 990);
    let turns = (0..).find(|_| {
        member.work();
        member.set.next(2) > Some(Revision(1_000))
    });
    assert!(turns < Some(20), "{turns:?}");
    assert!(member.set.next(1) < Some(Revision(200)));
}

#[test]
fn unwanted_changes_are_not_read() {
    let mut wanted = Wanted::default();
    let with_prev = WatchSpec {
        prev_kv: true,
        ..spec(KeyRange::One(Bytes::from_static(b"a")), 1)
    };
    wanted.add(STREAM, Part::Present, &with_prev);
    let plain = spec(KeyRange::One(Bytes::from_static(b"b")), 1);
    let mark = wanted.add(STREAM, Part::Present, &plain);
    assert_eq!(mark, wanted.mark());
    use crate::Want::{Event, EventWithPrev, Nothing};
    let wants = ["a", "b", "c"].map(|key| wanted.want(Part::Present, key.as_bytes()));
    assert_eq!(wants, [EventWithPrev, Event, Nothing]);
    wanted.remove(STREAM, Part::Present, &with_prev);
    assert_eq!(wanted.want(Part::Present, b"a"), Nothing);
    assert_eq!(wanted.want(Part::Past, b"b"), Nothing);
}

#[test]
fn a_ring_keeps_the_pages_that_fit_and_the_newest_one() {
    let mut member = member();
    member.watch(1, spec(everything(), 1_000), 2);
    for _ in 0..50 {
        member.change(["a", "b", "c", "d"]);
        member.begin_page();
        member.end_page();
        assert!(member.ring.bytes() <= KEEP.bytes.max(LIMITS.bytes + 256 + EVENT_BYTES));
    }
    let begins = member.ring.begins();
    assert!(matches!(member.ring.find(begins), InRing::Page(_)));
    let before = Stamp::start_of(Revision(2));
    assert!(matches!(member.ring.find(before), InRing::NoMore));
    assert!(matches!(
        member.ring.find(member.ring.next()),
        InRing::NotYet
    ));
}

#[test]
fn a_page_of_the_past_is_shared_only_if_it_has_what_is_wanted() {
    let mut member = member();
    member.change(["a"]);
    member.watch(1, spec(KeyRange::One(Bytes::from_static(b"b")), 1_000), 1);
    member.settle();
    let old = member.wanted.mark();
    member.watch(2, spec(everything(), 1_000), 1);
    let at = Stamp::start_of(Revision(1));
    let found = member.cache.find(at, old);
    assert!(found.is_some_and(|page: Arc<Page>| page.events.is_empty()));
    assert!(member.cache.find(at, member.wanted.mark()).is_none());
    member.settle();
    assert_eq!(lines(&member.received[&2]), ["2 a"]);
}
