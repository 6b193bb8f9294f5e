//! Which caller waits for which entry.

use std::collections::BTreeMap;

use dengine_planted::planted;
use dengine_types::{Entry, Index, MemberId};

use crate::input::Token;

/// One run of a member. What it proposes carries a context that no other run makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) member_id: MemberId,
    pub(super) boot_nonce: u64,
}

impl Run {
    pub(super) const CONTEXT_BYTES: usize = 3 * size_of::<u64>();

    /// Unique over all members and all their starts, so that an entry answers only its own caller.
    pub(super) fn context(self, token: Token) -> [u8; Self::CONTEXT_BYTES] {
        let mut context = [0; Self::CONTEXT_BYTES];
        let parts = [self.member_id.0, self.boot_nonce, token.0].map(u64::to_be_bytes);
        context.copy_from_slice(parts.as_flattened());
        context
    }

    /// Which proposal of this run a context is of, if it is of one.
    pub(super) fn token_of(self, context: &[u8]) -> Option<Token> {
        let context = <[u8; Self::CONTEXT_BYTES]>::try_from(context).ok()?;
        let (parts, _) = context.as_chunks::<{ size_of::<u64>() }>();
        let token = Token(u64::from_be_bytes(*parts.last()?));
        (context == self.context(token)).then_some(token)
    }
}

/// What is known of a proposal once an entry is committed where this member's log had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Committed(Token),
    /// It is in no log that counts, and never will be.
    Lost(Token),
}

/// The proposals that are in the log, not yet committed, and waited for; by where they were put.
#[derive(Debug, Default)]
pub(super) struct Pending {
    by_index: BTreeMap<Index, Token>,
}

impl Pending {
    /// A proposal is in the log. Returns the one that was there before.
    ///
    /// Two proposals at one index: this member led twice, and its log lost the first. Another log
    /// may hold it yet, and a member that wins the next election with that commits it (Raft
    /// thesis §3.6.2): what becomes of it is unknown.
    pub(super) fn proposed(&mut self, index: Index, token: Token) -> Option<Token> {
        self.by_index.insert(index, token)
    }

    /// What this entry, which is committed, says of the proposal that was waited for at its place,
    /// if one was. One with another context proves that the proposal is in no log any more.
    pub(super) fn committed(&mut self, entry: &Entry, run: Run) -> Option<Fate> {
        let token = self.by_index.remove(&entry.index)?;
        let is_it = entry.context == run.context(token)[..] || planted!(AnsweredByAnotherEntry);
        Some(match is_it {
            true => Fate::Committed(token),
            false => Fate::Lost(token),
        })
    }

    /// Forgets those whose callers are gone.
    pub(super) fn prune(&mut self, is_gone: &dyn Fn(Token) -> bool) {
        self.by_index.retain(|_, token| !is_gone(*token));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dengine_types::{EntryKind, Term};

    use super::*;

    const RUN: Run = Run {
        member_id: MemberId(1),
        boot_nonce: 7,
    };
    const FIRST: Token = Token(1);
    const SECOND: Token = Token(2);

    fn entry(index: u64, token: Token) -> Entry {
        Entry {
            index: Index(index),
            term: Term(9),
            kind: EntryKind::Command,
            context: Bytes::copy_from_slice(&RUN.context(token)),
            data: Bytes::new(),
        }
    }

    /// Of five members, A puts `first` at 13 and only E gets it. A loses its log from 11 on to
    /// another leader, leads again and puts `second` at 13; but E is elected by those who have
    /// neither, and commits `first`.
    #[test]
    fn whoever_was_displaced_is_told_nothing() {
        let mut pending = Pending::default();
        assert_eq!(pending.proposed(Index(13), FIRST), None);
        let displaced = pending.proposed(Index(13), SECOND);
        assert_eq!(displaced, Some(FIRST), "nobody knows what becomes of it");
        // What is committed in its place proves that the second is in no log that counts.
        let fate = pending.committed(&entry(13, FIRST), RUN);
        assert_eq!(fate, Some(Fate::Lost(SECOND)));
    }

    /// Behind a quorum that does not answer, callers give up, and others come.
    #[test]
    fn callers_that_gave_up_are_forgotten_and_no_others() {
        let mut pending = Pending::default();
        pending.proposed(Index(13), FIRST);
        pending.proposed(Index(14), SECOND);
        pending.prune(&|token| token == SECOND);
        assert_eq!(pending.by_index.len(), 1);
        let fate = pending.committed(&entry(13, FIRST), RUN);
        assert_eq!(fate, Some(Fate::Committed(FIRST)));
    }

    #[test]
    fn an_entry_answers_its_own_caller() {
        let mut pending = Pending::default();
        pending.proposed(Index(13), FIRST);
        assert_eq!(pending.committed(&entry(12, FIRST), RUN), None);
        let fate = pending.committed(&entry(13, FIRST), RUN);
        assert_eq!(fate, Some(Fate::Committed(FIRST)));
        assert_eq!(pending.committed(&entry(13, FIRST), RUN), None);
    }

    #[test]
    fn no_other_member_and_no_other_start_makes_the_same_context() {
        let contexts = [(1, 7, 3), (2, 7, 3), (1, 8, 3), (1, 7, 4)].map(|(id, nonce, token)| {
            let run = Run {
                member_id: MemberId(id),
                boot_nonce: nonce,
            };
            run.context(Token(token))
        });
        let different: std::collections::BTreeSet<_> = contexts.into();
        assert_eq!(different.len(), 4);
    }
}
