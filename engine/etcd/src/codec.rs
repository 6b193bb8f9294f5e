//! Decodes messages as `dengine-protocol` does, so that what is decoded takes no more memory than
//! what was sent justifies.
//!
//! The operations of a transaction are counted first: an empty one is two bytes on the wire and
//! hundreds in memory.

use std::any::TypeId;

use bytes::Bytes;
use dengine_kv::BATCH_DEPTH_MAX;
use dengine_protocol::codec::{LeanCodec, MessageBounds, decode_within};
use dengine_protocol::fields::batch_elements;
use prost::Message;
use tonic::Status;

use crate::errors::EtcdError;
use crate::etcdserverpb::TxnRequest;

/// The most comparisons and operations of a transaction, nested ones included. etcd limits each
/// path alone ([`TXN_OPERATIONS_MAX`](crate::TXN_OPERATIONS_MAX)), and so their number by the size
/// of the request only.
const TXN_ELEMENTS_MAX: usize = 16 << 10;
/// How many transactions may be within each other. etcd has no such limit of its own, but each
/// level takes one of the operations of a path.
const TXN_DEPTH_MAX: usize = BATCH_DEPTH_MAX;
/// The field of an operation that is a transaction.
const NESTED: usize = 4;

/// What the generated clients and servers use.
pub type Codec<T, U> = LeanCodec<T, U, Bounds>;

/// The bounds of etcd's messages: of transactions.
#[derive(Debug)]
pub enum Bounds {}

impl MessageBounds for Bounds {
    fn check<U: 'static>(message: &[u8]) -> Result<(), Status> {
        if TypeId::of::<U>() != TypeId::of::<TxnRequest>() {
            return Ok(());
        }
        match batch_elements(message, NESTED, TXN_DEPTH_MAX) {
            Some(elements) if elements <= TXN_ELEMENTS_MAX => Ok(()),
            Some(_) => Err(EtcdError::TooManyOps.into()),
            None => Err(Status::internal("the message is malformed")),
        }
    }
}

/// Decodes a whole message.
///
/// # Errors
/// It is malformed, or a transaction of more operations than any that could be served.
pub fn decode<U: Message + Default + 'static>(bytes: Bytes) -> Result<U, Status> {
    decode_within::<U, Bounds>(bytes)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::etcdserverpb::{Compare, PutRequest, RequestOp, request_op};

    fn nested(depth: usize) -> TxnRequest {
        (0..depth).fold(TxnRequest::default(), |txn, _| TxnRequest {
            success: vec![RequestOp {
                request: Some(request_op::Request::RequestTxn(txn)),
            }],
            ..TxnRequest::default()
        })
    }

    fn check(bytes: Vec<u8>, expect: Result<(), Code>) {
        let decoded = decode::<TxnRequest>(bytes.into());
        let found = decoded.map(drop).map_err(|status| status.code());
        assert_eq!(found, expect);
    }

    #[test]
    fn operations_are_counted_before_they_are_held() {
        let empty = |count: usize| [0x12, 0].repeat(count);
        check(empty(TXN_ELEMENTS_MAX), Ok(()));
        check(empty(TXN_ELEMENTS_MAX + 1), Err(Code::InvalidArgument));
        let half = TXN_ELEMENTS_MAX / 2;
        let txn = |inner: usize| TxnRequest {
            compare: vec![Compare::default(); half - 1],
            success: vec![RequestOp {
                request: Some(request_op::Request::RequestTxn(TxnRequest {
                    failure: vec![RequestOp::default(); inner],
                    ..TxnRequest::default()
                })),
            }],
            ..TxnRequest::default()
        };
        check(txn(half).encode_to_vec(), Ok(()));
        check(txn(half + 1).encode_to_vec(), Err(Code::InvalidArgument));
    }

    #[test]
    fn what_is_nested_too_deep_is_refused_without_being_followed() {
        check(nested(TXN_DEPTH_MAX - 1).encode_to_vec(), Ok(()));
        let deeper = nested(TXN_DEPTH_MAX).encode_to_vec();
        check(deeper, Err(Code::InvalidArgument));
        check(nested(500).encode_to_vec(), Err(Code::InvalidArgument));
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for bytes in [&b"\x12"[..], b"\x12\x05abc", b"\x0b\x0c", b"\x09abc"] {
            check(bytes.to_vec(), Err(Code::Internal));
        }
    }

    #[test]
    fn a_value_is_a_part_of_its_message() {
        let put = PutRequest {
            key: Bytes::from_static(b"k"),
            value: vec![7; 1 << 20].into(),
            ..PutRequest::default()
        };
        let bytes = Bytes::from(put.encode_to_vec());
        let message: PutRequest = decode(bytes.clone()).unwrap();
        assert_eq!(message, put);
        assert!(!bytes.is_unique(), "a large value is not copied");
    }
}
