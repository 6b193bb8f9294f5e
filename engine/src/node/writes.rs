//! Writes that were asked for together, and wait together: one place to wait and one timer, however many they are.

use crate::error::RequestError;
use dengine_core::replica::{Caller, Written};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Answers one of the writes.
pub(crate) struct WriteReply {
    /// Gone once it has answered.
    answers: Option<Arc<Mutex<Answers>>>,
    place: usize,
}

/// Where the answers come out, in the order of the writes.
pub(super) struct WriteAnswers {
    answers: Arc<Mutex<Answers>>,
}

struct Answers {
    places: Vec<Place>,
    open: usize,
    waker: Option<Waker>,
    /// Whether somebody waits for them.
    awaited: bool,
}

enum Place {
    Open,
    Answered(Result<Written, RequestError>),
    /// Whoever was to answer it is gone.
    Lost,
}

impl WriteAnswers {
    /// As many replies as there are writes, and where their answers come out.
    pub(super) fn of(writes: usize) -> (impl Iterator<Item = WriteReply>, Self) {
        let answers = Arc::new(Mutex::new(Answers {
            places: (0..writes).map(|_| Place::Open).collect(),
            open: writes,
            waker: None,
            awaited: true,
        }));
        let own = Self {
            answers: Arc::clone(&answers),
        };
        let replies = (0..writes).map(move |place| WriteReply {
            answers: Some(Arc::clone(&answers)),
            place,
        });
        (replies, own)
    }

    /// What there is now. Those without an answer come to what `unknown` says.
    pub(super) fn take(
        self,
        mut unknown: impl FnMut() -> RequestError,
    ) -> Vec<Result<Written, RequestError>> {
        let places = std::mem::take(&mut lock(&self.answers).places);
        let answer = |place| match place {
            Place::Answered(answer) => answer,
            Place::Open | Place::Lost => Err(unknown()),
        };
        places.into_iter().map(answer).collect()
    }

    /// Waits until no write is without an answer that could still get one.
    pub(super) fn complete(&mut self) -> impl Future<Output = ()> {
        Complete(self)
    }
}

impl Drop for WriteAnswers {
    fn drop(&mut self) {
        lock(&self.answers).awaited = false;
    }
}

struct Complete<'a>(&'a WriteAnswers);

impl Future for Complete<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut answers = lock(&self.0.answers);
        if answers.open == 0 {
            return Poll::Ready(());
        }
        answers.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl WriteReply {
    fn fill(&mut self, place: Place) {
        let Some(answers) = self.answers.take() else {
            return;
        };
        let waker = {
            let mut answers = lock(&answers);
            // Nobody waits any more, and what was waited for is taken.
            if let Some(open) = answers.places.get_mut(self.place) {
                *open = place;
            }
            answers.open -= 1;
            (answers.open == 0).then(|| answers.waker.take()).flatten()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Caller<Written> for WriteReply {
    fn is_gone(&self) -> bool {
        self.answers
            .as_ref()
            .is_none_or(|answers| !lock(answers).awaited)
    }

    fn answer(mut self, answer: Result<Written, RequestError>) {
        self.fill(Place::Answered(answer));
    }
}

impl Drop for WriteReply {
    fn drop(&mut self) {
        self.fill(Place::Lost);
    }
}

fn lock(answers: &Mutex<Answers>) -> MutexGuard<'_, Answers> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dengine_core::kv::Outcome;
    use dengine_core::types::Term;

    fn written(term: u64) -> Result<Written, RequestError> {
        Ok(Written {
            term: Term(term),
            outcome: Outcome::Empty,
        })
    }

    fn unknown() -> RequestError {
        RequestError::ShuttingDown
    }

    #[tokio::test]
    async fn all_are_awaited_and_come_out_in_order() {
        let (replies, mut answers) = WriteAnswers::of(3);
        let mut replies: Vec<_> = replies.collect();
        let waiting = tokio::spawn(async move {
            answers.complete().await;
            answers.take(unknown)
        });
        tokio::task::yield_now().await;
        replies.remove(2).answer(written(3));
        replies.remove(0).answer(written(1));
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(replies);
        let answers = waiting.await.expect("no panic");
        assert_eq!(answers, [written(1), Err(unknown()), written(3)]);
    }

    #[tokio::test]
    async fn a_reply_knows_when_nobody_waits() {
        let (replies, answers) = WriteAnswers::of(1);
        let reply = replies.last().expect("one");
        assert!(!reply.is_gone());
        assert_eq!(answers.take(unknown), [Err(unknown())]);
        assert!(reply.is_gone());
        reply.answer(written(1));
    }
}
