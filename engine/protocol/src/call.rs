//! The calls of `Kv` that have one answer each, in one table, and each of them as a type: the same
//! request made alone or in a frame of a stream. `AskLease`, which members make, is not among them.

use std::future::Future;

use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::v1::kv_client::KvClient;
use crate::v1::pipelined_answer::Answer;
use crate::v1::pipelined_call::Call;
use crate::v1::{self, Consistency, Position, SessionStamp};

/// The table of these calls, for a macro that makes something of each: `kv_calls!([path::of::macro]
/// with what)` expands to `path::of::macro! { [with what] ROWS }`. What a row says:
///
/// - How it is served: `write`, `read`, or `open`, a write that opens a session.
/// - Its name, as a variant of `PipelinedCall` and `PipelinedAnswer` too, and as a method.
/// - Its request, and in braces what of it a client fills in as it sends it: `session`, the place
///   of a write in its session, or `at_least`, what a read must have seen.
/// - What answers it.
#[macro_export]
macro_rules! kv_calls {
    ([$($make:tt)+] $($with:tt)*) => {
        $($make)+! {
            [$($with)*]
            write Put, put: PutRequest { session } => PutResponse;
            write Delete, delete: DeleteRequest { session } => DeleteResponse;
            write CompareAndSwap, compare_and_swap:
                CompareAndSwapRequest { session } => CompareAndSwapResponse;
            write Batch, batch: BatchRequest { session } => BatchResponse;
            write Compact, compact: CompactRequest { session } => CompactResponse;
            open OpenSession, open_session: OpenSessionRequest {} => OpenSessionResponse;
            write KeepAliveSession, keep_alive_session:
                KeepAliveSessionRequest {} => KeepAliveSessionResponse;
            write CloseSession, close_session: CloseSessionRequest {} => CloseSessionResponse;
            write Forward, forward: ForwardRequest {} => ForwardResponse;
            read Get, get: GetRequest { at_least } => GetResponse;
            read Range, range: RangeRequest { at_least } => RangeResponse;
        }
    };
}

/// A request of the `Kv` service.
pub trait KvCall: prost::Message + Clone + 'static {
    /// What answers it.
    type Answer: Send + 'static;
    /// Its name in the service.
    const METHOD: &'static str;

    /// Makes the call alone.
    fn alone(
        kv: KvClient<Channel>,
        request: Request<Self>,
    ) -> impl Future<Output = Result<Response<Self::Answer>, Status>> + Send;

    /// The call for a frame.
    fn framed(self) -> Call;

    /// The answer for a frame.
    fn frame(answer: Self::Answer) -> Answer;

    /// The answer out of a frame; the other answer if it is one to another call.
    ///
    /// # Errors
    /// Whoever answered did not keep to the contract.
    fn unframed(answer: Answer) -> Result<Self::Answer, Box<Answer>>;

    /// Its place in a session, if it has one.
    fn stamp(&self) -> Option<SessionStamp> {
        None
    }

    /// Gives it a place in a session, if it is a write that may have one.
    fn set_stamp(&mut self, _: SessionStamp) {}

    /// Says what it must have seen, if it is a session read.
    fn set_at_least(&mut self, _: Option<Position>) {}

    /// Whether the leader answers it with less work than the others.
    fn is_for_leader(&self) -> bool {
        true
    }

    /// Whether every member answers it, though with more work than the leader, so that several
    /// machines can share what one has not the processors for.
    fn may_be_spread(&self) -> bool {
        false
    }
}

macro_rules! impl_kv_call {
    ([] $(
        $kind:ident $variant:ident, $method:ident:
            $request:ident { $($filled_in:ident)? } => $answer:ident;
    )*) => {
        $(impl KvCall for v1::$request {
            type Answer = v1::$answer;
            const METHOD: &'static str = stringify!($variant);

            async fn alone(
                mut kv: KvClient<Channel>,
                request: Request<Self>,
            ) -> Result<Response<Self::Answer>, Status> {
                kv.$method(request).await
            }

            fn framed(self) -> Call {
                Call::$variant(self)
            }

            fn frame(answer: Self::Answer) -> Answer {
                Answer::$variant(answer)
            }

            fn unframed(answer: Answer) -> Result<Self::Answer, Box<Answer>> {
                match answer {
                    Answer::$variant(answer) => Ok(answer),
                    other => Err(Box::new(other)),
                }
            }

            $(filled_in!($filled_in);)?
        })*
    };
}

/// What differs by what a client fills in.
macro_rules! filled_in {
    (session) => {
        fn stamp(&self) -> Option<SessionStamp> {
            self.session
        }

        fn set_stamp(&mut self, stamp: SessionStamp) {
            self.session = Some(stamp);
        }
    };
    (at_least) => {
        fn set_at_least(&mut self, seen: Option<Position>) {
            if self.consistency() == Consistency::Session {
                self.at_least = seen;
            }
        }

        fn is_for_leader(&self) -> bool {
            self.consistency() == Consistency::Lease || self.may_be_spread()
        }

        fn may_be_spread(&self) -> bool {
            matches!(
                self.consistency(),
                Consistency::Unspecified | Consistency::Linearizable
            )
        }
    };
}

kv_calls!([impl_kv_call]);
