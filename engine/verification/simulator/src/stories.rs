//! In which seeds a planted bug is looked for. What takes much to come together shows itself in the
//! story that brings it about ([`focus`](super::focus)), and hardly in other seeds: to run those
//! too would be most of the time of a search.

use dengine_planted::Bug;

use super::focus::Focus;
use super::holder;
use super::plan::Plan;
use super::random::Random;

/// Whether this seed tells a story in which the bug shows itself.
pub(super) fn tells(seed: u64, bug: Bug) -> bool {
    let plan = Plan::of(seed, &mut Random::new(seed));
    match bug {
        Bug::KeepAliveByDeposedLeader
        | Bug::KeepAliveOverPendingExpiry
        | Bug::DetachForgotten
        | Bug::LeaseKeysGoApart
        | Bug::LeasesNotCountedAgain
        | Bug::AttachmentsLostOnSnapshot => !holder::of(seed, &plan).is_empty(),
        Bug::TruncationWaitsBehindWrite => plan.stays_full,
        _ => focus_of(bug).is_none_or(|it| plan.focus == Some(it)),
    }
}

/// The story that was made for it.
fn focus_of(bug: Bug) -> Option<Focus> {
    Some(match bug {
        Bug::VoteNotSynced => Focus::Vote,
        Bug::RestartedVoterDoesNotWait | Bug::RestartWaitsByNewSettings => Focus::Usurper,
        Bug::PromiseIgnored | Bug::NoPromiseCounted => Focus::Roll,
        Bug::RoundForgottenForLaterTerm => Focus::DelayedVotes,
        Bug::PeerReadJoinsEarlierRound => Focus::Deposed,
        Bug::DisplacedTakenForDead => Focus::Displacement,
        Bug::StuckVoterCounted => Focus::Silence,
        Bug::TruncatedPastApplied | Bug::InstallWithoutCommitRecord | Bug::InstallNotSynced => {
            Focus::Snapshot
        }
        Bug::PauseNeverReset => Focus::Flapping,
        Bug::ReadConfirmedByAnotherHistory => Focus::SiteLoss,
        _ => return None,
    })
}
