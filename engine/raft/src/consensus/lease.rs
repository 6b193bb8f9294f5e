//! The leader's lease: how long it may answer reads without asking a quorum (Raft thesis §6.4.1).
//!
//! A member that answers a leader's round promises to help no other to lead for a while, whatever
//! else it hears (`driver/heartbeats.rs`), and says in its answer for how long: members may be set
//! differently, as they are while settings are rolled out. So before the shortest promise of a
//! quorum has passed, counted from when the round was sent, no other can have been elected. A
//! member of an earlier version promises nothing, and counts for nothing.
//!
//! That holds only if a member that restarts keeps a promise that it no longer knows of (it helps
//! none for [`PROMISE_MAX`], and none is longer), if no member is asked to campaign early (a
//! transfer ends the lease for its term), if the quorum is still one (a membership change drops
//! it), and if no clock stands still (docs/design/reads.md, "Lease reads").

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dengine_planted::planted;
use dengine_types::{Moment, Term};

use super::config::ConsensusConfig;

/// No member promises more, so that one that restarts, perhaps with other settings, knows how long
/// to wait.
pub(super) const PROMISE_MAX: Duration = Duration::from_secs(1);

/// Rounds of which late answers count. There may be thousands a second, and an answer takes
/// milliseconds.
const ROUNDS_MAX: usize = 256;

pub(super) struct Lease {
    /// This member.
    id: u64,
    /// What this member itself promises by its answers.
    promise: Duration,
    /// Promises are counted on by so much less, because clocks differ in speed.
    percent: u32,
    /// The term of everything below.
    term: Term,
    /// Rounds by their numbers, and when each was sent or earlier; the newest last.
    rounds: VecDeque<(u64, Moment)>,
    /// Until when each member helps no other, by this member's clock.
    promised: BTreeMap<u64, Moment>,
    until: Option<Moment>,
    /// Up to this term there is none any more: leadership was being handed over.
    ended: Term,
}

impl Lease {
    pub(super) fn new(config: &ConsensusConfig) -> Self {
        Self {
            id: config.id.0,
            promise: config.promise(),
            percent: 100u32.saturating_sub(config.max_clock_drift_percent),
            term: Term(0),
            rounds: VecDeque::new(),
            promised: BTreeMap::new(),
            until: None,
            ended: Term(0),
        }
    }

    /// For how long this member helps no other to lead, once it has answered a leader.
    pub(super) fn promise(&self) -> Duration {
        self.promise
    }

    /// This member leads `term`, and begins the round of this number.
    pub(super) fn begin(&mut self, term: Term, round: u64, now: Moment) {
        if self.term != term {
            self.drop_until_confirmed();
            self.term = term;
        }
        if self.rounds.len() == ROUNDS_MAX {
            self.rounds.pop_front();
        }
        self.rounds.push_back((round, now));
        self.note(self.id, now, self.promise);
    }

    /// A member answered the round of this number in `term`, with this promise.
    pub(super) fn answered(&mut self, term: Term, round: u64, from: u64, promise: Duration) {
        let sent = self.rounds.iter().rev().find(|(it, _)| *it == round);
        if let Some((_, sent)) = sent.copied().filter(|_| self.term == term) {
            self.note(from, sent, promise);
        }
    }

    fn note(&mut self, member: u64, sent: Moment, promise: Duration) {
        let mut promise = promise.min(self.promise);
        if promise.is_zero() && planted!(NoPromiseCounted) {
            promise = self.promise;
        }
        if planted!(PromiseIgnored) {
            promise = self.promise;
        }
        if planted!(LeaseTooLong) {
            promise = self.promise * 2;
        }
        let until = sent.after(promise * self.percent / 100);
        if !promise.is_zero() {
            let promised = self.promised.entry(member).or_default();
            *promised = until.max(*promised);
        }
    }

    /// Counts the promises of the voters: a quorum has promised to wait until then, or longer.
    pub(super) fn count(&mut self, voters: impl Iterator<Item = u64>) {
        let promised = voters.map(|id| self.promised.get(&id).copied().unwrap_or_default());
        let mut promised: Vec<_> = promised.collect();
        promised.sort_unstable_by(|a, b| b.cmp(a));
        let shortest = promised.get(promised.len() / 2).copied();
        self.until = shortest.filter(|until| *until > Moment(0)).max(self.until);
    }

    /// Before this moment no other member can have been elected.
    pub(super) fn until(&self, term: Term) -> Option<Moment> {
        self.until
            .filter(|_| self.term == term && term > self.ended)
    }

    /// No lease in this term any more.
    pub(super) fn end(&mut self, term: Term) {
        self.ended = self.ended.max(term);
    }

    /// No lease until a round that begins after this is answered.
    pub(super) fn drop_until_confirmed(&mut self) {
        self.rounds.clear();
        self.promised.clear();
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use dengine_types::MemberId;

    use super::*;

    const TERM: Term = Term(3);

    /// Leads three to five members, and promises nine ticks of 100 ms itself.
    fn lease() -> Lease {
        let mut lease = Lease::new(&ConsensusConfig::new(MemberId(1), 1));
        lease.begin(TERM, 7, Moment(0));
        lease
    }

    fn until_ms(mut lease: Lease, voters: u64, answers: &[(u64, u64)]) -> Option<u64> {
        for (from, promise_ms) in answers {
            lease.answered(TERM, 7, *from, Duration::from_millis(*promise_ms));
            lease.count(1..=voters);
        }
        lease.until(TERM).map(|until| until.0 / 1_000_000)
    }

    #[test]
    fn the_shortest_promise_of_a_quorum_counts() {
        for (voters, answers, expect) in [
            (3, &[(2, 900)][..], Some(810)),
            (3, &[(2, 90)], Some(81)),
            (3, &[(2, 5_000)], Some(810)),
            (3, &[(2, 0)], None),
            // A later answer makes another quorum.
            (3, &[(2, 90), (3, 500)], Some(450)),
            (3, &[(2, 0), (3, 500)], Some(450)),
            (5, &[(2, 900)], None),
            (5, &[(2, 900), (3, 200)], Some(180)),
            (5, &[(2, 900), (3, 200), (4, 300), (5, 10)], Some(270)),
            // A learner's promise is worth nothing.
            (3, &[(4, 900)], None),
        ] {
            assert_eq!(until_ms(lease(), voters, answers), expect, "{answers:?}");
        }
    }

    #[test]
    fn an_answer_counts_for_its_round_and_its_term_alone() {
        let promise = Duration::from_millis(900);
        let after = |prepare: fn(&mut Lease)| {
            let mut lease = lease();
            prepare(&mut lease);
            lease.answered(TERM, 7, 2, Duration::from_millis(900));
            lease.count(1..=3);
            lease.until(TERM)
        };
        let whole = Some(Moment(0).after(promise * 9 / 10));
        assert_eq!(after(|_| ()), whole);
        assert_eq!(after(|lease| lease.begin(TERM, 8, Moment(5))), whole);
        assert_eq!(after(|lease| lease.begin(Term(4), 8, Moment(5))), None);
        assert_eq!(after(Lease::drop_until_confirmed), None);
        assert_eq!(after(|lease| lease.end(TERM)), None);
        let many = |lease: &mut Lease| (8..300).for_each(|n| lease.begin(TERM, n, Moment(n)));
        assert_eq!(after(many), None);
    }
}
