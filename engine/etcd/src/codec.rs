//! Decodes messages as prost does, so that a decoded message takes no more memory than its bytes
//! justify.
//!
//! A small message is copied out of the buffer of its connection, for its keys are slices of what
//! it was decoded from, and would keep all of that. The operations of a transaction are counted
//! first: an empty one is two bytes on the wire and hundreds in memory.

use std::any::TypeId;
use std::marker::PhantomData;

use bytes::{Buf as _, Bytes};
use dengine_kv::BATCH_DEPTH_MAX;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};
use tonic::Status;
use tonic::codec::{DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstEncoder};

use crate::errors::EtcdError;
use crate::etcdserverpb::TxnRequest;

/// Up to here a message is copied out of the buffer that it came in.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// The most comparisons and operations of a transaction, nested ones included. etcd limits each
/// path alone ([`TXN_OPERATIONS_MAX`](crate::TXN_OPERATIONS_MAX)), and so their number by the size
/// of the request only.
const TXN_ELEMENTS_MAX: usize = 16 << 10;
/// How deep transactions may be nested in one. etcd has no such limit of its own, but each level
/// takes one of the operations of a path.
const TXN_DEPTH_MAX: usize = BATCH_DEPTH_MAX - 1;

/// What the generated clients and servers use.
#[derive(Debug)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

/// Decodes messages of one type.
#[derive(Debug)]
pub struct LeanDecoder<U>(PhantomData<U>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = LeanDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        tonic::codec::Codec::encoder(&mut ProstCodec::<T, U>::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        LeanDecoder(PhantomData)
    }
}

impl<U: Message + Default + 'static> Decoder for LeanDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let length = buffer.remaining();
        let whole = buffer.chunk();
        let message = if whole.len() == length && length <= COPIED_BYTES_MAX {
            let copy = Bytes::copy_from_slice(whole);
            buffer.advance(length);
            copy
        } else {
            buffer.copy_to_bytes(length)
        };
        decode(message).map(Some)
    }
}

/// Decodes a whole message.
///
/// # Errors
/// It is malformed, or a transaction of more operations than any that could be served.
pub fn decode<U: Message + Default + 'static>(bytes: Bytes) -> Result<U, Status> {
    if TypeId::of::<U>() == TypeId::of::<TxnRequest>() {
        let elements = txn_elements(&bytes, TXN_DEPTH_MAX).map_err(|error| malformed(&error))?;
        if elements.is_none_or(|elements| elements > TXN_ELEMENTS_MAX) {
            return Err(EtcdError::TooManyOps.into());
        }
    }
    U::decode(bytes).map_err(|error| malformed(&error))
}

/// As prost's own codec and the list of gRPC's codes have it.
fn malformed(error: &DecodeError) -> Status {
    Status::internal(error.to_string())
}

/// How many comparisons and operations there are in a transaction and those nested in it; `None` if
/// they are nested deeper than `depth`.
fn txn_elements(txn: &[u8], depth: usize) -> Result<Option<usize>, DecodeError> {
    let mut elements = Some(0);
    for_each_message(txn, |field, element| {
        if !(1..=3).contains(&field) {
            return Ok(());
        }
        elements = elements.map(|elements: usize| elements + 1);
        if field == 1 {
            return Ok(());
        }
        for_each_message(element, |field, nested| {
            if field == 4 {
                let more = match depth {
                    0 => None,
                    depth => txn_elements(nested, depth - 1)?,
                };
                elements = elements.zip(more).map(|(elements, more)| elements + more);
            }
            Ok(())
        })
    })?;
    Ok(elements)
}

/// Calls `visit` for each field of `message` that may hold a message, with its number.
fn for_each_message(
    mut message: &[u8],
    mut visit: impl FnMut(u32, &[u8]) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    while !message.is_empty() {
        let (field, wire_type) = decode_key(&mut message)?;
        if wire_type != WireType::LengthDelimited {
            skip_field(wire_type, field, &mut message, DecodeContext::default())?;
            continue;
        }
        let length = decode_varint(&mut message)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        // What is cut short is for the decoder to refuse, in its words.
        let (value, behind) = message.split_at(length.min(message.len()));
        visit(field, value)?;
        message = behind;
    }
    Ok(())
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
        check(nested(TXN_DEPTH_MAX).encode_to_vec(), Ok(()));
        let deeper = nested(TXN_DEPTH_MAX + 1).encode_to_vec();
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
