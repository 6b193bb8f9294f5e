//! The sending side of a stream: makes frames of what queues.

use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use dengine_protocol::FRAME_BYTES_MAX;
use dengine_protocol::v1::{PipelineRequest, PipelinedCall};
use futures::Stream;
use prost::Message as _;
use tokio::time::Instant;

use super::line::{Sent, Waiting};
use super::{CALL_OVERHEAD_BYTES, News, Queued, lock};

/// More calls than this are not looked at for one frame: they would not fit, or make the first wait
/// for the last.
const CALLS_PER_FRAME_MAX: usize = 1024;

/// The sending side of a stream.
pub(super) struct Outbound {
    waiting: Arc<Mutex<Waiting>>,
    /// Whether the next frame is to say so.
    callers_left: bool,
    /// Whether the callers that are about to run had their chance to join the next frame.
    yielded: bool,
    /// How many calls the frame before had.
    last_calls: usize,
}

impl Stream for Outbound {
    type Item = PipelineRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            let (ended, taken) = this.take_news(context);
            if taken == 0 && !this.callers_left {
                return if ended {
                    Poll::Ready(None)
                } else {
                    Poll::Pending
                };
            }
            // Without this each frame would leave with its first call: whoever queues one wakes us
            // to run next. A caller that is alone would wait for nobody.
            let is_alone = taken <= 1 && this.last_calls <= 1 && !this.has_callers();
            let may_wait = !is_alone && taken < CALLS_PER_FRAME_MAX;
            if may_wait && !mem::replace(&mut this.yielded, true) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            this.yielded = false;
            match this.frame() {
                // All of it was given up before it left.
                Some(frame) if frame.calls.is_empty() && frame.cancelled.is_empty() => {}
                frame => {
                    this.last_calls = frame.as_ref().map_or(0, |frame| frame.calls.len());
                    return Poll::Ready(frame);
                }
            }
        }
    }
}

impl Outbound {
    pub(super) fn new(waiting: &Arc<Mutex<Waiting>>) -> Self {
        Self {
            waiting: Arc::clone(waiting),
            callers_left: false,
            yielded: false,
            last_calls: 0,
        }
    }

    /// Whether calls have left that are not answered.
    fn has_callers(&self) -> bool {
        !lock(&self.waiting).callers.is_empty()
    }

    /// Takes in what queued: whether nothing more will, and how many calls are in no frame yet.
    fn take_news(&mut self, context: &mut Context<'_>) -> (bool, usize) {
        let mut waiting = lock(&self.waiting);
        let room = CALLS_PER_FRAME_MAX.saturating_sub(waiting.taken.len());
        let mut news = Vec::new();
        let ended = match waiting.queue.poll_recv_many(context, &mut news, room) {
            Poll::Ready(0) if room > 0 => true,
            Poll::Ready(_) | Poll::Pending => false,
        };
        for news in news {
            match news {
                News::Call(queued) => waiting.taken.push_back(queued),
                News::CallerLeft => self.callers_left = true,
            }
        }
        (ended, waiting.taken.len())
    }

    /// As much of what was taken as fits; `None` if the stream has ended.
    fn frame(&mut self) -> Option<PipelineRequest> {
        let mut waiting = lock(&self.waiting);
        if waiting.ended {
            return None;
        }
        let mut frame = PipelineRequest::default();
        if mem::take(&mut self.callers_left) {
            frame.cancelled = waiting.cancel();
        }
        let mut bytes = frame.encoded_len();
        while let Some(queued) = waiting.taken.pop_front() {
            // Its caller has given up, and nothing was changed.
            if queued.caller.is_closed() {
                continue;
            }
            let mut call = PipelinedCall {
                id: 0,
                call: Some(queued.call),
                timeout_ms: queued.until.map_or(0, timeout_ms),
                traceparent: queued
                    .trace
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
            };
            let with_it = bytes + call.encoded_len() + CALL_OVERHEAD_BYTES;
            let is_alone = frame.calls.is_empty() && frame.cancelled.is_empty();
            if with_it > FRAME_BYTES_MAX && !is_alone {
                let call = call.call.expect("it was put there above");
                waiting.taken.push_front(Queued { call, ..queued });
                break;
            }
            // Its caller, who is about to leave, has been told that it does not leave.
            if !queued.claim.take() {
                continue;
            }
            bytes = with_it;
            let sent = Sent {
                caller: queued.caller,
                cancelled: false,
            };
            call.id = waiting.callers.insert(sent) as u64;
            frame.calls.push(call);
        }
        Some(frame)
    }
}

impl Drop for Outbound {
    /// Further calls go over another stream. What did not leave is told so when it is known why.
    fn drop(&mut self) {
        lock(&self.waiting).queue.close();
    }
}

/// What is left until then, in the unit of the wire, where 0 would mean no end.
fn timeout_ms(until: Instant) -> u32 {
    let left = until.saturating_duration_since(Instant::now());
    u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use dengine_protocol::trace::TraceParent;
    use dengine_protocol::v1::PutRequest;
    use dengine_protocol::v1::pipelined_call::Call;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
    use tokio::sync::oneshot;

    use super::super::{Counted, Outcome};
    use super::*;

    fn outbound(queue: UnboundedReceiver<News>) -> Outbound {
        let waiting = Arc::new(Mutex::new(Waiting::new(queue)));
        let mut outbound = Outbound::new(&waiting);
        outbound.yielded = true;
        outbound
    }

    fn queued(put: PutRequest) -> (Queued, oneshot::Receiver<Outcome>) {
        let (caller, outcome) = oneshot::channel();
        let queued = Queued {
            call: Call::Put(put),
            caller,
            claim: Arc::default(),
            until: None,
            trace: None,
            _counted: None,
        };
        (queued, outcome)
    }

    /// Thousands of calls that were given up, and a large one behind them, ended the stream.
    #[test]
    fn what_a_frame_cancels_makes_it_no_larger_than_a_frame() {
        let (sender, queue) = unbounded_channel();
        let mut outbound = outbound(queue);
        let mut next = || {
            outbound.yielded = true;
            let mut context = Context::from_waker(std::task::Waker::noop());
            match Pin::new(&mut outbound).poll_next(&mut context) {
                Poll::Ready(Some(frame)) => frame,
                _ => panic!("there is something to send"),
            }
        };
        let (small, callers): (Vec<_>, Vec<_>) = (0..CALLS_PER_FRAME_MAX)
            .map(|_| queued(PutRequest::default()))
            .unzip();
        for small in small {
            sender.send(News::Call(small)).unwrap();
        }
        assert_eq!(next().calls.len(), CALLS_PER_FRAME_MAX);
        drop(callers);
        let value = vec![0; FRAME_BYTES_MAX - 2 * CALL_OVERHEAD_BYTES].into();
        let (large, _caller) = queued(PutRequest {
            value,
            ..PutRequest::default()
        });
        sender.send(News::CallerLeft).unwrap();
        sender.send(News::Call(large)).unwrap();
        let frames = [next(), next()];
        let counts = frames
            .each_ref()
            .map(|it| (it.cancelled.len(), it.calls.len()));
        assert_eq!(counts, [(CALLS_PER_FRAME_MAX, 0), (0, 1)]);
        assert!(frames.iter().all(|it| it.encoded_len() <= FRAME_BYTES_MAX));
    }

    #[test]
    fn what_is_in_a_frame_can_not_be_taken_back_and_what_was_taken_back_is_in_none() {
        let (sender, queue) = unbounded_channel();
        let mut outbound = outbound(queue);
        let value = vec![0; FRAME_BYTES_MAX / 2];
        let (calls, _callers): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| {
                queued(PutRequest {
                    value: value.clone().into(),
                    ..PutRequest::default()
                })
            })
            .unzip();
        let claims: Vec<_> = calls.iter().map(|it| Arc::clone(&it.claim)).collect();
        for call in calls {
            sender.send(News::Call(call)).unwrap();
        }
        let mut next = || {
            outbound.yielded = true;
            let mut context = Context::from_waker(std::task::Waker::noop());
            Pin::new(&mut outbound).poll_next(&mut context)
        };
        let calls = |polled| match polled {
            Poll::Ready(Some(PipelineRequest { calls, .. })) => calls.len(),
            _ => 0,
        };
        assert_eq!(calls(next()), 1);
        assert!(!claims[0].take(), "it has left");
        // The second one waits in front of the next frame, the third behind it.
        assert!(claims[1].take() && claims[2].take());
        assert_eq!(calls(next()), 0);
    }

    /// Also one that waits for the next frame, since it does not fit.
    #[test]
    fn a_call_takes_the_name_of_its_trace_along() {
        let (sender, queue) = unbounded_channel();
        let mut outbound = outbound(queue);
        let value = vec![0; FRAME_BYTES_MAX / 2 + 1];
        let mut callers = Vec::new();
        let spans = [1, 2].map(|span| TraceParent {
            trace_id: [7; 16],
            span_id: [span; 8],
            sampled: true,
        });
        for span in spans {
            let (call, caller) = queued(PutRequest {
                value: value.clone().into(),
                ..PutRequest::default()
            });
            let trace = Some(Box::new(span));
            let call = Queued { trace, ..call };
            sender.send(News::Call(call)).unwrap();
            callers.push(caller);
        }
        for span in spans {
            outbound.yielded = true;
            let mut context = Context::from_waker(std::task::Waker::noop());
            match Pin::new(&mut outbound).poll_next(&mut context) {
                Poll::Ready(Some(frame)) => {
                    assert_eq!(frame.calls[0].traceparent, span.to_string());
                }
                _ => panic!("there is something to send"),
            }
        }
    }

    /// It was given back when the caller left, while the call was in a queue without a bound.
    #[test]
    fn what_counts_a_call_stays_until_it_has_left() {
        let (sender, queue) = unbounded_channel();
        let mut outbound = outbound(queue);
        let counted = Arc::new(());
        let (mut queued, outcome) = queued(PutRequest::default());
        queued._counted = Some(Arc::clone(&counted) as Counted);
        sender.send(News::Call(queued)).unwrap();
        drop(outcome);
        assert_eq!(Arc::strong_count(&counted), 2);
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut outbound).poll_next(&mut context).is_pending());
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
