//! Writes that were asked for together, and wait together: one place to wait and one timer, however
//! many they are.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use dengine_planted::planted;
use dengine_types::sync::{Mutex, MutexGuard};

use super::error::RequestError;
use crate::answers::Held;
use crate::output::Written;

/// Answers one of the writes.
pub struct WriteReply {
    /// Gone once it has answered.
    answers: Option<Arc<Mutex<Answers>>>,
    place: usize,
}

/// Where the answers come out, in the order of the writes.
pub struct WriteAnswers {
    answers: Arc<Mutex<Answers>>,
}

struct Answers {
    places: Vec<Place>,
    open: usize,
    waker: Option<Waker>,
    /// Counts the pairs that the answers hold, if that is wanted.
    held: Option<Held>,
    /// Whether somebody waits for them.
    awaited: bool,
}

enum Place {
    Open,
    Answered(Result<Written, RequestError>),
    /// What was to answer it is gone.
    Lost,
}

impl WriteAnswers {
    /// As many replies as there are writes, and where their answers come out. With `held`, answers
    /// that it has no room for come without their pairs.
    pub fn of(writes: usize, held: Option<Held>) -> (impl Iterator<Item = WriteReply>, Self) {
        let answers = Arc::new(Mutex::new(Answers {
            places: (0..writes).map(|_| Place::Open).collect(),
            open: writes,
            waker: None,
            held,
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

    /// What there is now, and what counts its bytes. Those without an answer come to what `unknown`
    /// says.
    pub fn take(
        self,
        mut unknown: impl FnMut() -> RequestError,
    ) -> (Vec<Result<Written, RequestError>>, Option<Held>) {
        let (places, held) = {
            let mut answers = lock(&self.answers);
            (std::mem::take(&mut answers.places), answers.held.take())
        };
        let answer = |place| match place {
            Place::Answered(answer) => answer,
            Place::Open | Place::Lost => Err(unknown()),
        };
        (places.into_iter().map(answer).collect(), held)
    }

    /// Waits until no write is without an answer that could still get one.
    pub fn complete(&mut self) -> impl Future<Output = ()> {
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
        if planted!(WakerLeftAfterLook) {
            drop(answers);
            answers = lock(&self.0.answers);
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
            // No caller waits any more, and what was waited for is taken.
            if self.place < answers.places.len() {
                let place = match place {
                    Place::Answered(Ok(written)) => {
                        Place::Answered(Ok(bounded(answers.held.as_mut(), written)))
                    }
                    other => other,
                };
                answers.places[self.place] = place;
            }
            answers.open -= 1;
            (answers.open == 0).then(|| answers.waker.take()).flatten()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the caller waits no more; an answer would be lost, and changes nothing.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.answers
            .as_ref()
            .is_none_or(|answers| !lock(answers).awaited)
    }

    /// Gives the answer.
    pub fn answer(mut self, answer: Result<Written, RequestError>) {
        self.fill(Place::Answered(answer));
    }
}

impl Drop for WriteReply {
    fn drop(&mut self) {
        self.fill(Place::Lost);
    }
}

/// The write has taken effect, so all that can be left out is what it was to return.
fn bounded(held: Option<&mut Held>, written: Written) -> Written {
    let pairs_bytes = written.outcome.pairs_bytes();
    let room = held.is_none_or(|held| held.add(pairs_bytes));
    match room {
        true => written,
        false => Written {
            outcome: written.outcome.without_pairs(),
            ..written
        },
    }
}

fn lock(answers: &Mutex<Answers>) -> MutexGuard<'_, Answers> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use dengine_kv::{KeyValue, Outcome};
    use dengine_types::{LeaseId, Revision, Term};

    use super::*;
    use crate::answers::AnswerBudget;

    fn written(term: u64) -> Result<Written, RequestError> {
        Ok(Written {
            term: Term(term),
            outcome: Outcome::Empty,
            visited: 0,
        })
    }

    fn unknown() -> RequestError {
        RequestError::ShuttingDown
    }

    /// Counts how often it woke.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn all_are_awaited_and_come_out_in_order() {
        let (replies, mut answers) = WriteAnswers::of(3, None);
        let mut replies: Vec<_> = replies.collect();
        let woken = Arc::<Woken>::default();
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut poll = |answers: &mut WriteAnswers| pin!(answers.complete()).poll(&mut context);
        assert_eq!(poll(&mut answers), Poll::Pending);
        replies.remove(2).answer(written(3));
        replies.remove(0).answer(written(1));
        assert_eq!(poll(&mut answers), Poll::Pending);
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        drop(replies);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "once, by the last");
        assert_eq!(poll(&mut answers), Poll::Ready(()));
        let (answers, _) = answers.take(unknown);
        assert_eq!(answers, [written(1), Err(unknown()), written(3)]);
    }

    #[test]
    fn a_reply_knows_when_nobody_waits() {
        let (replies, answers) = WriteAnswers::of(1, None);
        let reply = replies.last().expect("one");
        assert!(!reply.is_gone());
        assert_eq!(answers.take(unknown).0, [Err(unknown())]);
        assert!(reply.is_gone());
        reply.answer(written(1));
    }

    /// Two hundred swaps that fail on one large key would otherwise hold it two hundred times.
    #[test]
    fn without_room_a_write_is_answered_without_its_pairs() {
        let outcome = Outcome::Put {
            revision: Revision(7),
            prev: Some(KeyValue {
                key: "k".into(),
                value: vec![0; 10_000].into(),
                create_revision: Revision(1),
                mod_revision: Revision(1),
                version: 1,
                ttl_ms: 0,
                lease: LeaseId::NONE,
            }),
        };
        let whole = Written {
            term: Term(1),
            outcome,
            visited: 0,
        };
        let budget = AnswerBudget::new(15_000, 15_000);
        let whose = [10, 0, 0, 1].into();
        let (replies, answers) = WriteAnswers::of(2, Some(budget.none(whose)));
        for reply in replies {
            reply.answer(Ok(whole.clone()));
        }
        let (written, held) = answers.take(unknown);
        let trimmed = Written {
            outcome: whole.outcome.clone().without_pairs(),
            ..whole.clone()
        };
        assert_eq!(written, [Ok(whole), Ok(trimmed)]);
        assert!(budget.hold(whose, 10_000).is_none());
        drop(held);
        assert!(budget.hold(whose, 10_000).is_some());
    }
}
