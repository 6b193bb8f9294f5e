//! HTTP/2 by hand: the frames that no library would send.

use bytes::{BufMut, BytesMut};

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;

/// What a frame is.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    Data = 0,
    Headers = 1,
    ResetStream = 3,
    Settings = 4,
    Ping = 6,
    WindowUpdate = 8,
    Continuation = 9,
}

/// A connection's first words: the preface and settings that change nothing.
pub(crate) fn greeting() -> BytesMut {
    let mut bytes = BytesMut::from(PREFACE);
    put(&mut bytes, Kind::Settings, 0, 0, &[]);
    bytes
}

/// Adds a frame.
pub(crate) fn put(to: &mut BytesMut, kind: Kind, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap();
    assert!(length < 1 << 24, "no frame is so long");
    to.put_slice(&length.to_be_bytes()[1..]);
    to.put_u8(kind as u8);
    to.put_u8(flags);
    to.put_u32(stream);
    to.put_slice(payload);
}

/// The headers of a call, as HPACK without a table.
pub(crate) fn headers(path: &str) -> Vec<u8> {
    // :method POST and :scheme http, from the static table.
    let mut block = vec![0x83, 0x86];
    indexed_name(&mut block, 4, path.as_bytes());
    indexed_name(&mut block, 1, b"member");
    header(&mut block, b"content-type", b"application/grpc");
    header(&mut block, b"te", b"trailers");
    block
}

/// Adds a header that is to be kept in no table.
pub(crate) fn header(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    block.push(0);
    text(block, name);
    text(block, value);
}

/// The same, with a name of the static table.
fn indexed_name(block: &mut Vec<u8>, index: u8, value: &[u8]) {
    block.push(index);
    text(block, value);
}

/// Without Huffman's code; the length takes as many bytes as it needs.
fn text(block: &mut Vec<u8>, text: &[u8]) {
    const SEVEN_BITS: usize = 127;
    if text.len() < SEVEN_BITS {
        block.push(text.len() as u8);
    } else {
        block.push(SEVEN_BITS as u8);
        let mut rest = text.len() - SEVEN_BITS;
        while rest >= 128 {
            block.push((rest % 128) as u8 | 128);
            rest /= 128;
        }
        block.push(rest as u8);
    }
    block.extend_from_slice(text);
}
