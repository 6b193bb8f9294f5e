//! Which of several connections serves an attempt, which are passed over for a while, and which are
//! given up for new ones.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::atomic_time::AtomicTime;
use super::health::Health;
use super::retry::Failure;

/// How long a connection serves nothing before another is made in its place.
///
/// One address may lead to several members, as that of a Kubernetes Service does: a new connection
/// goes to one that serves, while an old one stays with its member though that takes no part any
/// more. Longer than an election, in which nobody serves.
pub const RENEW_AFTER: Duration = Duration::from_secs(1);

/// The health of a client's connections. The first `primary` of them carry calls while all goes
/// well.
#[derive(Debug)]
pub struct Lanes {
    lanes: Vec<Lane>,
    primary: usize,
    next: AtomicUsize,
}

#[derive(Debug, Default)]
struct Lane {
    health: Health,
    /// When it last served a call, or was connected again.
    good_at: AtomicTime,
}

impl Lanes {
    /// So many healthy lanes.
    ///
    /// # Panics
    /// Unless `1 <= primary <= count`.
    #[must_use]
    pub fn new(count: usize, primary: usize) -> Self {
        assert!(
            (1..=count).contains(&primary),
            "{primary} primary lanes of {count}"
        );
        Self {
            lanes: (0..count).map(|_| Lane::default()).collect(),
            primary,
            next: AtomicUsize::new(0),
        }
    }

    /// The lane that the next call starts from: each in turn.
    pub fn start(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % self.primary
    }

    /// The lane of a caller that stays with one connection.
    #[must_use]
    pub fn pinned(&self, affinity: usize) -> usize {
        affinity % self.primary
    }

    /// The lane that leads to `endpoint`, next to one that leads elsewhere, where lane `i` leads to
    /// endpoint `i` modulo `endpoints`, and there are at least as many lanes.
    #[must_use]
    pub fn beside(&self, lane: usize, endpoint: usize, endpoints: usize) -> usize {
        let count = self.lanes.len();
        let row = lane % count / endpoints * endpoints;
        match row + endpoint {
            beside if beside < count => beside,
            beyond => beyond - endpoints,
        }
    }

    /// The first healthy lane from `from` on, or one before it that is due to be tried; that lane
    /// itself if there is none.
    #[must_use]
    pub fn pick(&self, from: usize, now: Duration) -> usize {
        let count = self.lanes.len();
        let from = from % count;
        (0..count)
            .map(|step| (from + step) % count)
            .find(|&lane| self.lanes[lane].health.takes_call(now))
            .unwrap_or(from)
    }

    /// Notes how a call failed: a lane on which nobody answered is passed over for a while.
    pub fn failed(&self, lane: usize, now: Duration, failure: &Failure) {
        let health = &self.lanes[lane].health;
        match failure {
            Failure::NotSent => health.refused(now),
            Failure::Lost => health.silent(now),
            // A member that answers late that it does not know keeps other callers waiting too.
            Failure::NotServed { leader: None } | Failure::Undecided => {}
            Failure::NotServed { leader: Some(_) }
            | Failure::Overloaded
            | Failure::LowOnSpace
            | Failure::Refused
            | Failure::Broken => health.answered(),
        }
    }

    /// Notes that a lane served a call: it is healthy.
    pub fn served(&self, lane: usize, now: Duration) {
        self.lanes[lane].good_at.set(now);
        self.answered(lane);
    }

    /// Notes that the member of a lane answered: the lane is healthy.
    pub fn answered(&self, lane: usize) {
        self.lanes[lane].health.answered();
    }

    /// Whether a lane has served a call since.
    #[must_use]
    pub fn has_served_since(&self, lane: usize, since: Duration) -> bool {
        self.lanes[lane].good_at.is_after(since)
    }

    /// Notes that a lane did not serve a call; whether it is to be connected again, which one
    /// caller at a time is told.
    pub fn renews(&self, lane: usize, now: Duration) -> bool {
        let good_at = &self.lanes[lane].good_at;
        let was = good_at.get();
        now.saturating_sub(was) >= RENEW_AFTER && good_at.replace(was, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::COOL_DOWN;

    #[test]
    fn calls_take_turns_over_the_primary_lanes() {
        let lanes = Lanes::new(3, 2);
        let starts: Vec<_> = (0..4).map(|_| lanes.start()).collect();
        assert_eq!(starts, [0, 1, 0, 1]);
        assert_eq!(lanes.pinned(5), 1);
    }

    #[test]
    fn a_lane_that_did_not_answer_is_passed_over_for_a_while() {
        let lanes = Lanes::new(3, 3);
        let now = Duration::from_secs(9);
        lanes.failed(1, now, &Failure::Lost);
        assert_eq!(lanes.pick(1, now), 2);
        assert_eq!(lanes.pick(4, now + COOL_DOWN / 2), 2);
        assert_eq!(lanes.pick(1, now + COOL_DOWN), 1);
    }

    /// A leader that hangs answers after five seconds that a write may or may not have taken
    /// effect.
    #[test]
    fn only_who_refuses_a_call_has_answered() {
        let now = Duration::from_secs(9);
        let healthy_after = |failure: &Failure| {
            let lanes = Lanes::new(2, 2);
            lanes.failed(1, now, &Failure::Lost);
            lanes.failed(1, now, failure);
            lanes.pick(1, now) == 1
        };
        let leader = Some("a:1".to_owned());
        assert!(healthy_after(&Failure::Refused));
        assert!(healthy_after(&Failure::NotServed { leader }));
        assert!(!healthy_after(&Failure::NotServed { leader: None }));
        assert!(!healthy_after(&Failure::Undecided));
        assert!(!healthy_after(&Failure::NotSent));
    }

    #[test]
    fn a_lane_that_serves_nothing_is_connected_anew_now_and_then() {
        let lanes = Lanes::new(2, 2);
        let begun = Duration::from_secs(9);
        lanes.served(0, begun);
        let (early, late) = (begun + RENEW_AFTER / 2, begun + RENEW_AFTER);
        assert!(!lanes.renews(0, early), "it served a moment ago");
        assert!(lanes.has_served_since(0, begun - RENEW_AFTER));
        assert!(!lanes.has_served_since(0, begun));
        assert!(lanes.renews(0, late));
        assert!(!lanes.renews(0, late), "somebody else was told so");
        assert!(!lanes.renews(0, late + RENEW_AFTER / 2));
        assert!(lanes.renews(0, late + RENEW_AFTER));
        lanes.served(1, late);
        assert!(!lanes.renews(1, late));
    }

    #[test]
    fn every_lane_has_one_beside_it_to_each_endpoint() {
        for (count, endpoints) in [(1, 1), (3, 3), (7, 3), (200, 3)] {
            let lanes = Lanes::new(count, count);
            for lane in 0..count {
                for endpoint in 0..endpoints {
                    let beside = lanes.beside(lane, endpoint, endpoints);
                    assert!(beside < count);
                    assert_eq!(beside % endpoints, endpoint);
                    assert!(lane % endpoints != endpoint || beside == lane);
                }
            }
        }
    }

    #[test]
    fn if_no_lane_is_healthy_the_wanted_one_is_taken() {
        let lanes = Lanes::new(2, 2);
        lanes.failed(0, Duration::ZERO, &Failure::Lost);
        lanes.failed(1, Duration::ZERO, &Failure::Lost);
        assert_eq!(lanes.pick(1, Duration::ZERO), 1);
    }
}
