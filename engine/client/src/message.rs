//! What the client fills into a message when it sends it.

use dengine_protocol::{KvCall, v1};

use crate::{
    policy::{Position, Stamp},
    types::position,
};

/// A request of the Kv service.
pub(crate) trait Message: KvCall + prost::Message {
    /// Marks a write as one of a session.
    fn stamp(&mut self, stamp: Stamp);
    /// Says what a session read must have seen.
    fn see(&mut self, seen: Position);
    /// Whether the leader answers it with less work than the others.
    fn is_for_leader(&self) -> bool;
}

macro_rules! writes {
    ($($message:ident),*) => {
        $(impl Message for v1::$message {
            fn stamp(&mut self, stamp: Stamp) {
                self.session = Some(wire(stamp));
            }

            fn see(&mut self, _: Position) {}

            fn is_for_leader(&self) -> bool {
                true
            }
        })*
    };
}

macro_rules! reads {
    ($($message:ident),*) => {
        $(impl Message for v1::$message {
            fn stamp(&mut self, _: Stamp) {}

            fn see(&mut self, seen: Position) {
                if self.consistency() == v1::Consistency::Session {
                    self.at_least = position(seen);
                }
            }

            fn is_for_leader(&self) -> bool {
                self.consistency() == v1::Consistency::Lease
            }
        })*
    };
}

macro_rules! others {
    ($($message:ident),*) => {
        $(impl Message for v1::$message {
            fn stamp(&mut self, _: Stamp) {}

            fn see(&mut self, _: Position) {}

            fn is_for_leader(&self) -> bool {
                true
            }
        })*
    };
}

writes!(
    PutRequest,
    DeleteRequest,
    CompareAndSwapRequest,
    BatchRequest,
    CompactRequest
);
reads!(GetRequest, RangeRequest);
others!(
    OpenSessionRequest,
    KeepAliveSessionRequest,
    CloseSessionRequest
);

fn wire(stamp: Stamp) -> v1::SessionStamp {
    v1::SessionStamp {
        session_id: stamp.session_id,
        sequence: stamp.sequence,
        acknowledged: stamp.acknowledged,
    }
}
