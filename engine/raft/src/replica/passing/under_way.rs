//! What a follower has passed on to its leader, and how much of it may be on its way.

use std::collections::btree_map::{BTreeMap, Entry};
use std::net::IpAddr;
use std::time::Duration;

use dengine_types::{MemberId, Moment, Term};

use super::WAITS_AT_MOST;
use crate::input::Token;
use crate::replica::pending::Run;

/// What a follower has passed on and not been answered, at most. What is beyond that goes to the
/// leader as calls do. With 10 MB a second between them, a heartbeat is answered so a tenth of a
/// second later.
pub(super) const WINDOW_BYTES: usize = 1 << 20;
/// What is known to be neither committed nor refused by then was dropped on its way, or this member
/// hears nothing.
const TAKEN_FOR_LOST: Duration = WAITS_AT_MOST.saturating_mul(2);

/// What this member has passed on and waits for.
#[derive(Debug, Default)]
pub(in crate::replica) struct UnderWay {
    pub(super) waiting: BTreeMap<Token, To>,
    pub(super) window: Window,
    /// The oldest term in which any of them was passed on.
    oldest: Term,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct To {
    pub(super) leader: MemberId,
    pub(super) term: Term,
    pub(super) since: Moment,
    pub(super) client: IpAddr,
    pub(super) bytes: usize,
}

/// What clients have of [`WINDOW_BYTES`]. None may have more than half of what others leave: the
/// rest of its writes are calls, and at the leader all calls of a member have their turns together.
#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) bytes: usize,
    pub(super) of_clients: BTreeMap<IpAddr, usize>,
}

impl Window {
    /// For a client that has nothing of it.
    pub(super) fn room(&self) -> usize {
        (WINDOW_BYTES - self.bytes) / 2
    }

    pub(super) fn take(&mut self, client: IpAddr, bytes: usize) -> bool {
        let own = self.of_clients.get(&client).copied().unwrap_or_default();
        let most = (WINDOW_BYTES - (self.bytes - own)) / 2;
        if own + bytes > most {
            return false;
        }
        self.bytes += bytes;
        self.of_clients.insert(client, own + bytes);
        true
    }

    pub(super) fn give_back(&mut self, client: IpAddr, bytes: usize) {
        self.bytes -= bytes;
        if let Entry::Occupied(mut own) = self.of_clients.entry(client) {
            *own.get_mut() -= bytes;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

impl UnderWay {
    /// Somebody waits for what is committed.
    pub(in crate::replica) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// What it has of the window is taken.
    pub(super) fn add(&mut self, token: Token, to: To) {
        if self.waiting.is_empty() {
            self.oldest = to.term;
        }
        self.waiting.insert(token, to);
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<To> {
        let to = self.waiting.remove(&token)?;
        self.window.give_back(to.client, to.bytes);
        Some(to)
    }

    /// Who waits for this entry, which is committed, if it was passed on in this run.
    pub(in crate::replica) fn committed(
        &mut self,
        entry: &dengine_types::Entry,
        run: Run,
    ) -> Option<Token> {
        if self.waiting.is_empty() {
            return None;
        }
        let token = run.token_of(&entry.context)?;
        self.remove(token).map(|_| token)
    }

    /// Those who wait in vain now that an entry of this term is committed: they were passed on in
    /// an earlier one.
    pub(in crate::replica) fn overtaken_by(&mut self, term: Term) -> Vec<Token> {
        if self.waiting.is_empty() || term <= self.oldest {
            return Vec::new();
        }
        self.oldest = term;
        self.take(|_, to| to.term < term)
    }

    /// Forgets those whose callers are gone, but not at once: who asks and leaves has no more on
    /// its way than others. Those who have waited for too long, too; of them nobody knows.
    pub(in crate::replica) fn prune(
        &mut self,
        now: Moment,
        is_gone: &dyn Fn(Token) -> bool,
    ) -> Vec<Token> {
        self.take(|token, to| now.since(to.since) >= WAITS_AT_MOST && is_gone(token));
        self.take(|_, to| now.since(to.since) >= TAKEN_FOR_LOST)
    }

    pub(super) fn take(&mut self, is_taken: impl Fn(Token, &To) -> bool) -> Vec<Token> {
        let waiting = self.waiting.iter();
        let taken = waiting.filter(|(token, to)| is_taken(**token, to));
        let taken: Vec<_> = taken.map(|(token, _)| *token).collect();
        for token in &taken {
            self.remove(*token);
        }
        taken
    }
}
