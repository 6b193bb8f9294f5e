//! When keys and sessions expire: decides which commands a leader proposes.
//!
//! It has no clock of its own. A leader begins with an empty [`Expiry`], has it observe the state
//! regularly, and asks what is due. A time to live counts from when this leader first observed the
//! change that set it, so it may last longer than requested, by the delay of a tick, a change of
//! leaders, a 64th of a key's time or a part of a session's, and never ends early. A proposal names
//! the change to which it refers, so that it does nothing if there was another change since.
//!
//! Reading the state takes time, with millions of keys much of it. So the clock is read *after* the
//! state when the result begins a time to live, and *before* the state when the result decides
//! whether one is over.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::{Index, Moment, Revision, SessionId};

use super::{Command, ExpiredKey, ExpiringKey, ReadError, Reader, SessionInfo, Store};

/// How many records are read at once.
const PAGE: usize = 1024;
/// A session is checked this many times within its time to live.
const LOOKS_PER_TTL: u32 = 4;
/// A proposal is repeated after this time if it was not applied: it was lost with a leader's log or
/// a queue.
pub const RETRY: Duration = Duration::from_secs(4);
/// The bytes of keys in one command, unless a single key has more: an entry must fit into a message
/// between members whatever the length of keys.
const DUE_BYTES_MAX: usize = 256 << 10;

/// The deadlines that one leader knows.
#[derive(Clone, Debug, Default)]
pub struct Expiry {
    /// The last key with a time to live that was observed.
    seen_to: Option<ExpiringKey>,
    /// Deadlines of keys. Their names stay in the store, and deadlines that are nearly the same
    /// share an entry: there are at most some hundred for each [`TtlClass`], however often keys are
    /// put.
    keys: BTreeMap<(Moment, TtlClass), Changes>,
    /// The last session that was observed.
    session_seen_to: SessionId,
    sessions: BTreeMap<SessionId, Unused>,
    /// When to check which session again.
    session_looks: BTreeSet<(Moment, SessionId)>,
}

/// A session to expire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueSession {
    /// The command that expires it.
    pub command: Command,
    /// How many records the command removes.
    pub records: usize,
}

/// A class of times to live that are tracked together: all that round up to this, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TtlClass(u64);

#[derive(Clone, Debug)]
struct Changes {
    from: Revision,
    /// Of the first revision only the keys after this one.
    after: Option<Bytes>,
    to: Revision,
}

/// A session that was not used since it was checked.
#[derive(Clone, Copy, Debug)]
struct Unused {
    since: Moment,
    last_used: Index,
}

impl Expiry {
    /// Observes the keys that were put and the sessions that were opened since the last call.
    pub fn observe<S: Store>(
        &mut self,
        reader: &Reader<S>,
        mut clock: impl FnMut() -> Moment,
    ) -> Result<(), ReadError> {
        self.observe_keys(reader, &mut clock)?;
        self.observe_sessions(reader, &mut clock)
    }

    /// The commands to propose now: [`Self::due_sessions`] and [`Self::due_keys`]. If they are not
    /// applied they are due again four seconds later.
    #[cfg(test)]
    pub(super) fn due<S: Store>(
        &mut self,
        reader: &Reader<S>,
        mut clock: impl FnMut() -> Moment,
        max: usize,
    ) -> Result<Vec<Command>, ReadError> {
        let sessions = self.due_sessions(reader, &mut clock, max)?;
        let mut commands: Vec<_> = sessions.into_iter().map(|it| it.command).collect();
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
            for key in &page {
                self.note(key, now);
            }
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

    /// The sessions to expire now, which remove at most `max` records together, or one session. If
    /// they are not applied they are due again four seconds later.
    pub fn due_sessions<S: Store>(
        &mut self,
        reader: &Reader<S>,
        clock: &mut impl FnMut() -> Moment,
        max: usize,
    ) -> Result<Vec<DueSession>, ReadError> {
        let begun = clock();
        let (mut due, mut records) = (Vec::new(), 0_usize);
        while records < max
            && let Some(&(at, id)) = self.session_looks.first()
            && at <= begun
        {
            let Some(session) = reader.session(id)? else {
                self.session_looks.pop_first();
                self.sessions.remove(&id);
                continue;
            };
            if self.is_due(&session, begun) {
                records = records.saturating_add(records_of(&session));
                if records > max && !due.is_empty() {
                    break;
                }
            }
            self.session_looks.pop_first();
            due.extend(self.look_at(&session, begun, clock()));
        }
        Ok(due)
    }

    fn is_due(&self, session: &SessionInfo, begun: Moment) -> bool {
        let unused = self.sessions.get(&session.id);
        let unused = unused.filter(|it| it.last_used == session.last_used);
        unused.is_some_and(|it| deadline(it.since, session.ttl_ms) <= begun)
    }

    /// Whether to propose the expiry of a session that was read between `begun` and `seen`; also
    /// schedules the next check.
    fn look_at(
        &mut self,
        session: &SessionInfo,
        begun: Moment,
        seen: Moment,
    ) -> Option<DueSession> {
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
        is_due.then(|| DueSession {
            command: Command::ExpireSession {
                session: session.id,
                last_used: session.last_used,
            },
            records: records_of(session),
        })
    }

    /// For how long the first due key has been due; `None` if no key is.
    #[must_use]
    pub fn overdue(&self, now: Moment) -> Option<Duration> {
        let ((at, _), _) = self.keys.first_key_value()?;
        (*at <= now).then(|| now.since(*at))
    }

    /// The keys that one command should expire now: at most about `max`, of a limited length
    /// together. If they are not applied they are due again four seconds later.
    pub fn due_keys<S: Store>(
        &mut self,
        reader: &Reader<S>,
        clock: &mut impl FnMut() -> Moment,
        max: usize,
    ) -> Result<Vec<ExpiredKey>, ReadError> {
        let begun = clock();
        let mut found = FoundDue::new(max);
        while found.keys.len() < max
            && let Some(entry) = self.keys.first_entry()
            && entry.key().0 <= begun
        {
            let ((at, class), changes) = entry.remove_entry();
            let before = found.keys.len();
            let rest = found.take(reader, class, &changes)?;
            if let Some(last) = found.keys[before..].last() {
                let to = last.mod_revision;
                let again = (clock().after(RETRY), class);
                self.add(again, Changes { to, ..changes });
            }
            if let Some(rest) = rest {
                self.add((at, class), rest);
                break;
            }
        }
        Ok(found.keys)
    }

    /// Observes a key that was read before `now`.
    fn note(&mut self, key: &ExpiringKey, now: Moment) {
        let class = TtlClass::of(key.ttl_ms);
        let changes = Changes {
            from: key.mod_revision,
            after: None,
            to: key.mod_revision,
        };
        self.add((class.due_at(now), class), changes);
    }

    /// Sets the deadline of these changes. It holds for earlier changes of the same time to live
    /// too, so that checking changes in between is harmless.
    fn add(&mut self, due: (Moment, TtlClass), changes: Changes) {
        match self.keys.entry(due) {
            Entry::Vacant(vacant) => {
                vacant.insert(changes);
            }
            Entry::Occupied(mut known) => known.get_mut().extend(&changes),
        }
    }
}

/// How many records are removed with a session: its own, and its stored replies.
fn records_of(session: &SessionInfo) -> usize {
    usize::try_from(session.replies).map_or(usize::MAX, |it| it.saturating_add(1))
}

impl TtlClass {
    /// Exceeds the time to live by at most a 128th of it.
    fn of(ttl_ms: u64) -> Self {
        let step = Self::step_ms(ttl_ms);
        Self(ttl_ms.div_ceil(step).saturating_mul(step))
    }

    /// A 256th to a 128th.
    fn step_ms(ttl_ms: u64) -> u64 {
        let bits = u64::BITS - ttl_ms.leading_zeros();
        1 << bits.saturating_sub(8)
    }

    /// The deadline of a time to live that began before `now`; later by at most a 128th of it.
    fn due_at(self, now: Moment) -> Moment {
        let step_nanos = Self::step_ms(self.0).saturating_mul(1_000_000);
        let steps = deadline(now, self.0).0.div_ceil(step_nanos);
        Moment(steps.saturating_mul(step_nanos))
    }
}

impl Changes {
    fn extend(&mut self, other: &Self) {
        if other.from <= self.from {
            self.from = other.from;
            self.after = None;
        }
        self.to = self.to.max(other.to);
    }
}

/// The keys that one command expires, while they are gathered.
struct FoundDue {
    keys: Vec<ExpiredKey>,
    bytes: usize,
    keys_max: usize,
}

impl FoundDue {
    fn new(keys_max: usize) -> Self {
        Self {
            keys: Vec::new(),
            bytes: 0,
            keys_max,
        }
    }

    /// Adds the keys that `changes` were the last to change. Returns where to continue if there is
    /// no more room.
    fn take<S: Store>(
        &mut self,
        reader: &Reader<S>,
        class: TtlClass,
        changes: &Changes,
    ) -> Result<Option<Changes>, ReadError> {
        let mut rest = changes.clone();
        loop {
            let revisions = rest.from..=rest.to;
            let page = reader.expiring_keys_of(revisions, rest.after.as_deref(), PAGE)?;
            let complete = page.len() < PAGE;
            for key in page {
                if TtlClass::of(key.ttl_ms) == class && !self.add(&key) {
                    return Ok(Some(rest));
                }
                rest.from = key.mod_revision;
                rest.after = Some(key.key);
            }
            if complete {
                return Ok(None);
            }
        }
    }

    /// Whether there was room.
    fn add(&mut self, key: &ExpiringKey) -> bool {
        let bytes = self.bytes + key.key.len();
        let fits = self.keys.is_empty() || bytes <= DUE_BYTES_MAX;
        if !fits || self.keys.len() >= self.keys_max {
            return false;
        }
        self.bytes = bytes;
        self.keys.push(ExpiredKey {
            key: key.key.clone(),
            mod_revision: key.mod_revision,
        });
        true
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
