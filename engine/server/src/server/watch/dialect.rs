//! What differs between the protocols in which clients ask for watches and get events.

use std::time::Duration;

use dengine_kv::watch::{EventBatch, WatchSet, WatchSpec};
use dengine_protocol::checks::watch::Ending;
use dengine_protocol::checks::{Header, RequestLimits};
use dengine_types::Revision;
use prost::Message;
use tonic::Status;

use crate::config::Config;

/// One protocol of watches, and what it notes of one stream.
pub(in crate::server) trait Dialect: Send + Sync + Sized + 'static {
    type Request: Send + 'static;
    type Response: Message + 'static;

    /// Whether the parts of a large revision follow each other, or are one message if the watch
    /// wants no parts. Its parts are then held until all of them are read, within bounds.
    const WHOLE_REVISIONS: bool;

    /// Whether a client begins a watch again that ends because this member cannot serve it now.
    /// Otherwise its stream ends, upon which it does.
    const RESUMES_WATCHES: bool;

    /// Whether a client is told what it watches after it has said that it asks for nothing more.
    /// Otherwise its stream ends then.
    const OUTLIVES_REQUESTS: bool;

    /// What a client asks for; `None` if that is not known here.
    fn asked(&self, request: Self::Request, limits: &RequestLimits) -> Option<Asked>;

    /// The id of a watch that is to begin: the one that its client has chosen, or a free one.
    ///
    /// # Errors
    /// Another watch of the stream has it.
    fn choose_id(&mut self, chosen: Option<u64>, watches: &WatchSet) -> Result<u64, String>;

    /// The watch begins at the revision `first`; `asked` is what its client asked for.
    fn created(&self, id: u64, header: Header, asked: Revision, first: Revision) -> Self::Response;

    /// A watch does not begin, for which the client has chosen this id or none.
    fn refused(
        &self,
        chosen: Option<u64>,
        header: Header,
        ending: Ending,
        watches: &WatchSet,
    ) -> Self::Response;

    /// The watch has ended.
    fn canceled(&self, id: u64, header: Header, ending: Ending) -> Self::Response;

    /// Events, for these watches: in one message, or in one for each.
    fn events(&self, ids: &[u64], header: Header, batch: EventBatch) -> Vec<Self::Response>;

    /// Everything up to `revision` was sent to these watches; to all of the stream, if none is
    /// named. In one message, or in one for each.
    fn progress(&self, ids: &[u64], header: Header, revision: Revision) -> Vec<Self::Response>;

    /// Whether a client that asks how far its watches are gets an answer, now that all of them have
    /// got everything up to `newest`.
    fn answers_progress(&self, watches: &WatchSet, newest: Revision) -> bool;

    /// What a response takes while it waits.
    fn memory_bytes(response: &Self::Response) -> usize;

    /// How long the member may be without a leader until the stream ends; `None`: forever.
    fn leaderless_max(&self, config: &Config) -> Option<Duration>;

    /// What each watch, and the client, gets in the end.
    fn last_words(&self, end: &End, header: Header, watches: &WatchSet) -> LastWords<Self>;
}

/// What is said last, behind everything that is queued: it has room even if the queue has none.
pub(in crate::server) type LastWords<D> = Vec<Result<<D as Dialect>::Response, Status>>;

/// What a client asks for.
pub(in crate::server) enum Asked {
    Create(Create),
    Cancel(u64),
    /// How far all of its watches are.
    Progress,
}

/// A watch that is to begin.
pub(in crate::server) struct Create {
    /// `None`: the member chooses.
    pub(in crate::server) id: Option<u64>,
    /// The cluster that the client means; 0: any.
    pub(in crate::server) cluster_id: u64,
    /// 0: the next one.
    pub(in crate::server) start: Revision,
    pub(in crate::server) progress_notify: bool,
    /// Where revisions are [whole](Dialect::WHOLE_REVISIONS): whether they are sent in parts.
    pub(in crate::server) in_parts: bool,
    /// Why it can't be, otherwise.
    pub(in crate::server) spec: Result<WatchSpec, String>,
}

/// Why a stream ends.
pub(in crate::server) enum End {
    /// The client has gone, or is done.
    Gone,
    /// A request did not arrive whole, or can't be read.
    Broken(Status),
    /// The client reads nothing, or too little, for so long.
    TooSlow(Duration),
    /// The same, and others wait for what it holds.
    InTheWay,
    /// A revision of which a watch gets all at once is larger than what is held for it.
    TooLarge,
    /// The member is shutting down.
    Stopping,
    /// The member is one no more, and learns of nothing.
    Removed,
    /// The member has had no contact with a leader for a while.
    NoLeader,
    /// The member cannot serve a watch now, for this reason.
    Unserved(String),
}
