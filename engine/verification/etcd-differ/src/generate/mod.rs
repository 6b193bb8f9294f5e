//! Sequences of calls from a seed. Nothing is asked of a system: a sequence is known before its
//! first call is sent, and what it says about revisions is a guess that is right often enough.

mod contests;
mod hostile;
mod kv;
mod others;
mod txn;
mod watch;

use std::ops::Range;

use bytes::Bytes;
use clap::ValueEnum;
use dengine_testkit::Random;

use crate::operation::Operation;

/// How a sequence behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mood {
    /// As programs call the API: most calls succeed, and options are used in every combination.
    Valid,
    /// The same with what no client library sends among it: unknown enums, negative numbers, empty
    /// unions, too many operations, transactions nested deep.
    Hostile,
}

/// Calls that are only sent if they were asked for, or if a system has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Grant, revoke, keep alive, time to live, list, puts with a lease, locks and elections.
    pub leases: bool,
    /// Raising and clearing the alarm that stops writes.
    pub alarms: bool,
    /// Ranges in pieces: a search sends them if the left system has them.
    pub range_stream: bool,
}

impl Calls {
    /// Whatever can be sent.
    pub const ALL: Self = Self {
        leases: true,
        alarms: true,
        range_stream: true,
    };
}

/// Streams of watches in one sequence.
pub(crate) const STREAMS: usize = 3;
/// Leases that keys may hang on: their ids are from 1 to this one.
const LEASES: u64 = 5;
/// Ids of leases that end while the sequence runs, each granted once. No key hangs on one, for
/// nothing says when it goes.
pub(crate) const SHORT_LEASES: Range<i64> = 500..1_000;

/// So many calls; equal arguments give equal calls.
#[must_use]
pub fn sequence(seed: u64, mood: Mood, count: usize, calls: Calls) -> Vec<Operation> {
    let mut draw = Draw {
        random: Random::new(seed),
        mood,
        calls,
        revision: 1,
        compacted: 0,
        short_leases: 0,
        watches: [0; STREAMS],
    };
    (0..count).map(|_| draw.operation()).collect()
}

/// What the next calls are drawn from.
struct Draw {
    random: Random,
    mood: Mood,
    calls: Calls,
    /// About what the store's revision is by now.
    revision: i64,
    /// Up to which revision history was asked to go.
    compacted: i64,
    /// How many of [`SHORT_LEASES`] were granted.
    short_leases: i64,
    /// Watches that each stream was asked for.
    watches: [i64; STREAMS],
}

impl Draw {
    fn operation(&mut self) -> Operation {
        if self.mood == Mood::Hostile && self.random.chance(35) {
            return self.hostile();
        }
        let operation = match self.random.below(100) {
            0..32 => Operation::Put(self.put()),
            32..54 => self.some_range(),
            54..61 => Operation::Delete(self.delete()),
            61..79 => Operation::Txn(self.txn(0)),
            79..91 => self.watch(),
            91..97 if self.calls.leases => match self.flag(40) {
                true => self.contest(),
                false => self.lease(),
            },
            91..97 => Operation::Put(self.put()),
            97..99 => self.about_members(),
            _ => self.compact_seldom(),
        };
        if matches!(
            operation,
            Operation::Put(_) | Operation::Txn(_) | Operation::Delete(_) | Operation::Proclaim(_)
        ) {
            self.revision += i64::from(self.random.chance(80));
        }
        operation
    }

    /// One of a few keys, most of which are short and near each other.
    fn key(&mut self) -> Bytes {
        match self.random.below(40) {
            0 => Bytes::from_static(b"\0"),
            1 => Bytes::from_static(b"\xff"),
            2 => Bytes::from_static(b"k/\xff\xff"),
            3 => Bytes::from_static(b"k/1\0"),
            4 => Bytes::from(vec![b'z'; 300]),
            number @ 5..12 => Bytes::from(format!("{}", (b'a' + number as u8 - 5) as char)),
            number => Bytes::from(format!("k/{:x}", (number - 12) % 16)),
        }
    }

    /// The end of a range that begins at the key; empty: the key alone.
    fn range_end(&mut self, key: &Bytes) -> Bytes {
        match self.random.below(20) {
            0..9 => Bytes::new(),
            9..15 => after(key),
            15..18 => self.key(),
            18 => Bytes::from_static(b"l"),
            _ => Bytes::from_static(b"\0"),
        }
    }

    fn value(&mut self) -> Bytes {
        match self.random.below(1_000) {
            0 => Bytes::from(vec![b'v'; 700 << 10]),
            // Two of them are more than one piece of a range.
            1..4 => Bytes::from(vec![b'w'; 150 << 10]),
            4..100 => Bytes::new(),
            100..400 => Bytes::from(format!("{}", self.random.below(4))),
            _ => {
                let length = self.random.below(40);
                let letters = self.random.bytes(length);
                letters.into_iter().map(|byte| b'a' + byte % 26).collect()
            }
        }
    }

    /// 0 for the newest, or a revision of which most exist.
    fn past(&mut self, percent: u64) -> i64 {
        if !self.random.chance(percent) {
            return 0;
        }
        match self.random.below(20) {
            0 => self.compacted,
            1 => self.compacted + 1,
            2 => self.revision + 1,
            3 => self.revision + 1_000,
            4 => 1,
            _ => self.some_revision(),
        }
    }

    /// Any from the start on, a recent one as often as all others.
    fn some_revision(&mut self) -> i64 {
        let newest = self.revision as u64 + 1;
        let from = match self.random.chance(50) {
            true => newest.saturating_sub(10).max(1),
            false => 1,
        };
        self.random.between(from, newest + 1) as i64
    }

    fn short_lease(&mut self) -> i64 {
        self.short_leases += 1;
        let number = (self.short_leases - 1) % (SHORT_LEASES.end - SHORT_LEASES.start);
        SHORT_LEASES.start + number
    }

    /// True so many times in 100.
    fn flag(&mut self, percent: u64) -> bool {
        self.random.chance(percent)
    }
}

/// What every client library calls the end of a prefix.
fn after(prefix: &Bytes) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end.into();
        }
    }
    Bytes::from_static(b"\0")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn equal_seeds_give_equal_sequences_and_others_do_not() {
        let of = |seed| sequence(seed, Mood::Hostile, 300, Calls::ALL);
        assert_eq!(of(3), of(3));
        assert_ne!(of(3), of(4));
    }

    #[test]
    fn every_call_is_sent_and_none_that_was_not_asked_for() {
        let names = |calls| {
            let operations = sequence(1, Mood::Valid, 5_000, calls);
            operations
                .iter()
                .map(Operation::name)
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(names(Calls::ALL).len(), 23);
        let plain = [
            "alarm", "compact", "delete", "hash-kv", "members", "put", "range", "status", "txn",
            "watch",
        ];
        assert_eq!(names(Calls::default()), plain.into());
    }

    #[test]
    fn the_end_of_a_prefix_is_the_next_key_that_it_does_not_begin() {
        assert_eq!(after(&Bytes::from_static(b"ab")), "ac");
        assert_eq!(after(&Bytes::from_static(b"a\xff\xff")), "b");
        assert_eq!(after(&Bytes::from_static(b"\xff")), "\0");
    }
}
