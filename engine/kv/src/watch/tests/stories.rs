//! Any history and any watches, in any order of events.

use proptest::prelude::*;

use super::member::{Member, Received};
use super::*;
use crate::PageLimits;

#[derive(Clone, Debug)]
enum Step {
    /// A revision changes this many keys, from this one on.
    Change(usize, usize),
    BeginPage,
    EndPage,
    Work,
    Watch(WatchSpec, u64),
    Remove(usize),
}

const KEYS: [&str; 12] = [
    "a", "aa", "ab", "b", "ba", "bbb", "c", "cc", "cd", "ce", "d", "dd",
];

fn keys() -> impl Strategy<Value = KeyRange> {
    let key = || prop::sample::select(&KEYS[..]).prop_map(|key| Bytes::from_static(key.as_bytes()));
    prop_oneof![
        2 => key().prop_map(KeyRange::One),
        2 => (key(), key()).prop_map(|(start, end)| KeyRange::Between { start, end }),
        1 => key().prop_map(KeyRange::From),
        1 => Just(everything()),
    ]
}

fn watch() -> impl Strategy<Value = Step> {
    let flags = || prop::bool::weighted(0.3);
    let spec = (
        keys(),
        flags(),
        flags(),
        flags(),
        any::<[bool; 2]>(),
        // One of them often, so that watches are alike.
        prop_oneof![Just(300), 100..1_500_usize],
    );
    (spec, 1..20_u64).prop_map(
        |((keys, prev_kv, no_put, no_delete, [fragment, shared], bytes), first)| {
            let spec = WatchSpec {
                prev_kv,
                no_put,
                no_delete,
                fragment,
                shared,
                ..spec_of(keys, bytes)
            };
            Step::Watch(spec, first)
        },
    )
}

fn spec_of(keys: KeyRange, bytes: usize) -> WatchSpec {
    spec(keys, bytes)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..KEYS.len(), 1..4_usize).prop_map(|(from, count)| Step::Change(from, count)),
        1 => Just(Step::Change(0, KEYS.len())),
        4 => Just(Step::BeginPage),
        4 => Just(Step::EndPage),
        6 => Just(Step::Work),
        2 => watch(),
        1 => (0..8_usize).prop_map(Step::Remove),
    ]
}

/// Checks what a watch got, or a prefix of it if the watch ended.
fn check(member: &Member, spec: &WatchSpec, first: u64, received: &Received) {
    let wanted = |it: &&Event| it.kv.mod_revision.0 >= first && spec.wants(it);
    let expect = member.history.iter().filter(wanted);
    let expect: Vec<_> = expect.map(|it| spec.copy(it)).collect();
    let of = |revision| {
        let events = expect
            .iter()
            .filter(move |it| it.kv.mod_revision == revision);
        (
            events.clone().count(),
            events.map(Event::size_bytes).sum::<usize>(),
        )
    };
    let delivered = received.messages.iter().flat_map(|it| &it.events);
    let delivered: Vec<_> = delivered.cloned().collect();
    match received.too_large {
        None => assert_eq!(delivered, expect),
        Some(revision) => {
            assert!(!spec.fragment && of(revision).1 > spec.message_bytes);
            assert_eq!(delivered[..], expect[..delivered.len()]);
            assert!(received.messages.iter().all(|it| it.revision < revision));
        }
    }
    for message in &received.messages {
        let last = message.events.last().expect("never empty");
        assert_eq!(last.kv.mod_revision, message.revision);
        let bytes: usize = message.events.iter().map(Event::size_bytes).sum();
        assert!(
            bytes <= spec.message_bytes || message.events.len() == 1,
            "{bytes}"
        );
        if message.fragment {
            let (events, bytes) = of(message.revision);
            assert!(
                spec.fragment && events > 1 && bytes > spec.message_bytes,
                "{message:?}"
            );
        }
    }
    for pair in received.messages.windows(2) {
        let same = pair[0].revision == pair[1].events[0].kv.mod_revision;
        assert_eq!(
            pair[0].fragment, same,
            "only a fragment is followed by its own revision"
        );
    }
    assert!(
        received
            .messages
            .last()
            .is_none_or(|it| !it.fragment || received.too_large.is_some())
    );
}

fn play(steps: Vec<Step>, limits: PageLimits, keep: KeepLimits, open_bytes: usize) {
    let mut member = Member::new(limits, keep, open_bytes);
    let mut watches = Vec::new();
    for step in steps {
        match step {
            Step::Change(from, count) => {
                member.change(KEYS.iter().copied().cycle().skip(from).take(count));
            }
            Step::BeginPage => member.begin_page(),
            Step::EndPage => member.end_page(),
            Step::Work => {
                member.work_if_woken();
            }
            Step::Watch(spec, first) => {
                member.watch(watches.len() as u64, spec.clone(), first);
                watches.push((spec, first));
            }
            Step::Remove(id) => {
                if member.set.remove(id as u64, &mut member.wanted).is_some() {
                    member.received.remove(&(id as u64));
                }
            }
        }
        let one = 2 * event(1, 0, "a").size_bytes();
        let most = keep.bytes.max(limits.bytes + 256) + one;
        assert!(member.ring.bytes() <= most, "{} bytes", member.ring.bytes());
    }
    member.settle();
    for (id, (spec, first)) in (0..).zip(&watches) {
        if let Some(received) = member.received.get(&id) {
            check(&member, spec, *first, received);
        }
    }
    member.set.clear(&mut member.wanted);
    for key in KEYS {
        for part in [Part::Present, Part::Past] {
            let want = member.wanted.want(part, key.as_bytes());
            assert_eq!(
                want,
                crate::Want::Nothing,
                "watches that are gone want nothing"
            );
        }
    }
}

proptest! {
    #[test]
    fn every_event_is_delivered_once_in_order(
        steps in prop::collection::vec(step(), 0..120),
        bytes in 1..1_200_usize,
        changes in 1..20_usize,
        pages in 1..24_usize,
        room in 4..20_usize,
        open_bytes in 0..2_000_usize,
    ) {
        let keep = KeepLimits { bytes: room * bytes, pages };
        play(steps, PageLimits { bytes, changes }, keep, open_bytes);
    }
}
