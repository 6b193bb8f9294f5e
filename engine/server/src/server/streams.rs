//! Answers that are streams, each part of which is gone once it is sent.
//!
//! The body that tonic makes of a stream keeps the buffer of its largest message for as long as the
//! stream is there, and at least 8 KiB: a client that watches a key of 1 MB holds 1 MB of its
//! member's memory while nothing happens, which nothing counts. This one makes each part for
//! itself.
//!
//! What tonic generates for a service knows no other body than its own. So the messages go beside
//! the answer, as one of its extensions, and [`Bodies`](super::bodies) puts them in the place of
//! its body.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::Stream;
use http_body::Frame;
use prost::Message;
use tonic::codegen::http::HeaderMap;
use tonic::{Response, Status};

use super::bodies::CountedBy;

/// Messages that are ready go together, as parts of about so many bytes.
const PART_BYTES: usize = 32 << 10;
/// Before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// An answer of these messages, whose parts are counted.
pub(super) fn streamed<T, M, S>(messages: S, counted_by: CountedBy) -> Response<Beside<T>>
where
    M: Message + 'static,
    S: Stream<Item = Result<M, Status>> + Send + 'static,
{
    let streamed = StreamedBody {
        body: Box::new(Messages {
            messages: Box::pin(messages),
            end: None,
            is_over: false,
        }),
        counted_by,
    };
    let mut response = Response::new(Beside(PhantomData));
    let streamed = Streamed(Arc::new(Mutex::new(Some(streamed))));
    response.extensions_mut().insert(streamed);
    response
}

/// In the place of messages that go beside the answer.
pub(super) struct Beside<M>(PhantomData<fn() -> M>);

impl<M> Stream for Beside<M> {
    type Item = Result<M, Status>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let lost = Status::internal("this service is not behind the layer that sends its messages");
        Poll::Ready(Some(Err(lost)))
    }
}

pub(super) type StreamBody = dyn http_body::Body<Data = Bytes, Error = Status> + Send + Unpin;

/// The messages of an answer as its body, and what counts its parts.
pub(super) struct StreamedBody {
    pub(super) body: Box<StreamBody>,
    pub(super) counted_by: CountedBy,
}

/// These as an extension, which can be cloned: who asks first has them.
#[derive(Clone)]
pub(super) struct Streamed(Arc<Mutex<Option<StreamedBody>>>);

impl Streamed {
    pub(super) fn take(&self) -> Option<StreamedBody> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

struct Messages<S> {
    messages: Pin<Box<S>>,
    /// How it ends, once there are no more.
    end: Option<Status>,
    is_over: bool,
}

impl<M, S> Messages<S>
where
    M: Message,
    S: Stream<Item = Result<M, Status>>,
{
    /// Adds those that are ready, until it is enough or they end.
    fn fill(&mut self, part: &mut BytesMut, context: &mut Context<'_>) -> Poll<()> {
        while self.end.is_none() && part.len() < PART_BYTES {
            match self.messages.as_mut().poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(message))) => self.end = put(part, &message).err(),
                Poll::Ready(Some(Err(status))) => self.end = Some(status),
                Poll::Ready(None) => self.end = Some(Status::ok("")),
            }
        }
        Poll::Ready(())
    }
}

impl<M, S> http_body::Body for Messages<S>
where
    M: Message,
    S: Stream<Item = Result<M, Status>>,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut part = BytesMut::new();
        let filled = self.fill(&mut part, context);
        if !part.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(part.freeze()))));
        }
        if filled.is_pending() {
            return Poll::Pending;
        }
        let end = self.end.as_ref().filter(|_| !self.is_over);
        let trailers = end.map(|status| {
            let mut trailers = HeaderMap::new();
            status.add_header(&mut trailers)?;
            Ok(Frame::trailers(trailers))
        });
        self.is_over = true;
        Poll::Ready(trailers)
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }
}

/// Adds a message as gRPC sends it.
///
/// # Errors
/// It is longer than gRPC can say.
fn put(part: &mut BytesMut, message: &impl Message) -> Result<(), Status> {
    let start = part.len();
    if start == 0 {
        // Most parts are one message. Where there are more, it grows as it needs to.
        part.reserve(PREFIX_BYTES + message.encoded_len());
    }
    part.put_bytes(0, PREFIX_BYTES);
    message.encode(part).expect("it grows as it needs to");
    let length = part.len() - start - PREFIX_BYTES;
    let Ok(length) = u32::try_from(length) else {
        part.truncate(start);
        let reason = format!("a message of {length} bytes is more than can be sent");
        return Err(Status::resource_exhausted(reason));
    };
    part[start + 1..start + PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::any::Any;

    use dengine_protocol::v1::{Event, KeyValue, WatchResponse};
    use futures::{FutureExt as _, StreamExt as _, stream};
    use http_body_util::BodyExt as _;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;
    use crate::server::bodies::CountsParts;

    struct Uncounted;

    impl CountsParts for Uncounted {
        fn part(self: Arc<Self>, _: usize) -> Box<dyn Any + Send + Sync> {
            Box::new(())
        }
    }

    fn body_of<S>(messages: S) -> Box<StreamBody>
    where
        S: Stream<Item = Result<WatchResponse, Status>> + Send + 'static,
    {
        let response = streamed::<(), _, _>(messages, CountedBy(Arc::new(Uncounted)));
        let streamed = response
            .extensions()
            .get::<Streamed>()
            .expect("it is there");
        let StreamedBody { body, .. } = streamed.take().expect("nobody had it");
        assert!(streamed.take().is_none());
        body
    }

    fn message(bytes: usize) -> WatchResponse {
        let kv = KeyValue {
            value: vec![7; bytes].into(),
            ..KeyValue::default()
        };
        WatchResponse {
            events: vec![Event {
                kv: Some(kv),
                ..Event::default()
            }],
            ..WatchResponse::default()
        }
    }

    /// What a client reads of them.
    fn decoded(mut bytes: Bytes) -> Vec<WatchResponse> {
        let mut messages = Vec::new();
        while !bytes.is_empty() {
            let prefix = bytes.split_to(PREFIX_BYTES);
            assert_eq!(prefix[0], 0, "it is not compressed");
            let length = u32::from_be_bytes(prefix[1..].try_into().unwrap());
            let message = bytes.split_to(length as usize);
            messages.push(WatchResponse::decode(message).unwrap());
        }
        messages
    }

    #[tokio::test]
    async fn messages_go_together_in_order_and_the_status_last() {
        for (last, code) in [(None, "0"), (Some(Status::unavailable("a reason")), "14")] {
            let sizes = [1, 0, 70_000, 3, 20_000, 20_000, 5];
            let messages = sizes.map(|bytes| Ok(message(bytes)));
            let mut body = body_of(stream::iter(messages.into_iter().chain(last.map(Err))));
            let (mut parts, mut told, mut trailers) = (Vec::new(), Vec::new(), None);
            while let Some(frame) = body.frame().await {
                match frame.unwrap().into_data() {
                    Ok(data) => {
                        parts.push(data.len() >= PART_BYTES);
                        told.extend(decoded(data));
                    }
                    Err(frame) => trailers = frame.into_trailers().ok(),
                }
            }
            assert_eq!(told, sizes.map(message));
            assert_eq!(parts, [true, true, false]);
            let trailers = trailers.expect("a status");
            assert_eq!(trailers[Status::GRPC_STATUS], code);
            assert!(body.is_end_stream());
        }
    }

    /// A client that watched a key of 1 MB held as much, however long nothing happened.
    #[tokio::test]
    async fn a_stream_that_rests_holds_nothing_of_what_it_sent() {
        let (out, told) = mpsc::unbounded_channel();
        let mut body = body_of(UnboundedReceiverStream::new(told).map(Ok));
        for bytes in [1 << 20, 1] {
            out.send(message(bytes)).unwrap();
            let part = body.frame().await.expect("a part").unwrap();
            let part = part.into_data().expect("data");
            assert!(part.is_unique(), "something else keeps its memory");
            assert_eq!(decoded(part), [message(bytes)]);
            assert!(body.frame().now_or_never().is_none());
        }
    }
}
