//! Decodes messages as prost does, so that what is decoded takes no more memory than what was sent
//! justifies.
//!
//! - A field of bytes is a part of the buffer that the message came in, and keeps all of it: fields
//!   that nobody knows, the same field sent twice, other messages of the stream. So a message has a
//!   buffer of its own, of about its size.
//! - An empty element of a list is two bytes on the wire and hundreds in memory. So lists that may
//!   be long are counted first. What a member passes on as bytes of the log is counted
//!   where it is decoded (`checks/forward.rs`).

use std::any::TypeId;
use std::marker::PhantomData;

use bytes::{Buf as _, Bytes};
use prost::{DecodeError, Message};
use tonic::Status;
use tonic::codec::{DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstEncoder};

use crate::fields::{Value, for_each_field};
use crate::v1::{BatchRequest, PipelineRequest};
use crate::{
    BATCH_OPERATIONS_MAX, FRAME_BYTES_MAX, FRAME_CALLS_MAX, PEER_FRAME_MESSAGES_MAX, peer,
};

/// Up to here a message is copied out of the buffer that it came in.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// From here on it is looked at what of a message is of use.
const PADDED_BYTES_MIN: usize = 4 << 10;
/// In all lists of all batches of a frame together: as many as fit into it, for an operation on a
/// key of one byte takes seven bytes. Who fills a frame counts bytes only, and calls of many
/// clients: one more would end the stream of all of them.
const FRAME_OPERATIONS_MAX: usize = FRAME_BYTES_MAX / 7;

/// What the generated clients and servers use.
pub type Codec<T, U> = LeanCodec<T, U, Bounds>;

/// Which messages of an API are refused before they are decoded.
pub trait MessageBounds: Send + 'static {
    /// Looks at the bytes of a message of type `U`.
    ///
    /// # Errors
    /// It is malformed, or would hold more than any message that is served.
    fn check<U: 'static>(message: &[u8]) -> Result<(), Status>;
}

/// The bounds of DEngine's own messages: of lists that may be long.
#[derive(Debug)]
pub enum Bounds {}

/// A codec of messages of an API with the bounds `B`.
#[derive(Debug)]
pub struct LeanCodec<T, U, B>(PhantomData<(T, U, B)>);

/// Decodes messages of one type.
#[derive(Debug)]
pub struct LeanDecoder<U, B>(PhantomData<(U, B)>);

impl<T, U, B> Default for LeanCodec<T, U, B> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U, B> tonic::codec::Codec for LeanCodec<T, U, B>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
    B: MessageBounds,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = LeanDecoder<U, B>;

    fn encoder(&mut self) -> Self::Encoder {
        tonic::codec::Codec::encoder(&mut ProstCodec::<T, U>::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        LeanDecoder(PhantomData)
    }
}

impl<U: Message + Default + 'static, B: MessageBounds> Decoder for LeanDecoder<U, B> {
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
        decode_within::<U, B>(message).map(Some)
    }
}

/// Decodes a whole message of our own.
///
/// # Errors
/// It is malformed, or has a list that no server takes.
pub fn decode<U: Message + Default + 'static>(bytes: Bytes) -> Result<U, Status> {
    decode_within::<U, Bounds>(bytes)
}

/// Decodes a whole message of an API with the bounds `B`.
///
/// # Errors
/// It is malformed, or beyond these bounds.
pub fn decode_within<U, B>(bytes: Bytes) -> Result<U, Status>
where
    U: Message + Default + 'static,
    B: MessageBounds,
{
    B::check::<U>(&bytes)?;
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

/// Lists whose elements are counted together.
struct Lists {
    paths: &'static [Path],
    elements: Elements,
    most: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Elements {
    /// Messages or bytes, each with a length before it.
    Lengths,
    /// Each with the field before it, or many of them together.
    Numbers,
}

const BATCH: [Lists; 3] = [
    lists(&[&[1]], BATCH_OPERATIONS_MAX),
    lists(&[&[2]], BATCH_OPERATIONS_MAX),
    lists(&[&[3]], BATCH_OPERATIONS_MAX),
];
const FRAME: [Lists; 3] = [
    lists(&[&[1]], FRAME_CALLS_MAX),
    Lists {
        elements: Elements::Numbers,
        ..lists(&[&[2]], FRAME_CALLS_MAX)
    },
    lists(&[&[1, 5, 1], &[1, 5, 2], &[1, 5, 3]], FRAME_OPERATIONS_MAX),
];
const PEER_FRAME: [Lists; 1] = [lists(&[&[2, 1]], PEER_FRAME_MESSAGES_MAX)];

const fn lists(paths: &'static [Path], most: usize) -> Lists {
    Lists {
        paths,
        elements: Elements::Lengths,
        most,
    }
}

impl MessageBounds for Bounds {
    /// Refuses lists that no server takes, before they are held.
    fn check<U: 'static>(message: &[u8]) -> Result<(), Status> {
        let is = TypeId::of::<U>();
        let bounded: &[Lists] = if is == TypeId::of::<BatchRequest>() {
            &BATCH
        } else if is == TypeId::of::<PipelineRequest>() {
            &FRAME
        } else if is == TypeId::of::<peer::Frame>() {
            &PEER_FRAME
        } else {
            &[]
        };
        bounded.iter().try_for_each(|lists| lists.check(message))
    }
}

impl Lists {
    fn check(&self, message: &[u8]) -> Result<(), Status> {
        let most = self.most;
        // An element has a byte at least.
        if message.len() <= most {
            return Ok(());
        }
        match self.count(message) {
            Some(count) if count <= most => Ok(()),
            Some(count) => Err(Status::invalid_argument(format!(
                "a list of the request has {count} elements: it has at most {most}, whatever the \
                 server is set to"
            ))),
            None => Err(Status::internal("the message is malformed")),
        }
    }

    fn count(&self, message: &[u8]) -> Option<usize> {
        let counts = self.paths.iter();
        counts.map(|path| self.elements.count(message, path)).sum()
    }
}

impl Elements {
    /// How many of them a list has; `None` if the message is malformed.
    fn count(self, message: &[u8], path: Path) -> Option<usize> {
        let Some((field, rest)) = path.split_first() else {
            return Some(self.count_in(message));
        };
        let mut found = 0;
        for_each_field(message, |number, value| {
            match value {
                _ if number != *field => {}
                Value::Number => found += usize::from(self == Self::Numbers),
                Value::Bytes(bytes) => found += self.count(bytes, rest)?,
            }
            Some(())
        })?;
        Some(found)
    }

    /// How many there are with one length before them.
    fn count_in(self, value: &[u8]) -> usize {
        match self {
            Self::Lengths => 1,
            // The last byte of each has no mark.
            Self::Numbers => value.iter().filter(|byte| **byte < 0x80).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::pipelined_call::Call;
    use crate::v1::{Compare, Operation, PipelinedCall, PutRequest, operation};

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

    fn refused<U: Message + Default + 'static>(bytes: impl Into<Bytes>) {
        let decoded = decode::<U>(bytes.into()).err().unwrap();
        assert_eq!(decoded.code(), tonic::Code::InvalidArgument);
        assert!(decoded.message().contains("at most"), "{decoded}");
    }

    fn batch(compares: usize, operations: usize) -> BatchRequest {
        BatchRequest {
            compares: vec![Compare::default(); compares],
            then: vec![Operation::default(); operations],
            ..BatchRequest::default()
        }
    }

    fn frame(batches: usize, batch: BatchRequest) -> Vec<u8> {
        let call = PipelinedCall {
            call: Some(Call::Batch(batch)),
            ..PipelinedCall::default()
        };
        let frame = PipelineRequest {
            calls: vec![call; batches],
            ..PipelineRequest::default()
        };
        frame.encode_to_vec()
    }

    #[test]
    fn lists_of_nothing_are_refused_before_they_are_held() {
        let empty = Bytes::from([0x0a, 0].repeat(1 << 19));
        refused::<PipelineRequest>(empty.clone());
        refused::<BatchRequest>(empty);
        refused::<PipelineRequest>(frame(100, batch(0, 4_000)));
        for (batches, operations) in [(1, 16 << 10), (4096, 20), (0, 0)] {
            let bytes = frame(batches, batch(0, operations)).into();
            assert!(decode::<PipelineRequest>(bytes).is_ok());
        }
        let most = batch(0, BATCH_OPERATIONS_MAX).encode_to_vec();
        assert!(decode::<BatchRequest>(most.into()).is_ok());
    }

    /// Else three lists of a frame take three times as much as one may.
    #[test]
    fn the_lists_of_a_frame_are_counted_together() {
        let half = FRAME_OPERATIONS_MAX / 32;
        assert!(decode::<PipelineRequest>(frame(16, batch(half, half)).into()).is_ok());
        refused::<PipelineRequest>(frame(16, batch(half, half + 1)));
    }

    /// As a follower fills one for its leader, of what its clients sent.
    #[test]
    fn a_frame_full_of_the_smallest_operations_is_taken() {
        let key = Bytes::from_static(b"k");
        let get = operation::Get {
            key,
            ..operation::Get::default()
        };
        let operation = Operation {
            operation: Some(operation::Operation::Get(get)),
        };
        assert_eq!(operation.encoded_len() + 2, 7);
        let smallest = BatchRequest {
            then: vec![operation.clone(); 128],
            otherwise: vec![operation; 128],
            ..BatchRequest::default()
        };
        let calls = FRAME_BYTES_MAX / frame(1, smallest.clone()).len();
        assert!(decode::<PipelineRequest>(frame(calls, smallest).into()).is_ok());
    }

    #[test]
    fn what_a_frame_cancels_is_counted_before_it_is_held_however_it_is_written() {
        let packed = |ids: usize| {
            let frame = PipelineRequest {
                cancelled: vec![300; ids],
                ..PipelineRequest::default()
            };
            frame.encode_to_vec()
        };
        let one_by_one = |ids: usize| [0x10, 0].repeat(ids);
        for written in [packed, one_by_one] {
            let most = written(FRAME_CALLS_MAX);
            assert!(decode::<PipelineRequest>(most.into()).is_ok());
            refused::<PipelineRequest>(written(FRAME_CALLS_MAX + 1));
        }
        let half = FRAME_CALLS_MAX / 2;
        refused::<PipelineRequest>([packed(half), one_by_one(half + 1)].concat());
    }

    /// Thirty-three million of them took 1.5 GiB, of a peer of which nobody knows whose it is.
    #[test]
    fn a_peer_sends_no_more_messages_than_wait_for_one() {
        let frame = |messages: usize| {
            let empty = [0x0a, 0].repeat(messages);
            let mut frame = vec![0x12];
            prost::encode_length_delimiter(empty.len(), &mut frame).unwrap();
            [frame, empty].concat()
        };
        let decoded: peer::Frame = decode(frame(PEER_FRAME_MESSAGES_MAX).into()).unwrap();
        let Some(peer::frame::Kind::Batch(batch)) = decoded.kind else {
            panic!("{decoded:?}");
        };
        assert_eq!(batch.messages.len(), PEER_FRAME_MESSAGES_MAX);
        refused::<peer::Frame>(frame(PEER_FRAME_MESSAGES_MAX + 1));
        let half = PEER_FRAME_MESSAGES_MAX / 2 + 1;
        refused::<peer::Frame>([frame(half), frame(half)].concat());
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
