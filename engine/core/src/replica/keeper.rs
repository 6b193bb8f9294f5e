//! What a leader does of its own accord: gives up old history, and ends what has outlived its time.

use crate::kv::{
    CommandVersion, Expiry, ReadError, Reader, Request, Retention, RetentionSetting, Store,
};
use crate::types::{Moment, Term};
use bytes::Bytes;

/// Keys that one command expires at most; the rest follows with the next call.
const EXPIRED_KEYS_MAX: usize = 1024;

/// Proposes compactions and expiries. Every member has one, so that a new leader knows how old its
/// history is; only the leader's proposes.
pub struct Keeper<S> {
    reader: Reader<S>,
    retention: Retention,
    /// Of the term in which this member leads: each leader starts all clocks anew, so nothing ends early.
    expiry: Option<(Term, Expiry)>,
}

impl<S: Store> Keeper<S> {
    /// Looks after the store that `reader` reads.
    #[must_use]
    pub fn new(reader: Reader<S>, retention: RetentionSetting) -> Self {
        Self {
            reader,
            retention: Retention::new(retention),
            expiry: None,
        }
    }

    /// The encoded commands to propose now ([`super::Input::Propose`]); none unless this member leads, in
    /// the term of `leads`; in `version`. Call it several times a second. `clock` is asked again and again, for it takes a while to
    /// read a large state.
    ///
    /// # Errors
    /// The store failed.
    pub fn work(
        &mut self,
        leads: Option<Term>,
        version: CommandVersion,
        mut clock: impl FnMut() -> Moment,
    ) -> Result<Vec<Bytes>, ReadError> {
        // In this order: what comes later than a moment must not count as seen at it.
        let revision = self.reader.revision();
        let now = clock();
        self.retention.observe(now, revision);
        let Some(term) = leads else {
            self.expiry = None;
            return Ok(Vec::new());
        };
        let expiry = match &mut self.expiry {
            Some((known, expiry)) if *known == term => expiry,
            other => &mut other.insert((term, Expiry::default())).1,
        };
        expiry.observe(&self.reader, &mut clock)?;
        let mut commands = expiry.due(&self.reader, &mut clock, EXPIRED_KEYS_MAX)?;
        let compacted = self.reader.compact_revision();
        if let Some(revision) = self.retention.proposal(now, revision, compacted) {
            commands.push(crate::kv::Command::Compact { revision });
        }
        let encode = |command| {
            Request {
                session: None,
                command,
            }
            .encode(version)
        };
        Ok(commands.into_iter().map(encode).collect())
    }
}
