//! Commands within a session, and those about sessions.

use bytes::Bytes;
use dengine_types::{Index, SessionId};

use super::Transition;
use crate::layout::{reply_key, session_key};
use crate::outcome::{decode_kept, encode_kept};
use crate::session::{Admission, Session};
use crate::store::{Store, StoreError};
use crate::{Command, Outcome, Refusal, SESSIONS_MAX, SessionStamp};

impl<S: Store> Transition<'_, S> {
    /// Applies a command unless it was applied before, and stores its reply in the same batch as
    /// its effects.
    pub(super) fn within_session(
        &mut self,
        index: Index,
        stamp: SessionStamp,
        command: Command,
    ) -> Result<Outcome, StoreError> {
        let Some(mut session) = self.take_session(stamp.id)? else {
            return Ok(Outcome::Refused(Refusal::UnknownSession(stamp.id)));
        };
        session.last_used = index;
        for sequence in session.acknowledge(stamp.acknowledged) {
            self.drop_reply(stamp.id, sequence);
        }
        let outcome = match session.admit(stamp.sequence) {
            Admission::Refuse(refusal) => Outcome::Refused(refusal),
            Admission::Repeat => self.reply(stamp.id, stamp.sequence)?,
            Admission::Apply => {
                let outcome = self.command(index, command)?;
                let bytes = self.keep_reply(stamp.id, stamp.sequence, &outcome);
                session.replies.insert(stamp.sequence, bytes);
                outcome
            }
        };
        self.sessions.insert(stamp.id, Some(session));
        Ok(outcome)
    }

    pub(super) fn open_session(&mut self, index: Index, ttl_ms: u64) -> Outcome {
        if self.state.sessions >= SESSIONS_MAX {
            return Outcome::Refused(Refusal::TooManySessions(self.state.sessions));
        }
        self.state.sessions += 1;
        let session = SessionId(index.0);
        self.sessions
            .insert(session, Some(Session::new(ttl_ms, index)));
        Outcome::SessionOpened { session }
    }

    pub(super) fn keep_alive(
        &mut self,
        index: Index,
        id: SessionId,
    ) -> Result<Outcome, StoreError> {
        let Some(mut session) = self.take_session(id)? else {
            return Ok(Outcome::Refused(Refusal::UnknownSession(id)));
        };
        session.last_used = index;
        self.sessions.insert(id, Some(session));
        Ok(Outcome::SessionKept)
    }

    /// Ends a session unless it was used after `last_used`.
    pub(super) fn close_session(
        &mut self,
        id: SessionId,
        last_used: Option<Index>,
    ) -> Result<Outcome, StoreError> {
        let Some(session) = self.take_session(id)? else {
            return Ok(Outcome::SessionClosed { closed: false });
        };
        let closed = last_used.is_none_or(|seen| seen == session.last_used);
        if closed {
            self.records = session.replies.len() + 1;
            self.state.sessions = self.state.sessions.checked_sub(1).ok_or_else(|| {
                StoreError::Corrupt(format!("session {id} is open, but the state counts none"))
            })?;
            for &sequence in session.replies.keys() {
                self.drop_reply(id, sequence);
            }
        }
        self.sessions.insert(id, (!closed).then_some(session));
        Ok(Outcome::SessionClosed { closed })
    }

    /// Writes the records of all sessions that the step used.
    pub(super) fn write_sessions(&mut self) {
        for (id, session) in &self.sessions {
            match session {
                Some(session) => self.batch.put(&session_key(*id), &session.encode()),
                None => self.batch.delete(&session_key(*id)),
            }
        }
    }

    /// Takes an open session. Until it is put back into `sessions`, it counts as ended.
    fn take_session(&mut self, id: SessionId) -> Result<Option<Session>, StoreError> {
        if let Some(used) = self.sessions.get_mut(&id) {
            return Ok(used.take());
        }
        let record = self.store.get(&session_key(id))?;
        record
            .map(|record| Session::decode(id, &record))
            .transpose()
    }

    /// The stored reply to a command.
    fn reply(&self, id: SessionId, sequence: u64) -> Result<Outcome, StoreError> {
        let kept = match self.replies.get(&(id, sequence)) {
            Some(kept) => Some(kept.clone()),
            None => self.store.get(&reply_key(id, sequence))?,
        };
        decode_kept(kept.ok_or_else(|| {
            StoreError::Corrupt(format!("session {id} lacks its answer {sequence}"))
        })?)
    }

    /// Returns the size of the stored reply.
    fn keep_reply(&mut self, id: SessionId, sequence: u64, outcome: &Outcome) -> u64 {
        let record = Bytes::from(encode_kept(outcome));
        let bytes = record.len() as u64;
        self.batch.put(&reply_key(id, sequence), &record);
        self.replies.insert((id, sequence), record);
        bytes
    }

    fn drop_reply(&mut self, id: SessionId, sequence: u64) {
        self.batch.delete(&reply_key(id, sequence));
        self.replies.remove(&(id, sequence));
    }
}
