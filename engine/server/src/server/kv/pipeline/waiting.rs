//! Calls of a stream that wait until others of it give their places back.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use dengine_kv as kv;
use dengine_protocol::checks::frame::{Asked, ReadAlone};
use dengine_protocol::v1::pipelined_call::Call;
use dengine_protocol::v1::{Consistency, GetRequest};
use prost::Message as _;

use crate::connections::Source;
use crate::server::gate::{Gate, Kind, Waiting};
use crate::write_bytes::of_parts_asked;

/// What a call takes besides what was sent of it, about.
const CALL_BYTES: usize = 128;

/// Those of one stream, the oldest first. Reads and writes do not wait for each other.
#[derive(Default)]
pub(super) struct Lines {
    reads: VecDeque<Part>,
    writes: VecDeque<Part>,
}

impl Lines {
    pub(super) fn of(&mut self, kind: Kind) -> &mut VecDeque<Part> {
        match kind {
            Kind::Read => &mut self.reads,
            Kind::Write => &mut self.writes,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }

    /// Leaves out those of these calls that wait, and tells which they are.
    pub(super) fn cancel(&mut self, ids: &HashSet<u64>) -> Vec<u64> {
        let parts = self.reads.iter_mut().chain(&mut self.writes);
        let cancelled = parts.flat_map(|part| part.leave_out(|asked, _| ids.contains(&asked.id)));
        cancelled.collect()
    }
}

/// Calls that wait for places together, and when they arrived.
pub(super) struct Part {
    arrived: Instant,
    calls: PartCalls,
    /// Counts what they hold, once they wait.
    waiting: Option<Waiting>,
}

pub(super) enum PartCalls {
    Writes(Vec<(Asked, Call)>, Vec<kv::Request>),
    WriteAlone(Asked, Call),
    Gets(VecDeque<(Asked, GetRequest)>, Consistency),
    ReadAlone(Asked, ReadAlone),
}

impl Part {
    pub(super) fn new(arrived: Instant, calls: PartCalls) -> Self {
        Self {
            arrived,
            calls,
            waiting: None,
        }
    }

    pub(super) fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Has them wait, unless what they hold is more than there is room for.
    pub(super) fn wait(&mut self, gate: &Gate, source: &Arc<Source>) -> bool {
        if self.waiting.is_none() {
            self.waiting = gate.wait(self.bytes(), source);
        }
        self.waiting.is_some()
    }

    /// The first so many of them, and those that are left.
    pub(super) fn split_at(mut self, count: usize) -> (PartCalls, Option<Self>) {
        let rest = match &mut self.calls {
            PartCalls::Writes(calls, commands) => {
                PartCalls::Writes(calls.split_off(count), commands.split_off(count))
            }
            PartCalls::Gets(gets, level) => PartCalls::Gets(gets.split_off(count), *level),
            PartCalls::WriteAlone(..) | PartCalls::ReadAlone(..) => return (self.calls, None),
        };
        let first = std::mem::replace(&mut self.calls, rest);
        (first, (!self.is_empty()).then_some(self))
    }

    pub(super) fn kind(&self) -> Kind {
        match self.calls {
            PartCalls::Writes(..) | PartCalls::WriteAlone(..) => Kind::Write,
            PartCalls::Gets(..) | PartCalls::ReadAlone(..) => Kind::Read,
        }
    }

    pub(super) fn count(&self) -> usize {
        match &self.calls {
            PartCalls::Writes(calls, _) => calls.len(),
            PartCalls::Gets(gets, _) => gets.len(),
            PartCalls::WriteAlone(..) | PartCalls::ReadAlone(..) => 1,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// What they hold, about.
    fn bytes(&self) -> usize {
        let of_calls = match &self.calls {
            PartCalls::Writes(calls, _) => calls.iter().map(|(_, call)| held(call)).sum(),
            PartCalls::WriteAlone(_, call) => held(call),
            PartCalls::Gets(gets, _) => gets.iter().map(|(_, get)| get.encoded_len()).sum(),
            PartCalls::ReadAlone(_, ReadAlone::Get(get)) => get.encoded_len(),
            PartCalls::ReadAlone(_, ReadAlone::Range(range)) => range.encoded_len(),
        };
        of_calls + self.count() * CALL_BYTES
    }

    pub(super) fn ids(&self) -> Vec<u64> {
        match &self.calls {
            PartCalls::Writes(calls, _) => calls.iter().map(|(asked, _)| asked.id).collect(),
            PartCalls::Gets(gets, _) => gets.iter().map(|(asked, _)| asked.id).collect(),
            PartCalls::WriteAlone(asked, _) | PartCalls::ReadAlone(asked, _) => vec![asked.id],
        }
    }

    /// Leaves those out of which this is said, with when they arrived, and tells which they are.
    pub(super) fn leave_out(&mut self, is_over: impl Fn(Asked, Instant) -> bool) -> Vec<u64> {
        let (arrived, mut over) = (self.arrived, Vec::new());
        let mut stays = |asked: &Asked| {
            let is_over = is_over(*asked, arrived);
            over.extend(is_over.then_some(asked.id));
            !is_over
        };
        match &mut self.calls {
            PartCalls::Writes(calls, commands) => {
                let all = std::mem::take(calls)
                    .into_iter()
                    .zip(std::mem::take(commands));
                (*calls, *commands) = all.filter(|((asked, _), _)| stays(asked)).unzip();
            }
            PartCalls::Gets(gets, _) => gets.retain(|(asked, _)| stays(asked)),
            PartCalls::WriteAlone(asked, _) | PartCalls::ReadAlone(asked, _) => {
                if !stays(asked) {
                    self.calls = PartCalls::Writes(Vec::new(), Vec::new());
                }
            }
        }
        over
    }
}

/// What a call that writes holds, about: what was sent of it, and each part of a batch twice, as it
/// was decoded and as it is proposed. A part of seven bytes on the wire takes thirty times as many.
fn held(call: &Call) -> usize {
    call.encoded_len() + 2 * of_parts_asked(call)
}

#[cfg(test)]
mod tests {
    use dengine_protocol::v1;

    use super::*;

    /// Two thousand of these were counted as six megabytes, and held a hundred and fifty.
    #[test]
    fn the_parts_of_a_batch_count_as_they_are_held() {
        let batch = v1::BatchRequest {
            compares: vec![v1::Compare::default(); 128],
            then: vec![v1::Operation::default(); 128],
            ..v1::BatchRequest::default()
        };
        let in_memory = size_of_val(&*batch.compares) + size_of_val(&*batch.then);
        let call = Call::Batch(batch);
        assert!(held(&call) > in_memory + call.encoded_len());
    }

    fn asked(id: u64) -> Asked {
        Asked {
            id,
            ..Asked::default()
        }
    }

    fn gets(ids: std::ops::Range<u64>) -> Part {
        let gets = ids.map(|id| (asked(id), GetRequest::default())).collect();
        Part::new(Instant::now(), PartCalls::Gets(gets, Consistency::Lease))
    }

    #[test]
    fn as_many_begin_as_were_let_in_and_the_rest_is_left() {
        let (first, rest) = gets(0..5).split_at(2);
        assert!(matches!(first, PartCalls::Gets(gets, _) if gets.len() == 2));
        assert_eq!(rest.unwrap().ids(), [2, 3, 4]);
        assert!(gets(0..5).split_at(5).1.is_none());
        let range = PartCalls::ReadAlone(asked(7), ReadAlone::Get(GetRequest::default()));
        let (alone, rest) = Part::new(Instant::now(), range).split_at(1);
        assert!(matches!(alone, PartCalls::ReadAlone(..)) && rest.is_none());
    }

    #[test]
    fn who_came_too_late_or_is_cancelled_is_told_and_left_out() {
        let mut part = gets(0..4);
        let late = part.leave_out(|asked, _| asked.id.is_multiple_of(2));
        assert_eq!((late, part.ids()), (vec![0, 2], vec![1, 3]));
        let mut lines = Lines::default();
        lines.of(Kind::Read).push_back(part);
        assert_eq!(lines.cancel(&[1, 2].into()), [1]);
        assert_eq!(lines.of(Kind::Read)[0].ids(), [3]);
        let read = PartCalls::ReadAlone(asked(7), ReadAlone::Get(GetRequest::default()));
        let mut part = Part::new(Instant::now(), read);
        assert_eq!(part.leave_out(|_, _| true), [7]);
        assert!(part.is_empty());
    }
}
