//! Settings of [`super::Consensus`]. Times are in ticks; the caller decides how long one is.

use std::time::Duration;

use dengine_planted::planted;
use dengine_types::MemberId;

use super::lease::PROMISE_MAX;

/// Number of election timeouts for which a member that may have lost the end of its log does not
/// start an election.
const HESITATION_TIMEOUTS: u64 = 5;

/// What a member must know before it can take part.
#[derive(Clone, Debug)]
pub struct ConsensusConfig {
    /// This member. Never reused, or a member that forgot its vote could vote twice in a term.
    pub id: MemberId,
    /// A follower that heard nothing for this many ticks (drawn at random between this and twice
    /// this) starts an election. Too small, and a busy disk or network causes elections; too large,
    /// and a cluster stays without a leader for longer.
    pub election_ticks: usize,
    /// A leader sends a heartbeat this often. Must be well below `election_ticks`.
    pub heartbeat_ticks: usize,
    /// Bytes of entries in one append message, unless it is a single entry. Larger ones take long
    /// to send, and what waits behind them comes late.
    pub max_message_bytes: u64,
    /// Append messages in flight to one follower; with `max_message_bytes` this bounds what a slow
    /// follower makes the leader hold.
    pub max_inflight_messages: usize,
    /// Bytes of entries that are proposed and not committed; more are refused. Bounds the memory of
    /// a leader that lost its quorum.
    pub max_uncommitted_bytes: u64,
    /// Bytes of entries in one batch handed out to be applied. Four such batches may be out; a
    /// state machine that is further behind gets the rest as it catches up, and memory stays
    /// bounded.
    pub max_apply_bytes: u64,
    /// Bytes of recent entries kept in memory once they are on disk; followers that lag less than
    /// this are served without reading the log's files.
    pub cache_bytes: u64,
    /// Linearizable reads that may wait for a round; more are refused.
    pub max_waiting_reads: usize,
    /// A read that found no leader or no quorum within this many ticks fails.
    pub read_timeout_ticks: u64,
    /// How long the caller's ticks are: what this member promises to a leader is so many of them.
    pub tick: Duration,
    /// By how many percent the clocks of two members may differ in speed. Leases are so much
    /// shorter.
    pub max_clock_drift_percent: u32,
    /// A person has accepted that this member's log may have lost its end. Others may have it
    /// still, so it leaves it to them to stand first.
    pub lost_writes_accepted: bool,
    /// Members acknowledge before they sync, or did once, so that a power loss of many may have
    /// taken what was committed, and those who have it still have to be told from the others.
    /// Without that there is no honest leader that contradicts what is committed.
    pub acknowledges_unsynced: bool,
    /// How long the news of a commit waits for an append that carries it to the followers, unless
    /// somebody waits for it there and no append is under way. Zero: all are told at once.
    pub commit_news_delay: Duration,
    /// Decides the election timeouts of this run together with the member's id, and nothing else.
    pub seed: u64,
    /// Makes the contexts of this run's read rounds differ from those of earlier runs.
    pub boot_nonce: u64,
}

/// Why a configuration cannot work.
#[derive(Debug, thiserror::Error)]
pub enum ConsensusConfigError {
    /// Member ids start at 1.
    #[error("member id 0 is reserved; ids start at 1")]
    NoId,
    /// Elections would start although the leader lives.
    #[error(
        "election_ticks ({election}) must be at least twice heartbeat_ticks ({heartbeat}), which \
         must be at least 1"
    )]
    Timeouts {
        /// As configured.
        election: usize,
        /// As configured.
        heartbeat: usize,
    },
    /// A proposal of the largest size could never be accepted.
    #[error(
        "max_uncommitted_bytes ({uncommitted}) must be at least max_message_bytes ({message}) and \
         both above 0"
    )]
    Sizes {
        /// As configured.
        uncommitted: u64,
        /// As configured.
        message: u64,
    },
}

impl ConsensusConfig {
    /// Settings that suit a local network with ticks of 100 ms.
    #[must_use]
    pub fn new(id: MemberId, seed: u64) -> Self {
        Self {
            id,
            election_ticks: 10,
            heartbeat_ticks: 1,
            max_message_bytes: 1 << 20,
            max_inflight_messages: 64,
            max_uncommitted_bytes: 64 << 20,
            max_apply_bytes: 4 << 20,
            cache_bytes: 16 << 20,
            max_waiting_reads: 65_536,
            read_timeout_ticks: 50,
            tick: Duration::from_millis(100),
            max_clock_drift_percent: 10,
            lost_writes_accepted: false,
            acknowledges_unsynced: false,
            commit_news_delay: Duration::ZERO,
            seed,
            boot_nonce: seed,
        }
    }

    /// Checks what no single field can say.
    ///
    /// # Errors
    /// The first setting that cannot work.
    pub fn validate(&self) -> Result<(), ConsensusConfigError> {
        if self.id.0 == 0 {
            return Err(ConsensusConfigError::NoId);
        }
        if self.heartbeat_ticks == 0 || self.election_ticks < 2 * self.heartbeat_ticks {
            return Err(ConsensusConfigError::Timeouts {
                election: self.election_ticks,
                heartbeat: self.heartbeat_ticks,
            });
        }
        if self.max_message_bytes == 0 || self.max_uncommitted_bytes < self.max_message_bytes {
            return Err(ConsensusConfigError::Sizes {
                uncommitted: self.max_uncommitted_bytes,
                message: self.max_message_bytes,
            });
        }
        Ok(())
    }

    /// For how long this member helps no other to lead, once it has answered a leader; see
    /// [`super::lease`]. One tick less than it counts, because a timeout that begins between two
    /// ticks counts the first whole.
    pub(super) fn promise(&self) -> Duration {
        let ticks = u32::try_from(self.election_ticks - 1).unwrap_or(u32::MAX);
        self.tick.saturating_mul(ticks).min(PROMISE_MAX)
    }

    /// For how many ticks a member that starts helps none to lead: it may have promised that
    /// before, set otherwise.
    pub(super) fn silent_ticks(&self) -> u64 {
        let ticks = PROMISE_MAX.as_nanos().div_ceil(self.tick.as_nanos().max(1));
        let least = match planted!(RestartWaitsByNewSettings) {
            true => 0,
            false => u64::try_from(ticks).unwrap_or(u64::MAX),
        };
        least.max(self.election_ticks as u64)
    }

    /// For how many ticks a member that starts does not stand for election, although it votes.
    #[must_use]
    pub fn hesitation_ticks(&self) -> u64 {
        match self.lost_writes_accepted && !planted!(LostWritesStandAtOnce) {
            true => HESITATION_TIMEOUTS * self.election_ticks as u64,
            false => 0,
        }
    }

    pub(super) fn to_raft(&self, applied: u64) -> raft::Config {
        raft::Config {
            id: self.id.0,
            election_tick: self.election_ticks,
            heartbeat_tick: self.heartbeat_ticks,
            applied,
            max_size_per_msg: self.max_message_bytes,
            max_inflight_msgs: self.max_inflight_messages,
            check_quorum: true,
            pre_vote: true,
            // Never `LeaseBased`: the crate's has no lease timer behind it.
            read_only_option: raft::ReadOnlyOption::Safe,
            // It knows no bound; see `appends`.
            batch_append: false,
            skip_bcast_commit: !self.commit_news_delay.is_zero(),
            max_uncommitted_size: self.max_uncommitted_bytes,
            ..raft::Config::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: fn(&mut ConsensusConfig)) -> ConsensusConfig {
        let mut config = ConsensusConfig::new(MemberId(1), 1);
        change(&mut config);
        config
    }

    #[test]
    fn settings_that_cannot_work_are_refused_and_those_at_the_bounds_are_not() {
        let refusal = |change| {
            let valid = with(change).validate();
            valid.map_or_else(|error| error.to_string(), |()| String::new())
        };
        assert_eq!(refusal(|_| ()), "");
        let no_id = "member id 0 is reserved; ids start at 1";
        assert_eq!(refusal(|it| it.id = MemberId(0)), no_id);

        let set_ticks = |heartbeat, election| {
            let mut config = with(|_| ());
            (config.heartbeat_ticks, config.election_ticks) = (heartbeat, election);
            config.validate().is_ok()
        };
        assert!(set_ticks(1, 2) && set_ticks(3, 6));
        assert!(!set_ticks(0, 10) && !set_ticks(1, 1) && !set_ticks(3, 5));

        let set_bytes = |message, uncommitted| {
            let mut config = with(|_| ());
            (config.max_message_bytes, config.max_uncommitted_bytes) = (message, uncommitted);
            config.validate().is_ok()
        };
        assert!(set_bytes(1, 1) && set_bytes(5, 6));
        assert!(!set_bytes(0, 0) && !set_bytes(0, 1) && !set_bytes(5, 4) && !set_bytes(5, 0));
    }

    /// Others may have what its log lost: they go first.
    #[test]
    fn only_a_member_that_accepted_losses_hesitates() {
        assert_eq!(with(|_| ()).hesitation_ticks(), 0);
        let accepted = with(|it| it.lost_writes_accepted = true);
        assert_eq!(accepted.hesitation_ticks(), 50);
    }

    /// Less than it counts itself, and never more than it keeps after a restart.
    #[test]
    fn what_is_promised_is_kept() {
        for (tick_ms, election_ticks, promise_ms, silent_ticks) in [
            (100, 10, 900, 10),
            (100, 20, 1_000, 20),
            (10, 10, 90, 100),
            (300, 2, 300, 4),
            (1_000, 10, 1_000, 10),
        ] {
            let mut config = with(|_| ());
            config.tick = Duration::from_millis(tick_ms);
            config.election_ticks = election_ticks;
            assert_eq!(config.promise(), Duration::from_millis(promise_ms));
            assert_eq!(config.silent_ticks(), silent_ticks);
        }
    }
}
