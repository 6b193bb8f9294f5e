//! One stream to a member: who waits for its answers, and what is told to them when it ends.

use std::collections::VecDeque;
use std::error::Error as _;
use std::sync::{Arc, Mutex, Weak};

use dengine_protocol::v1::kv_client::KvClient;
use dengine_protocol::v1::pipelined_answer::Answer;
use dengine_protocol::v1::{CallError, PipelineResponse, PipelinedAnswer};
use dengine_protocol::{LEADER_HINT_METADATA, LOW_ON_SPACE_METADATA};
use slab::Slab;
use tokio::sync::mpsc::{
    UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel,
};
use tokio::sync::{oneshot, watch};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use super::outbound::Outbound;
use super::{Answered, Inner, News, Outcome, PipeError, Queued, Size, lock};
use crate::pool::RESPONSE_BYTES_MAX;

/// More than so many are not cancelled by one frame; the time that each has ends the others.
const CANCELLED_PER_FRAME_MAX: usize = 4096;

/// The calls of one stream. Both of its sides see them: whoever ends it tells all of them, whether
/// the other side is polled or not.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) queue: UnboundedReceiver<News>,
    /// Taken from the queue, and in no frame yet.
    pub(super) taken: VecDeque<Queued>,
    /// Those that have left and are not answered.
    pub(super) callers: Slab<Sent>,
    pub(super) ended: bool,
}

/// A call that has left.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) caller: oneshot::Sender<Outcome>,
    /// Whether the member was told that nobody waits for it.
    pub(super) cancelled: bool,
}

/// One stream, as its reading side sees it.
pub(super) struct Line {
    pipe: Weak<Inner>,
    size: Size,
    queue: WeakUnboundedSender<News>,
    waiting: Arc<Mutex<Waiting>>,
    given_up: watch::Receiver<Arc<str>>,
}

impl Line {
    /// A stream, and what it takes calls from.
    pub(super) fn new(pipe: &Arc<Inner>, size: Size) -> (Self, UnboundedSender<News>) {
        let (queue, receiver) = unbounded_channel();
        let waiting = Arc::new(Mutex::new(Waiting::new(receiver)));
        let line = Self {
            pipe: Arc::downgrade(pipe),
            size,
            queue: queue.downgrade(),
            waiting,
            given_up: pipe.given_up.subscribe(),
        };
        (line, queue)
    }

    /// Serves it until it ends.
    pub(super) async fn run(self, channel: Channel, metadata: MetadataMap) {
        let outbound = Outbound::new(&self.waiting);
        let mut request = Request::new(outbound);
        *request.metadata_mut() = metadata;
        let mut given_up = self.given_up.clone();
        let mut was_open = false;
        let ended = tokio::select! {
            ended = self.serve(channel, request, &mut was_open) => ended,
            Ok(()) = given_up.changed() => {
                let why = given_up.borrow_and_update();
                Err(Status::unavailable(&**why))
            }
        };
        self.retire();
        self.fail(ended.err(), was_open);
    }

    async fn serve(
        &self,
        channel: Channel,
        request: Request<Outbound>,
        was_open: &mut bool,
    ) -> Result<(), Status> {
        let mut kv = KvClient::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
        let response = kv.pipeline(request).await?;
        *was_open = true;
        self.read(response.into_inner()).await
    }

    /// Hands out answers until the stream ends.
    async fn read(&self, mut inbound: Streaming<PipelineResponse>) -> Result<(), Status> {
        loop {
            match inbound.message().await? {
                Some(frame) => {
                    let mut waiting = lock(&self.waiting);
                    frame.answers.into_iter().for_each(|it| waiting.answer(it));
                    drop(waiting);
                    if frame.closing {
                        self.retire();
                    }
                    self.hear_of_leader(&frame.leader);
                }
                None => return Ok(()),
            }
        }
    }

    /// Further calls go over another stream; once those in the queue have left, this side of it
    /// ends.
    fn retire(&self) {
        if let (Some(pipe), Some(own)) = (self.pipe.upgrade(), self.queue.upgrade()) {
            let mut queue = lock(pipe.queue(self.size));
            if queue.as_ref().is_some_and(|open| open.same_channel(&own)) {
                *queue = None;
            }
        }
    }

    fn hear_of_leader(&self, leader: &str) {
        if !leader.is_empty()
            && let Some(pipe) = self.pipe.upgrade()
            && let Some(on_leader) = &pipe.on_leader
        {
            on_leader(leader);
        }
    }

    /// Tells those that are not answered why the stream ended.
    fn fail(&self, error: Option<Status>, was_open: bool) {
        let ended = || "the member ended the stream".into();
        let why: Arc<str> = error.as_ref().map_or_else(ended, describe);
        let mut waiting = lock(&self.waiting);
        waiting.ended = true;
        // Of several it is not known which was refused: those before it may have been served.
        let is_the_one = self.size == Size::Large && waiting.callers.len() == 1;
        let is_refusal = |it: &Status| match it.code() {
            // As many streams as the connection may have: nothing of it was read.
            Code::ResourceExhausted => !was_open,
            Code::InvalidArgument => is_the_one,
            _ => false,
        };
        // Errors of the connection have a source.
        let refusal = error.filter(|it| it.source().is_none() && is_refusal(it));
        let refusal = refusal.map(Box::new);
        for sent in waiting.callers.drain() {
            let lost = || PipeError::Lost(Arc::clone(&why));
            let error = refusal.clone().map_or_else(lost, PipeError::from);
            let _ = sent.caller.send(Err(error));
        }
        for queued in waiting.unsent() {
            let _ = queued
                .caller
                .send(Err(PipeError::NotSent(Arc::clone(&why))));
        }
    }
}

impl Waiting {
    pub(super) fn new(queue: UnboundedReceiver<News>) -> Self {
        Self {
            queue,
            taken: VecDeque::new(),
            callers: Slab::new(),
            ended: false,
        }
    }

    /// What has not left, and does not leave any more. Later calls go over another stream.
    fn unsent(&mut self) -> Vec<Queued> {
        self.queue.close();
        let mut unsent: Vec<_> = self.taken.drain(..).collect();
        while let Ok(news) = self.queue.try_recv() {
            if let News::Call(queued) = news {
                unsent.push(queued);
            }
        }
        unsent
    }

    fn answer(&mut self, answered: PipelinedAnswer) {
        // Whoever does not wait for it any more has given up; an id that was never given is not
        // ours to judge.
        let key = usize::try_from(answered.id).unwrap_or(usize::MAX);
        let Some(sent) = self.callers.try_remove(key) else {
            return;
        };
        let _ = sent.caller.send(match answered.answer {
            Some(Answer::Error(error)) => Err(PipeError::from(Box::new(status(error)))),
            Some(answer) => Ok(Answered {
                answer,
                visited: answered.visited,
                others_waited: answered.others_waited,
            }),
            None => Err(PipeError::from(Box::new(Status::internal(
                "the member's answer is missing, or of a kind that this client does not know",
            )))),
        });
    }

    /// Those whose callers have left since they were last looked for.
    pub(super) fn cancel(&mut self) -> Vec<u64> {
        let left = |(_, sent): &(usize, &mut Sent)| !sent.cancelled && sent.caller.is_closed();
        let left = self.callers.iter_mut().filter(left);
        let left = left.take(CANCELLED_PER_FRAME_MAX);
        left.map(|(key, sent)| {
            sent.cancelled = true;
            key as u64
        })
        .collect()
    }
}

fn status(error: CallError) -> Status {
    let mut status = Status::new(Code::from_i32(error.code), error.message);
    if let Ok(leader) = MetadataValue::try_from(error.leader)
        && !leader.is_empty()
    {
        status.metadata_mut().insert(LEADER_HINT_METADATA, leader);
    }
    if error.low_on_space {
        let low = MetadataValue::from_static("1");
        status.metadata_mut().insert(LOW_ON_SPACE_METADATA, low);
    }
    status
}

fn describe(status: &Status) -> Arc<str> {
    crate::error::describe(status).into()
}

#[cfg(test)]
mod tests {
    use dengine_protocol::v1::PutRequest;
    use dengine_protocol::v1::pipelined_call::Call;
    use tonic::transport::Endpoint;

    use super::super::Pipe;
    use super::*;

    /// The task that sends is not polled while the member takes nothing: what was in its queue
    /// waited for all its time.
    #[tokio::test]
    async fn what_has_not_left_is_told_so_though_nobody_polls_the_side_that_sends() {
        let channel = Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
        let pipe = Pipe::new(channel, MetadataMap::new(), None);
        let (line, queue) = Line::new(&pipe.inner, Size::Small);
        let _sends = Outbound::new(&line.waiting);
        let queued = || {
            let (caller, outcome) = oneshot::channel();
            let queued = Queued {
                call: Call::Put(PutRequest::default()),
                caller,
                claim: Arc::default(),
                until: None,
                trace: None,
                _counted: None,
            };
            (queued, outcome)
        };
        let [(taken, first), (waits, second)] = [queued(), queued()];
        lock(&line.waiting).taken.push_back(taken);
        queue.send(News::Call(waits)).unwrap();
        line.fail(Some(Status::unavailable("another one leads")), true);
        for mut outcome in [first, second] {
            let outcome = outcome.try_recv();
            assert!(
                matches!(outcome, Ok(Err(PipeError::NotSent(_)))),
                "{outcome:?}"
            );
        }
        let (late, _outcome) = queued();
        queue.send(News::Call(late)).unwrap_err();
    }
}
