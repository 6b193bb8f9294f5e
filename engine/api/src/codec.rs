//! Decodes messages as prost does, so that what is decoded takes no more memory than what was sent justifies.
//!
//! - A field of bytes is a part of the buffer that the message came in, and keeps all of it: fields that nobody knows, the
//!   same field sent twice, other messages of the stream. So a message has a buffer of its own, of about its size.
//! - An empty element of a list is two bytes on the wire and hundreds in memory. So lists that may be long are counted first.

use std::{any::TypeId, marker::PhantomData};

use bytes::{Buf as _, Bytes};
use prost::{DecodeError, Message, decode_length_delimiter};
use tonic::{
    Status,
    codec::{DecodeBuf, Decoder},
};
use tonic_prost::{ProstCodec, ProstEncoder};

use crate::{
    BATCH_OPERATIONS_MAX, FRAME_CALLS_MAX,
    v1::{BatchRequest, PipelineRequest},
};

/// Up to here a message is copied out of the buffer that it came in.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// From here on it is looked at what of a message is of use.
const PADDED_BYTES_MIN: usize = 4 << 10;
/// In all batches of a frame. Each takes eight bytes at least, and a frame has a MiB.
const FRAME_OPERATIONS_MAX: usize = 128 << 10;

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
/// It is malformed, or has a list that no server takes.
pub fn decode<U: Message + Default + 'static>(bytes: Bytes) -> Result<U, Status> {
    check_lists::<U>(&bytes)?;
    let length = bytes.len();
    let message = U::decode(bytes).map_err(|error| malformed(&error))?;
    if length < PADDED_BYTES_MIN || length <= 2 * message.encoded_len() {
        return Ok(message);
    }
    let of_use = Bytes::from(message.encode_to_vec());
    U::decode(of_use).map_err(|error| malformed(&error))
}

/// As prost's own codec and the list of gRPC's codes have it.
fn malformed(error: &DecodeError) -> Status {
    Status::internal(error.to_string())
}

/// The field of a list, and those of the messages that it is in, from the outermost.
type Path = &'static [usize];

const BATCH: [Path; 3] = [&[1], &[2], &[3]];
const FRAME_CALLS: Path = &[1];
const FRAME_BATCHES: [Path; 3] = [&[1, 5, 1], &[1, 5, 2], &[1, 5, 3]];

/// Refuses lists that no server takes, before they are held.
fn check_lists<U: 'static>(bytes: &[u8]) -> Result<(), Status> {
    let is = TypeId::of::<U>();
    if is == TypeId::of::<BatchRequest>() {
        for list in BATCH {
            at_most(BATCH_OPERATIONS_MAX, bytes, list)?;
        }
    } else if is == TypeId::of::<PipelineRequest>() {
        at_most(FRAME_CALLS_MAX, bytes, FRAME_CALLS)?;
        for list in FRAME_BATCHES {
            at_most(FRAME_OPERATIONS_MAX, bytes, list)?;
        }
    }
    Ok(())
}

fn at_most(most: usize, message: &[u8], list: Path) -> Result<(), Status> {
    // An element has two bytes at least.
    if message.len() / 2 <= most {
        return Ok(());
    }
    match count(message, list) {
        Some(count) if count <= most => Ok(()),
        Some(count) => Err(Status::invalid_argument(format!(
            "a list of the request has {count} elements: it has at most {most}, whatever the server is set to"
        ))),
        None => Err(Status::internal("the message is malformed")),
    }
}

/// How many elements a list has; `None` if the message is malformed.
fn count(mut message: &[u8], path: Path) -> Option<usize> {
    let Some((field, rest)) = path.split_first() else {
        return Some(1);
    };
    let mut found = 0;
    while !message.is_empty() {
        let key = varint(&mut message)?;
        let (is_nested, length) = match key & 7 {
            0 => (false, varint(&mut message).map(|_| 0)?),
            1 => (false, 8),
            2 => (true, varint(&mut message)?),
            5 => (false, 4),
            // Groups, which no message has.
            _ => return None,
        };
        let (value, behind) = message.split_at_checked(length)?;
        if is_nested && key >> 3 == *field {
            found += count(value, rest)?;
        }
        message = behind;
    }
    Some(found)
}

fn varint(bytes: &mut &[u8]) -> Option<usize> {
    decode_length_delimiter(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{Operation, PipelinedCall, PutRequest, pipelined_call::Call};

    fn put(value: usize) -> PutRequest {
        PutRequest {
            key: Bytes::from_static(b"k"),
            value: vec![7; value].into(),
            ..PutRequest::default()
        }
    }

    /// A field of bytes that no message has.
    fn padding(bytes: usize) -> Vec<u8> {
        let mut field = vec![0xfa, 0x3f];
        prost::encode_length_delimiter(bytes, &mut field).unwrap();
        field.resize(field.len() + bytes, 0);
        field
    }

    #[test]
    fn what_is_decoded_does_not_keep_what_nobody_asked_for() {
        for padded in [padding(1 << 20), put(1 << 20).encode_to_vec()] {
            let bytes = Bytes::from([padded, put(3).encode_to_vec()].concat());
            let message: PutRequest = decode(bytes.clone()).unwrap();
            assert_eq!(message, put(3));
            assert!(bytes.is_unique(), "the message keeps its buffer");
        }
        let bytes = Bytes::from(put(1 << 20).encode_to_vec());
        let message: PutRequest = decode(bytes.clone()).unwrap();
        assert_eq!(message, put(1 << 20));
        assert!(!bytes.is_unique(), "a value is not copied");
    }

    #[test]
    fn lists_of_nothing_are_refused_before_they_are_held() {
        let refused = |decoded: Status| {
            assert_eq!(decoded.code(), tonic::Code::InvalidArgument);
            assert!(decoded.message().contains("at most"), "{decoded}");
        };
        let empty = Bytes::from([0x0a, 0].repeat(1 << 19));
        refused(decode::<PipelineRequest>(empty.clone()).unwrap_err());
        refused(decode::<BatchRequest>(empty).unwrap_err());
        let batch = |operations| BatchRequest {
            then: vec![Operation::default(); operations],
            ..BatchRequest::default()
        };
        let frame = |batches, operations| {
            let call = PipelinedCall {
                call: Some(Call::Batch(batch(operations))),
                ..PipelinedCall::default()
            };
            let calls = vec![call; batches];
            let frame = PipelineRequest {
                calls,
                ..PipelineRequest::default()
            };
            Bytes::from(frame.encode_to_vec())
        };
        refused(decode::<PipelineRequest>(frame(100, 4_000)).unwrap_err());
        for (batches, operations) in [(1, 16 << 10), (4096, 20), (0, 0)] {
            assert!(decode::<PipelineRequest>(frame(batches, operations)).is_ok());
        }
        let most = batch(BATCH_OPERATIONS_MAX).encode_to_vec();
        assert!(decode::<BatchRequest>(most.into()).is_ok());
    }

    #[test]
    fn what_is_malformed_is_refused_whatever_it_hides_behind() {
        let group_first = [&[0x0b, 0x0c][..], &[0x0a, 0].repeat(1 << 19)].concat();
        for bytes in [&b"\x0a"[..], b"\x0a\x05abc", b"\x09abc", &group_first] {
            let bytes = Bytes::copy_from_slice(bytes);
            let error = decode::<PipelineRequest>(bytes).unwrap_err();
            assert_eq!(error.code(), tonic::Code::Internal);
        }
    }
}
