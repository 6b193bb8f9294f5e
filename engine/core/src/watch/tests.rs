//! Whatever the pages are cut like, a watch is told everything once, in order, in whole revisions.

use super::*;
use bytes::Bytes;
use proptest::prelude::*;

fn event(revision: u64, key: &str, kind: EventKind) -> Event {
    Event {
        kind,
        kv: KeyValue {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::from_static(&[0; 36]),
            create_revision: Revision(1),
            mod_revision: Revision(revision),
            version: 1,
            ttl_ms: 0,
        },
        prev: None,
    }
}

fn page(from: u64, to: u64, events: &[Event]) -> Page {
    Page {
        from: Revision(from),
        to: Revision(to),
        with_prev: true,
        events: events
            .iter()
            .filter(|it| (from..=to).contains(&it.kv.mod_revision.0))
            .cloned()
            .collect(),
    }
}

fn spec(message_events: usize) -> WatchSpec {
    WatchSpec {
        keys: KeyRange::From(Bytes::from_static(b"\0")),
        prev_kv: false,
        no_put: false,
        no_delete: false,
        fragment: true,
        message_bytes: message_events * event_bytes(&event(1, "a", EventKind::Put)),
    }
}

fn take(watch: &mut Watch, page: &Page) -> Result<Vec<Told>, Misfit> {
    let told = watch.cut(page)?;
    for it in &told {
        watch.told(it.revision, it.fragment);
    }
    watch.finish(page);
    Ok(told)
}

fn keys(told: &[Told]) -> Vec<(String, u64, bool)> {
    let names = |it: &Told| {
        let names = it
            .events
            .iter()
            .map(|it| it.kv.key.escape_ascii().to_string());
        names.collect::<String>()
    };
    let line = |it: &Told| (names(it), it.revision.0, it.fragment);
    told.iter().map(line).collect()
}

fn puts(revisions: &[(u64, &str)]) -> Vec<Event> {
    let put = |&(revision, key): &(u64, &str)| event(revision, key, EventKind::Put);
    revisions.iter().map(put).collect()
}

fn check(spec: WatchSpec, first: u64, events: &[Event], expect: &[(&str, u64, bool)]) {
    let mut watch = Watch::new(spec, Revision(first));
    let told = take(&mut watch, &page(1, 9, events)).unwrap();
    let expect: Vec<_> = expect
        .iter()
        .map(|&(names, revision, fragment)| (names.to_owned(), revision, fragment))
        .collect();
    assert_eq!(keys(&told), expect);
    assert_eq!(watch.next(), Revision(10));
}

#[test]
fn revisions_share_a_message_as_long_as_they_fit_whole() {
    let events = puts(&[(2, "a"), (3, "b"), (3, "c"), (4, "d")]);
    check(spec(9), 1, &events, &[("abcd", 4, false)]);
    check(
        spec(2),
        1,
        &events,
        &[("a", 2, false), ("bc", 3, false), ("d", 4, false)],
    );
    check(spec(3), 1, &events, &[("abc", 3, false), ("d", 4, false)]);
    check(spec(9), 3, &events, &[("bcd", 4, false)]);
}

#[test]
fn a_revision_larger_than_a_message_is_split_and_marked() {
    let events = puts(&[(2, "a"), (3, "b"), (3, "c"), (3, "d"), (4, "e")]);
    let expect = [
        ("a", 2, false),
        ("bc", 3, true),
        ("d", 3, false),
        ("e", 4, false),
    ];
    check(spec(2), 1, &events, &expect);
}

#[test]
fn a_watch_that_ends_between_two_messages_begins_anew_at_what_was_not_told() {
    let events = puts(&[(2, "a"), (3, "b"), (3, "c"), (3, "d"), (4, "e")]);
    let page = page(1, 9, &events);
    let mut watch = Watch::new(spec(2), Revision(1));
    let mut nexts = Vec::new();
    for it in watch.cut(&page).unwrap() {
        watch.told(it.revision, it.fragment);
        nexts.push(watch.next().0);
    }
    assert_eq!(nexts, [3, 3, 4, 5]);
}

#[test]
fn without_fragments_it_is_refused_and_nothing_is_told() {
    let whole = WatchSpec {
        fragment: false,
        ..spec(2)
    };
    let watch = Watch::new(whole, Revision(1));
    let events = puts(&[(2, "a"), (3, "b"), (3, "c"), (3, "d")]);
    let revision = Revision(3);
    assert_eq!(
        watch.cut(&page(1, 9, &events)),
        Err(Misfit::TooLarge { revision })
    );
    assert_eq!(watch.next(), Revision(1));
}

#[test]
fn filters_and_keys_choose() {
    let events = [
        event(2, "a", EventKind::Put),
        event(3, "a", EventKind::Delete),
        event(4, "b", EventKind::Put),
    ];
    let no_put = WatchSpec {
        no_put: true,
        ..spec(9)
    };
    check(no_put, 1, &events, &[("a", 3, false)]);
    let one = WatchSpec {
        keys: KeyRange::One(Bytes::from_static(b"b")),
        no_delete: true,
        ..spec(9)
    };
    check(one, 1, &events, &[("b", 4, false)]);
}

#[test]
fn a_page_that_begins_too_late_or_lacks_something_is_a_gap() {
    let mut watch = Watch::new(spec(9), Revision(3));
    assert_eq!(watch.cut(&page(4, 9, &[])), Err(Misfit::Gap));
    assert_eq!(take(&mut watch, &page(1, 2, &[])), Ok(Vec::new()));
    assert_eq!(
        watch.next(),
        Revision(3),
        "a page of the past changes nothing"
    );
    let prev = WatchSpec {
        prev_kv: true,
        ..spec(9)
    };
    let lacking = Page {
        with_prev: false,
        ..page(1, 9, &[])
    };
    assert_eq!(
        Watch::new(prev, Revision(3)).cut(&lacking),
        Err(Misfit::Gap)
    );
}

proptest! {
    /// Cut and overlapping as they may be, the pages tell the same story.
    #[test]
    fn every_event_is_told_once_in_order(
        sizes in prop::collection::vec(0_usize..6, 1..30),
        cuts in prop::collection::vec((0_u64..40, 0_u64..6), 0..60),
        message_events in 1_usize..5,
        first in 1_u64..30,
    ) {
        let events: Vec<_> = sizes.iter().zip(1_u64..)
            .flat_map(|(&size, revision)| (0..size).map(move |n| event(revision, &n.to_string(), EventKind::Put)))
            .collect();
        let last = sizes.len() as u64;
        let mut watch = Watch::new(spec(message_events), Revision(first));
        let mut told = Vec::new();
        let tail = (1..=last).map(|revision| (revision, 0));
        for (from, length) in cuts.into_iter().chain(tail) {
            let to = (from + length).min(last);
            if from >= 1 && to >= from && let Ok(more) = take(&mut watch, &page(from, to, &events)) {
                told.extend(more);
            }
        }
        let expect: Vec<_> = events.into_iter().filter(|it| it.kv.mod_revision.0 >= first).collect();
        let found: Vec<_> = told.iter().flat_map(|it| it.events.clone()).collect();
        prop_assert_eq!(found, expect);
        for pair in told.windows(2) {
            let same = pair[0].revision == pair[1].events[0].kv.mod_revision;
            prop_assert_eq!(pair[0].fragment, same, "only a fragment is followed by its own revision");
        }
    }
}
