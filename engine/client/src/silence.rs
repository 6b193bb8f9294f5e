//! Waiting for a member that may have fallen silent.

use std::pin::pin;

use tokio::time::{Instant, timeout_at};

/// What is done once a member has been silent for long. Whoever waits for it waits on.
pub(crate) struct Silence<F> {
    pub(crate) at: Instant,
    pub(crate) tell: F,
}

impl<F: FnOnce()> Silence<F> {
    /// Waits for the answer until then, with one timer at a time; `None` if there was none.
    pub(crate) async fn wait<T>(
        self,
        answer: impl Future<Output = T>,
        until: Instant,
    ) -> Option<T> {
        let mut answer = pin!(answer);
        if self.at < until {
            if let Ok(answered) = timeout_at(self.at, &mut answer).await {
                return Some(answered);
            }
            (self.tell)();
        }
        timeout_at(until, answer).await.ok()
    }
}
