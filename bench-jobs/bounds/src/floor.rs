//! A process of the floor: appends what it is sent to its file, syncs, and answers. The first one
//! has followers: it sends them what it is sent before it turns to its own disk, and answers when
//! that and as many of theirs have it as make a majority.
//!
//! One thread that blocks. No consensus, no HTTP/2, no store: whatever a system has beside this is
//! the system's own.

use std::io::{BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use dengine_bench::target::floor::{DONE, HEADER_BYTES, read_frame};

use crate::followers::Followers;
use crate::journal::Journal;

/// What `floor` takes.
#[derive(Args, Debug)]
pub(crate) struct FloorArgs {
    /// Where it listens, once its file is there and its followers are reached
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// Folder for its file, which is made
    #[arg(long)]
    data_dir: PathBuf,
    /// Where a follower listens; repeated for each
    #[arg(long, value_name = "HOST:PORT")]
    follower: Vec<String>,
    /// Bytes of its file, which is filled with zeros first; at its end, appends begin again at the
    /// front
    #[arg(long, default_value_t = 64 << 20, value_parser = clap::value_parser!(u64).range(1..))]
    file_bytes: u64,
}

/// Serves one connection after the other, until it is killed.
///
/// # Errors
/// If its disk fails, or a follower is not there.
pub(crate) fn serve(args: &FloorArgs) -> Result<()> {
    let mut journal = Journal::create(&args.data_dir, args.file_bytes)?;
    let mut followers = Followers::reach(&args.follower)?;
    let listener =
        TcpListener::bind(&args.listen).with_context(|| format!("listening on {}", args.listen))?;
    for stream in listener.incoming() {
        serve_one(&stream?, &mut journal, &mut followers)?;
    }
    Ok(())
}

fn serve_one(stream: &TcpStream, journal: &mut Journal, followers: &mut Followers) -> Result<()> {
    stream.set_nodelay(true)?;
    let (mut from, mut to) = (BufReader::new(stream), stream);
    let mut frame = Vec::new();
    // A client that is gone is no reason to end.
    while let Ok(true) = read_frame(&mut from, &mut frame) {
        followers.send(&frame)?;
        journal.append(&frame[HEADER_BYTES..])?;
        followers.await_majority()?;
        if to.write_all(&DONE).is_err() {
            break;
        }
    }
    Ok(())
}
