//! What a member looks after on its own: says which commands to propose when nobody asked.
//!
//! Expiry of keys and sessions, and compaction by retention. No clock: call it on every tick. The shell that
//! drives a member and the simulator use it alike.

use super::{Command, Expiry, ReadError, Reader, Retention, RetentionSetting, Store};
use crate::types::{Moment, Revision, Term};
use std::time::Duration;

/// How often it looks. What expires does so later by up to this.
const INTERVAL: Duration = Duration::from_millis(100);
/// How many keys, and how many sessions, are proposed to expire at once.
const EXPIRED_MAX: usize = 128;
/// A compaction that was proposed and did not come is proposed again after this.
const COMPACT_RETRY: Duration = Duration::from_secs(1);

/// What one member knows of time and history. Lives as long as the member.
#[derive(Clone, Debug)]
pub struct Upkeep {
    retention: Retention,
    /// What this member knows as leader of this term.
    leading: Option<(Term, Expiry)>,
    looked_at: Option<Moment>,
    compact_after: Moment,
}

impl Upkeep {
    /// Keeps history as `retention` says.
    #[must_use]
    pub fn new(retention: RetentionSetting) -> Self {
        Self {
            retention: Retention::new(retention),
            leading: None,
            looked_at: None,
            compact_after: Moment(0),
        }
    }

    /// What to propose now. `leading` is the term that this member leads, if it does. All of it names what
    /// it is about, so proposing it twice, or too late, changes nothing.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn work<S: Store>(
        &mut self,
        reader: &Reader<S>,
        leading: Option<Term>,
        now: Moment,
    ) -> Result<Vec<Command>, ReadError> {
        let early = |last: Moment| now.since(last) < INTERVAL;
        if self.looked_at.is_some_and(early) {
            return Ok(Vec::new());
        }
        self.looked_at = Some(now);
        let revision = reader.revision();
        self.retention.observe(now, revision);
        let Some(term) = leading else {
            self.leading = None;
            return Ok(Vec::new());
        };
        let mut commands = self.expired(reader, term, now)?;
        commands.extend(self.compaction(reader, revision, now));
        Ok(commands)
    }

    fn expired<S: Store>(
        &mut self,
        reader: &Reader<S>,
        term: Term,
        now: Moment,
    ) -> Result<Vec<Command>, ReadError> {
        // Whatever it knew of an earlier term may have been used in between: all clocks start again.
        let known = self.leading.take().filter(|(known, _)| *known == term);
        let mut expiry = known.map_or_else(Expiry::default, |(_, expiry)| expiry);
        expiry.observe(reader, now)?;
        let due = expiry.due(reader, now, EXPIRED_MAX)?;
        self.leading = Some((term, expiry));
        Ok(due)
    }

    fn compaction<S: Store>(
        &mut self,
        reader: &Reader<S>,
        revision: Revision,
        now: Moment,
    ) -> Option<Command> {
        if now < self.compact_after {
            return None;
        }
        let compacted = reader.compact_revision();
        let revision = self.retention.proposal(now, revision, compacted)?;
        self.compact_after = now.after(COMPACT_RETRY);
        Some(Command::Compact { revision })
    }
}
