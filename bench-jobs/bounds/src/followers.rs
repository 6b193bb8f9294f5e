//! The other processes of the floor, as the first one sees them: each answers the frames that it is
//! sent in their order, with a byte for each.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, poll};

/// Filling its file with zeros takes a process a while, and before that it does not listen.
const PATIENCE: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(10);

pub(crate) struct Followers {
    all: Vec<Follower>,
    /// Frames that were sent to each.
    sent: u64,
}

struct Follower {
    stream: TcpStream,
    /// Frames that are on its disk.
    done: u64,
}

impl Followers {
    pub(crate) fn reach(addresses: &[String]) -> Result<Self> {
        let all = addresses.iter().map(|address| Follower::reach(address));
        Ok(Self {
            all: all.collect::<Result<_>>()?,
            sent: 0,
        })
    }

    pub(crate) fn send(&mut self, frame: &[u8]) -> Result<()> {
        for follower in &mut self.all {
            let sent = follower.stream.write_all(frame);
            sent.context("sending to a follower")?;
        }
        self.sent += 1;
        Ok(())
    }

    /// Returns when the last frame is on the disks of so many that they make a majority together
    /// with this process.
    pub(crate) fn await_majority(&mut self) -> Result<()> {
        let needed = self.all.len().div_ceil(2);
        while self.all.iter().filter(|it| it.done >= self.sent).count() < needed {
            self.await_answer().context("waiting for a follower")?;
        }
        Ok(())
    }

    fn await_answer(&mut self) -> Result<()> {
        let fd = |follower| PollFd::new(follower, PollFlags::IN);
        let mut polled: Vec<_> = self.all.iter().map(|it| fd(&it.stream)).collect();
        poll(&mut polled, None)?;
        let ready: Vec<bool> = polled.iter().map(|it| !it.revents().is_empty()).collect();
        for (follower, _) in self.all.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            follower.take_answers()?;
        }
        Ok(())
    }
}

impl Follower {
    fn reach(address: &str) -> Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        let stream = loop {
            match TcpStream::connect(address).and_then(not_itself) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() >= deadline => {
                    return Err(error).with_context(|| format!("no follower at {address}"));
                }
                Err(_) => sleep(ASK_EVERY),
            }
        };
        stream.set_nodelay(true)?;
        Ok(Self { stream, done: 0 })
    }

    /// As many as are there: of the slower one there may be several.
    fn take_answers(&mut self) -> Result<()> {
        let mut answers = [0; 64];
        let answers = match self.stream.read(&mut answers) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            read => read?,
        };
        ensure!(answers > 0, "it ended");
        self.done += answers as u64;
        Ok(())
    }
}

/// Where nobody listens yet, TCP may connect a port to itself.
fn not_itself(stream: TcpStream) -> io::Result<TcpStream> {
    match stream.local_addr()? == stream.peer_addr()? {
        true => Err(io::ErrorKind::ConnectionRefused.into()),
        false => Ok(stream),
    }
}
