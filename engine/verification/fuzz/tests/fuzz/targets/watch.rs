//! Requests of a watch stream, up to the events that it sends.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use dengine_client::policy::WatchCursor;
use dengine_kv::store::MemoryStore;
use dengine_kv::watch::{
    Addressed, Delivery, KeepLimits, Page, PageCache, Part, Ring, StreamId, Wanted, WatchSet, Work,
};
use dengine_kv::{Command, PageLimits, ReadError, Stamp, StateMachine};
use dengine_protocol::checks::Header;
use dengine_protocol::checks::watch::{self, Ending};
use dengine_protocol::v1::watch_request::Request;
use dengine_protocol::v1::{
    CancelCause, WatchCancel, WatchCreate, WatchProgress, WatchRequest, WatchResponse,
};
use dengine_types::{EntryKind, Revision};
use prost::Message as _;

use super::kv::{self as state, filled};
use super::requests::LIMITS;
use super::{joined, parts, received};
use crate::driver::Target;

/// Requests of one stream, with their lengths before them.
pub(crate) const REQUESTS: Target = Target {
    run,
    seeds,
    memory: (1 << 20, 256),
};

/// Small, so that there are several.
const PAGES: PageLimits = PageLimits {
    bytes: 64,
    changes: 2,
};
const KEEP: KeepLimits = KeepLimits {
    bytes: 1024,
    pages: 2,
};
/// Room for a few events of a revision whose rest is not read yet.
const OPEN_BYTES: usize = 256;
/// More rounds than the small history has pages, for each watch.
const ROUNDS: usize = 100;

/// Both ends of a stream.
struct Stream {
    machine: StateMachine<MemoryStore>,
    ring: Ring,
    past: PageCache,
    wanted: Wanted,
    watches: WatchSet,
    clients: BTreeMap<u64, WatchCursor>,
}

fn run(input: &[u8]) {
    let machine = filled();
    let mut stream = Stream {
        ring: Ring::new(machine.revision(), KEEP),
        past: PageCache::new(KEEP),
        machine,
        wanted: Wanted::default(),
        watches: WatchSet::new(StreamId(1), OPEN_BYTES),
        clients: BTreeMap::new(),
    };
    for bytes in parts(input) {
        match received::<WatchRequest>(bytes) {
            Ok(request) => stream.request(request),
            Err(_) => return,
        }
    }
    stream.tell();
    stream.change();
    stream.tell();
    let newest = stream.machine.revision();
    assert!(stream.watches.is_delivered(newest));
    for id in stream.watches.ids() {
        let next = stream.watches.next(id);
        assert!(next > Some(newest), "{id} at {next:?}");
    }
}

impl Stream {
    fn request(&mut self, request: WatchRequest) {
        match request.request {
            Some(Request::Create(create)) => self.create(&create),
            Some(Request::Cancel(WatchCancel { watch_id })) => {
                if let Some(resume) = self.watches.next(watch_id) {
                    let ending = Ending::new(CancelCause::Requested, "as requested", resume);
                    self.cancel(watch_id, ending);
                }
            }
            Some(Request::Progress(WatchProgress {})) | None => self.tell(),
        }
    }

    fn create(&mut self, create: &WatchCreate) {
        let id = create.watch_id;
        let asked = Revision(create.start_revision);
        let spec = match watch::spec(create, &LIMITS) {
            Ok(spec) if !self.watches.contains(id) => spec,
            Ok(_) => return,
            Err(status) => {
                let ending = Ending::new(CancelCause::Invalid, status.message(), asked);
                return self.cancel(id, ending);
            }
        };
        let first = match asked {
            Revision(0) => Revision(self.machine.revision().0 + 1),
            asked => asked,
        };
        let mut client = WatchCursor::new(create.start_revision);
        let response = sent(&watch::created(id, self.header(), first));
        client
            .created(response.resume_revision)
            .expect("it is what was asked for");
        self.watches.insert(id, spec, first, &mut self.wanted);
        self.clients.insert(id, client);
    }

    /// One more revision.
    fn change(&mut self) {
        let put = Command::put(Bytes::from_static(b"key"), Bytes::from_static(b"newer"));
        let data = dengine_kv::Request::from(put).encode(dengine_kv::CommandVersion::CURRENT);
        state::apply(&mut self.machine, EntryKind::Command, &data).unwrap();
    }

    /// Sends everything there is to all watches.
    fn tell(&mut self) {
        let rounds = ROUNDS * (1 + self.watches.len());
        let rounds = (0..rounds).find(|_| !self.follow() && !self.work());
        assert!(rounds.is_some(), "the watches come to no end");
    }

    /// One page for the ring, if there is something new.
    fn follow(&mut self) -> bool {
        let newest = self.machine.revision();
        let Some(from) = self.ring.wants(newest) else {
            return false;
        };
        match self.page(from, Part::Present) {
            Ok(page) => _ = self.ring.push(page),
            Err(error) => panic!("what is new can be read: {error}"),
        }
        true
    }

    fn page(&self, from: Stamp, part: Part) -> Result<Arc<Page>, ReadError> {
        let want = |key: &[u8], _| self.wanted.want(part, key);
        let reader = self.machine.reader();
        let changes = reader.changes_wanted(from, PAGES, want)?;
        Ok(Arc::new(Page::new(from, part, self.wanted.mark(), changes)))
    }

    /// Does the next piece of work; whether there was one.
    fn work(&mut self) -> bool {
        match self.watches.work(&self.ring, &mut self.wanted) {
            None => return false,
            Some(Work::Deliver(page)) => {
                let telling = self.watches.deliver(page);
                self.told(telling);
            }
            Some(Work::ReadPast(at, mark)) => {
                let found = self.past.find(at, mark);
                match found.map_or_else(|| self.page(at, Part::Past), Ok) {
                    Ok(page) => {
                        self.past.push(Arc::clone(&page));
                        let telling = self.watches.deliver(page);
                        self.told(telling);
                    }
                    Err(error) => {
                        let ids: Vec<_> = self.watches.behind_before(at.next()).collect();
                        ids.into_iter().for_each(|id| self.unread(id, &error));
                    }
                }
            }
            Some(Work::ReadAlone(id, query)) => match self.machine.reader().changes(&query) {
                Ok(changes) => {
                    let telling = self.watches.deliver_alone(id, query.from, changes);
                    self.told(telling);
                }
                Err(error) => self.unread(id, &error),
            },
        }
        true
    }

    fn told(&mut self, mut telling: Delivery) {
        while let Some(slice) = self.watches.slice(&mut telling) {
            for Addressed { ids, messages } in slice {
                match messages {
                    Ok(told) => told.into_iter().for_each(|it| self.event(&ids, it)),
                    Err(revision) => ids.iter().for_each(|id| self.too_large(*id, revision)),
                }
            }
        }
        self.watches.finish(telling, &mut self.wanted);
    }

    fn too_large(&mut self, id: u64, revision: Revision) {
        let reason = format!("{revision}");
        let resume = self.watches.next(id).expect("it was there");
        self.cancel(id, Ending::new(CancelCause::TooLarge, reason, resume));
    }

    fn unread(&mut self, id: u64, error: &ReadError) {
        let ReadError::Compacted { compacted, .. } = error else {
            panic!("{error}");
        };
        let resume = self.watches.next(id).expect("it was there");
        let ending = Ending {
            compact_revision: *compacted,
            ..Ending::new(CancelCause::Compacted, "compacted", resume)
        };
        self.cancel(id, ending);
    }

    /// One message on its way, and into the client.
    fn event(&mut self, ids: &[u64], message: dengine_kv::watch::EventBatch) {
        let (reached, fragment) = (message.reached(), message.fragment);
        let response = sent(&watch::told(ids, self.header(), message));
        assert_eq!(response.fragment, fragment);
        let also = response.also_watch_ids.iter();
        let addressed: Vec<_> = [&response.watch_id].into_iter().chain(also).collect();
        assert!(addressed.into_iter().eq(ids));
        for id in ids {
            self.heard(*id, &response);
            self.watches.delivered(*id, reached);
        }
    }

    fn heard(&mut self, id: u64, response: &WatchResponse) {
        let spec = self.watches.spec(id).expect("it was there");
        assert!(spec.shared || response.also_watch_ids.is_empty());
        let revisions = response.events.iter().map(|event| {
            let kv = event.kv.as_ref().expect("an event has a pair");
            assert!(spec.keys.contains(&kv.key));
            kv.mod_revision
        });
        let header = response.header.expect("a response has a header");
        let client = self.clients.get_mut(&id).expect("it was there");
        let told = client.events(revisions, header.revision, response.fragment);
        assert_eq!(told, Ok(0), "nothing is told twice");
    }

    fn cancel(&mut self, id: u64, ending: Ending) {
        self.watches.remove(id, &mut self.wanted);
        self.clients.remove(&id);
        sent(&watch::canceled(id, self.header(), ending));
    }

    fn header(&self) -> Header {
        Header {
            revision: self.machine.revision(),
            ..Header::default()
        }
    }
}

/// What comes out at the other end.
fn sent(response: &WatchResponse) -> WatchResponse {
    WatchResponse::decode(&response.encode_to_vec()[..]).unwrap()
}

fn seeds() -> Vec<Vec<u8>> {
    let everything = |watch_id, start_revision| WatchCreate {
        watch_id,
        key: Bytes::from_static(b"\0"),
        range_end: Bytes::from_static(b"\0"),
        start_revision,
        fragment: true,
        ..WatchCreate::default()
    };
    let shared = |watch_id, start_revision| WatchCreate {
        shared: true,
        ..everything(watch_id, start_revision)
    };
    let one = WatchCreate {
        key: Bytes::from_static(b"key"),
        range_end: Bytes::new(),
        prev_kv: true,
        no_delete: true,
        ..everything(3, 4)
    };
    let requests = [
        Request::Create(everything(1, 3)),
        Request::Create(everything(2, 0)),
        Request::Create(one),
        Request::Create(shared(5, 3)),
        Request::Create(shared(6, 3)),
        Request::Progress(WatchProgress {}),
        Request::Cancel(WatchCancel { watch_id: 2 }),
        Request::Create(everything(4, 1)),
        Request::Create(everything(u64::MAX, u64::MAX - 1)),
    ];
    let encoded = requests.map(|request| {
        let request = WatchRequest {
            request: Some(request),
        };
        request.encode_to_vec()
    });
    vec![
        joined(&encoded),
        joined(&encoded[..1]),
        joined(&encoded[2..3]),
    ]
}
