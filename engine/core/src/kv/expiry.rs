//! When keys and sessions expire: says which commands a leader should propose.
//!
//! No clock of its own. A leader begins with an empty [`Expiry`], shows it the state every now and then, and asks what is
//! due. A time to live counts from when this leader has first seen the change that gave it, so it may last
//! longer than asked for, by the delay of a tick, a change of leaders or a part of a session's time, and
//! never ends early. What is proposed names the change it is about, so that nothing happens if there was
//! another one since.
//!
//! To read the state takes time, with millions of keys much of it. So the clock is asked *after* something was read when the
//! answer begins a time to live, and *before* when it says whether one is over.

use super::{Command, ExpiredKey, ExpiringKey, ReadError, Reader, SessionInfo, Store};
use crate::planted::planted;
use crate::types::{Index, Moment, Revision, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How many records are read at once.
const PAGE: usize = 1024;
/// When a session was used is known to this part of its time to live.
const LOOKS_PER_TTL: u32 = 4;
/// What was proposed is proposed again after this time, if it is still there.
const RETRY: Duration = Duration::from_secs(1);
/// How many bytes of keys one command holds, unless a single key has more: an entry must fit into a message between
/// members whatever the length of keys.
const DUE_BYTES_MAX: usize = 256 << 10;

/// What one leader knows about time.
#[derive(Clone, Debug, Default)]
pub struct Expiry {
    /// The last key with a time to live that was seen.
    seen_to: Option<ExpiringKey>,
    /// Some keys are due then. Their names stay in the store.
    keys: BTreeSet<DueKeys>,
    /// The last session that was seen.
    session_seen_to: SessionId,
    sessions: BTreeMap<SessionId, Unused>,
    /// When to look at which session again.
    session_looks: BTreeSet<(Moment, SessionId)>,
}

/// The keys that this revision was the last to change and that it gave this time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DueKeys {
    at: Moment,
    revision: Revision,
    ttl_ms: u64,
}

/// A session that nothing was seen to use since.
#[derive(Clone, Copy, Debug)]
struct Unused {
    since: Moment,
    last_used: Index,
}

impl Expiry {
    /// Takes note of the keys that were put and the sessions that were opened since the last call.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn observe<S: Store>(
        &mut self,
        reader: &Reader<S>,
        mut clock: impl FnMut() -> Moment,
    ) -> Result<(), ReadError> {
        self.observe_keys(reader, &mut clock)?;
        self.observe_sessions(reader, &mut clock)
    }

    /// What to propose now: about at most `max` keys, which are not too long together for one command, and at most `max`
    /// sessions. What is not applied is due again a second later.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn due<S: Store>(
        &mut self,
        reader: &Reader<S>,
        mut clock: impl FnMut() -> Moment,
        max: usize,
    ) -> Result<Vec<Command>, ReadError> {
        let mut commands = self.due_sessions(reader, &mut clock, max)?;
        let keys = self.due_keys(reader, &mut clock, max)?;
        if !keys.is_empty() {
            commands.push(Command::ExpireKeys { keys });
        }
        Ok(commands)
    }

    fn observe_keys<S: Store>(
        &mut self,
        reader: &Reader<S>,
        clock: &mut impl FnMut() -> Moment,
    ) -> Result<(), ReadError> {
        loop {
            let page = reader.expiring_keys(self.seen_to.as_ref(), PAGE)?;
            let now = clock();
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
        clock: &mut impl FnMut() -> Moment,
    ) -> Result<(), ReadError> {
        loop {
            let page = reader.sessions(self.session_seen_to, PAGE)?;
            let now = clock();
            for session in &page {
                self.session_seen_to = session.id;
                let unused = Unused {
                    since: now,
                    last_used: session.last_used,
                };
                self.sessions.insert(session.id, unused);
                self.session_looks.insert((now, session.id));
            }
            if page.len() < PAGE {
                return Ok(());
            }
        }
    }

    fn due_sessions<S: Store>(
        &mut self,
        reader: &Reader<S>,
        clock: &mut impl FnMut() -> Moment,
        max: usize,
    ) -> Result<Vec<Command>, ReadError> {
        let begun = clock();
        let mut commands = Vec::new();
        while commands.len() < max
            && let Some(&(at, id)) = self.session_looks.first()
            && at <= begun
        {
            self.session_looks.pop_first();
            match reader.session(id)? {
                Some(session) => commands.extend(self.look_at(&session, begun, clock())),
                None => {
                    self.sessions.remove(&id);
                }
            }
        }
        Ok(commands)
    }

    /// Whether to propose that a session expires, which was read between `begun` and `seen`; and says when to look at
    /// it again.
    fn look_at(&mut self, session: &SessionInfo, begun: Moment, seen: Moment) -> Option<Command> {
        let seen_now = Unused {
            since: seen,
            last_used: session.last_used,
        };
        let unused = self.sessions.entry(session.id).or_insert(seen_now);
        if unused.last_used != session.last_used {
            *unused = seen_now;
        }
        let due_at = deadline(unused.since, session.ttl_ms);
        let next = seen.after(Duration::from_millis(session.ttl_ms) / LOOKS_PER_TTL);
        let is_due = due_at <= begun;
        let next = if is_due {
            seen.after(RETRY)
        } else {
            next.min(due_at)
        };
        self.session_looks.insert((next, session.id));
        is_due.then_some(Command::ExpireSession {
            session: session.id,
            last_used: session.last_used,
        })
    }

    fn due_keys<S: Store>(
        &mut self,
        reader: &Reader<S>,
        clock: &mut impl FnMut() -> Moment,
        max: usize,
    ) -> Result<Vec<ExpiredKey>, ReadError> {
        let begun = clock();
        let mut expired = Vec::new();
        let mut bytes = 0;
        while expired.len() < max
            && bytes < DUE_BYTES_MAX
            && let Some(due) = self.keys.first().copied()
            && due.at <= begun
        {
            let found = expired.len();
            let keys = reader.expiring_keys_of(due.revision)?;
            let keys = keys.into_iter().filter(|key| key.ttl_ms == due.ttl_ms);
            expired.extend(keys.map(|key| ExpiredKey {
                key: key.key,
                mod_revision: key.mod_revision,
            }));
            bytes += expired[found..]
                .iter()
                .map(|it| it.key.len())
                .sum::<usize>();
            self.keys.pop_first();
            if expired.len() > found {
                let at = clock().after(RETRY);
                self.keys.insert(DueKeys { at, ..due });
            }
        }
        Ok(expired)
    }
}

fn deadline(now: Moment, ttl_ms: u64) -> Moment {
    let from = if planted!(ExpiryByLocalClock) {
        Moment(0)
    } else {
        now
    };
    from.after(Duration::from_millis(ttl_ms))
}
