//! One client: a loop that sends its requests one after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dengine_bench_model::results::ReadConsistency;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tokio::time::{sleep, timeout};

use super::pace::Schedule;
use super::recorder::Recorder;
use super::{Operation, Plan, numbers};
use crate::keys::ClientKeys;
use crate::target::{Events, PAGE_KEYS, Way};

/// A client waits so long after a failure, so that a dead target is not hammered.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(10);

/// Which client it is.
#[derive(Clone, Copy)]
pub(super) struct At {
    /// Among all of the load: what it sends follows from this.
    pub(super) index: u64,
    /// Among those of this process: which connection it has follows from this.
    pub(super) place: u64,
}

pub(super) struct Client<W> {
    plan: Plan,
    index: u64,
    way: W,
    keys: ClientKeys,
    value: Bytes,
    /// Draws what a mixed load does next.
    dice: Xoshiro256PlusPlus,
    /// Of a load that watches: the watches, and the key that they are for.
    watched: Option<(Vec<Events>, Bytes)>,
    /// Of a swap load: its key, and the revision that changed that last, if it is known.
    swapped: Option<(Bytes, Option<u64>)>,
    recorder: Arc<Recorder>,
}

impl<W: Way> Client<W> {
    /// A client that is ready to begin: its watches are open, and its key's revision is known.
    ///
    /// # Errors
    /// If a watch could not be opened, or the key not be read.
    pub(super) async fn open(
        plan: Plan,
        at: At,
        way: &impl Fn(usize) -> W,
        value: Bytes,
        recorder: Arc<Recorder>,
    ) -> Result<Self, String> {
        let At { index, place } = at;
        let mut own = way(place as usize);
        let mut keys = plan.keys.client(index);
        let watchers = match plan.operation {
            Operation::Watch(watchers) => u64::from(watchers),
            Operation::Seen => 1,
            Operation::Put
            | Operation::Get(_)
            | Operation::Mixed(..)
            | Operation::Swap
            | Operation::Scan(_) => 0,
        };
        let watched = if watchers > 0 {
            let key = keys.nth(index);
            let first = place * watchers;
            let mut watches = Vec::with_capacity(watchers as usize);
            // Spread over the connections as clients are.
            for place in first..first + watchers {
                watches.push(way(place as usize).watch(key.clone()).await?);
            }
            Some((watches, key))
        } else {
            None
        };
        let swapped = if plan.operation == Operation::Swap {
            let key = keys.nth(index);
            let revision = changed_at(&mut own, &key).await?;
            Some((key, Some(revision)))
        } else {
            None
        };
        let dice = Xoshiro256PlusPlus::seed_from_u64(plan.seed ^ !index);
        Ok(Client {
            plan,
            index,
            way: own,
            keys,
            value,
            dice,
            watched,
            swapped,
            recorder,
        })
    }

    /// Sends everything; returns when the last request was answered.
    pub(super) async fn run(mut self, started: Instant, pace: Option<Schedule>) -> Instant {
        let mut wanted = started;
        let mut last = started;
        let ends = self.plan.ends_after.map(|time| started + time);
        let goes_on = self.plan.at_least.map(|time| started + time);
        for number in numbers(self.index, self.plan.clients, u64::MAX) {
            let all_sent = number >= self.plan.total && goes_on.is_none_or(|until| last >= until);
            if all_sent || ends.is_some_and(|ends| last >= ends) {
                break;
            }
            if let Some(pace) = &pace {
                wanted = pace.wanted(number);
                pace.until(wanted, self.index).await;
            }
            let outcome = self.request(number).await;
            last = Instant::now();
            match outcome {
                Ok(revision) => {
                    self.recorder.record(last - wanted, revision);
                    wanted = last;
                }
                Err(error) => {
                    self.recorder.fail(error);
                    if self.recorder.has_failed() {
                        break;
                    }
                    sleep(PAUSE_AFTER_FAILURE).await;
                    wanted = Instant::now();
                }
            }
        }
        last
    }

    async fn request(&mut self, number: u64) -> Result<u64, String> {
        match self.plan.operation {
            Operation::Put => self.put(number).await,
            Operation::Get(fresh) => self.get(number, fresh).await,
            Operation::Mixed(fresh, read_percent) => {
                if self.dice.random_range(0..100) < read_percent {
                    self.get(number, fresh).await
                } else {
                    self.put(number).await
                }
            }
            Operation::Watch(_) | Operation::Seen => self.put_and_see().await,
            Operation::Swap => self.swap().await,
            Operation::Scan(keys) => self.scan(number, keys).await,
        }
    }

    async fn put(&mut self, number: u64) -> Result<u64, String> {
        self.way.put(self.keys.key(number), &self.value).await
    }

    async fn get(&mut self, number: u64, fresh: ReadConsistency) -> Result<u64, String> {
        let found = self.way.get(self.keys.key(number), fresh).await?;
        if !found.exists {
            return Err("a key that was written before the run was not found".to_owned());
        }
        Ok(found.revision)
    }

    /// No revision is known of it: nobody asks which keys a scan has seen.
    async fn scan(&mut self, number: u64, keys: u64) -> Result<u64, String> {
        let (first, last) = self.keys.row(number, keys);
        let end = [&last[..], &[0]].concat();
        let found = self.way.list(first.to_vec(), end, PAGE_KEYS).await?;
        if found != keys {
            return Err(format!("a scan of {keys} keys in a row found {found}"));
        }
        Ok(0)
    }

    async fn put_and_see(&mut self) -> Result<u64, String> {
        let limit = self.plan.request_timeout;
        let is_read = self.plan.operation == Operation::Seen;
        let (way, value) = (&mut self.way, &self.value);
        let (watches, key) = self
            .watched
            .as_mut()
            .expect("opened with the client of a watch load");
        let seen = async {
            let revision = way.put(key.clone(), value).await?;
            let delivered = async {
                for watch in watches {
                    watch.until(revision).await?;
                }
                Ok::<_, String>(())
            };
            if is_read {
                tokio::try_join!(delivered, reads(way, key.clone(), revision))?;
            } else {
                delivered.await?;
            }
            Ok(revision)
        };
        // Writes and reads are bounded by the target; what a watch tells of them is not.
        let unseen = |_| format!("the watch did not deliver the write within {limit:?}");
        timeout(limit, seen).await.map_err(unseen).flatten()
    }

    async fn swap(&mut self) -> Result<u64, String> {
        let (key, known) = self
            .swapped
            .as_mut()
            .expect("opened with the client of a swap load");
        // Whatever fails now, the swap may have taken place, or may not.
        let last = match known.take() {
            Some(revision) => revision,
            None => changed_at(&mut self.way, key).await?,
        };
        *known = self.way.swap(key.clone(), last, &self.value).await?;
        known.ok_or_else(|| format!("its key was changed by somebody else since revision {last}"))
    }
}

/// A session read returns what was written at this revision, where there are such reads.
async fn reads(way: &mut impl Way, key: Bytes, revision: u64) -> Result<(), String> {
    match way.get_in_session(key).await? {
        Some(found) if found.mod_revision < revision => Err(format!(
            "a session read after the write at revision {revision} returned that of revision {}",
            found.mod_revision
        )),
        Some(_) | None => Ok(()),
    }
}

/// The revision that changed a key last; 0 if the key is not there.
async fn changed_at(way: &mut impl Way, key: &Bytes) -> Result<u64, String> {
    let found = way.get(key.clone(), ReadConsistency::Linearizable).await?;
    Ok(found.mod_revision)
}
