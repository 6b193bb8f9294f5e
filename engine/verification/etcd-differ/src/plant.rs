//! Mistakes made on purpose in one side's answers, to show that each is found.

use clap::ValueEnum;

use crate::operation::Operation;
use crate::pb::response_op::Response;
use crate::reply::Reply;
use crate::stream::Entry;
use crate::system::{System, Watched};

/// What is wrong with one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Plant {
    /// `count` is that of the pairs that are returned.
    CountOfPage,
    /// `more` is never said.
    NeverMore,
    /// A refusal has the right code and another text.
    OtherText,
    /// A refusal has the right text and another code.
    OtherCode,
    /// The head of a created watch is one revision too late.
    CreatedTooLate,
    /// An event is lost.
    LostEvent,
    /// Events lack what the key was before.
    NoPrevious,
    /// Two events are exchanged.
    Exchanged,
    /// What a transaction answers inside has no heads.
    NoInnerHead,
    /// A version goes on after a deletion.
    Version,
    /// A RangeStream leaves out a pair.
    LostPair,
}

/// A system with one mistake.
pub(crate) struct Planted<S> {
    pub(crate) system: S,
    pub(crate) plant: Option<Plant>,
}

impl<S: System + Send> System for Planted<S> {
    async fn call(&mut self, operation: &Operation) -> Reply {
        let mut reply = self.system.call(operation).await;
        if let Some(plant) = self.plant {
            spoil(plant, operation, &mut reply);
        }
        reply
    }

    async fn settle(&mut self) {
        self.system.settle().await;
    }

    fn watched(&self) -> Watched {
        let mut watched = self.system.watched();
        if let Some(plant) = self.plant {
            let streams = watched.streams.values_mut();
            let watches = streams.flat_map(|watches| watches.values_mut());
            watches.for_each(|entries| spoil_watch(plant, entries));
        }
        watched
    }

    fn keeps(&self, stream: usize, id: i64) -> bool {
        self.system.keeps(stream, id)
    }

    fn broken(&self) -> Vec<String> {
        self.system.broken()
    }

    fn forget(&mut self) {
        self.system.forget();
    }
}

fn spoil(plant: Plant, operation: &Operation, reply: &mut Reply) {
    match (plant, reply) {
        (Plant::LostPair, Reply::Range(response))
            if matches!(operation, Operation::RangeStream(_)) =>
        {
            response.kvs.pop();
        }
        (Plant::CountOfPage, Reply::Range(response)) if !response.kvs.is_empty() => {
            response.count = response.kvs.len() as i64;
        }
        (Plant::NeverMore, Reply::Range(response)) => response.more = false,
        (Plant::OtherText, Reply::Refused(_, text)) => text.push('.'),
        (Plant::OtherCode, Reply::Refused(code, _)) => *code = tonic::Code::Internal,
        (Plant::CreatedTooLate, Reply::Watch(response)) if response.created => {
            let header = response.header.iter_mut();
            header.for_each(|header| header.revision += 1);
        }
        (Plant::NoInnerHead, Reply::Txn(response)) => {
            for response in &mut response.responses {
                if let Some(Response::ResponsePut(put)) = &mut response.response {
                    put.header = None;
                }
            }
        }
        (Plant::Version, Reply::Range(response)) => {
            let recreated = response.kvs.iter_mut().filter(|kv| kv.create_revision > 9);
            recreated.for_each(|kv| kv.version += 1);
        }
        _ => {}
    }
}

fn spoil_watch(plant: Plant, entries: &mut Vec<Entry>) {
    match plant {
        Plant::LostEvent if entries.len() > 3 => {
            entries.remove(2);
        }
        Plant::Exchanged if entries.len() > 2 => entries.swap(0, 1),
        Plant::NoPrevious => {
            for entry in entries {
                if let Entry::Event(event) = entry {
                    event.prev_kv = None;
                }
            }
        }
        _ => {}
    }
}
