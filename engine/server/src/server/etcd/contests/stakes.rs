//! Keys by which calls of this member contend, and how such a key ends.
//!
//! Calls with the same lease contend by the same key. It is deleted once the last of them has given
//! up: whoever comes again at once with its lease contends by the key of the call before, which may
//! learn only later that its client has left.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dengine_etcd::contest::Contender;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::server::etcd::door::Door;
use crate::server::places::Place;
use crate::server::serving::Caller;

/// Pause before a key is deleted again whose deletion there was no place for.
const LEAVE_AGAIN: Duration = Duration::from_millis(200);

/// Who contends here, by the keys. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Stakes(Arc<Mutex<HashMap<Bytes, KeyState>>>);

/// What is going on with a key.
enum KeyState {
    /// Calls contend by it, or are about to.
    Claimed(Claimed),
    /// None does, and it is deleted; the token is cancelled when that is over.
    Leaving(CancellationToken),
}

#[derive(Default)]
struct Claimed {
    calls: usize,
    /// For whom a call has given up that was not the last.
    given_up: Option<Contender>,
    /// Whom a client was told of that it holds the lock, or leads.
    won: Option<Contender>,
}

impl Stakes {
    fn keys(&self) -> MutexGuard<'_, HashMap<Bytes, KeyState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has one more call contend by a key, as soon as that is not deleted any more.
    async fn join(&self, key: &Bytes) {
        while let Err(ended) = self.join_now(key) {
            ended.cancelled().await;
        }
    }

    /// # Errors
    /// The key is deleted until this token is cancelled.
    fn join_now(&self, key: &Bytes) -> Result<(), CancellationToken> {
        let mut keys = self.keys();
        let state = keys.entry(key.clone());
        match state.or_insert_with(|| KeyState::Claimed(Claimed::default())) {
            KeyState::Claimed(claimed) => claimed.calls += 1,
            KeyState::Leaving(ended) => return Err(ended.clone()),
        }
        Ok(())
    }

    fn win(&self, contender: &Contender) {
        if let Some(KeyState::Claimed(claimed)) = self.keys().get_mut(&contender.key) {
            claimed.won = Some(contender.clone());
        }
    }

    /// One call less contends by a key; `gives_up`: it would have it deleted. Returns whose key is
    /// to be deleted, which counts as begun.
    fn let_go(&self, key: &Bytes, gives_up: Option<Contender>) -> Option<Contender> {
        let mut keys = self.keys();
        let Entry::Occupied(mut entry) = keys.entry(key.clone()) else {
            return None;
        };
        let KeyState::Claimed(claimed) = entry.get_mut() else {
            return None;
        };
        claimed.calls -= 1;
        // Of a key that was made again meanwhile, the latest.
        let latest = |it: &Contender| it.create_revision;
        claimed.given_up = claimed
            .given_up
            .take()
            .into_iter()
            .chain(gives_up)
            .max_by_key(latest);
        if claimed.calls > 0 {
            return None;
        }
        let leaves = claimed.given_up.take();
        match leaves.filter(|it| claimed.won.as_ref() != Some(it)) {
            None => {
                entry.remove();
                None
            }
            leaves => {
                entry.insert(KeyState::Leaving(CancellationToken::new()));
                leaves
            }
        }
    }
}

/// A deletion that is under way until this is dropped.
struct Deletion {
    stakes: Stakes,
    key: Bytes,
}

impl Drop for Deletion {
    fn drop(&mut self) {
        if let Some(KeyState::Leaving(ended)) = self.stakes.keys().remove(&self.key) {
            ended.cancel();
        }
    }
}

/// That of one call, which contends by a key or is about to.
pub(super) struct Stake {
    stakes: Stakes,
    door: Door,
    caller: Caller,
    key: Bytes,
    /// Whose key goes with this call if it is the last one.
    gives_up: Option<Contender>,
    /// What counts its memory; `None`: the call is over.
    memory: Option<Place>,
}

impl Stake {
    /// Waits while the key of an earlier call is deleted.
    pub(super) async fn begin(
        stakes: &Stakes,
        key: Bytes,
        door: Door,
        (caller, memory): (Caller, Place),
    ) -> Self {
        stakes.join(&key).await;
        Self {
            stakes: stakes.clone(),
            door,
            caller,
            key,
            gives_up: None,
            memory: Some(memory),
        }
    }

    /// From now on, its key goes with this call.
    pub(super) fn waits(&mut self, contender: &Contender) {
        self.gives_up = Some(contender.clone());
    }

    /// The key stays until its owner, or its lease, has it deleted.
    pub(super) fn win(mut self, contender: &Contender) {
        self.stakes.win(contender);
        self.gives_up = None;
    }

    /// The same as dropping it, waited for: its caller is told afterwards that it does not contend.
    pub(super) async fn left(&mut self) {
        if let Some(left) = self.leave() {
            // What became of it is told there.
            let _ = left.await;
        }
    }

    /// Ends the call. Has the key deleted if no other one needs it, whether or not that is waited
    /// for.
    fn leave(&mut self) -> Option<JoinHandle<()>> {
        let memory = self.memory.take()?;
        // Known before anybody can come again.
        let contender = self.stakes.let_go(&self.key, self.gives_up.take())?;
        let deletion = Deletion {
            stakes: self.stakes.clone(),
            key: self.key.clone(),
        };
        let leave = leave(self.door.clone(), contender, self.caller.clone());
        Some(self.door.serving().detach(async move {
            leave.await;
            drop((deletion, memory));
        }))
    }
}

impl Drop for Stake {
    fn drop(&mut self) {
        self.leave();
    }
}

/// If it fails, the key goes with its lease.
async fn leave(door: Door, contender: Contender, caller: Caller) {
    let leave = contender.leave();
    let until = Instant::now() + door.limits().request_timeout();
    loop {
        match door.change("EtcdLeave", &leave, &caller).await {
            // Its address writes as much as it may: it is let in again soon.
            Err(error) if error.code() == Code::ResourceExhausted && Instant::now() < until => {
                sleep(LEAVE_AGAIN).await;
            }
            Err(error) => {
                tracing::debug!(%error, "who contends no more is in the way until its lease ends");
                return;
            }
            Ok(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt as _;

    use super::*;

    const KEY: Bytes = Bytes::from_static(b"l/1");

    fn made_in(create_revision: i64) -> Contender {
        Contender {
            key: KEY,
            create_revision,
            lease: 1,
        }
    }

    #[test]
    fn a_key_is_deleted_when_the_last_call_gives_up() {
        let stakes = Stakes::default();
        stakes.join_now(&KEY).unwrap();
        stakes.join_now(&KEY).unwrap();
        assert_eq!(stakes.let_go(&KEY, Some(made_in(2))), None);
        // This one has not looked yet whether it must wait.
        assert_eq!(stakes.let_go(&KEY, None), Some(made_in(2)));
    }

    #[test]
    fn a_key_that_was_made_again_is_the_one_that_goes() {
        let stakes = Stakes::default();
        stakes.join_now(&KEY).unwrap();
        stakes.join_now(&KEY).unwrap();
        assert_eq!(stakes.let_go(&KEY, Some(made_in(7))), None);
        assert_eq!(stakes.let_go(&KEY, Some(made_in(2))), Some(made_in(7)));
    }

    #[test]
    fn a_lock_that_another_call_was_given_stays() {
        let stakes = Stakes::default();
        stakes.join_now(&KEY).unwrap();
        stakes.join_now(&KEY).unwrap();
        stakes.win(&made_in(2));
        assert_eq!(stakes.let_go(&KEY, None), None);
        assert_eq!(stakes.let_go(&KEY, Some(made_in(2))), None);
        assert!(stakes.keys().is_empty());
    }

    /// It would hold a lock whose key is about to go.
    #[test]
    fn who_comes_again_waits_until_its_key_is_deleted() {
        let stakes = Stakes::default();
        stakes.join_now(&KEY).unwrap();
        assert_eq!(stakes.let_go(&KEY, Some(made_in(2))), Some(made_in(2)));
        let key = KEY;
        let mut joins = pin!(stakes.join(&key));
        assert!(joins.as_mut().now_or_never().is_none());
        drop(Deletion {
            stakes: stakes.clone(),
            key: KEY,
        });
        assert!(joins.as_mut().now_or_never().is_some());
        assert_eq!(stakes.let_go(&KEY, None), None);
        assert!(stakes.keys().is_empty());
    }
}
