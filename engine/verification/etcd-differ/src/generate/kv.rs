//! Range, put, delete, compact.

use crate::operation::Operation;
use crate::pb;

use super::{Draw, LEASES};

impl Draw {
    pub(super) fn some_range(&mut self) -> Operation {
        if !self.calls.range_stream || !self.flag(30) {
            return Operation::Range(self.range());
        }
        let mut request = self.range();
        // Else it is refused for them, as often as not.
        if self.flag(80) {
            (request.sort_order, request.sort_target) = (0, 0);
            (request.min_mod_revision, request.max_mod_revision) = (0, 0);
            (request.min_create_revision, request.max_create_revision) = (0, 0);
        }
        Operation::RangeStream(request)
    }

    pub(super) fn range(&mut self) -> pb::RangeRequest {
        let key = self.key();
        let mut request = pb::RangeRequest {
            range_end: self.range_end(&key),
            key,
            revision: self.past(30),
            serializable: self.flag(20),
            keys_only: self.flag(10),
            count_only: self.flag(7),
            ..Default::default()
        };
        if self.flag(35) {
            request.limit = self.random.below(8) as i64;
        }
        if self.flag(30) {
            request.sort_order = self.random.below(3) as i32;
            request.sort_target = self.random.below(5) as i32;
        }
        if self.flag(15) {
            let bounds = [
                &mut request.min_mod_revision,
                &mut request.max_mod_revision,
                &mut request.min_create_revision,
                &mut request.max_create_revision,
            ];
            for bound in bounds {
                if self.flag(40) {
                    *bound = self.some_revision();
                }
            }
        }
        request
    }

    pub(super) fn put(&mut self) -> pb::PutRequest {
        let mut request = pb::PutRequest {
            key: self.key(),
            value: self.value(),
            prev_kv: self.flag(30),
            ..Default::default()
        };
        if self.flag(7) {
            request.ignore_value = true;
            request.value.clear();
        }
        if self.calls.leases {
            if self.flag(15) {
                request.lease = self.random.between(1, LEASES + 1) as i64;
            } else {
                request.ignore_lease = self.flag(10);
            }
        }
        request
    }

    pub(super) fn delete(&mut self) -> pb::DeleteRangeRequest {
        let key = self.key();
        pb::DeleteRangeRequest {
            range_end: self.range_end(&key),
            key,
            prev_kv: self.flag(50),
        }
    }

    /// Too often, and no history is left to ask for.
    pub(super) fn compact_seldom(&mut self) -> Operation {
        if self.flag(60) {
            return Operation::Range(self.range());
        }
        let back = self.random.below(30) as i64;
        let revision = match self.random.below(10) {
            0 => self.compacted,
            1 => self.revision + 10_000,
            _ => (self.revision - back).max(1),
        };
        if (self.compacted..self.revision).contains(&revision) {
            self.compacted = revision;
        }
        Operation::Compact(pb::CompactionRequest {
            revision,
            physical: self.flag(20),
        })
    }
}
