//! Watches.

use bytes::Bytes;
use dengine_protocol::v1::event::Kind;
use dengine_protocol::v1::watch_server::Watch;
use dengine_protocol::v1::{
    Event, KeyValue, ResponseHeader, WatchCreate, WatchRequest, WatchResponse, watch_request,
};
use futures::{StreamExt, stream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{Answers, FakeState, Peer};

/// A watch of one key that is told of puts as they happen.
#[derive(Debug)]
pub(crate) struct LiveWatch {
    id: u64,
    key: Bytes,
    shared: bool,
    tell: mpsc::UnboundedSender<Result<WatchResponse, Status>>,
}

impl FakeState {
    /// Tells who watches this key what it holds now: in one response those of a stream that may
    /// share it.
    pub(crate) fn tell(&mut self, key: &Bytes) {
        let watches = self.live.iter().flatten();
        let watches: Vec<_> = watches.filter(|watch| watch.key == *key).collect();
        let may_share = |one: &&LiveWatch, other: &&LiveWatch| {
            one.shared && other.shared && one.tell.same_channel(&other.tell)
        };
        for sharing in watches.chunk_by(may_share) {
            self.told += 1;
            let ids = sharing.iter().map(|watch| watch.id);
            // Whoever hung up wants to know nothing.
            let _ = sharing[0].tell.send(Ok(WatchResponse {
                header: self.header(),
                watch_id: sharing[0].id,
                also_watch_ids: ids.skip(1).collect(),
                resume_revision: self.revision + 1,
                events: vec![Event {
                    kind: Kind::Put.into(),
                    kv: self.pairs.get(key).cloned(),
                    prev_kv: None,
                }],
                ..WatchResponse::default()
            }));
        }
    }
}

impl Peer {
    /// Begins watches that are told of puts from now on.
    fn live(self, mut requests: Streaming<WatchRequest>) -> Answers<WatchResponse> {
        let (tell, told) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(request)) = requests.next().await {
                if let Some(watch_request::Request::Create(create)) = request.request {
                    self.begin(create, tell.clone());
                }
            }
        });
        Box::pin(UnboundedReceiverStream::new(told))
    }

    fn begin(
        &self,
        create: WatchCreate,
        tell: mpsc::UnboundedSender<Result<WatchResponse, Status>>,
    ) {
        let mut state = self.state.lock().unwrap();
        let _ = tell.send(Ok(WatchResponse {
            watch_id: create.watch_id,
            created: true,
            resume_revision: state.revision + 1,
            header: state.header(),
            ..WatchResponse::default()
        }));
        let watch = LiveWatch {
            id: create.watch_id,
            key: create.key.clone(),
            shared: create.shared,
            tell,
        };
        state.live.get_or_insert_default().push(watch);
        state.created.push(create);
    }

    /// What a watch is told of the history, or nothing if it was a cancellation.
    fn told(&self, request: WatchRequest) -> Vec<Result<WatchResponse, Status>> {
        let mut state = self.state.lock().unwrap();
        let create = match request.request {
            Some(watch_request::Request::Create(create)) => create,
            Some(watch_request::Request::Cancel(cancel)) => {
                state.cancelled.push(cancel.watch_id);
                return Vec::new();
            }
            _ => return Vec::new(),
        };
        state.created.push(create.clone());
        let (bytes, revisions) = state.history.clone().unwrap_or_default();
        let first = create.start_revision.max(revisions.start);
        let response = |revision| WatchResponse {
            header: Some(ResponseHeader {
                cluster_id: 7,
                revision,
                ..ResponseHeader::default()
            }),
            watch_id: create.watch_id,
            ..WatchResponse::default()
        };
        let created = WatchResponse {
            created: true,
            resume_revision: first,
            ..response(first - 1)
        };
        let told = (first..revisions.end).map(|revision| WatchResponse {
            events: vec![Event {
                kind: Kind::Put.into(),
                kv: Some(KeyValue {
                    key: create.key.clone(),
                    value: vec![b'v'; bytes].into(),
                    mod_revision: revision,
                    ..KeyValue::default()
                }),
                prev_kv: None,
            }],
            ..response(revision)
        });
        std::iter::once(created).chain(told).map(Ok).collect()
    }
}

#[tonic::async_trait]
impl Watch for Peer {
    type WatchStream = Answers<WatchResponse>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let mut requests = request.into_inner();
        self.state.lock().unwrap().streams += 1;
        if self.state.lock().unwrap().live.is_some() {
            return Ok(Response::new(self.clone().live(requests)));
        }
        if self.state.lock().unwrap().history.is_some() {
            let peer = self.clone();
            let said = requests.flat_map(move |request| {
                let told = request.map(|request| peer.told(request));
                stream::iter(told.unwrap_or_default())
            });
            return Ok(Response::new(Box::pin(said)));
        }
        let first = requests.message().await?.and_then(|it| it.request);
        let Some(watch_request::Request::Create(create)) = first else {
            return Err(Status::invalid_argument("a stream begins with a watch"));
        };
        let mut state = self.state.lock().unwrap();
        state.created.push(create);
        let Some(script) = state.watches.pop_front() else {
            return Err(Status::unavailable("no more scripts"));
        };
        let silent = script.last().is_none_or(Result::is_ok);
        let after = stream::once(async move {
            if silent {
                std::future::pending::<()>().await;
            }
            drop(requests);
            Err(Status::unavailable("over"))
        });
        let said = stream::iter(script).chain(after);
        Ok(Response::new(Box::pin(said)))
    }
}
