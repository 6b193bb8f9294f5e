//! What decodes bytes, by where they come from.

pub(crate) mod answers;
pub(crate) mod consensus;
pub(crate) mod folder;
pub(crate) mod kv;
pub(crate) mod log;
pub(crate) mod peers;
pub(crate) mod requests;
mod samples;
pub(crate) mod snapshot;
pub(crate) mod watch;

use tonic::Status;

/// A message as whoever serves it decodes it.
fn received<M: prost::Message + Default + 'static>(bytes: &[u8]) -> Result<M, Status> {
    dengine_protocol::codec::decode(bytes::Bytes::copy_from_slice(bytes))
}

/// An error in a few words.
fn words(error: &impl std::fmt::Debug) -> String {
    let text = format!("{error:?}");
    text.chars().take(80).collect()
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
