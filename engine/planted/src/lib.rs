//! Bugs planted at the lines of shipped crates that they break, to prove that the simulator and the
//! models of threads (`dengine-raft`, `src/models`) find them.
//!
//! Each place asks `planted!(Name)`, which is a constant `false` unless this crate was built with
//! the feature `planted-bugs` and the simulator or a model switched that bug on for its thread. No
//! build that ships enables the feature. `docs/simulator.md` shows how many seeds it takes to find
//! each.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bug {
    /// A vote is sent before it is on disk.
    VoteNotSynced,
    /// The log reports entries as synced that were only written.
    AckBeforeSync,
    /// A lease lasts for two election timeouts.
    LeaseTooLong,
    /// A leader computes its lease from its own settings, not from what the voters that answered
    /// have promised.
    PromiseIgnored,
    /// An answer without a lease promise, as an older program sends it, counts as a promise of the
    /// leader's own duration.
    NoPromiseCounted,
    /// After a restart a member withholds its vote for the duration that its settings now say, not
    /// for the one that it promised before.
    RestartWaitsByNewSettings,
    /// A leader that transfers leadership keeps its lease.
    LeaseKeptOverTransfer,
    /// A member grants votes at once after a restart, whatever it promised before.
    RestartedVoterDoesNotWait,
    /// A member that has answered a leader votes for another as soon as it learns of a later term.
    RoundForgottenForLaterTerm,
    /// The applied index is written before the data, in a separate batch.
    AppliedIndexApartFromData,
    /// After a restart a member counts only itself and the first other voter as the quorum.
    QuorumCountedWrong,
    /// A new leader answers reads before it has committed anything in its term.
    ReadBeforeFirstCommit,
    /// The log is truncated to the applied index, whether the state was flushed or not.
    LogTruncatedPastFlush,
    /// The id of the newest member is assigned again after its removal.
    MemberIdReused,
    /// A damaged batch is taken for the end of the log, although later batches prove that it was on
    /// disk.
    CorruptMiddleTakenForTornTail,
    /// A caller gets the outcome of the entry that took the place of its own.
    AnsweredByAnotherEntry,
    /// A caller whose entry was removed from this member's log is answered that nothing was
    /// changed, although another log may still hold it.
    DisplacedTakenForDead,
    /// What was passed on to a leader that is out of reach by now is answered as refused, although
    /// the leader may have proposed it.
    PassedOnTakenForRefused,
    /// A leader takes what was passed on to it whenever it arrives.
    PassedOnTakenAgain,
    /// Consecutive appends are merged into one message without a limit on its size.
    MessagesMergedWithoutBound,
    /// The queue of a peer is bounded in messages, and not in bytes.
    QueueBoundedInNumberOnly,
    /// When a stream breaks, queued heartbeats are dropped together with log messages.
    QueueThrownAwayWithHeartbeats,
    /// The backoff of a stream is not reset when the peer answers.
    PauseNeverReset,
    /// A learner is promoted although it does not answer.
    SilentLearnerPromoted,
    /// A learner is promoted although its disk does not take the entries that it is sent.
    StuckLearnerPromoted,
    /// A member counts towards the quorum after a change although its disk does not take the
    /// entries that it is sent.
    StuckVoterCounted,
    /// A membership change is answered before an entry behind it is committed.
    ChangeNotSettled,
    /// With `memory-first`, entries behind a membership change are acknowledged before they are on
    /// disk, although the change is not known on this disk to be committed.
    SettlingNotSynced,
    /// The log is truncated to the flushed index, although consensus does not know yet that it is
    /// applied.
    TruncatedPastApplied,
    /// A read joins a ReadIndex round that was started before the read arrived.
    ReadJoinsEarlierRound,
    /// A peer's read joins a ReadIndex round of its leader that was started before it arrived.
    PeerReadJoinsEarlierRound,
    /// After a failed sync the log tries to sync again.
    SyncTriedAgain,
    /// A follower answers a confirmed read before it has applied up to its index.
    ReadBeforeApply,
    /// A leader serves a lease read before it has applied what it has sent to others as committed.
    LeaseReadBeforeApply,
    /// A follower acknowledges entries before they are on disk.
    AppendAcknowledgedEarly,
    /// A snapshot claims one entry more than it contains.
    SnapshotWithoutLastEntry,
    /// A complete snapshot is installed although the log was not reset to it.
    InstallWithoutCommitRecord,
    /// The state that an installation replaced is removed before the renames are synced.
    InstallNotSynced,
    /// A watch that missed pages continues with the next one.
    WatchSkipsGap,
    /// A page that begins inside a revision omits the first remaining change of it.
    WatchSkipsInsideRevision,
    /// A page of history is bounded in changes read, and not in bytes.
    PageNotBoundedInBytes,
    /// After a restart a member has no sessions.
    SessionsLostOnRestart,
    /// A time to live ends at an absolute time of the leader's clock, not a duration after the put.
    ExpiryByLocalClock,
    /// A truncation of the log waits behind a write that has no disk space.
    TruncationWaitsBehindWrite,
    /// An expiry deletes the key whatever its current revision, not only the value that was to
    /// expire.
    ExpiryWithoutRevision,
    /// Batches that no later one proves to be on disk are not rewritten when a log is opened.
    TailNotRewritten,
    /// A member whose log is missing creates an empty one, which the next start accepts.
    MissingLogRecreated,
    /// A leader encodes commands in the newest version that it reads itself.
    CommandProposedTooEarly,
    /// A leader writes entries again that its disk has not confirmed yet, together with new ones.
    UnconfirmedWrittenAgain,
    /// A follower accepts entries without comparing the entry before them.
    PreviousEntryNotCompared,
    /// A leader counts the quorum without a member that was promoted to voter.
    PromotionNotCounted,
    /// A leader appends proposals, then finds that there are too many and answers that nothing was
    /// changed.
    RefusedAfterAppend,
    /// Entries in memory stay although a later leader's entries replace them.
    ConflictStaysInMemory,
    /// Entries on disk are read although a later leader's entries replace them.
    ConflictStaysInLog,
    /// An entry of an older program that was not applied before the upgrade is skipped.
    OlderCommandSkipped,
    /// A command that is repeated within its session is applied again.
    RepeatAppliedAgain,
    /// A session reads from a member that has not reached the revision that the session has seen.
    SessionReadAtOnce,
    /// Entries are sent to followers without the context of their proposal.
    ContextNotSent,
    /// A candidate counts pre-votes as votes.
    PreVoteTakenForVote,
    /// A delete that matches no key takes a revision.
    RevisionForNothing,
    /// The comparisons of a batch within a batch see what the operations before it have changed.
    NestedCompareAfterWrites,
    /// A member whose leader's log contradicts its own refuses it without end, and goes on
    /// answering callers.
    ContradictionIgnored,
    /// A follower does not compare the entries that it has committed with those of the leader.
    CommittedNotCompared,
    /// A follower accepts the confirmation of a read by a leader whose log contradicts its own.
    ReadConfirmedByAnotherHistory,
    /// A member that may have lost the end of its log stands for election without a delay.
    LostWritesStandAtOnce,
    /// A member that ended because its history was given up starts from it again.
    GivenUpHistoryStarts,
    /// A member whose state is ahead of its log, which a person has accepted, does not reset its
    /// log.
    StateAheadAfterRecover,
    /// A member whose disk failed on acknowledged writes starts from it again, as long as the boot
    /// id is the same.
    TrustedAfterFailedSync,
    /// A member that believes that it leads keeps leases alive without asking anybody.
    KeepAliveByDeposedLeader,
    /// A lease is kept alive although its end is proposed.
    KeepAliveOverPendingExpiry,
    /// A key that is attached to another lease, or to none, is still listed by the one before.
    DetachForgotten,
    /// The keys of a lease that ends go in a revision each.
    LeaseKeysGoApart,
    /// A new leader counts no time of the leases that were granted before it.
    LeasesNotCountedAgain,
    /// A snapshot lacks the records that tell which keys are attached to which lease.
    AttachmentsLostOnSnapshot,
    // It takes threads to see the bugs from here on. The simulator has one, in which loads and
    // stores happen in program order, so these are not in `ALL`, and a test of `src/models` in
    // `dengine-raft` switches each on.
    /// The limit of the lease is stored without ordering after the stores of what was applied.
    LeaseWordUnordered,
    /// The applied index is published without ordering after the writes.
    PublishedUnordered,
    /// What is applied is published before it is written.
    PublishedBeforeWritten,
    /// A read checks whether its revision is compacted before it has opened its cursor.
    CompactedAskedTooEarly,
    /// A flush reports the index that is applied after it, not the one that was applied before.
    FlushedReadAfterwards,
    /// The budget for an answer is checked and taken in two separate steps.
    RoomTakenInTwoSteps,
    /// A task that waits for answers registers its waker after it has looked for them.
    WakerLeftAfterLook,
    /// A segment's file is reused while a reader has it open.
    FileReusedWhileRead,
    /// A task that waits for a revision registers after it has looked for it.
    LookedBeforeWaiting,
    /// The streams of watches are notified before the ring has what they are notified of.
    NotifiedBeforeRing,
    /// Who follows revisions and wakes for a stream leaves the ring where it was.
    WokenWithoutGap,
    /// Who follows revisions is woken before there is a stream.
    WokenBeforeListened,
    /// A reader is given the newest state of a key that the cache has, although it is newer than
    /// the revision at which it reads.
    CachedPastRevision,
    /// The cache keeps what a reader found of a key though a later state of it was forgotten.
    KeptThoughLaterForgotten,
    /// A page is marked with the watches that want it after it was read, not before.
    MarkedAfterRead,
    /// A page wakes the streams whose events it has, though it lacks those of newer watches.
    WokenByEventsAlone,
    /// The task of a link registers its waker after it has looked for messages.
    LinkWakerLeftAfterLook,
    /// The task of a link checks whether it is closed before it takes what was queued.
    ClosedBeforeQueued,
    /// A sender checks whether the receiver sleeps before there is something to receive.
    WokenBeforeSent,
    /// Whoever gives the place of a receiver back does not look for what came meanwhile.
    GivenBackUnseen,
}

impl Bug {
    /// The bugs that the simulator finds; docs/simulator.md says in how many seeds.
    pub const ALL: [Self; 74] = [
        Self::VoteNotSynced,
        Self::AckBeforeSync,
        Self::LeaseTooLong,
        Self::PromiseIgnored,
        Self::LeaseKeptOverTransfer,
        Self::RestartedVoterDoesNotWait,
        Self::RoundForgottenForLaterTerm,
        Self::AppliedIndexApartFromData,
        Self::QuorumCountedWrong,
        Self::ReadBeforeFirstCommit,
        Self::LogTruncatedPastFlush,
        Self::MemberIdReused,
        Self::CorruptMiddleTakenForTornTail,
        Self::AnsweredByAnotherEntry,
        Self::MessagesMergedWithoutBound,
        Self::TruncatedPastApplied,
        Self::ReadJoinsEarlierRound,
        Self::PeerReadJoinsEarlierRound,
        Self::SyncTriedAgain,
        Self::ReadBeforeApply,
        Self::LeaseReadBeforeApply,
        Self::AppendAcknowledgedEarly,
        Self::TailNotRewritten,
        Self::SnapshotWithoutLastEntry,
        Self::InstallWithoutCommitRecord,
        Self::InstallNotSynced,
        Self::WatchSkipsGap,
        Self::WatchSkipsInsideRevision,
        Self::SessionsLostOnRestart,
        Self::ExpiryByLocalClock,
        Self::ExpiryWithoutRevision,
        Self::MissingLogRecreated,
        Self::CommandProposedTooEarly,
        Self::UnconfirmedWrittenAgain,
        Self::PreviousEntryNotCompared,
        Self::PromotionNotCounted,
        Self::RefusedAfterAppend,
        Self::ConflictStaysInMemory,
        Self::ConflictStaysInLog,
        Self::OlderCommandSkipped,
        Self::RepeatAppliedAgain,
        Self::SessionReadAtOnce,
        Self::ContextNotSent,
        Self::PreVoteTakenForVote,
        Self::RevisionForNothing,
        Self::NestedCompareAfterWrites,
        Self::RestartWaitsByNewSettings,
        Self::DisplacedTakenForDead,
        Self::PassedOnTakenForRefused,
        Self::PassedOnTakenAgain,
        Self::SilentLearnerPromoted,
        Self::ContradictionIgnored,
        Self::CommittedNotCompared,
        Self::ReadConfirmedByAnotherHistory,
        Self::LostWritesStandAtOnce,
        Self::GivenUpHistoryStarts,
        Self::StateAheadAfterRecover,
        Self::TrustedAfterFailedSync,
        Self::StuckLearnerPromoted,
        Self::StuckVoterCounted,
        Self::ChangeNotSettled,
        Self::SettlingNotSynced,
        Self::NoPromiseCounted,
        Self::QueueBoundedInNumberOnly,
        Self::QueueThrownAwayWithHeartbeats,
        Self::PauseNeverReset,
        Self::PageNotBoundedInBytes,
        Self::TruncationWaitsBehindWrite,
        Self::KeepAliveByDeposedLeader,
        Self::KeepAliveOverPendingExpiry,
        Self::DetachForgotten,
        Self::LeaseKeysGoApart,
        Self::LeasesNotCountedAgain,
        Self::AttachmentsLostOnSnapshot,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.extend(letter.to_lowercase());
        }
        name
    }

    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bug| bug.name() == name)
    }
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static ON: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Switches one bug on for this thread, and all others off.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    ON.set(bug);
}

/// Whether this thread has the bug switched on.
#[cfg(feature = "planted-bugs")]
#[must_use]
pub fn is_planted(bug: Bug) -> bool {
    ON.get() == Some(bug)
}

/// Always `false` in this build.
#[cfg(not(feature = "planted-bugs"))]
#[must_use]
#[inline(always)]
pub const fn is_planted(_: Bug) -> bool {
    false
}

/// Whether the bug of this name is switched on; see [the crate](crate).
#[macro_export]
macro_rules! planted {
    ($bug:ident) => {
        $crate::is_planted($crate::Bug::$bug)
    };
}

#[cfg(test)]
mod tests {
    use super::Bug;

    #[test]
    fn bugs_have_names_that_can_be_typed() {
        assert_eq!(Bug::VoteNotSynced.name(), "vote-not-synced");
        for bug in Bug::ALL {
            assert_eq!(Bug::named(&bug.name()), Some(bug));
        }
    }
}
