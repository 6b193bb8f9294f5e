//! When keys and sessions expire: says which commands a leader should propose.
//!
//! No clock of its own. A leader begins with an empty [`Expiry`], shows it the state every now and then, and asks what is
//! due. A time to live counts from when this leader has first seen the change that gave it, so it may last
//! longer than asked for, by the delay of a tick, a change of leaders, a 64th of a key's or a part of a session's time,
//! and never ends early. What is proposed names the change it is about, so that nothing happens if there was
//! another one since.
//!
//! To read the state takes time, with millions of keys much of it. So the clock is asked *after* something was read when the
//! answer begins a time to live, and *before* when it says whether one is over.

use super::{Command, ExpiredKey, ExpiringKey, ReadError, Reader, SessionInfo, Store};
use bytes::Bytes;
use dengine_planted::planted;
use dengine_types::{Index, Moment, Revision, SessionId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How many records are read at once.
const PAGE: usize = 1024;
/// When a session was used is known to this part of its time to live.
const LOOKS_PER_TTL: u32 = 4;
/// What was proposed is proposed again after this time, if it is still there: it got lost, with a leader's log or a queue.
pub const RETRY: Duration = Duration::from_secs(4);
/// How many bytes of keys one command holds, unless a single key has more: an entry must fit into a message between
/// members whatever the length of keys.
const DUE_BYTES_MAX: usize = 256 << 10;

/// What one leader knows about time.
#[derive(Clone, Debug, Default)]
pub struct Expiry {
    /// The last key with a time to live that was seen.
    seen_to: Option<ExpiringKey>,
    /// Some keys are due then. Their names stay in the store, and those that are due at nearly the same time share an entry:
    /// there are at most some hundred for each [`TtlClass`], however often keys are put.
    keys: BTreeMap<(Moment, TtlClass), Changes>,
    /// The last session that was seen.
    session_seen_to: SessionId,
    sessions: BTreeMap<SessionId, Unused>,
    /// When to look at which session again.
    session_looks: BTreeSet<(Moment, SessionId)>,
}

/// A session that is to expire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueSession {
    /// Expires it.
    pub command: Command,
    /// How many records go with it.
    pub records: usize,
}

/// Times to live that are kept as one: all that come to this when they are rounded up, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TtlClass(u64);

/// A part of history.
#[derive(Clone, Debug)]
struct Changes {
    from: Revision,
    /// Of the first revision only the keys behind this one.
    after: Option<Bytes>,
    to: Revision,
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

    /// What to propose now: [`Self::due_sessions`] and [`Self::due_keys`]. What is not applied is due again four seconds later.
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

    /// The sessions to expire now, with which at most `max` records go, or one. What is not applied is due again four seconds later.
    ///
    /// # Errors
    /// If the storage fails.
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

    /// Whether to propose that a session expires, which was read between `begun` and `seen`; and says when to look at
    /// it again.
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

    /// For how long the first key that is due has been so; none if no key is.
    #[must_use]
    pub fn overdue(&self, now: Moment) -> Option<Duration> {
        let ((at, _), _) = self.keys.first_key_value()?;
        (*at <= now).then(|| now.since(*at))
    }

    /// The keys that one command should expire now: about at most `max`, which are not too long together. What is not applied is due
    /// again four seconds later.
    ///
    /// # Errors
    /// If the storage fails.
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

    /// Takes note of a key that was seen before `now`.
    fn note(&mut self, key: &ExpiringKey, now: Moment) {
        let class = TtlClass::of(key.ttl_ms);
        let changes = Changes {
            from: key.mod_revision,
            after: None,
            to: key.mod_revision,
        };
        self.add((class.due_at(now), class), changes);
    }

    /// Of everything that these changes gave this time to live, and of everything before them, it is over at that moment. So
    /// it does no harm if changes in between are looked at too.
    fn add(&mut self, due: (Moment, TtlClass), changes: Changes) {
        match self.keys.entry(due) {
            Entry::Vacant(vacant) => {
                vacant.insert(changes);
            }
            Entry::Occupied(mut known) => known.get_mut().extend(&changes),
        }
    }
}

/// How many records end with it: itself, and the answers that are kept for it.
fn records_of(session: &SessionInfo) -> usize {
    usize::try_from(session.replies).map_or(usize::MAX, |it| it.saturating_add(1))
}

impl TtlClass {
    /// Differs from the time to live by at most a 128th of it, and is never less.
    fn of(ttl_ms: u64) -> Self {
        let step = Self::step_ms(ttl_ms);
        Self(ttl_ms.div_ceil(step).saturating_mul(step))
    }

    /// A 256th to a 128th.
    fn step_ms(ttl_ms: u64) -> u64 {
        let bits = u64::BITS - ttl_ms.leading_zeros();
        1 << bits.saturating_sub(8)
    }

    /// When a time to live is over that began before `now`; later by at most a 128th of it.
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

/// What one command expires, while it is gathered.
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

    /// Adds the keys that are still as `changes` left them. Returns where to go on when there is no more room.
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
