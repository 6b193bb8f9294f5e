//! Planted mistakes are found, and systems that are equal do not differ: on a store in memory that
//! has as much of the API as that takes.

use std::collections::BTreeMap;

use bytes::Bytes;
use tonic::Code;

use crate::generate::{Calls, Mood, STREAMS, sequence};
use crate::operation::Operation;
use crate::pb;
use crate::pb::request_op::Request;
use crate::pb::response_op::Response;
use crate::pb::watch_request::RequestUnion;
use crate::pieces::merged;
use crate::plant::{Plant, Planted};
use crate::reply::Reply;
use crate::run::{Tally, run};
use crate::search::{Bounds, Sides};
use crate::source::{Source, Starting};
use crate::stream::{Entry, StreamLog};
use crate::system::{System, Watched};

/// Pairs of a piece.
const PIECE_PAIRS: usize = 3;

/// Not the rules of etcd: both sides have these, and that they are equal is what counts.
#[derive(Default)]
struct Fake {
    revision: i64,
    keys: BTreeMap<Bytes, pb::KeyValue>,
    streams: [StreamLog; STREAMS],
    watches: Vec<(usize, i64, pb::WatchCreateRequest)>,
}

impl Fake {
    fn header(&self) -> Option<pb::ResponseHeader> {
        Some(pb::ResponseHeader {
            revision: self.revision,
            ..Default::default()
        })
    }

    fn range(&self, request: &pb::RangeRequest) -> pb::RangeResponse {
        let within = self.keys.values().filter(|kv| is_within(&kv.key, request));
        let mut kvs: Vec<_> = within.cloned().collect();
        let count = kvs.len() as i64;
        if request.limit > 0 {
            kvs.truncate(request.limit as usize);
        }
        pb::RangeResponse {
            header: self.header(),
            more: count > kvs.len() as i64,
            count,
            kvs,
        }
    }

    fn pieces(&self, request: &pb::RangeRequest) -> Vec<pb::RangeStreamResponse> {
        let mut last = self.range(request);
        let mut pieces = Vec::new();
        while last.kvs.len() > PIECE_PAIRS {
            pieces.push(pb::RangeResponse {
                kvs: last.kvs.drain(..PIECE_PAIRS).collect(),
                ..Default::default()
            });
        }
        pieces.push(last);
        let pieces = pieces.into_iter().map(|piece| pb::RangeStreamResponse {
            range_response: Some(piece),
        });
        pieces.collect()
    }

    fn put(&mut self, request: pb::PutRequest) -> pb::PutResponse {
        self.revision += 1;
        let before = self.keys.get(&request.key).cloned();
        let old = before.clone().unwrap_or_default();
        let kv = pb::KeyValue {
            key: request.key.clone(),
            value: request.value,
            create_revision: match old.create_revision {
                0 => self.revision,
                created => created,
            },
            mod_revision: self.revision,
            version: old.version + 1,
            lease: 0,
        };
        self.keys.insert(request.key, kv.clone());
        self.tell(&kv, before.as_ref());
        pb::PutResponse {
            header: self.header(),
            prev_kv: before,
        }
    }

    fn tell(&mut self, kv: &pb::KeyValue, prev_kv: Option<&pb::KeyValue>) {
        for (stream, watch_id, request) in &self.watches {
            let range = pb::RangeRequest {
                key: request.key.clone(),
                range_end: request.range_end.clone(),
                ..Default::default()
            };
            if is_within(&kv.key, &range) {
                let event = pb::Event {
                    kv: Some(kv.clone()),
                    prev_kv: prev_kv.cloned(),
                    ..Default::default()
                };
                self.streams[*stream].take(pb::WatchResponse {
                    header: Some(pb::ResponseHeader {
                        revision: kv.mod_revision,
                        ..Default::default()
                    }),
                    watch_id: *watch_id,
                    events: vec![event],
                    ..Default::default()
                });
            }
        }
    }

    fn watch(&mut self, stream: usize, request: &pb::WatchRequest) -> Reply {
        let Some(RequestUnion::CreateRequest(create)) = &request.request_union else {
            return Reply::Silence;
        };
        let watch_id = self.watches.len() as i64;
        self.watches.push((stream, watch_id, create.clone()));
        self.streams[stream].take(pb::WatchResponse {
            header: self.header(),
            watch_id,
            created: true,
            ..Default::default()
        });
        let created = self.streams[stream].answers.pop_front();
        created.map_or(Reply::Missing, Reply::Watch)
    }

    fn txn(&mut self, request: &pb::TxnRequest) -> pb::TxnResponse {
        let puts = request.success.iter().filter_map(|it| match &it.request {
            Some(Request::RequestPut(put)) => Some(put.clone()),
            _ => None,
        });
        let responses = puts.map(|put| pb::ResponseOp {
            response: Some(Response::ResponsePut(self.put(put))),
        });
        let responses = responses.collect();
        pb::TxnResponse {
            header: self.header(),
            succeeded: true,
            responses,
        }
    }
}

fn is_within(key: &Bytes, range: &pb::RangeRequest) -> bool {
    match &range.range_end[..] {
        b"" => key == &range.key,
        b"\0" => key >= &range.key,
        end => key >= &range.key && &key[..] < end,
    }
}

impl System for Fake {
    async fn call(&mut self, operation: &Operation) -> Reply {
        match operation {
            Operation::Range(request) => Reply::Range(self.range(request)),
            Operation::RangeStream(request) => {
                merged(self.pieces(request)).map_or_else(Reply::Broken, Reply::Range)
            }
            Operation::Put(request) if request.ignore_value => {
                Reply::Refused(Code::InvalidArgument, "key not found".to_owned())
            }
            Operation::Put(request) => Reply::Put(self.put(request.clone())),
            Operation::Txn(request) => Reply::Txn(self.txn(request)),
            Operation::Watch { stream, request } => self.watch(*stream, request),
            _ => Reply::Silence,
        }
    }

    async fn settle(&mut self) {}

    fn watched(&self) -> Watched {
        let streams = self.streams.iter().enumerate();
        let sent = streams.map(|(number, log)| (number, log.sent.clone()));
        Watched {
            streams: sent.collect::<BTreeMap<_, BTreeMap<i64, Vec<Entry>>>>(),
            ended: BTreeMap::new(),
        }
    }

    fn keeps(&self, stream: usize, id: i64) -> bool {
        self.streams[stream].keeps(id)
    }

    fn broken(&self) -> Vec<String> {
        self.streams
            .iter()
            .flat_map(|log| log.broken.clone())
            .collect()
    }

    fn forget(&mut self) {
        self.streams.iter_mut().for_each(|log| log.sent.clear());
    }
}

/// What the seed finds with this mistake on the right.
async fn search(seed: u64, plant: Option<Plant>) -> (Option<String>, Tally) {
    let calls = Calls {
        range_stream: true,
        ..Calls::default()
    };
    let operations = sequence(seed, Mood::Valid, 400, calls);
    let mut right = Planted {
        system: Fake::default(),
        plant,
    };
    let mut tally = Tally::default();
    let found = run(&mut Fake::default(), &mut right, &operations, &mut tally).await;
    (found.map(|difference| difference.what), tally)
}

#[tokio::test]
async fn equal_systems_do_not_differ() {
    let (found, tally) = search(1, None).await;
    assert_eq!(found, None);
    assert_eq!(tally.total(), 400);
    assert!(tally.events > 0);
}

#[tokio::test(start_paused = true)]
async fn each_planted_mistake_is_found() {
    for (plant, seen) in [
        (Plant::CountOfPage, "count"),
        (Plant::NeverMore, "more"),
        (Plant::OtherText, "key not found."),
        (Plant::OtherCode, "Internal"),
        (Plant::CreatedTooLate, "revision"),
        (Plant::NoPrevious, "prev_kv"),
        (Plant::LostEvent, "mod_revision"),
        (Plant::Exchanged, "mod_revision"),
        (Plant::NoInnerHead, "header"),
        (Plant::Version, "version"),
        (Plant::LostPair, "KeyValue"),
    ] {
        let mut found = None;
        for seed in 0..5 {
            found = found.or(search(seed, Some(plant)).await.0);
        }
        let what = found.unwrap_or_else(|| panic!("{plant:?} is not found"));
        assert!(what.contains(seen), "{plant:?}: {what}");
    }
}

#[tokio::test]
async fn systems_that_serve_already_take_one_sequence_at_a_time() {
    let named = Source::Endpoints(vec!["127.0.0.1:1".to_owned()]);
    let sides = Sides {
        left: Source::Etcd("etcd".into()),
        right: named,
        starting: Starting {
            members: 1,
            serve_args: Vec::new(),
        },
        erase: true,
        plant: None,
    };
    let bounds = Bounds {
        seed: 1,
        mood: None,
        length: 1,
        operations: Some(1),
        time: None,
        jobs: 2,
        calls: Calls::default(),
    };
    let mut tally = Tally::default();
    let refused = sides.search(&bounds, &mut tally, |_| {}).await;
    let text = format!("{:#}", refused.unwrap_err());
    assert!(text.contains("named by address"), "{text}");
}
