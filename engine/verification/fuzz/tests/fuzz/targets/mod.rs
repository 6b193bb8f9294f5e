//! What decodes bytes, by where they come from.

pub(crate) mod answers;
pub(crate) mod consensus;
pub(crate) mod etcd;
pub(crate) mod folder;
pub(crate) mod kv;
pub(crate) mod log;
pub(crate) mod peers;
pub(crate) mod requests;
mod samples;
pub(crate) mod snapshot;
pub(crate) mod watch;

use std::fmt::Debug;

use tonic::Status;

/// A message as whoever serves it decodes it.
fn received<M: prost::Message + Default + 'static>(bytes: &[u8]) -> Result<M, Status> {
    dengine_protocol::codec::decode(bytes::Bytes::copy_from_slice(bytes))
}

/// What is decoded, if it is; encoded and decoded again it must be the same.
fn round_trip<T: PartialEq + Debug, E: Debug>(
    input: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, E>,
    encode: impl FnOnce(&T) -> Vec<u8>,
) -> Option<T> {
    let decoded = decode(input).ok()?;
    assert_eq!(decode(&encode(&decoded)).unwrap(), decoded);
    Some(decoded)
}

/// An error message has to fit into response headers.
fn assert_fits(refusal: &Status, bytes_max: usize) {
    let bytes = refusal.message().len();
    assert!(bytes <= bytes_max, "{bytes} bytes: {refusal:?}");
}

/// The first byte says whether checksums are repaired, the rest is what they are of.
fn repaired(input: &[u8], repair: impl FnOnce(&mut Vec<u8>)) -> Option<Vec<u8>> {
    let (mode, bytes) = input.split_first()?;
    let mut bytes = bytes.to_vec();
    if mode % 2 == 1 {
        repair(&mut bytes);
    }
    Some(bytes)
}

/// Inputs for [`repaired`], each with its checksums as they are and repaired.
fn both_modes(inputs: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let both = |input: Vec<u8>| [0, 1].map(|mode| [&[mode], &input[..]].concat());
    inputs.into_iter().flat_map(both).collect()
}

/// The first of several byte strings, each with its length, in two bytes, before it; and the rest.
fn part(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = input.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
}

/// All of several byte strings, up to one that is cut short.
fn parts(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = input;
    std::iter::from_fn(move || {
        let (first, after) = part(rest)?;
        rest = after;
        Some(first)
    })
}

/// Several byte strings as [`part`] and [`parts`] take them apart.
fn joined<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> Vec<u8> {
    let mut input = Vec::new();
    for part in parts {
        let part = part.as_ref();
        input.extend_from_slice(&u16::try_from(part.len()).unwrap().to_le_bytes());
        input.extend_from_slice(part);
    }
    input
}
