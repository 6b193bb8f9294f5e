//! Bugs at the real lines of the crates that ship, to show that the simulator finds them.
//!
//! Each place asks `planted!(Name)`, which is `false`, and costs nothing, unless this crate was built with
//! the feature `planted-bugs` and the simulator switched that bug on for its thread. Nothing that ships is
//! built so. `docs/simulator.md` shows how many seeds it takes to find each.

/// Every planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bug {
    /// A vote leaves before it is on disk.
    VoteNotSynced,
    /// The log reports as synced what was only written.
    AckBeforeSync,
    /// A lease lasts for two election timeouts.
    LeaseTooLong,
    /// A leader counts on its own settings, whatever those who answer it have promised.
    PromiseIgnored,
    /// An answer that promises nothing, as those of an older program, counts as if it promised what the leader does.
    NoPromiseCounted,
    /// A member that starts helps nobody for as long as its settings say now, whatever they said before.
    RestartWaitsByNewSettings,
    /// A leader that hands over keeps its lease.
    LeaseKeptOverTransfer,
    /// A member that starts grants votes at once, whatever it promised before.
    RestartedVoterDoesNotWait,
    /// A member that has answered a leader votes for another as soon as it hears of a later term.
    RoundForgottenForLaterTerm,
    /// The applied index is written before the data, in a batch of its own.
    AppliedIndexApartFromData,
    /// A member that starts counts only itself and the first other voter.
    QuorumCountedWrong,
    /// A new leader answers reads before it has committed anything in its term.
    ReadBeforeFirstCommit,
    /// The log is truncated to what is applied, whether it was flushed or not.
    LogTruncatedPastFlush,
    /// The id of the newest member is given out again after its removal.
    MemberIdReused,
    /// A damaged batch of the log ends it, also if later ones prove that it was on disk.
    CorruptMiddleTakenForTornTail,
    /// A caller is answered by whatever entry took the place of its own.
    AnsweredByAnotherEntry,
    /// A caller whose entry left this member's log is told that nothing was changed; another log may hold it yet.
    DisplacedTakenForDead,
    /// Appends that follow each other are one message, however large.
    MessagesMergedWithoutBound,
    /// What waits for a peer is bounded in number, and not in bytes.
    QueueBoundedInNumberOnly,
    /// When a stream breaks, heartbeats that wait are thrown away with the log.
    QueueThrownAwayWithHeartbeats,
    /// The pauses before a stream is opened again go on growing, whether the peer answered or not.
    PauseNeverReset,
    /// A learner is promoted, whether it answers or not.
    SilentLearnerPromoted,
    /// A learner is promoted, whether its disk takes what it is sent or not.
    StuckLearnerPromoted,
    /// A member counts towards the quorum after a change, whether its disk takes what it is sent or not.
    StuckVoterCounted,
    /// A change of the members is answered before anything behind it is committed.
    ChangeNotSettled,
    /// With `memory-first`, what comes behind a change of the members is acknowledged before it is on disk, whether the disk knows that the
    /// change is committed or not.
    SettlingNotSynced,
    /// The log is truncated to what is flushed, whether consensus knows that it is applied or not.
    TruncatedPastApplied,
    /// A read joins the round that is out already, which began before it.
    ReadJoinsEarlierRound,
    /// After a failed sync the log tries again.
    SyncTriedAgain,
    /// A follower answers a confirmed read before it has applied that far.
    ReadBeforeApply,
    /// A leader reads by its lease before it has applied what others were told is committed.
    LeaseReadBeforeApply,
    /// A follower acknowledges entries before they are on disk.
    AppendAcknowledgedEarly,
    /// A snapshot claims one entry more than it has.
    SnapshotWithoutLastEntry,
    /// A snapshot that is complete is installed, whether the log was reset to it or not.
    InstallWithoutCommitRecord,
    /// What an installation replaced is removed before the renames are on disk.
    InstallNotSynced,
    /// A watch that missed pages goes on with the next one.
    WatchSkipsGap,
    /// A page that begins inside a revision leaves out the first change that is left of it.
    WatchSkipsInsideRevision,
    /// A page of history is bounded by what was looked at, and not in bytes.
    PageNotBoundedInBytes,
    /// A member that starts has forgotten all sessions.
    SessionsLostOnRestart,
    /// A time to live ends when the leader's clock shows it, not so long after the put.
    ExpiryByLocalClock,
    /// A truncation waits behind a write that finds no space until it is carried out.
    TruncationWaitsBehindWrite,
    /// Whatever a key holds is expired with what it held.
    ExpiryWithoutRevision,
    /// What no batch proves to be on disk is not written again when a log is opened.
    TailNotRewritten,
    /// A member whose log is gone makes an empty one, which passes for its own at the next start.
    MissingLogMadeAnew,
    /// A leader writes commands in the newest version that it reads itself.
    CommandProposedTooEarly,
    /// A leader writes again what its disk has not confirmed yet, together with what is new.
    UnconfirmedWrittenAgain,
    /// A follower takes entries in without comparing what stands before them.
    PreviousEntryNotCompared,
    /// A leader goes on counting without a member that got its vote.
    PromotionNotCounted,
    /// A leader appends proposals, and then finds that there are too many and says that nothing was changed.
    RefusedAfterAppend,
    /// What a later leader's entries replace in memory stays there.
    ConflictStaysInMemory,
    /// What a later leader's entries replace on disk is read all the same.
    ConflictStaysInLog,
    /// An entry that an older program has written, and that was not applied before the present one was started, is passed over.
    OlderCommandSkipped,
    /// A command that comes again within its session is applied again.
    RepeatAppliedAgain,
    /// A session reads from a member that has not come to what the session has seen.
    SessionReadAtOnce,
    /// What is sent to followers lacks the context of the proposal.
    ContextNotSent,
    /// A candidate counts what it was promised before it stood.
    PreVoteTakenForVote,
    /// A delete of nothing takes a revision.
    RevisionForNothing,
    /// A member whose leader's log contradicts its own goes on refusing it, and answering callers.
    ContradictionIgnored,
    /// What is committed already is taken to be what the leader has there.
    CommittedNotCompared,
    /// A follower believes a confirmation of a read by a leader whose log contradicts its own.
    ReadConfirmedByAnotherHistory,
    /// A member that may have lost the end of its log stands for election as soon as any other.
    LostWritesStandAtOnce,
    /// A member that ended because its history was given up starts from it again.
    GivenUpHistoryStarts,
    /// A member whose state is ahead of its log, as a person has accepted, does not begin its log anew.
    StateAheadAfterRecover,
    /// A member whose disk failed over what it had acknowledged starts from it again, as long as its machine has power.
    TrustedAfterFailedSync,
    /// The lease's word is given without any order to what was applied before.
    LeaseWordUnordered,
    /// What is applied is published without any order to what was written before.
    PublishedUnordered,
    /// What is applied is published before it is written.
    PublishedBeforeWritten,
    /// A read asks whether its revision is compacted before it has made its cursor.
    CompactedAskedTooEarly,
    /// A flush says what is applied after it, not what was applied before.
    FlushedReadAfterwards,
    /// Room for an answer is looked for, and taken a moment later.
    RoomTakenInTwoSteps,
    /// Whoever waits for answers looks whether they are there, and leaves its waker a moment later.
    WakerLeftAfterLook,
    /// A segment's file is used again although somebody reads it.
    FileReusedWhileRead,
    /// Whoever waits for a revision looks whether it is there, and is among those who are woken a moment later.
    LookedBeforeWaiting,
    /// Whether anybody listens is looked at before the ring is held that is to hold nothing if nobody does.
    ListenersCountedBeforeRing,
    /// A page is marked with what is wanted once it was read.
    MarkedAfterRead,
    /// The task of a link looks for messages, and leaves its waker a moment later.
    LinkWakerLeftAfterLook,
    /// The task of a link asks whether it is closed before it takes what was queued.
    ClosedBeforeQueued,
    /// Whoever sends looks whether the receiver sleeps before there is something to receive.
    WokenBeforeSent,
}

impl Bug {
    /// Those that the simulator finds; docs/simulator.md says in how many seeds.
    pub const ALL: [Self; 64] = [
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
        Self::MissingLogMadeAnew,
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
        Self::RestartWaitsByNewSettings,
        Self::DisplacedTakenForDead,
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
    ];

    /// Those that the models of threads find (`models`): the simulator has one thread, in which every order of loads and stores
    /// is the program's.
    pub const THREADED: [Self; 14] = [
        Self::LeaseWordUnordered,
        Self::PublishedUnordered,
        Self::PublishedBeforeWritten,
        Self::CompactedAskedTooEarly,
        Self::FlushedReadAfterwards,
        Self::RoomTakenInTwoSteps,
        Self::WakerLeftAfterLook,
        Self::FileReusedWhileRead,
        Self::LookedBeforeWaiting,
        Self::ListenersCountedBeforeRing,
        Self::MarkedAfterRead,
        Self::LinkWakerLeftAfterLook,
        Self::ClosedBeforeQueued,
        Self::WokenBeforeSent,
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

    /// The bug of this name.
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

/// Whether this thread is to have the bug.
#[cfg(feature = "planted-bugs")]
#[must_use]
pub fn is_planted(bug: Bug) -> bool {
    ON.get() == Some(bug)
}

/// Whether this thread is to have the bug: never, in this build.
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
