//! When keys and sessions expire: says which commands a leader should propose.
//!
//! No clock. A leader begins with an empty [`Expiry`], shows it the state every now and then, and asks what is
//! due. A time to live counts from when this leader has first seen the change that gave it, so it may
//! last longer than asked for, by the delay of a tick or a change of leaders, and never ends early. What is
//! proposed names the change it is about, so that nothing happens if there was another one since.

use super::{Command, ExpiredKey, ExpiringKey, ReadError, Reader, Store};
use crate::types::{Index, Moment, Revision, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How many records are read at once.
const PAGE: usize = 1024;
/// What was proposed is proposed again after this time, if it is still there.
const RETRY: Duration = Duration::from_secs(1);

/// What one leader knows about time.
#[derive(Clone, Debug, Default)]
pub struct Expiry {
    /// The last key with a time to live that was seen.
    seen_to: Option<ExpiringKey>,
    /// Some keys are due then. Their names stay in the store.
    keys: BTreeSet<DueKeys>,
    sessions: BTreeMap<SessionId, DueSession>,
}

/// The keys that this revision was the last to change and that it gave this time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DueKeys {
    at: Moment,
    revision: Revision,
    ttl_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct DueSession {
    at: Moment,
    last_used: Index,
}

impl Expiry {
    /// Takes note of what was put and used since the last call.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn observe<S: Store>(&mut self, reader: &Reader<S>, now: Moment) -> Result<(), ReadError> {
        self.observe_keys(reader, now)?;
        self.observe_sessions(reader, now)
    }

    /// What to propose now: about at most `keys_max` keys, and as many sessions. What is not applied is
    /// due again a second later.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn due<S: Store>(
        &mut self,
        reader: &Reader<S>,
        now: Moment,
        keys_max: usize,
    ) -> Result<Vec<Command>, ReadError> {
        let mut commands = self.due_sessions(now, keys_max);
        let keys = self.due_keys(reader, now, keys_max)?;
        if !keys.is_empty() {
            commands.push(Command::ExpireKeys { keys });
        }
        Ok(commands)
    }

    fn observe_keys<S: Store>(&mut self, reader: &Reader<S>, now: Moment) -> Result<(), ReadError> {
        loop {
            let page = reader.expiring_keys(self.seen_to.as_ref(), PAGE)?;
            self.keys.extend(page.iter().map(|key| DueKeys {
                at: deadline(now, key.ttl_ms),
                revision: key.mod_revision,
                ttl_ms: key.ttl_ms,
            }));
            let complete = page.len() < PAGE;
            self.seen_to = page.into_iter().next_back().or(self.seen_to.take());
            if complete {
                return Ok(());
            }
        }
    }

    fn observe_sessions<S: Store>(
        &mut self,
        reader: &Reader<S>,
        now: Moment,
    ) -> Result<(), ReadError> {
        let mut open = BTreeMap::new();
        let mut after = SessionId(0);
        loop {
            let page = reader.sessions(after, PAGE)?;
            for session in &page {
                let known = self.sessions.get(&session.id).copied();
                let unused = known.filter(|known| known.last_used == session.last_used);
                let due = unused.unwrap_or(DueSession {
                    at: deadline(now, session.ttl_ms),
                    last_used: session.last_used,
                });
                open.insert(session.id, due);
                after = session.id;
            }
            if page.len() < PAGE {
                self.sessions = open;
                return Ok(());
            }
        }
    }

    fn due_sessions(&mut self, now: Moment, max: usize) -> Vec<Command> {
        let due = self.sessions.iter_mut().filter(|(_, it)| it.at <= now);
        due.take(max)
            .map(|(&session, it)| {
                it.at = now.after(RETRY);
                Command::ExpireSession {
                    session,
                    last_used: it.last_used,
                }
            })
            .collect()
    }

    fn due_keys<S: Store>(
        &mut self,
        reader: &Reader<S>,
        now: Moment,
        max: usize,
    ) -> Result<Vec<ExpiredKey>, ReadError> {
        let mut expired = Vec::new();
        while expired.len() < max
            && let Some(due) = self.keys.first().copied()
            && due.at <= now
        {
            let found = expired.len();
            let keys = reader.expiring_keys_of(due.revision)?;
            let keys = keys.into_iter().filter(|key| key.ttl_ms == due.ttl_ms);
            expired.extend(keys.map(|key| ExpiredKey {
                key: key.key,
                mod_revision: key.mod_revision,
            }));
            self.keys.pop_first();
            if expired.len() > found {
                let at = now.after(RETRY);
                self.keys.insert(DueKeys { at, ..due });
            }
        }
        Ok(expired)
    }
}

fn deadline(now: Moment, ttl_ms: u64) -> Moment {
    now.after(Duration::from_millis(ttl_ms))
}
