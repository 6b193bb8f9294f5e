//! What a member applies of a history that may have been given up.
//!
//! When a loss was accepted, every member goes on from what it knew to be committed, and some know
//! more than others. That proves nothing yet: whoever is elected may lack it, and then the member
//! must end. So it is held back, together with what the member tells of it, until the member
//! applies something that was committed since. By that it says that all it has is part of what the
//! others go on with, and it is shown to the invariants like everybody's.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use dengine_types::{Entry, Index, MemberId, Term};

#[derive(Default)]
pub(super) struct Restored {
    /// Who has not started since the last loss was accepted.
    due: BTreeSet<MemberId>,
    held: BTreeMap<MemberId, Held>,
    /// The newest term that anybody has led.
    led: Term,
    /// The same when the last loss was accepted: what comes late of such a term tells of the
    /// history before.
    lost: Term,
}

#[derive(Default)]
struct Held {
    /// The last entry that the member knew to be committed when it started.
    known: Index,
    /// What it has handed to its state machine of that since.
    entries: BTreeMap<Index, Entry>,
}

impl Restored {
    /// A loss was accepted, and all members are stopped.
    pub(super) fn accepted(&mut self, members: impl IntoIterator<Item = MemberId>) {
        self.due.extend(members);
        self.lost = self.led;
    }

    pub(super) fn leads(&mut self, term: Term) {
        self.led = self.led.max(term);
    }

    /// A member starts, and its disk remembers that so much is committed.
    pub(super) fn starts(&mut self, member: MemberId, committed: Index) {
        if self.due.remove(&member) {
            let held = self.held.entry(member).or_default();
            held.known = held.known.max(committed);
        }
    }

    /// Whether a member may still know what nobody goes on with.
    pub(super) fn holds(&self, member: MemberId) -> bool {
        self.held.contains_key(&member)
    }

    /// A snapshot has replaced all that a member knew.
    pub(super) fn installed(&mut self, member: MemberId) {
        self.held.remove(&member);
    }

    /// What is certain by now of what a member, whose term is `term`, hands to its state machine:
    /// these entries, or none of them, or more.
    pub(super) fn commits<'a>(
        &mut self,
        member: MemberId,
        term: Term,
        entries: &'a [Entry],
    ) -> Cow<'a, [Entry]> {
        let Some(held) = self.held.get_mut(&member) else {
            return Cow::Borrowed(entries);
        };
        let lost = self.lost;
        let old = entries.partition_point(|it| it.index <= held.known || term <= lost);
        let (old, new) = entries.split_at(old);
        held.entries
            .extend(old.iter().map(|entry| (entry.index, entry.clone())));
        if new.is_empty() {
            return Cow::Borrowed(&[]);
        }
        let held = self.held.remove(&member).unwrap_or_default();
        let old = held.entries.into_values();
        Cow::Owned(old.chain(new.iter().cloned()).collect())
    }
}
