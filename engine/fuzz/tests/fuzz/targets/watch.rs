//! What a client watches, up to what it is told.

use std::collections::BTreeMap;

use bytes::Bytes;
use dengine_api::v1::{
    CancelCause, WatchCancel, WatchCreate, WatchProgress, WatchRequest, WatchResponse,
    watch_request::Request,
};
use dengine_client_core::WatchCursor;
use dengine_core::{
    kv::{Command, ReadError, StateMachine, store::MemoryStore},
    types::{EntryKind, Revision},
    watch::{Misfit, Page, PageLimits, Watch},
};
use dengine_wire::{
    Header,
    watch::{self, Ending},
};
use prost::Message as _;

use super::{
    joined,
    kv::{entry, filled},
    parts,
    requests::LIMITS,
    words,
};
use crate::driver::Target;

/// Requests of one stream, with their lengths before them.
pub(crate) const REQUESTS: Target = Target {
    name: "",
    run,
    seeds,
    memory: (1 << 20, 256),
};

/// Small, so that there are several.
const PAGES: PageLimits = PageLimits {
    bytes: 64,
    changes: 2,
};
/// More rounds than the small history has pages.
const ROUNDS: usize = 100;

/// A watch at both ends.
struct Active {
    watch: Watch,
    client: WatchCursor,
}

/// A stream, and what was said on it.
struct Stream {
    machine: StateMachine<MemoryStore>,
    watches: BTreeMap<u64, Active>,
    events: usize,
    endings: String,
}

fn run(input: &[u8]) -> String {
    let mut stream = Stream {
        machine: filled(),
        watches: BTreeMap::new(),
        events: 0,
        endings: String::new(),
    };
    for bytes in parts(input) {
        match WatchRequest::decode(bytes) {
            Ok(request) => stream.request(request),
            Err(error) => return words(&error),
        }
    }
    stream.tell();
    stream.change();
    stream.tell();
    let newest = stream.machine.revision();
    for (id, active) in &stream.watches {
        let next = active.watch.next();
        assert!(active.watch.is_synced() && next > newest, "{id} at {next}");
    }
    let told = "e".repeat(stream.events.min(20));
    let left = "w".repeat(stream.watches.len().min(5));
    format!("{told} {left} {}", stream.endings)
}

impl Stream {
    fn request(&mut self, request: WatchRequest) {
        match request.request {
            Some(Request::Create(create)) => self.create(&create),
            Some(Request::Cancel(WatchCancel { watch_id })) => {
                if let Some(active) = self.watches.get(&watch_id) {
                    let resume = active.watch.next();
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
            Ok(spec) if !self.watches.contains_key(&id) => spec,
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
        let watch = Watch::new(spec, first);
        let response = said(&watch::created(id, self.header(), first));
        client
            .created(response.resume_revision)
            .expect("it is what was asked for");
        self.watches.insert(id, Active { watch, client });
    }

    /// One more revision.
    fn change(&mut self) {
        let put = Command::Put {
            key: Bytes::from_static(b"key"),
            value: Bytes::from_static(b"newer"),
            prev_kv: false,
            ttl_ms: 0,
        };
        let data =
            dengine_core::kv::Request::from(put).encode(dengine_core::kv::CommandVersion::CURRENT);
        let entries = [entry(&self.machine, EntryKind::Command, &data)];
        self.machine.apply(&entries).unwrap();
    }

    /// Tells all watches everything there is.
    fn tell(&mut self) {
        let ids: Vec<_> = self.watches.keys().copied().collect();
        for id in ids {
            let rounds = (0..ROUNDS).find(|_| !self.page(id));
            assert!(rounds.is_some(), "watch {id} comes to no end");
        }
    }

    /// One page for one watch; whether there may be more.
    fn page(&mut self, id: u64) -> bool {
        let newest = self.machine.revision();
        let Some(active) = self.watches.get_mut(&id) else {
            return false;
        };
        active.watch.missed();
        let Some(query) = active.watch.catch_up(newest, PAGES) else {
            return false;
        };
        let resume = active.watch.next();
        let ending = match self.machine.reader().changes(&query) {
            Ok(changes) => {
                let page = Page::new(query.from, query.prev_kv, changes);
                match active.watch.cut(&page) {
                    Ok(told) => {
                        for message in told {
                            self.event(id, message);
                        }
                        let active = self.watches.get_mut(&id).expect("it was there");
                        active.watch.finish(&page);
                        return true;
                    }
                    Err(Misfit::Gap) => panic!("the page is what the watch asked for"),
                    Err(Misfit::TooLarge { revision }) => {
                        Ending::new(CancelCause::TooLarge, format!("{revision}"), resume)
                    }
                }
            }
            Err(ReadError::Compacted { compacted, .. }) => Ending {
                compact_revision: compacted,
                ..Ending::new(CancelCause::Compacted, "compacted", resume)
            },
            Err(error) => panic!("{error}"),
        };
        self.cancel(id, ending);
        false
    }

    /// One message on its way, and into the client.
    fn event(&mut self, id: u64, message: dengine_core::watch::Told) {
        let (revision, fragment) = (message.revision, message.fragment);
        let response = said(&watch::told(id, self.header(), message));
        let active = self.watches.get_mut(&id).expect("it was there");
        let revisions = response.events.iter().map(|event| {
            let kv = event.kv.as_ref().expect("an event has a pair");
            assert!(active.watch.spec().keys.contains(&kv.key));
            kv.mod_revision
        });
        let header = response.header.expect("a response has a header");
        let told = active
            .client
            .events(revisions, header.revision, response.fragment);
        assert_eq!(told, Ok(0), "nothing is told twice");
        active.watch.told(revision, fragment);
        self.events += response.events.len();
    }

    fn cancel(&mut self, id: u64, ending: Ending) {
        self.watches.remove(&id);
        let response = said(&watch::canceled(id, self.header(), ending));
        if self.endings.len() < 200 {
            self.endings += &words(&response.cancel_reason);
        }
    }

    fn header(&self) -> Header {
        Header {
            revision: self.machine.revision(),
            ..Header::default()
        }
    }
}

/// What comes out at the other end.
fn said(response: &WatchResponse) -> WatchResponse {
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
