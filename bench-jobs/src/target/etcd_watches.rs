//! One stream of etcd's protocol for all watches of a connection, as etcd's own client has it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use etcd_client::{
    Event, KeyValue, WatchClient, WatchOptions, WatchRequestSender, WatchResponse,
    WatchResponseStream,
};
use tokio::sync::{self, watch};
use tokio::task::AbortHandle;

use super::etcd::in_words;

/// The stream of a connection: opened with its first watch, closed with its last.
pub(super) struct Watches {
    client: WatchClient,
    running: sync::Mutex<Weak<Running>>,
}

struct Running {
    requests: sync::Mutex<WatchRequestSender>,
    /// Cancels the stream: a server goes on telling a client that only asks for nothing more.
    reads: AbortHandle,
    told: Arc<AllTold>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.reads.abort();
    }
}

/// What each watch was told, by its id.
#[derive(Default)]
struct AllTold(Mutex<HashMap<i64, watch::Sender<Told>>>);

/// Up to which revision a watch was told everything, 0 before it has begun; or why it has ended.
type Told = Result<u64, String>;

/// A watch of one key.
pub struct Events {
    told: watch::Receiver<Told>,
    /// Keeps the stream open.
    running: Arc<Running>,
}

impl Watches {
    pub(super) fn new(client: WatchClient) -> Self {
        Self {
            client,
            running: sync::Mutex::default(),
        }
    }

    /// A watch of this key from now on.
    pub(super) async fn watch(&self, key: Bytes) -> Result<Events, String> {
        let mut slot = self.running.lock().await;
        let joined = slot.upgrade().filter(|running| !running.told.has_ended());
        let mut events = match joined {
            Some(running) => running.join(key).await?,
            None => self.open(key).await?,
        };
        *slot = Arc::downgrade(&events.running);
        drop(slot);
        // It has begun once it has any revision.
        events.until(1).await?;
        Ok(events)
    }

    async fn open(&self, key: Bytes) -> Result<Events, String> {
        let all = Arc::new(AllTold::default());
        let (id, told) = all.add();
        let mut client = self.client.clone();
        let stream = client.watch(key.to_vec(), Some(with_id(id))).await;
        let (requests, responses) = stream.map_err(in_words)?.split();
        let reads = tokio::spawn(read(responses, Arc::clone(&all))).abort_handle();
        let running = Arc::new(Running {
            requests: sync::Mutex::new(requests),
            reads,
            told: all,
        });
        Ok(Events { told, running })
    }
}

impl Running {
    async fn join(self: Arc<Self>, key: Bytes) -> Result<Events, String> {
        let (id, told) = self.told.add();
        let mut requests = self.requests.lock().await;
        let asked = requests.watch(key.to_vec(), Some(with_id(id))).await;
        asked.map_err(in_words)?;
        drop(requests);
        Ok(Events {
            told,
            running: self,
        })
    }
}

fn with_id(id: i64) -> WatchOptions {
    WatchOptions::new().with_watch_id(id)
}

impl Events {
    pub(super) async fn until(&mut self, revision: u64) -> Result<(), String> {
        let is_told = |told: &Told| told.as_ref().is_ok_and(|told| *told >= revision);
        let told = self.told.wait_for(|told| told.is_err() || is_told(told));
        let told = told.await.map_err(|_| ended())?;
        told.as_ref().map(|_| ()).map_err(String::clone)
    }
}

fn ended() -> String {
    "the watch was ended by the server".to_owned()
}

/// Hands on what comes to the watch that it is for.
async fn read(mut responses: WatchResponseStream, told: Arc<AllTold>) {
    let words = loop {
        match responses.message().await {
            Ok(Some(response)) => told.take(&response),
            Ok(None) => break ended(),
            Err(error) => break in_words(error),
        }
    };
    told.end(&words);
}

impl AllTold {
    fn all(&self) -> MutexGuard<'_, HashMap<i64, watch::Sender<Told>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self) -> (i64, watch::Receiver<Told>) {
        let mut all = self.all();
        let (tell, told) = watch::channel(Ok(0));
        let id = all.len() as i64 + 1;
        all.insert(id, tell);
        (id, told)
    }

    fn take(&self, response: &WatchResponse) {
        if let Some(tell) = self.all().get(&response.watch_id()) {
            tell.send_modify(|told| {
                let before = told.as_ref().ok().copied();
                *told = before.map_or_else(|| told.clone(), |before| next(before, response));
            });
        }
    }

    fn end(&self, words: &str) {
        for tell in self.all().values() {
            // What it was told before is of no interest any more.
            let _ = tell.send_replace(Err(words.to_owned()));
        }
    }

    fn has_ended(&self) -> bool {
        self.all().values().any(|tell| tell.borrow().is_err())
    }
}

/// Up to where a watch was told everything with this response too.
fn next(before: u64, response: &WatchResponse) -> Told {
    if response.canceled() {
        return Err(ended());
    }
    if response.created() {
        // What it is told begins behind this one.
        return Ok(response.header().map_or(1, |it| it.revision() as u64));
    }
    let changes = response.events().iter().filter_map(Event::kv);
    ordered(before, changes.map(KeyValue::mod_revision))
}

/// The last of some revisions, which never go back.
fn ordered(before: u64, revisions: impl IntoIterator<Item = i64>) -> Told {
    let mut last = before;
    for revision in revisions {
        let revision = revision as u64;
        if revision <= before || revision < last {
            return Err(format!("an event of revision {revision} behind {last}"));
        }
        last = revision;
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dengine_etcd::etcdserverpb::watch_server::{Watch, WatchServer};
    use dengine_etcd::etcdserverpb::{self, WatchRequest};
    use etcd_client::Client;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio::time::timeout;
    use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
    use tonic::transport::Server;
    use tonic::{Request, Response, Status, Streaming};

    use super::*;

    /// A server that goes on telling whoever asks for nothing more, as etcd does.
    struct Tells {
        cancelled: mpsc::UnboundedSender<()>,
    }

    #[tonic::async_trait]
    impl Watch for Tells {
        type WatchStream = ReceiverStream<Result<etcdserverpb::WatchResponse, Status>>;

        async fn watch(
            &self,
            _: Request<Streaming<WatchRequest>>,
        ) -> Result<Response<Self::WatchStream>, Status> {
            let (tell, told) = mpsc::channel(1);
            let created = etcdserverpb::WatchResponse {
                watch_id: 1,
                created: true,
                ..etcdserverpb::WatchResponse::default()
            };
            let cancelled = self.cancelled.clone();
            tokio::spawn(async move {
                tell.send(Ok(created)).await.expect("the client reads it");
                tell.closed().await;
                cancelled.send(()).expect("the test waits");
            });
            Ok(Response::new(ReceiverStream::new(told)))
        }
    }

    /// A server with those of the warm-up too has twice as many to tell.
    #[tokio::test]
    async fn the_watches_of_a_load_that_is_over_are_cancelled() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (cancelled, mut is_cancelled) = mpsc::unbounded_channel();
        let server = Server::builder().add_service(WatchServer::new(Tells { cancelled }));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let client = Client::connect([address], None).await.unwrap();
        let watches = Watches::new(client.watch_client());
        let events = watches.watch(Bytes::from_static(b"k")).await.unwrap();
        assert!(is_cancelled.try_recv().is_err());
        drop(events);
        let waited = timeout(Duration::from_secs(10), is_cancelled.recv()).await;
        assert_eq!(waited, Ok(Some(())), "the server still tells it");
    }

    #[test]
    fn events_that_go_back_or_come_twice_are_an_error() {
        assert_eq!(ordered(4, [5, 5, 7]), Ok(7));
        assert_eq!(ordered(4, []), Ok(4));
        for revisions in [&[4][..], &[5, 4], &[7, 6]] {
            assert!(ordered(4, revisions.iter().copied()).is_err());
        }
    }
}
