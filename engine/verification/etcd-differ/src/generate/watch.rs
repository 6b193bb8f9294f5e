//! Messages of watch streams.

use crate::operation::Operation;
use crate::pb;
use crate::pb::watch_request::RequestUnion;

use super::{Draw, STREAMS};

/// Watches of one stream: more than a few say the same again, and each costs a message an event.
const WATCHES_MAX: i64 = 12;

impl Draw {
    pub(super) fn watch(&mut self) -> Operation {
        let stream = self.random.below(STREAMS);
        let union = match self.random.below(20) {
            0..12 if self.watches[stream] < WATCHES_MAX => {
                self.watches[stream] += 1;
                RequestUnion::CreateRequest(self.watch_create())
            }
            12..17 => RequestUnion::CancelRequest(pb::WatchCancelRequest {
                watch_id: self.watch_id(stream),
            }),
            _ => RequestUnion::ProgressRequest(pb::WatchProgressRequest {}),
        };
        message(stream, Some(union))
    }

    pub(super) fn watch_create(&mut self) -> pb::WatchCreateRequest {
        let key = self.key();
        let mut request = pb::WatchCreateRequest {
            range_end: match self.flag(60) {
                true => self.range_end(&key),
                false => Default::default(),
            },
            key,
            start_revision: self.past(50),
            progress_notify: self.flag(10),
            prev_kv: self.flag(40),
            fragment: self.flag(30),
            ..Default::default()
        };
        if self.flag(15) {
            request.filters.push(self.random.below(2) as i32);
        }
        if self.flag(15) {
            request.watch_id = self.random.between(1, 30) as i64;
        }
        request
    }

    /// Of a watch that this stream has or had, if the ids were the system's choice.
    fn watch_id(&mut self, stream: usize) -> i64 {
        let made = self.watches[stream].max(1) as u64;
        self.random.between(0, made + 2) as i64
    }
}

pub(super) fn message(stream: usize, request_union: Option<RequestUnion>) -> Operation {
    Operation::Watch {
        stream,
        request: pb::WatchRequest { request_union },
    }
}
