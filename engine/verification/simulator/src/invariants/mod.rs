//! What must hold at every moment of every run, one file each, named after the paper's where it has
//! a name for it (Ongaro and Ousterhout 2014, figure 3). They look on: nothing that happens depends
//! on them.

mod applied_once;
mod attachments_agree;
mod commands_are_read;
mod election_safety;
mod equal_hashes;
mod leader_append_only;
mod leader_completeness;
mod lease_ends;
mod lease_exclusive;
mod lease_never_early;
mod lease_whole;
mod linearizable;
mod log_matching;
mod member_id_never_reused;
mod never_expires_early;
mod no_acknowledged_write_lost;
mod session_monotonic;
mod state_machine_safety;
mod watches_complete;

use bytes::Bytes;
use dengine_checker::{History, Rule, Summary, Violation};
use dengine_kv::watch::WatchSpec;
use dengine_kv::{CommandVersion, Event, KeyValue, Membership};
use dengine_raft::consensus::ReplicaState;
use dengine_types::{Entry, EntryKind, Index, LeaseId, MemberId, Revision, Term};

use super::queue::Nanos;
use super::shadow::Shadow;
use super::trace::Hash;

/// What invariants are told of.
pub(super) enum Seen<'a> {
    /// A member's process starts; its disk remembers up to this term.
    Starts {
        member: MemberId,
        term: Term,
        /// The newest version of a command that it reads.
        reads_max: CommandVersion,
    },
    /// A member's role, leader or term changed; `log` is what it then believes its log to be.
    State {
        member: MemberId,
        state: ReplicaState,
        log: &'a Shadow,
    },
    /// A member was elected; `lease_of` leads an earlier term, and may still answer reads by its
    /// lease.
    Elected {
        member: MemberId,
        term: Term,
        lease_of: Option<MemberId>,
    },
    /// A leader may answer reads by its lease from now on; `newer` leads in a later term.
    Leased {
        holder: MemberId,
        newer: Option<MemberId>,
    },
    /// A member adds entries to its log, perhaps in place of others; `log` is how it was before.
    Appends {
        member: MemberId,
        state: ReplicaState,
        log: &'a Shadow,
        entries: &'a [Entry],
    },
    /// A member, whose term is `term` by then, hands committed entries to its state machine.
    Commits {
        member: MemberId,
        term: Term,
        entries: &'a [Entry],
    },
    /// A member's state machine has applied everything up to `index`; `hash` is that of all it
    /// holds.
    Applied {
        member: MemberId,
        index: Index,
        hash: u64,
    },
    /// A member's store has come to this revision.
    Reaches { revision: Revision, now: Nanos },
    /// It is committed that this pair ends, unless it was changed since.
    Expires {
        key: &'a str,
        put: &'a KeyValue,
        now: Nanos,
    },
    /// Somebody was answered that this lease lasts for so long, at least since it asked.
    LeasePromised {
        lease: LeaseId,
        asked: Nanos,
        ttl_ms: u64,
    },
    /// Somebody was answered that there is no such lease.
    LeaseMissing { lease: LeaseId, asked: Nanos },
    /// Somebody asks for the end of this lease.
    LeaseRevoked(LeaseId),
    /// A member has applied that this lease is over.
    LeaseOver { lease: LeaseId, now: Nanos },
    /// What a member has stored: each lease with the keys that it lists, and all pairs.
    Leases {
        member: MemberId,
        leases: &'a [(LeaseId, Vec<Bytes>)],
        pairs: &'a [KeyValue],
    },
    /// The faults have ended, nobody asks for anything any more, and there are so many leases.
    Rests { now: Nanos, leases: usize },
    /// The changes of the next revisions, as a member has stored them.
    History(&'a [Event]),
    /// A watch was told of all changes of these revisions that it had asked for.
    Watched {
        spec: &'a WatchSpec,
        from: Revision,
        to: Revision,
        events: &'a [Event],
    },
    /// A member applied a change of the members: who they are then.
    Members(&'a Membership),
    /// Somebody accepted that what stands behind this entry, at this revision, may be lost: see
    /// [`loss`](crate::loss).
    LossAccepted { index: Index, revision: Revision },
}

/// How things stand once every member has caught up.
pub(super) struct End<'a> {
    pub(super) history: &'a History,
    /// What the checkers of [`dengine_checker`] say of it.
    pub(super) judged: &'a Result<Summary, Violation>,
    /// The value of a key as of a revision; `None` if that revision is compacted.
    pub(super) value_at: &'a dyn Fn(&str, u64) -> Option<Option<String>>,
}

/// One thing that must hold.
pub(super) trait Invariant {
    fn name(&self) -> &'static str;

    /// # Errors
    /// How it was broken.
    fn see(&mut self, _seen: &Seen<'_>) -> Result<(), String> {
        Ok(())
    }

    /// # Errors
    /// How it was broken.
    fn end(&mut self, _end: &End<'_>) -> Result<(), String> {
        Ok(())
    }
}

pub(super) struct Invariants(Vec<Box<dyn Invariant>>);

/// What is checked where it happens: see docs/simulator.md.
#[cfg(feature = "planted-bugs")]
pub(super) const ELSEWHERE: [&str; 12] = [
    "what was synced is there",
    "messages are bounded",
    "heartbeats outlive their stream",
    "streams that break depose nobody",
    "pages are bounded",
    "silent learners do not vote",
    "changes leave a quorum",
    "a refused folder stays refused",
    "every sound folder opens",
    "who lost writes waits",
    "no panic",
    "liveness",
];

/// Which one was broken, and how.
pub(super) type Broken = (&'static str, String);

impl Invariants {
    pub(super) fn new() -> Self {
        Self(vec![
            Box::new(election_safety::ElectionSafety::default()),
            Box::new(lease_exclusive::LeaseExclusive),
            Box::new(leader_append_only::LeaderAppendOnly),
            Box::new(log_matching::LogMatching::default()),
            Box::new(leader_completeness::LeaderCompleteness::default()),
            Box::new(state_machine_safety::StateMachineSafety::default()),
            Box::new(equal_hashes::EqualHashes::default()),
            Box::new(commands_are_read::CommandsAreRead::default()),
            Box::new(member_id_never_reused::MemberIdNeverReused::default()),
            Box::new(never_expires_early::NeverExpiresEarly::default()),
            Box::new(lease_never_early::LeaseNeverEarly::default()),
            Box::new(lease_whole::LeaseWhole::default()),
            Box::new(attachments_agree::AttachmentsAgree),
            Box::new(lease_ends::LeaseEnds::default()),
            Box::new(no_acknowledged_write_lost::NoAcknowledgedWriteLost),
            Box::new(watches_complete::WatchesComplete::default()),
            Box::new(applied_once::AppliedOnce),
            Box::new(session_monotonic::SessionMonotonic),
            Box::new(linearizable::Linearizable),
        ])
    }

    /// Their names, and of those that are checked elsewhere.
    #[cfg(feature = "planted-bugs")]
    pub(super) fn names() -> Vec<&'static str> {
        let here = Self::new().0;
        here.iter().map(|it| it.name()).chain(ELSEWHERE).collect()
    }

    pub(super) fn see(&mut self, seen: &Seen<'_>) -> Result<(), Broken> {
        for invariant in &mut self.0 {
            invariant.see(seen).map_err(|how| (invariant.name(), how))?;
        }
        Ok(())
    }

    pub(super) fn end(&mut self, end: &End<'_>) -> Result<(), Broken> {
        for invariant in &mut self.0 {
            invariant.end(end).map_err(|how| (invariant.name(), how))?;
        }
        Ok(())
    }
}

impl End<'_> {
    /// # Errors
    /// The history breaks one of these rules.
    fn judge(&self, rules: &[Rule]) -> Result<(), String> {
        match self.judged {
            Err(violation) if rules.contains(&violation.rule) => Err(violation.to_string()),
            _ => Ok(()),
        }
    }
}

/// Of everything in an entry but its place.
fn entry_hash(entry: &Entry) -> u64 {
    let kind = match entry.kind {
        EntryKind::Command => b"command".as_slice(),
        EntryKind::Membership => b"membership",
    };
    Hash::of(&[kind, &entry.context, &entry.data]).0
}
