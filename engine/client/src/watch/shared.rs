//! One stream for all watches of a client at a member.
//!
//! A task reads the stream and hands what comes to each watch's queue. A response that is for
//! several watches ([`WatchCreate::shared`]) is decoded once and held once. The task never waits
//! for a reader: the watch whose queue is full is cancelled there, and goes on from where it was
//! once its reader has taken what was queued. So a watch that nobody reads holds up no other, and
//! memory is bounded.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use dengine_protocol::v1::watch_client::WatchClient;
use dengine_protocol::v1::watch_request::Request;
use dengine_protocol::v1::{WatchCancel, WatchCreate, WatchRequest, WatchResponse};
use prost::Message as _;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::answered;
use crate::error::Failure;
use crate::pool::RESPONSE_BYTES_MAX;

/// What may wait for the reader of one watch, apart from a single response that is larger,
const WATCH_BYTES_MAX: usize = 1 << 20;
/// and for those of all watches of a stream.
const STREAM_BYTES_MAX: usize = 64 << 20;
/// What a response costs besides its bytes, roughly.
const RESPONSE_OVERHEAD_BYTES: usize = 128;
/// Requests that are on their way to the connection.
const REQUESTS_QUEUED: usize = 16;

/// The stream of watches over one connection: opened with the first watch, closed with the last.
#[derive(Debug)]
pub(crate) struct SharedStream {
    channel: Channel,
    running: Mutex<Weak<Running>>,
}

/// A stream from its opening to its end.
#[derive(Debug, Default)]
struct Running {
    state: Mutex<StreamState>,
    /// Tells the stream's task that there is something to send, or that nobody is left.
    wake: Notify,
}

#[derive(Debug, Default)]
struct StreamState {
    last_id: u64,
    watches: HashMap<u64, Queue>,
    requests: VecDeque<Request>,
    /// Of all queues.
    bytes: usize,
    /// Nobody may join it any more.
    ended: bool,
}

/// What came for a watch, and was not taken yet.
#[derive(Debug, Default)]
struct Queue {
    responses: VecDeque<Received>,
    /// Of all its responses, also those that others hold too.
    bytes: usize,
    /// What is told behind the last response.
    ended: Option<Ended>,
    reader: Option<Waker>,
}

/// A response, which several watches may hold.
#[derive(Clone, Debug)]
struct Received {
    response: Arc<WatchResponse>,
    bytes: usize,
}

/// Why nothing more comes for a watch.
#[derive(Clone, Debug)]
pub(super) enum Ended {
    /// The member has ended it, and said so.
    Cancelled,
    /// Its reader was too slow: it may go on where it was.
    Behind,
    /// The stream is broken.
    Failed(Failure),
}

/// A watch's end of the stream. Dropping it ends the watch there.
#[derive(Debug)]
pub(super) struct Attached {
    running: Arc<Running>,
    id: u64,
}

impl SharedStream {
    pub(crate) fn new(channel: Channel) -> Self {
        SharedStream {
            channel,
            running: Mutex::default(),
        }
    }

    /// Begins a watch on the stream, which is opened if it is not.
    pub(super) fn attach(&self, create: WatchCreate) -> Attached {
        let mut running = lock(&self.running);
        let attached = running.upgrade().and_then(|it| it.attach(create.clone()));
        attached.unwrap_or_else(|| {
            let fresh = Arc::new(Running::default());
            *running = Arc::downgrade(&fresh);
            let attached = fresh.attach(create).expect("a fresh stream has not ended");
            tokio::spawn(run(fresh, self.channel.clone()));
            attached
        })
    }
}

impl Running {
    fn attach(self: &Arc<Self>, create: WatchCreate) -> Option<Attached> {
        let mut state = lock(&self.state);
        if state.ended {
            return None;
        }
        state.last_id += 1;
        let id = state.last_id;
        state.watches.insert(id, Queue::default());
        state.requests.push_back(Request::Create(WatchCreate {
            watch_id: id,
            shared: true,
            ..create
        }));
        drop(state);
        self.wake.notify_one();
        Some(Attached {
            running: Arc::clone(self),
            id,
        })
    }

    /// Nothing more comes for anybody.
    fn end(&self, failure: &Failure) {
        let mut state = lock(&self.state);
        state.ended = true;
        for queue in state.watches.values_mut() {
            queue.end(Ended::Failed(failure.clone()));
        }
    }

    fn next_request(&self) -> Option<Request> {
        lock(&self.state).requests.pop_front()
    }

    fn has_ended(&self) -> bool {
        lock(&self.state).ended
    }

    fn take(&self, response: WatchResponse) {
        let mut state = lock(&self.state);
        state.take(response);
        let has_requests = !state.requests.is_empty();
        drop(state);
        if has_requests {
            self.wake.notify_one();
        }
    }
}

impl StreamState {
    /// Queues a response for all watches that it is for.
    fn take(&mut self, mut response: WatchResponse) {
        let first = response.watch_id;
        // They are not kept, and would count for each watch.
        let others = std::mem::take(&mut response.also_watch_ids);
        let bytes = RESPONSE_OVERHEAD_BYTES + response.encoded_len();
        let received = Received {
            response: Arc::new(response),
            bytes,
        };
        for id in others {
            self.queue(id, received.clone());
        }
        self.queue(first, received);
    }

    /// Queues a response, or ends the watch on this stream if its reader does not keep up.
    fn queue(&mut self, id: u64, received: Received) {
        // It was cancelled meanwhile.
        let Some(queue) = self.watches.get_mut(&id) else {
            return;
        };
        if queue.ended.is_some() {
            return;
        }
        let bytes = received.bytes;
        let full = queue.bytes + bytes > WATCH_BYTES_MAX || self.bytes + bytes > STREAM_BYTES_MAX;
        let last = received.response.canceled;
        if full && !queue.responses.is_empty() && !last {
            queue.end(Ended::Behind);
            let cancel = WatchCancel { watch_id: id };
            self.requests.push_back(Request::Cancel(cancel));
            return;
        }
        queue.responses.push_back(received);
        queue.bytes += bytes;
        self.bytes += bytes;
        match last {
            true => queue.end(Ended::Cancelled),
            false => queue.wake(),
        }
    }

    fn poll(&mut self, id: u64, context: &Context<'_>) -> Poll<Result<Arc<WatchResponse>, Ended>> {
        let queue = self
            .watches
            .get_mut(&id)
            .expect("a watch leaves its stream when it is dropped");
        if let Some(received) = queue.responses.pop_front() {
            queue.bytes -= received.bytes;
            self.bytes -= received.bytes;
            return Poll::Ready(Ok(received.response));
        }
        if let Some(ended) = &queue.ended {
            return Poll::Ready(Err(ended.clone()));
        }
        queue.reader = Some(context.waker().clone());
        Poll::Pending
    }

    fn leave(&mut self, id: u64) {
        let Some(queue) = self.watches.remove(&id) else {
            return;
        };
        self.bytes -= queue.bytes;
        if queue.ended.is_none() {
            let cancel = WatchCancel { watch_id: id };
            self.requests.push_back(Request::Cancel(cancel));
        }
        self.ended |= self.watches.is_empty();
    }
}

impl Queue {
    fn end(&mut self, ended: Ended) {
        self.ended.get_or_insert(ended);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl Attached {
    /// The next response, or why there is none.
    pub(super) fn poll_next(
        &mut self,
        context: &Context<'_>,
    ) -> Poll<Result<WatchResponse, Ended>> {
        let polled = lock(&self.running.state).poll(self.id, context);
        // Copied outside of the lock.
        polled.map_ok(Arc::unwrap_or_clone)
    }

    /// As [`Attached::poll_next`].
    pub(super) async fn next(&mut self) -> Result<WatchResponse, Ended> {
        poll_fn(|context| self.poll_next(context)).await
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        lock(&self.running.state).leave(self.id);
        self.running.wake.notify_one();
    }
}

/// Opens the stream, and serves it to its end.
async fn run(running: Arc<Running>, channel: Channel) {
    let (requests, outgoing) = mpsc::channel(REQUESTS_QUEUED);
    let mut client = WatchClient::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
    let opening = async {
        let answer = client.watch(ReceiverStream::new(outgoing)).await;
        let responses = answered(answer.map(|response| Some(response.into_inner())))?;
        read(&running, responses).await
    };
    let failure = tokio::select! {
        failure = opening => failure.unwrap_err(),
        () = send(&running, requests) => return,
    };
    running.end(&failure);
}

/// Hands on what comes, until nothing more does.
async fn read(
    running: &Running,
    mut responses: Streaming<WatchResponse>,
) -> Result<std::convert::Infallible, Failure> {
    loop {
        running.take(answered(responses.message().await)?);
    }
}

/// Sends what is to be sent, until nobody is left.
async fn send(running: &Running, requests: mpsc::Sender<WatchRequest>) {
    loop {
        while let Some(request) = running.next_request() {
            let request = WatchRequest {
                request: Some(request),
            };
            // If it is closed, the other side says why.
            if requests.send(request).await.is_err() {
                return std::future::pending().await;
            }
        }
        if running.has_ended() {
            return;
        }
        running.wake.notified().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use dengine_protocol::v1::{Event, KeyValue};

    use super::*;

    /// Watches `1..=watches`, none of which is read.
    fn stream(watches: u64) -> StreamState {
        StreamState {
            watches: (1..=watches).map(|id| (id, Queue::default())).collect(),
            ..StreamState::default()
        }
    }

    fn response(ids: &[u64], bytes: usize) -> WatchResponse {
        let kv = KeyValue {
            value: vec![0; bytes].into(),
            ..KeyValue::default()
        };
        WatchResponse {
            watch_id: ids[0],
            also_watch_ids: ids[1..].to_vec(),
            events: vec![Event {
                kv: Some(kv),
                ..Event::default()
            }],
            ..WatchResponse::default()
        }
    }

    fn next(stream: &mut StreamState, id: u64) -> Poll<Result<Arc<WatchResponse>, Ended>> {
        stream.poll(id, &Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_response_for_several_watches_is_held_once() {
        let mut stream = stream(4);
        stream.take(response(&[1, 3, 4, 99], 10));
        for (id, holders) in [(1, 3), (3, 2), (4, 1)] {
            let Poll::Ready(Ok(response)) = next(&mut stream, id) else {
                panic!("{id} has nothing");
            };
            assert_eq!(Arc::strong_count(&response), holders);
            assert!(next(&mut stream, id).is_pending(), "{id} has it twice");
        }
        assert!(next(&mut stream, 2).is_pending());
        assert_eq!(stream.bytes, 0);
    }

    /// Their ids are larger than the event.
    #[test]
    fn thousands_of_watches_may_leave_some_shared_events_unread() {
        let mut stream = stream(4_096);
        let ids: Vec<u64> = (1..=4_096).collect();
        (0..20).for_each(|_| stream.take(response(&ids, 100)));
        assert_eq!(stream.requests, [], "none is behind");
    }

    #[test]
    fn of_watches_that_share_responses_only_the_one_that_is_not_read_falls_behind() {
        let mut stream = stream(2);
        for _ in 0..3 {
            stream.take(response(&[1, 2], WATCH_BYTES_MAX / 2 - 1_000));
            assert!(matches!(next(&mut stream, 2), Poll::Ready(Ok(_))));
        }
        for _ in 0..2 {
            assert!(matches!(next(&mut stream, 1), Poll::Ready(Ok(_))));
        }
        let behind = next(&mut stream, 1);
        assert!(matches!(behind, Poll::Ready(Err(Ended::Behind))));
        assert_eq!(
            stream.requests,
            [Request::Cancel(WatchCancel { watch_id: 1 })]
        );
    }
}
