//! The calls of the `Kv` service as types: the same request made alone or in a frame of a stream.

use std::future::Future;

use tonic::{Request, Response, Status, transport::Channel};

use crate::v1::{
    BatchRequest, BatchResponse, CloseSessionRequest, CloseSessionResponse, CompactRequest,
    CompactResponse, CompareAndSwapRequest, CompareAndSwapResponse, DeleteRequest, DeleteResponse,
    GetRequest, GetResponse, KeepAliveSessionRequest, KeepAliveSessionResponse, OpenSessionRequest,
    OpenSessionResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, kv_client::KvClient,
    pipelined_answer::Answer, pipelined_call::Call,
};

/// A request of the `Kv` service.
pub trait KvCall: Clone + Send + Sync + 'static {
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
}

macro_rules! kv_calls {
    ($($request:ident, $answer:ident, $variant:ident, $method:ident;)*) => {
        $(impl KvCall for $request {
            type Answer = $answer;
            const METHOD: &'static str = stringify!($variant);

            async fn alone(
                mut kv: KvClient<Channel>,
                request: Request<Self>,
            ) -> Result<Response<$answer>, Status> {
                kv.$method(request).await
            }

            fn framed(self) -> Call {
                Call::$variant(self)
            }

            fn frame(answer: $answer) -> Answer {
                Answer::$variant(answer)
            }

            fn unframed(answer: Answer) -> Result<$answer, Box<Answer>> {
                match answer {
                    Answer::$variant(answer) => Ok(answer),
                    other => Err(Box::new(other)),
                }
            }
        })*
    };
}

kv_calls! {
    PutRequest, PutResponse, Put, put;
    DeleteRequest, DeleteResponse, Delete, delete;
    CompareAndSwapRequest, CompareAndSwapResponse, CompareAndSwap, compare_and_swap;
    BatchRequest, BatchResponse, Batch, batch;
    GetRequest, GetResponse, Get, get;
    RangeRequest, RangeResponse, Range, range;
    CompactRequest, CompactResponse, Compact, compact;
    OpenSessionRequest, OpenSessionResponse, OpenSession, open_session;
    KeepAliveSessionRequest, KeepAliveSessionResponse, KeepAliveSession, keep_alive_session;
    CloseSessionRequest, CloseSessionResponse, CloseSession, close_session;
}
