//! Frames between members, as bytes of a stream: what a [`PeerQueue`](crate::peer_queue::PeerQueue)
//! gives out goes in, whatever the network makes of it comes out again, or an error.
//!
//! Each side begins with [`MAGIC`], which no other protocol begins with that a member was ever
//! spoken to in, and goes on with frames, all numbers little-endian:
//!
//! ```text
//! length  u32   bytes of the body
//! crc     u32   CRC32C of kind and body
//! kind    u8    see [`Kind`]
//! body
//! ```
//! The body of a batch is its messages, each behind its length (u32). What the other bodies hold is
//! not for this module to know.
//!
//! What may not live here: sockets and clocks. The server and the simulator run the same code.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// What each side of a stream begins with.
pub const MAGIC: [u8; 8] = *b"DENGINE1";

const HEAD_BYTES: usize = 9;
/// Of the length before each message of a batch.
const PREFIX_BYTES: usize = 4;
/// Messages up to this size are copied side by side; a larger one is written from where it is.
const COPIED_BYTES_MAX: usize = 4 << 10;
/// Pieces that are given to one write.
const SLICES_MAX: usize = 16;
/// Memory that is made for a frame which has begun to arrive, at a time: a peer that only says
/// that a large one follows gets no more.
const GROWS_BY_BYTES: usize = 64 << 10;

/// What is read at once, at least: most frames are smaller.
const READS_BYTES_MIN: usize = 4 << 10;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Who speaks, to whom.
    Hello = 1,
    /// The Hello was accepted.
    Ack = 2,
    /// It was not, or what followed was not.
    Refusal = 3,
    /// Messages.
    Batch = 4,
}

impl Kind {
    fn of(number: u8) -> Option<Self> {
        [Self::Hello, Self::Ack, Self::Refusal, Self::Batch]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// A frame that has arrived whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFrame {
    pub kind: Kind,
    /// What it holds.
    pub body: Bytes,
}

/// Why a stream cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It is no stream of frames.
    #[error("the stream does not begin as one between members does")]
    NotFramed,
    /// A frame is larger than any that is taken.
    #[error("a frame of {bytes} bytes is larger than {max}")]
    TooLarge {
        /// What it says.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// It did not arrive as it was sent.
    #[error("the checksum of a frame is wrong: the network or a peer changed it")]
    Checksum,
    /// There is no such kind.
    #[error("a frame of an unknown kind ({0})")]
    Kind(u8),
    /// The lengths in a batch do not fit into it.
    #[error("the messages of a batch do not fit into it")]
    Batch,
    /// A batch has more messages than any that is taken.
    #[error("a batch of more than {0} messages")]
    TooMany(usize),
}

/// Frames on their way into a stream, which takes any number of bytes at a time.
#[derive(Debug, Default)]
pub struct Outgoing(VecDeque<Bytes>);

impl Outgoing {
    /// A frame of one of the other kinds.
    pub fn push(&mut self, kind: Kind, body: &[u8]) {
        let mut frame = BytesMut::with_capacity(HEAD_BYTES + body.len());
        put_head(
            &mut frame,
            kind,
            body.len(),
            crc32c::crc32c_append(crc_of(kind), body),
        );
        frame.put_slice(body);
        self.0.push_back(frame.freeze());
    }

    /// What a side of a stream begins with.
    pub fn push_magic(&mut self) {
        self.0.push_back(Bytes::from_static(&MAGIC));
    }

    /// A batch of these messages.
    pub fn push_batch(&mut self, messages: &[Bytes]) {
        let length: usize = messages.iter().map(|it| PREFIX_BYTES + it.len()).sum();
        let crc = messages.iter().fold(crc_of(Kind::Batch), |crc, message| {
            let crc = crc32c::crc32c_append(crc, &prefix(message));
            crc32c::crc32c_append(crc, message)
        });
        let mut copied = BytesMut::with_capacity(HEAD_BYTES + length.min(2 * COPIED_BYTES_MAX));
        put_head(&mut copied, Kind::Batch, length, crc);
        for message in messages {
            copied.put_slice(&prefix(message));
            if message.len() <= COPIED_BYTES_MAX {
                copied.put_slice(message);
            } else {
                self.0.push_back(copied.split().freeze());
                self.0.push_back(message.clone());
            }
        }
        if !copied.is_empty() {
            self.0.push_back(copied.freeze());
        }
    }

    /// Whether all has been taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is next, for a write of several pieces.
    #[must_use]
    pub fn slices(&self) -> Vec<IoSlice<'_>> {
        let pieces = self.0.iter().take(SLICES_MAX);
        pieces.map(|piece| IoSlice::new(piece)).collect()
    }

    /// So many bytes of it were taken.
    ///
    /// # Panics
    /// There were not so many.
    pub fn advance(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let first = self.0.front_mut().expect("no more is taken than there is");
            let taken = bytes.min(first.len());
            first.advance(taken);
            bytes -= taken;
            if first.is_empty() {
                self.0.pop_front();
            }
        }
    }
}

fn crc_of(kind: Kind) -> u32 {
    crc32c::crc32c(&[kind as u8])
}

fn prefix(message: &Bytes) -> [u8; PREFIX_BYTES] {
    let length = u32::try_from(message.len()).expect("a message is no larger than a frame");
    length.to_le_bytes()
}

fn put_head(frame: &mut BytesMut, kind: Kind, length: usize, crc: u32) {
    let length = u32::try_from(length).expect("frames are bounded far below");
    frame.put_u32_le(length);
    frame.put_u32_le(crc);
    frame.put_u8(kind as u8);
}

/// The messages of a batch, so many at most.
///
/// # Errors
/// There are more, or they do not fit into it.
pub fn messages(mut body: Bytes, messages_max: usize) -> Result<Vec<Bytes>, FrameError> {
    let mut messages = Vec::new();
    while !body.is_empty() {
        if messages.len() == messages_max {
            return Err(FrameError::TooMany(messages_max));
        }
        let length = body.try_get_u32_le().map_err(|_| FrameError::Batch)?;
        let length = usize::try_from(length).map_err(|_| FrameError::Batch)?;
        if length > body.len() {
            return Err(FrameError::Batch);
        }
        messages.push(body.split_to(length));
    }
    Ok(messages)
}

/// Frames out of a stream that arrives in any pieces.
#[derive(Debug)]
pub struct Decoder {
    arrived: BytesMut,
    has_begun: bool,
    body_max: usize,
}

impl Decoder {
    /// Of a stream that has yet to begin. No body has more bytes than this.
    #[must_use]
    pub fn new(body_max: usize) -> Self {
        Self {
            arrived: BytesMut::new(),
            has_begun: false,
            body_max,
        }
    }

    /// No body has more bytes than this from now on.
    pub fn limit(&mut self, body_max: usize) {
        self.body_max = body_max;
    }

    /// Where what arrives is to be put.
    pub fn room(&mut self) -> &mut BytesMut {
        let missing = self.missing().clamp(READS_BYTES_MIN, GROWS_BY_BYTES);
        // As much again as there is: of a large frame not every piece is copied.
        self.arrived
            .reserve(missing.max(self.arrived.len().min(missing * 16)));
        &mut self.arrived
    }

    /// How many bytes have arrived of what is not whole.
    #[must_use]
    pub fn arrived(&self) -> usize {
        self.arrived.len()
    }

    /// The next frame, if it is here.
    ///
    /// # Errors
    /// There is none, and nothing after it can be one.
    pub fn next_frame(&mut self) -> Result<Option<PeerFrame>, FrameError> {
        if !self.has_begun {
            let seen = self.arrived.len().min(MAGIC.len());
            if self.arrived[..seen] != MAGIC[..seen] {
                return Err(FrameError::NotFramed);
            }
            if seen < MAGIC.len() {
                return Ok(None);
            }
            self.arrived.advance(MAGIC.len());
            self.has_begun = true;
        }
        let Some(length) = self.length() else {
            return Ok(None);
        };
        let max = self.body_max;
        if length > max {
            return Err(FrameError::TooLarge { bytes: length, max });
        }
        if self.arrived.len() < HEAD_BYTES + length {
            return Ok(None);
        }
        let mut head = self.arrived.split_to(HEAD_BYTES);
        head.advance(size_of::<u32>());
        let (crc, number) = (head.get_u32_le(), head.get_u8());
        let body = self.arrived.split_to(length).freeze();
        let found = crc32c::crc32c_append(crc32c::crc32c(&[number]), &body);
        if found != crc {
            return Err(FrameError::Checksum);
        }
        let kind = Kind::of(number).ok_or(FrameError::Kind(number))?;
        Ok(Some(PeerFrame { kind, body }))
    }

    /// What the next frame says that its body has, if its head is here.
    fn length(&self) -> Option<usize> {
        let length = self.arrived.get(..size_of::<u32>())?;
        let length = u32::from_le_bytes(length.try_into().expect("so many were taken"));
        (self.arrived.len() >= HEAD_BYTES).then_some(length as usize)
    }

    /// How many bytes are missing of what has begun to arrive, as far as it is known.
    fn missing(&self) -> usize {
        let whole = self
            .length()
            .map_or(HEAD_BYTES, |length| HEAD_BYTES + length.min(self.body_max));
        whole.saturating_sub(self.arrived.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 1 << 20;

    fn all_bytes(outgoing: &mut Outgoing) -> Vec<u8> {
        let mut all = Vec::new();
        while !outgoing.is_empty() {
            let taken: usize = outgoing.slices().iter().map(|slice| slice.len()).sum();
            for slice in outgoing.slices() {
                all.extend_from_slice(&slice);
            }
            outgoing.advance(taken);
        }
        all
    }

    fn stream(batches: &[Vec<Bytes>]) -> Vec<u8> {
        let mut outgoing = Outgoing::default();
        outgoing.push_magic();
        outgoing.push(Kind::Hello, b"who");
        batches.iter().for_each(|it| outgoing.push_batch(it));
        all_bytes(&mut outgoing)
    }

    /// What comes out of these bytes when they arrive in pieces of these sizes, again and again.
    fn decoded(bytes: &[u8], pieces: &[usize]) -> Result<Vec<PeerFrame>, FrameError> {
        let mut decoder = Decoder::new(MAX);
        let mut frames = Vec::new();
        let mut pieces = pieces.iter().cycle();
        let mut left = bytes;
        loop {
            while let Some(frame) = decoder.next_frame()? {
                frames.push(frame);
            }
            if left.is_empty() {
                return Ok(frames);
            }
            let (piece, rest) = left.split_at(left.len().min(*pieces.next().unwrap()));
            decoder.room().put_slice(piece);
            left = rest;
        }
    }

    #[test]
    fn a_frame_is_what_the_head_of_this_module_says() {
        let mut outgoing = Outgoing::default();
        outgoing.push_batch(&[Bytes::from_static(b"ab"), Bytes::new()]);
        let bytes = all_bytes(&mut outgoing);
        let body = b"\x02\0\0\0ab\0\0\0\0";
        let crc = crc32c::crc32c(&[b"\x04", &body[..]].concat());
        let expected = [&10_u32.to_le_bytes()[..], &crc.to_le_bytes(), b"\x04", body].concat();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn what_is_no_stream_of_frames_is_told_by_its_first_byte() {
        let mut decoder = Decoder::new(MAX);
        assert_eq!(decoder.next_frame(), Ok(None));
        decoder.room().put_slice(b"P");
        assert_eq!(decoder.next_frame(), Err(FrameError::NotFramed));
    }

    #[test]
    fn a_frame_that_is_too_large_is_refused_by_its_head_and_takes_no_memory() {
        let mut decoder = Decoder::new(100);
        decoder.room().put_slice(&MAGIC);
        decoder.room().put_slice(&[101, 0, 0, 0, 0, 0, 0, 0, 4]);
        let refused = FrameError::TooLarge {
            bytes: 101,
            max: 100,
        };
        assert_eq!(decoder.next_frame(), Err(refused));
        let mut decoder = Decoder::new(1 << 30);
        decoder.room().put_slice(&MAGIC);
        decoder.room().put_slice(&[0, 0, 0, 0x3f, 0, 0, 0, 0, 4]);
        assert_eq!(decoder.next_frame(), Ok(None));
        assert!(decoder.room().capacity() <= 2 * GROWS_BY_BYTES);
    }

    #[test]
    fn batches_whose_lengths_lie_are_refused() {
        for body in [
            &b"\x01"[..],
            b"\x01\0\0\0",
            b"\xff\xff\xff\xffab",
            b"\0\0\0\0\x01\0",
        ] {
            assert_eq!(
                messages(Bytes::copy_from_slice(body), 9),
                Err(FrameError::Batch)
            );
        }
        assert_eq!(messages(Bytes::new(), 0), Ok(Vec::new()));
        // Of no bytes each, they would take more memory than the frame.
        let empty = Bytes::from(vec![0; 3 * PREFIX_BYTES]);
        assert_eq!(messages(empty.clone(), 3), Ok(vec![Bytes::new(); 3]));
        assert_eq!(messages(empty, 2), Err(FrameError::TooMany(2)));
    }

    fn batches() -> impl Strategy<Value = Vec<Vec<Bytes>>> {
        let small = prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        let large = (4_000_usize..20_000).prop_map(|bytes| Bytes::from(vec![7; bytes]));
        let message = prop_oneof![5 => small, 1 => large];
        prop::collection::vec(prop::collection::vec(message, 0..20), 0..6)
    }

    proptest! {
        #[test]
        fn what_was_sent_arrives_however_it_is_cut(
            batches in batches(),
            pieces in prop::collection::vec(1_usize..5_000, 1..8),
        ) {
            let frames = decoded(&stream(&batches), &pieces).unwrap();
            prop_assert_eq!((frames[0].kind, &frames[0].body[..]), (Kind::Hello, &b"who"[..]));
            let arrived: Result<Vec<_>, _> =
                frames[1..].iter().map(|it| messages(it.body.clone(), 20)).collect();
            prop_assert_eq!(arrived.unwrap(), batches);
        }

        #[test]
        fn what_was_changed_on_the_way_is_noticed(
            batches in batches(),
            place in any::<prop::sample::Index>(),
            bit in 0_u8..8,
        ) {
            let sound = stream(&batches);
            let mut changed = sound.clone();
            changed[place.index(sound.len())] ^= 1 << bit;
            // A length that is too large leaves its frame open.
            let frames = decoded(&changed, &[1_000]);
            prop_assert!(frames.is_err() || frames.unwrap().len() < 1 + batches.len());
        }

        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decoded(&bytes, &[7]);
            let _ = decoded(&[&MAGIC[..], &bytes].concat(), &[7]);
            let _ = messages(Bytes::from(bytes), 9);
        }
    }
}
