//! What happens to many requests, for tests of what sends many.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Barrier;
use tonic::Status;

use crate::Peer;

/// How a server behaves under load.
#[derive(Debug, Default)]
pub struct Load {
    /// This put and every one so many later fails.
    pub fail_every: Option<u64>,
    /// From this put on there is another term.
    pub elect_at: Option<u64>,
    /// Each put waits for so long.
    pub delay: Duration,
    /// Puts wait for each other until so many are there at once.
    pub together: Option<Barrier>,
    /// From this put on nothing is answered.
    pub hang_at: Option<u64>,
    /// What its disk has room for, if it tells.
    pub free_bytes: Option<u64>,
    /// So many deletions are answered, and no more.
    pub deletions: Option<u64>,
    /// A deletion of more keys is refused.
    pub deletion_keys_max: Option<u64>,
    /// Watches tell of puts.
    pub tells: bool,
    /// Where another member is said to be.
    pub beside: Option<String>,
}

/// What came so far.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    puts: u64,
    keys: HashSet<Bytes>,
    frames: u64,
    deletions: u64,
    largest_delete: u64,
}

impl Peer {
    /// Puts, failed ones too.
    pub fn puts(&self) -> u64 {
        self.state.lock().unwrap().seen.puts
    }

    /// How many different keys were put.
    pub fn keys(&self) -> usize {
        self.state.lock().unwrap().seen.keys.len()
    }

    /// Frames of calls.
    pub fn frames(&self) -> u64 {
        self.state.lock().unwrap().seen.frames
    }

    /// Most keys that one request deleted.
    pub fn largest_delete(&self) -> u64 {
        self.state.lock().unwrap().seen.largest_delete
    }

    /// The keys that were watched, one for each watch.
    pub fn watched(&self) -> Vec<Bytes> {
        let created = self.created().into_iter();
        created.map(|watch| watch.key).collect()
    }

    /// The keys that were put and not deleted.
    pub fn left(&self) -> Vec<Bytes> {
        self.state.lock().unwrap().pairs.keys().cloned().collect()
    }

    pub(crate) fn saw_frame(&self) {
        self.state.lock().unwrap().seen.frames += 1;
    }

    /// What happens to a put before it is done.
    pub(crate) async fn loaded_put(&self, key: &Bytes) -> Result<(), Status> {
        let load = &self.load;
        let number = {
            let mut state = self.state.lock().unwrap();
            state.seen.puts += 1;
            state.term += u64::from(load.elect_at == Some(state.seen.puts));
            state.seen.puts
        };
        if load.hang_at.is_some_and(|at| number >= at) {
            std::future::pending::<()>().await;
        }
        if let Some(barrier) = &load.together {
            barrier.wait().await;
        }
        tokio::time::sleep(load.delay).await;
        if load.fail_every.is_some_and(|it| number.is_multiple_of(it)) {
            return Err(Status::unavailable("scripted failure"));
        }
        self.state.lock().unwrap().seen.keys.insert(key.clone());
        Ok(())
    }

    /// What happens to a deletion of so many keys before it is done.
    pub(crate) fn loaded_delete(&self, keys: u64) -> Result<(), Status> {
        let (load, seen) = (&self.load, &mut self.state.lock().unwrap().seen);
        seen.deletions += 1;
        if load.deletions.is_some_and(|max| seen.deletions > max) {
            return Err(Status::failed_precondition("no more deletions"));
        }
        if load.deletion_keys_max.is_some_and(|most| keys > most) {
            return Err(Status::invalid_argument("the ranges hold too many bytes"));
        }
        seen.largest_delete = seen.largest_delete.max(keys);
        Ok(())
    }
}
