//! The floor of a lone write: a frame to the first process, and a byte back once the frame is on
//! the disks of a majority. The processes are those of `dengine-bench-bounds floor`.
//!
//! It blocks its thread, for that is the shortest way there is: one client with one request in
//! flight has nobody to make room for.

use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::{Connect, Facts, Leader};

/// Longest time for a connection on the same machine.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// After so many writes the thread is lent to others, so that the run can be ended.
const YIELD_EVERY: u64 = 64;
/// Longest payload of a frame; values of the tool are no longer.
const PAYLOAD_BYTES_MAX: usize = 16 << 20;
/// What a process answers to a frame that is on its disk.
pub const DONE: [u8; 1] = [1];

/// What stands before the payload of a frame: its length, in four bytes from the lowest on.
pub const HEADER_BYTES: usize = 4;

/// Makes a frame of a payload.
pub fn frame(payload: &[u8], into: &mut Vec<u8>) {
    into.clear();
    into.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    into.extend_from_slice(payload);
}

/// Reads a whole frame; `false` at the end of the connection. What it reads from has a buffer, or a
/// frame takes several calls of the system.
///
/// # Errors
/// If the connection fails, or ends within a frame, or the frame is longer than any.
pub fn read_frame(from: &mut impl BufRead, into: &mut Vec<u8>) -> io::Result<bool> {
    if from.fill_buf()?.is_empty() {
        return Ok(false);
    }
    let mut header = [0; HEADER_BYTES];
    from.read_exact(&mut header)?;
    let bytes = u32::from_le_bytes(header) as usize;
    if bytes > PAYLOAD_BYTES_MAX {
        let words = format!("a frame of {bytes} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, words));
    }
    into.resize(HEADER_BYTES + bytes, 0);
    into[..HEADER_BYTES].copy_from_slice(&header);
    from.read_exact(&mut into[HEADER_BYTES..])?;
    Ok(true)
}

/// The connection to the first process.
pub struct Connection(Arc<std::net::TcpStream>);

impl Connection {
    pub(super) async fn open(connect: &Connect) -> anyhow::Result<Self> {
        let stream = to_first(&connect.endpoints).await?.into_std()?;
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(connect.request_timeout))?;
        Ok(Connection(Arc::new(stream)))
    }

    pub(super) fn lane(&self) -> Lane {
        Lane {
            stream: Arc::clone(&self.0),
            frame: Vec::new(),
            written: 0,
        }
    }
}

/// The one client's way.
pub struct Lane {
    stream: Arc<std::net::TcpStream>,
    frame: Vec<u8>,
    written: u64,
}

impl Lane {
    pub(super) async fn put(&mut self, value: &Bytes) -> Result<u64, String> {
        if self.written % YIELD_EVERY == YIELD_EVERY - 1 {
            yield_now().await;
        }
        self.write(value).map_err(|error| error.to_string())?;
        self.written += 1;
        Ok(self.written)
    }

    fn write(&mut self, value: &[u8]) -> io::Result<()> {
        frame(value, &mut self.frame);
        let mut stream = &*self.stream;
        stream.write_all(&self.frame)?;
        let mut answer = [0; DONE.len()];
        stream.read_exact(&mut answer)?;
        match answer {
            DONE => Ok(()),
            _ => Err(io::Error::other("that is no process of the floor")),
        }
    }
}

/// The first process listens once it has reached the others.
pub(super) async fn facts(endpoints: &[String]) -> anyhow::Result<Facts> {
    to_first(endpoints).await?;
    let name = |number: usize| format!("floor-{number}");
    let leader = Leader {
        name: name(1),
        address: endpoints[0].clone(),
    };
    Ok(Facts {
        followers: Vec::new(),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        durability: Some("fsync".to_owned()),
        term: 0,
        leader: Some(leader),
        members: (1..=endpoints.len()).map(name).collect(),
    })
}

async fn to_first(endpoints: &[String]) -> anyhow::Result<TcpStream> {
    let first = endpoints.first().context("no endpoints were given")?;
    let connecting = timeout(CONNECT_LIMIT, TcpStream::connect(first)).await;
    let stream = connecting.with_context(|| format!("{first} does not answer"))?;
    let stream = stream.with_context(|| format!("floor at {first}"))?;
    // Where nobody listens, TCP may connect a port to itself, which then answers what it is sent.
    let is_itself = stream.local_addr()? == stream.peer_addr()?;
    ensure!(!is_itself, "nobody listens at {first}");
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_made() {
        let payloads = [&b"value"[..], b"", b"another"];
        let mut sent = Vec::new();
        let mut made = Vec::new();
        for payload in payloads {
            frame(payload, &mut made);
            sent.extend_from_slice(&made);
        }
        let mut from = &sent[..];
        let mut read = Vec::new();
        for payload in payloads {
            assert!(read_frame(&mut from, &mut read).unwrap());
            assert_eq!(&read[HEADER_BYTES..], payload);
            frame(payload, &mut made);
            assert_eq!(read, made, "it is there whole, to be passed on");
        }
        assert!(!read_frame(&mut from, &mut read).unwrap());
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let mut read = Vec::new();
        let torn = read_frame(&mut &[9, 0, 0, 0, 1][..], &mut read).unwrap_err();
        assert_eq!(torn.kind(), io::ErrorKind::UnexpectedEof);
        let long = read_frame(&mut &[255; 8][..], &mut read).unwrap_err();
        assert_eq!(long.kind(), io::ErrorKind::InvalidData);
    }
}
