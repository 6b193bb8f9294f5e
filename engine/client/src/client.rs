//! Calls to the Kv service: one deadline per call, attempts over the pool's connections.

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use dengine_api::v1::{self, kv_client::KvClient};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Request, Response, Status, transport::Channel};

use crate::{
    error::{Error, Failure, Operation, Result},
    options::ClientOptions,
    pool::Pool,
    types::{
        Consistency, DeleteResult, Expected, GetResult, KeyRange, PutResult, RangeQuery,
        RangeResult, SwapResult, get_request,
    },
};

/// Reads and writes keys. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
    affinity: Option<usize>,
}

#[derive(Debug)]
struct Shared {
    pool: Pool,
    options: ClientOptions,
}

impl Client {
    /// Connects with the default [`ClientOptions`].
    ///
    /// # Errors
    /// `InvalidOptions` for a bad endpoint; `Unavailable` if no endpoint could be reached.
    pub async fn connect<S: Into<String>>(endpoints: impl IntoIterator<Item = S>) -> Result<Self> {
        Self::connect_with(endpoints, ClientOptions::default()).await
    }

    /// Connects to endpoints given as `host:port`. One that can be reached suffices; the others
    /// are tried again when they are needed.
    ///
    /// # Errors
    /// `InvalidOptions` for a bad endpoint or option; `Unavailable` if no endpoint could be reached.
    pub async fn connect_with<S: Into<String>>(
        endpoints: impl IntoIterator<Item = S>,
        options: ClientOptions,
    ) -> Result<Self> {
        options.validate()?;
        let endpoints: Vec<String> = endpoints.into_iter().map(Into::into).collect();
        let pool = Pool::connect(&endpoints, &options).await?;
        Ok(Client {
            shared: Arc::new(Shared { pool, options }),
            affinity: None,
        })
    }

    /// A clone whose calls start at connection `index` modulo the number of connections, instead of
    /// at the next one in turn.
    #[must_use]
    pub fn with_affinity(&self, index: usize) -> Self {
        let affinity = Some(self.shared.pool.pinned(index));
        Client {
            shared: Arc::clone(&self.shared),
            affinity,
        }
    }

    /// Sets a key.
    ///
    /// # Errors
    /// Any of [`Error`]; `UnknownOutcome` if the key may or may not have been set.
    pub async fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<PutResult> {
        self.send_put(key.into(), value.into(), false).await
    }

    /// Sets a key and returns what it was before.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn put_returning_previous(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<PutResult> {
        self.send_put(key.into(), value.into(), true).await
    }

    async fn send_put(&self, key: Bytes, value: Bytes, prev_kv: bool) -> Result<PutResult> {
        let put = v1::PutRequest {
            key,
            value,
            prev_kv,
        };
        self.call(Operation::Write, put, |mut kv, put| async move {
            kv.put(put).await
        })
        .await
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// Any of [`Error`]; `UnknownOutcome` if the key may or may not have been deleted.
    pub async fn delete(&self, key: impl Into<Bytes>) -> Result<DeleteResult> {
        self.delete_range(KeyRange::key(key)).await
    }

    /// Deletes every key of a range, at one revision.
    ///
    /// # Errors
    /// As for [`delete`](Self::delete).
    pub async fn delete_range(&self, range: KeyRange) -> Result<DeleteResult> {
        let delete = v1::DeleteRequest {
            key: range.start,
            range_end: range.end,
            prev_kv: false,
        };
        self.call(Operation::Write, delete, |mut kv, delete| async move {
            kv.delete(delete).await
        })
        .await
    }

    /// Sets a key if it is as expected.
    ///
    /// # Errors
    /// Any of [`Error`]; `UnknownOutcome` if the swap may or may not have taken place. That the key
    /// was not as expected is no error: see [`SwapResult::succeeded`].
    pub async fn compare_and_swap(
        &self,
        key: impl Into<Bytes>,
        expected: Expected,
        value: impl Into<Bytes>,
    ) -> Result<SwapResult> {
        let swap = v1::CompareAndSwapRequest {
            key: key.into(),
            value: value.into(),
            expected: Some(expected.wire()),
        };
        let send = |mut kv: KvClient<Channel>, swap| async move { kv.compare_and_swap(swap).await };
        self.call(Operation::Write, swap, send).await
    }

    /// Reads one key.
    ///
    /// # Errors
    /// Any of [`Error`] but `UnknownOutcome`.
    pub async fn get(&self, key: impl Into<Bytes>, consistency: Consistency) -> Result<GetResult> {
        self.get_at(key, 0, consistency).await
    }

    /// Reads one key as it was after `revision`; 0 is the newest.
    ///
    /// # Errors
    /// As for [`get`](Self::get); `RevisionUnavailable` if it is compacted or in the future.
    pub async fn get_at(
        &self,
        key: impl Into<Bytes>,
        revision: u64,
        consistency: Consistency,
    ) -> Result<GetResult> {
        let get = get_request(key.into(), revision, consistency);
        self.call(Operation::Read, get, |mut kv, get| async move {
            kv.get(get).await
        })
        .await
    }

    /// Reads a range of keys in ascending order.
    ///
    /// # Errors
    /// Any of [`Error`] but `UnknownOutcome`.
    pub async fn range(&self, query: impl Into<RangeQuery>) -> Result<RangeResult> {
        let range = query.into().wire();
        self.call(Operation::Read, range, |mut kv, range| async move {
            kv.range(range).await
        })
        .await
    }

    /// Sends a message until it is answered, must not be sent again, or its time is up.
    async fn call<M, W, T, F, Fut>(&self, operation: Operation, message: M, send: F) -> Result<T>
    where
        M: Clone,
        T: TryFrom<W, Error = Error>,
        F: Fn(KvClient<Channel>, Request<M>) -> Fut,
        Fut: Future<Output = std::result::Result<Response<W>, Status>>,
    {
        let pool = &self.shared.pool;
        let deadline = Instant::now() + self.shared.options.request_timeout;
        let mut from = self.affinity.unwrap_or_else(|| pool.start());
        let (mut route, mut kv) = pool.pick(from);
        let mut delays = None;
        loop {
            let attempt = self.attempt(operation, message.clone(), deadline, &send, kv);
            let failure = match attempt.await {
                Ok(response) => return T::try_from(response),
                Err(failure) => failure,
            };
            if failure.unhealthy {
                pool.cool(route);
            }
            let delays = delays.get_or_insert_with(|| self.shared.options.retry.delays());
            let Some(delay) = next_delay(&failure.error, delays, deadline) else {
                return Err(failure.error);
            };
            tracing::debug!(error = %failure.error, ?delay, "attempt failed, will retry");
            sleep(delay).await;
            from += 1;
            (route, kv) = match &failure.error {
                Error::Unavailable {
                    leader: Some(leader),
                    ..
                } => pool.hinted(leader).unwrap_or_else(|_| pool.pick(from)),
                _ => pool.pick(from),
            };
        }
    }

    async fn attempt<M, W, F, Fut>(
        &self,
        operation: Operation,
        message: M,
        deadline: Instant,
        send: &F,
        kv: KvClient<Channel>,
    ) -> std::result::Result<W, Failure>
    where
        F: Fn(KvClient<Channel>, Request<M>) -> Fut,
        Fut: Future<Output = std::result::Result<Response<W>, Status>>,
    {
        let mut request = Request::new(message);
        request.set_timeout(deadline.saturating_duration_since(Instant::now()));
        match timeout_at(deadline, send(kv, request)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(Failure::from_status(operation, &status)),
            Err(_) => Err(Failure {
                error: Error::deadline(operation, self.shared.options.request_timeout),
                unhealthy: true,
            }),
        }
    }
}

/// The pause before the next attempt; `None` if there must be none or it could not be made in time.
fn next_delay(
    error: &Error,
    delays: &mut impl Iterator<Item = std::time::Duration>,
    deadline: Instant,
) -> Option<std::time::Duration> {
    if !error.retryable() {
        return None;
    }
    delays
        .next()
        .filter(|&delay| Instant::now() + delay < deadline)
}
