//! What an application calls; each call is one of the Kv service, with one deadline.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dengine_protocol::{KvCall, v1};

use crate::batch::{Batch, BatchResult};
use crate::call::{Call, ClientShared};
use crate::error::{Error, Result};
use crate::options::ClientOptions;
use crate::pages::Pages;
use crate::policy::{Operation, Position};
use crate::pool::Pool;
use crate::session::{Session, SessionOptions, Ticket};
use crate::types::{
    Answer, CompactResult, Consistency, DeleteResult, Expected, GetResult, KeyRange, PutOptions,
    PutResult, RangeQuery, RangeResult, SwapResult, get_request, ttl_ms,
};
use crate::watch::{Watch, WatchQuery};

/// Reads and writes keys. Cheap to clone; clones share their connections, and what they have seen.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<ClientShared>,
    request_timeout: Duration,
    affinity: Option<usize>,
    session: Option<Arc<Session>>,
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
    /// `InvalidOptions` for a bad endpoint or option; `Unavailable` if no endpoint could be
    /// reached.
    pub async fn connect_with<S: Into<String>>(
        endpoints: impl IntoIterator<Item = S>,
        options: ClientOptions,
    ) -> Result<Self> {
        options.validate()?;
        let endpoints: Vec<String> = endpoints.into_iter().map(Into::into).collect();
        let pool = Pool::connect(&endpoints, &options).await?;
        Ok(Client {
            request_timeout: options.request_timeout,
            shared: Arc::new(ClientShared::new(pool, options)),
            affinity: None,
            session: None,
        })
    }

    /// A clone whose calls start at connection `index` modulo the number of connections, instead of
    /// at the next one in turn.
    #[must_use]
    pub fn with_affinity(&self, index: usize) -> Self {
        Client {
            affinity: Some(self.shared.pool.pinned(index)),
            ..self.clone()
        }
    }

    /// A clone whose reads and writes take no longer than this, each with its retries and pauses:
    /// for several calls that share one deadline. One without any time left is not sent.
    #[must_use]
    pub fn with_request_timeout(&self, request_timeout: Duration) -> Self {
        Client {
            request_timeout,
            ..self.clone()
        }
    }

    /// A clone whose writes belong to a new session of the cluster: each takes effect exactly once,
    /// so one that got no answer is sent again instead of ending as `UnknownOutcome`, as long as
    /// its time lasts. The session is kept alive until the last clone is dropped.
    ///
    /// # Errors
    /// `Overloaded` if the cluster has as many sessions as it may.
    pub async fn with_session(&self, options: SessionOptions) -> Result<Self> {
        Ok(Client {
            session: Some(Session::open(&self.shared, options).await?),
            ..self.clone()
        })
    }

    /// Ends this client's session in the cluster at once. Without one, does nothing.
    ///
    /// # Errors
    /// If no member could be asked; the session then expires by itself.
    pub async fn close_session(&self) -> Result<()> {
        match &self.session {
            Some(session) => session.close(&self.shared).await,
            None => Ok(()),
        }
    }

    /// The highest revision that this client and its clones have seen, and of which cluster: what
    /// their session reads do not fall behind. Send it along with a message, so that the recipient
    /// reads your writes.
    #[must_use]
    pub fn position(&self) -> Position {
        self.shared.seen()
    }

    /// From now on session reads also include everything up to `position`, which another client has
    /// seen.
    pub fn saw(&self, position: Position) {
        self.shared.saw(position.cluster_id, position.revision);
    }

    /// Forgets what was seen, for this client and its clones: their session reads begin again. For
    /// a cluster that took the place of another one, whose revisions say nothing of those that were
    /// seen; session reads say so with `Refused`.
    pub fn forget_position(&self) {
        self.shared.forget_position();
    }

    /// How often this client and its clones sent a call again, over all calls so far: 0 while the
    /// cluster is well.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.shared.retries()
    }

    /// Sets a key.
    ///
    /// # Errors
    /// Any of [`Error`]; `UnknownOutcome` if the key may or may not have been set.
    pub async fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<PutResult> {
        self.put_with(key, value, PutOptions::default()).await
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
        let options = PutOptions {
            previous: true,
            ..PutOptions::default()
        };
        self.put_with(key, value, options).await
    }

    /// Sets a key with a time to live; the key never expires earlier.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn put_with_ttl(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        ttl: Duration,
    ) -> Result<PutResult> {
        let options = PutOptions {
            ttl: Some(ttl),
            ..PutOptions::default()
        };
        self.put_with(key, value, options).await
    }

    /// Sets a key as `options` say.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn put_with(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        options: PutOptions,
    ) -> Result<PutResult> {
        let put = v1::PutRequest {
            key: key.into(),
            value: value.into(),
            prev_kv: options.previous,
            ttl_ms: ttl_ms(options.ttl),
            session: None,
        };
        self.write(put).await
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
        self.send_delete(range, false).await
    }

    /// Deletes every key of a range, at one revision, and returns what they were. The server bounds
    /// how much it returns, and refuses what would be more.
    ///
    /// # Errors
    /// As for [`delete`](Self::delete).
    pub async fn delete_range_returning_previous(&self, range: KeyRange) -> Result<DeleteResult> {
        self.send_delete(range, true).await
    }

    async fn send_delete(&self, range: KeyRange, prev_kv: bool) -> Result<DeleteResult> {
        let delete = v1::DeleteRequest {
            key: range.start,
            range_end: range.end,
            prev_kv,
            session: None,
        };
        self.write(delete).await
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
        self.compare_and_swap_with(key, expected, value, None).await
    }

    /// Sets a key if it is as expected; with a time to live it expires so long after, and not
    /// sooner.
    ///
    /// # Errors
    /// As for [`compare_and_swap`](Self::compare_and_swap).
    pub async fn compare_and_swap_with(
        &self,
        key: impl Into<Bytes>,
        expected: Expected,
        value: impl Into<Bytes>,
        ttl: Option<Duration>,
    ) -> Result<SwapResult> {
        let swap = v1::CompareAndSwapRequest {
            key: key.into(),
            value: value.into(),
            expected: Some(expected.wire()),
            ttl_ms: ttl_ms(ttl),
            session: None,
        };
        self.write(swap).await
    }

    /// Compares, and then does one of two lists of operations, all of it at once.
    ///
    /// # Errors
    /// Any of [`Error`]; `UnknownOutcome` if the batch may or may not have taken effect. That the
    /// comparisons did not hold is no error: see [`BatchResult::succeeded`].
    pub async fn batch(&self, batch: Batch) -> Result<BatchResult> {
        self.write(batch.wire()).await
    }

    /// Compacts history: afterwards no revision below this one can be read or watched.
    ///
    /// # Errors
    /// `RevisionUnavailable` if that was done before, or the revision lies in the future.
    pub async fn compact(&self, revision: u64) -> Result<CompactResult> {
        let compact = v1::CompactRequest {
            revision,
            session: None,
        };
        self.write(compact).await
    }

    /// Watches changes; returns once the watch has begun, so that nothing after it is missed.
    ///
    /// # Errors
    /// `Compacted` if the revision to begin at is gone.
    pub async fn watch(&self, query: impl Into<WatchQuery>) -> Result<Watch> {
        Watch::begin(Arc::clone(&self.shared), query.into(), self.lane()).await
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
        self.read(get).await
    }

    /// Reads a range of keys in ascending order: as many as one answer may hold, and
    /// [`RangeResult::more`] says whether there are more. [`Client::pages`] reads them all.
    ///
    /// # Errors
    /// Any of [`Error`] but `UnknownOutcome`.
    pub async fn range(&self, query: impl Into<RangeQuery>) -> Result<RangeResult> {
        self.read(query.into().wire()).await
    }

    /// Reads a range of any size, a page at a time, all of it as of the revision of the first page.
    ///
    /// ```no_run
    /// # async fn example(client: dengine_client::Client) -> dengine_client::Result<()> {
    /// let mut pages = client.pages(dengine_client::KeyRange::prefix("user/"));
    /// while let Some(page) = pages.next().await? {
    ///     for pair in page { /* ... */ }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn pages(&self, query: impl Into<RangeQuery>) -> Pages {
        Pages::new(self.clone(), query.into())
    }

    async fn read<M, T>(&self, message: M) -> Result<T>
    where
        M: KvCall,
        T: Answer + TryFrom<M::Answer, Error = Error>,
    {
        self.call(Operation::Read, self.deadline(), None, message)
            .await
    }

    /// A write takes its place in the session, if this client has one, and keeps it over all
    /// attempts.
    async fn write<M, T>(&self, message: M) -> Result<T>
    where
        M: KvCall,
        T: Answer + TryFrom<M::Answer, Error = Error>,
    {
        let deadline = self.deadline();
        let Some(session) = &self.session else {
            return self.call(Operation::Write, deadline, None, message).await;
        };
        let ticket = session.ticket(&self.shared, deadline).await?;
        let result = self
            .call(Operation::Once, deadline, Some(&ticket), message)
            .await;
        session.note(&result);
        result
    }

    async fn call<M, T>(
        &self,
        operation: Operation,
        deadline: Duration,
        ticket: Option<&Ticket>,
        message: M,
    ) -> Result<T>
    where
        M: KvCall,
        T: Answer + TryFrom<M::Answer, Error = Error>,
    {
        let call = Call {
            operation,
            lane: self.lane(),
            deadline,
            attempt_max: Duration::MAX,
            ticket,
        };
        let answer = T::try_from(self.shared.call(call, &message).await?)?;
        let header = answer.header();
        self.shared.saw(header.cluster_id, header.revision);
        Ok(answer)
    }

    /// When a call that begins now must be over, by the pool's time.
    fn deadline(&self) -> Duration {
        self.shared.pool.now() + self.request_timeout
    }

    /// The lane that the next call starts from.
    fn lane(&self) -> usize {
        self.affinity.unwrap_or_else(|| self.shared.pool.start())
    }
}
