//! Bytes of writes that wait: bounded, and no client has all of them.
//!
//! Without shares, sixty-four puts of a MiB by one client have everybody else's writes refused.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dengine_client::QUEUED_BYTES;
use dengine_kv::{BatchOperation, Command, Compare};
use dengine_protocol::v1::pipelined_call::Call;

use crate::config::Limits;
use crate::connections::Share;
use crate::memory::{self, Use};

/// What one client may have of the bytes that no other has.
const SHARE: Share = Share::THREE_QUARTERS;

/// What so many parts of a batch take while its caller waits, besides what was sent of them: a part
/// of seven bytes on the wire takes fifteen times as many once it is decoded.
const fn of_parts(compares: usize, operations: usize) -> usize {
    compares * size_of::<Compare>() + operations * size_of::<BatchOperation>()
}

/// The same for a call.
pub(crate) fn of_parts_asked(call: &Call) -> usize {
    match call {
        Call::Batch(batch) => {
            let operations = batch.then.len() + batch.otherwise.len();
            of_parts(batch.compares.len(), operations)
        }
        Call::Put(_)
        | Call::Delete(_)
        | Call::CompareAndSwap(_)
        | Call::Get(_)
        | Call::Range(_)
        | Call::Compact(_)
        | Call::OpenSession(_)
        | Call::KeepAliveSession(_)
        | Call::CloseSession(_)
        // It waits as it was sent.
        | Call::Forward(_) => 0,
    }
}

/// The same for what is proposed: whoever asked for it is answered by what was asked.
pub(crate) fn of_parts_proposed(command: &Command) -> usize {
    match command {
        Command::Batch(batch) => batch.parts_bytes(),
        Command::Put(_)
        | Command::Delete { .. }
        | Command::CompareAndSwap { .. }
        | Command::Compact { .. }
        | Command::OpenSession { .. }
        | Command::KeepAlive { .. }
        | Command::CloseSession { .. }
        | Command::ExpireSession { .. }
        | Command::ExpireKeys { .. }
        | Command::GrantLease { .. }
        | Command::RevokeLease { .. }
        | Command::ExpireLease { .. }
        | Command::CheckpointLeases { .. } => 0,
    }
}

/// What the largest write takes that the limits let in.
fn of_largest(limits: &Limits) -> usize {
    let most = limits.max_batch_operations;
    limits.max_write_bytes() + of_parts(most, 2 * most) + QUEUED_BYTES
}

/// Counts them. Clones share the count.
#[derive(Clone, Debug)]
pub(crate) struct WriteBytes {
    limit: usize,
    counted: Arc<Mutex<Counted>>,
}

#[derive(Debug, Default)]
struct Counted {
    taken: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// The bytes of one client's writes that wait together, until this is dropped.
pub(crate) struct Counting {
    of: WriteBytes,
    from: Option<IpAddr>,
    bytes: usize,
}

impl WriteBytes {
    /// Of those that wait to be acknowledged.
    pub(crate) fn to_be_acknowledged(limits: &Limits) -> Self {
        let least = of_largest(limits);
        let wanted = limits.max_pending_proposal_bytes.max(least);
        Self::new(memory::most(Use::Writes, wanted, least))
    }

    /// Of those that are passed on to the leader. To the leader, all clients of this member are
    /// one: what that one may have is shared out here.
    pub(crate) fn to_be_passed_on(limits: &Limits) -> Self {
        let all = Self::to_be_acknowledged(limits).limit;
        Self::new(SHARE.more(all, 0, 0).max(of_largest(limits)))
    }

    /// As many, of others.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.limit)
    }

    fn new(limit: usize) -> Self {
        Self {
            limit,
            counted: Arc::default(),
        }
    }

    /// How many there may be.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Counts the bytes of a client's writes; of none so far. `None`: of this member's own.
    pub(crate) fn count(&self, from: Option<IpAddr>) -> Counting {
        Counting {
            of: self.clone(),
            from,
            bytes: 0,
        }
    }

    /// How many of them are that client's.
    pub(crate) fn held_by(&self, from: IpAddr) -> usize {
        let counted = self.counted();
        counted.by_address.get(&from).copied().unwrap_or(0)
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counting {
    /// So many more of one write, unless its client may not have them: then false, and nothing is
    /// counted.
    ///
    /// Who has none may have a write of any size for which there is room.
    #[must_use]
    pub(crate) fn more(&mut self, bytes: usize) -> bool {
        self.more_of(bytes, 1)
    }

    /// The same for so many writes together. Several are held to the share even of who has none:
    /// one by one they would be.
    #[must_use]
    pub(crate) fn more_of(&mut self, bytes: usize, writes: usize) -> bool {
        let limit = self.of.limit;
        let mut counted = self.of.counted();
        let own = self.from.map(|from| counted.by_address.get(&from).copied());
        let room = match own {
            Some(Some(own)) => SHARE.more(limit, counted.taken, own),
            Some(None) if writes > 1 => SHARE.more(limit, counted.taken, 0),
            Some(None) | None => limit.saturating_sub(counted.taken),
        };
        if room < bytes {
            return false;
        }
        counted.taken += bytes;
        if let Some(from) = self.from.filter(|_| bytes > 0) {
            *counted.by_address.entry(from).or_default() += bytes;
        }
        drop(counted);
        self.bytes += bytes;
        true
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let mut counted = self.of.counted();
        counted.taken -= self.bytes;
        let Some(from) = self.from else {
            return;
        };
        if let Some(own) = counted.by_address.get_mut(&from) {
            *own -= self.bytes;
            if *own == 0 {
                counted.by_address.remove(&from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dengine_protocol::v1;

    use super::*;

    fn from(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn one_client_leaves_bytes_to_others_and_gives_its_own_back() {
        let all = WriteBytes::new(100);
        let mut greedy = all.count(from(1));
        while greedy.more(5) {}
        assert_eq!(greedy.bytes, 75);
        assert_eq!(from(1).map(|it| all.held_by(it)), Some(75));
        let (mut again, mut other, mut own) =
            (all.count(from(1)), all.count(from(2)), all.count(None));
        assert!(!again.more(1), "its streams and calls count together");
        assert!(other.more(15) && !other.more(5) && other.more(3));
        assert!(own.more(7) && !own.more(1), "not even a member's own");
        drop((greedy, other, own));
        assert_eq!(all.counted().taken, 0);
        assert!(all.counted().by_address.is_empty());
        assert!(again.more(75));
    }

    /// Two thousand of these were counted as six megabytes, and their callers held fifty.
    #[test]
    fn the_parts_of_a_batch_count_as_they_are_held() {
        let batch = v1::BatchRequest {
            compares: vec![v1::Compare::default(); 128],
            then: vec![v1::Operation::default(); 128],
            ..v1::BatchRequest::default()
        };
        let asked = size_of_val(&*batch.compares) + size_of_val(&*batch.then);
        let counted = of_parts_asked(&Call::Batch(batch));
        assert!(asked / 4 * 3 < counted, "{asked} bytes count as {counted}");
    }

    /// Else a write as large as the limits allow would never be let in while others have some.
    #[test]
    fn who_has_none_may_have_one_of_any_size() {
        let all = WriteBytes::new(100);
        let (mut one, mut other) = (all.count(from(1)), all.count(from(2)));
        assert!(one.more(20) && other.more(80) && !one.more(1));
    }

    /// The sum of a frame's writes passed for a single one, and left nobody else a byte.
    #[test]
    fn a_frame_of_writes_is_held_to_its_share() {
        let all = WriteBytes::new(100);
        let (mut one, mut own) = (all.count(from(1)), all.count(None));
        assert!(!one.more_of(76, 2) && one.more_of(75, 2));
        assert!(own.more_of(25, 2), "a member's own have no share");
    }
}
