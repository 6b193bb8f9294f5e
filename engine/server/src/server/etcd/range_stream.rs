//! Ranges in pieces, each read once the client has taken the one before: however large a range is,
//! one piece of it is held. What pieces are is in [`dengine_etcd::range_stream`].

use std::any::Any;
use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use dengine_etcd::EtcdError;
use dengine_etcd::etcdserverpb::{RangeRequest, RangeStreamResponse};
use dengine_etcd::range_stream::RangeStream;
use dengine_kv::store::Store;
use dengine_kv::{RangeResult, Reader};
use futures::{StreamExt as _, stream};
use tokio::sync::OwnedMutexGuard;
use tonic::{Request, Response, Status};

use super::door::Door;
use super::reads::{Read, bytes_of, read, refused};
use crate::connections::{Connection, Sending};
use crate::node::answers::Held;
use crate::server::bodies::{CountedBy, CountsParts, is_gone_at};
use crate::server::gate::Kind;
use crate::server::places::Place;
use crate::server::serving::connection;
use crate::server::streams::{Beside, streamed};
use crate::storage::RocksStore;

/// Tells a range to a caller that was admitted. The first piece passes the gate, like any range;
/// for those after it the caller waits in its turns only.
///
/// # Errors
/// There is no first piece.
pub(super) async fn tell(
    door: &Door,
    range: RangeStream,
    request: &Request<RangeRequest>,
    place: Place,
) -> Result<Response<Beside<RangeStreamResponse>>, Status> {
    let connection = Arc::clone(connection(request));
    let source = Arc::clone(connection.source());
    let mut telling = Telling {
        door: door.clone(),
        gone_at: is_gone_at(request),
        outgoing: Arc::new(Outgoing::over(connection)),
        rest: None,
        _place: place,
    };
    let outgoing = Arc::clone(&telling.outgoing);
    let gate = &door.serving().gate;
    let first = telling.begin(range);
    let first = gate
        .pass("EtcdRangeStream", Kind::Read, &source, first)
        .await;
    let first = first.map_err(|it| door.in_etcds_words(&it))?;
    let pieces = stream::once(ready(Ok(first))).chain(stream::try_unfold(telling, Telling::next));
    Ok(streamed(pieces, CountedBy(outgoing)))
}

/// A range that is told to a client.
struct Telling {
    door: Door,
    /// From when on the client does not wait any more, if it says so.
    gone_at: Option<Instant>,
    outgoing: Arc<Outgoing>,
    /// What no piece had yet.
    rest: Option<RangeStream>,
    _place: Place,
}

impl Telling {
    async fn begin(&mut self, range: RangeStream) -> Result<RangeStreamResponse, Status> {
        let patience = self.door.patience(self.gone_at);
        self.door.freshen(range.serializable, patience).await?;
        self.piece(range).await
    }

    /// The next piece; `None`: the client has all of them.
    async fn next(mut self) -> Result<Option<(RangeStreamResponse, Self)>, Status> {
        let Some(range) = self.rest.take() else {
            return Ok(None);
        };
        let stop = self.door.serving().stop.clone();
        let piece = tokio::select! {
            piece = self.piece(range) => piece,
            () = stop.cancelled() => Err(EtcdError::Stopped.into()),
        };
        let piece = piece.map_err(|it| self.door.in_etcds_words(&it))?;
        Ok(Some((piece, self)))
    }

    /// Reads a piece once the one before it was taken.
    async fn piece(&mut self, range: RangeStream) -> Result<RangeStreamResponse, Status> {
        let turn = self.outgoing.turn().await;
        let serving = self.door.serving();
        let source = self.outgoing.connection.source();
        let held = serving.answers.none(source.address());
        let asked = range.clone();
        let read = move |reader: &Reader<RocksStore>| page(reader, &asked, held).or_else(refused);
        let patience = self.door.patience(self.gone_at);
        let page = serving.read_keys(range.keys(), source, patience, read);
        let Page {
            result,
            left_out,
            held,
        } = page.await?;
        self.outgoing.begin(turn, bytes_of(&result.kvs), held);
        let (piece, rest) = range.piece(self.door.header(), result, left_out);
        self.rest = rest;
        Ok(piece)
    }
}

/// What a piece is made of, with what counts its memory.
struct Page {
    result: RangeResult,
    /// Keys that the limit leaves out, if the piece is the last.
    left_out: u64,
    held: Held,
}

fn page<S: Store>(reader: &Reader<S>, range: &RangeStream, mut held: Held) -> Read<Page> {
    let result = read(reader, &range.query())?;
    if !held.add(bytes_of(&result.kvs)) {
        return Ok(Err(EtcdError::TooManyRequests.into()));
    }
    let counted = range.count_query(&result).map(|it| reader.range(&it));
    let counted = counted.transpose()?.and_then(|it| it.count);
    Ok(Ok(Page {
        result,
        left_out: counted.unwrap_or_default(),
        held,
    }))
}

/// The way to the client, on which there is one piece at a time. A client that does not read loses
/// its connection, as it does with an answer: nothing short of that gives the memory back.
struct Outgoing {
    connection: Arc<Connection>,
    turn: Arc<tokio::sync::Mutex<()>>,
    /// What counts the piece that is not encoded yet.
    piece: Mutex<Option<Piece>>,
}

/// What counts a piece until it is sent.
struct Piece {
    _held: Held,
    _sending: Sending,
    /// Of which the next piece waits for the end.
    _turn: OwnedMutexGuard<()>,
}

impl Outgoing {
    fn over(connection: Arc<Connection>) -> Self {
        Self {
            connection,
            turn: Arc::default(),
            piece: Mutex::default(),
        }
    }

    /// Waits until nothing is on the way.
    async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }

    /// A piece is about to be sent.
    fn begin(&self, turn: OwnedMutexGuard<()>, bytes: usize, held: Held) {
        let piece = Piece {
            _held: held,
            _sending: self.connection.send(bytes),
            _turn: turn,
        };
        *self.piece.lock().unwrap_or_else(PoisonError::into_inner) = Some(piece);
    }
}

/// A piece is one message, and a message one part.
impl CountsParts for Outgoing {
    fn part(self: Arc<Self>, _: usize) -> Box<dyn Any + Send + Sync> {
        let mut piece = self.piece.lock().unwrap_or_else(PoisonError::into_inner);
        Box::new(piece.take())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dengine_kv::StateMachine;
    use dengine_kv::store::MemoryStore;
    use futures::FutureExt as _;

    use super::*;
    use crate::node::answers::{ANSWER_BYTES_MAX, AnswerBudget};

    /// A client that does not read would have had the whole range in memory.
    #[tokio::test]
    async fn a_piece_counts_until_it_is_sent_and_the_next_one_waits_for_it() {
        let connection = Arc::new(Connection::alone());
        let whose = connection.source().address();
        let budget = AnswerBudget::new(ANSWER_BYTES_MAX, ANSWER_BYTES_MAX);
        let outgoing = Arc::new(Outgoing::over(Arc::clone(&connection)));
        for _ in 0..2 {
            let turn = outgoing.turn().now_or_never().expect("nothing is sent");
            let held = budget.hold(whose, 10_000).unwrap();
            outgoing.begin(turn, 10_000, held);
            assert!(outgoing.turn().now_or_never().is_none(), "not encoded");
            let part = Arc::clone(&outgoing).part(10_000);
            assert!(outgoing.turn().now_or_never().is_none(), "not sent");
            assert_eq!(budget.held_by(whose), 10_000);
            assert!(connection.is_unread(Duration::ZERO));
            drop(part);
            assert_eq!(budget.held_by(whose), 0);
            assert!(!connection.is_unread(Duration::ZERO));
        }
    }

    #[test]
    fn a_revision_that_cannot_be_read_is_an_answer() {
        let machine = StateMachine::open(MemoryStore::default()).unwrap();
        let budget = AnswerBudget::new(ANSWER_BYTES_MAX, ANSWER_BYTES_MAX);
        let ask = |revision| {
            let request = RangeRequest {
                key: "a".into(),
                range_end: "b".into(),
                revision,
                ..RangeRequest::default()
            };
            let range = RangeStream::new(&request).unwrap();
            let held = budget.none([10, 0, 0, 1].into());
            let read = page(&machine.reader(), &range, held).or_else(refused);
            read.unwrap().map(|page| page.result.kvs.len())
        };
        assert_eq!(ask(0).unwrap(), 0);
        let refused = ask(9).unwrap_err();
        assert_eq!(refused.message(), EtcdError::FutureRev.to_string());
    }
}
