//! Measures the delivery of one page of history to the watches of a stream, compared with asking
//! each watch about each change:
//!
//! ```text
//! cargo run --release -p dengine-kv --example watch_page
//! ```

#![allow(clippy::print_stdout, reason = "its results are what it is run for")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dengine_kv::watch::{
    KeepLimits, Page, Part, Ring, StreamId, Wanted, WatchSet, WatchSpec, Work,
};
use dengine_kv::{Changes, Event, EventKind, KeyRange, KeyValue, Stamp};
use dengine_types::{LeaseId, Revision};

const CHANGES: u64 = 4_096;
const KEEP: KeepLimits = KeepLimits {
    bytes: 8 << 20,
    pages: 8,
};

fn main() {
    println!("a page of {CHANGES} changes    watches  indexed     each asked  ratio");
    for (kind, keys) in [
        ("single keys", key as fn(u64) -> KeyRange),
        ("ranges", range),
    ] {
        for watches in [1_024, 16_384] {
            let (indexed, asked) = measure(keys, watches);
            let ratio = asked.as_secs_f64() / indexed.as_secs_f64();
            println!("{kind:<25} {watches:>8}  {indexed:>10.1?}  {asked:>10.1?}  {ratio:.0}");
        }
    }
}

fn name(number: u64) -> Bytes {
    Bytes::from(format!("registry/pods/namespace/{number:08}"))
}

fn key(number: u64) -> KeyRange {
    KeyRange::One(name(number))
}

/// Every range contains two keys.
fn range(number: u64) -> KeyRange {
    KeyRange::Between {
        start: name(number),
        end: name(number + 2),
    }
}

fn measure(keys: fn(u64) -> KeyRange, watches: u64) -> (Duration, Duration) {
    let spec = |number| WatchSpec {
        keys: keys(number),
        prev_kv: false,
        no_put: false,
        no_delete: false,
        fragment: true,
        shared: false,
        message_bytes: 512 << 10,
    };
    let specs: Vec<_> = (0..watches).map(spec).collect();
    let page = Arc::new(page());
    let (mut set, mut wanted) = (WatchSet::new(StreamId(1), 1 << 20), Wanted::default());
    for (id, spec) in (0..).zip(&specs) {
        set.insert(id, spec.clone(), Revision(2), &mut wanted);
    }
    let mut ring = Ring::new(Revision(1), KEEP);
    assert!(set.work(&ring, &mut wanted).is_none(), "all are synced");
    let mut mine = (*page).clone();
    mine.mark = wanted.mark();
    ring.push(Arc::new(mine));

    let begun = Instant::now();
    let Some(Work::Deliver(next)) = set.work(&ring, &mut wanted) else {
        panic!("there is a page");
    };
    let (mut delivery, mut indexed) = (set.deliver(next), 0);
    while let Some(slice) = set.slice(&mut delivery) {
        let messages = slice.iter().filter_map(|it| it.messages.as_ref().ok());
        indexed += messages
            .flatten()
            .map(|batch| batch.events.len())
            .sum::<usize>();
    }
    set.finish(delivery, &mut wanted);
    let time_indexed = begun.elapsed();

    let begun = Instant::now();
    let asked = specs.iter().map(|spec| {
        let wanted = page.events.iter().filter(|event| spec.wants(event));
        wanted.cloned().collect::<Vec<_>>().len()
    });
    let asked: usize = asked.sum();
    assert_eq!(indexed, asked);
    (time_indexed, begun.elapsed())
}

fn page() -> Page {
    let event = |number| Event {
        kind: EventKind::Put,
        sub: 0,
        kv: KeyValue {
            // Spread over all watches.
            key: name(number * 7 % 16_384),
            value: Bytes::from_static(&[0; 64]),
            create_revision: Revision(number + 2),
            mod_revision: Revision(number + 2),
            version: 1,
            ttl_ms: 0,
            lease: LeaseId::NONE,
        },
        prev: None,
    };
    let newest = Revision(CHANGES + 1);
    let changes = Changes {
        events: (0..CHANGES).map(event).collect(),
        next: Stamp::end_of(newest),
        revision: newest,
    };
    let from = Stamp::start_of(Revision(2));
    Page::new(from, Part::Present, Wanted::default().mark(), changes)
}
