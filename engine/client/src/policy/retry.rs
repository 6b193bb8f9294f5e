//! Whether, when and where one call is sent again.

use std::time::Duration;

/// What sending a request twice may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// It changes nothing, so it may be sent as often as one likes.
    Read,
    /// It would take effect once more each time that it arrives.
    Write,
    /// A write that carries a session's stamp: however often it arrives, it takes effect once.
    Once,
}

impl Operation {
    /// Whether an attempt without an answer may have changed something.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Once)
    }

    /// Whether the request may be sent again although it may have taken effect already.
    #[must_use]
    pub const fn repeatable(self) -> bool {
        matches!(self, Self::Read | Self::Once)
    }
}

/// What a failed attempt proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request did not leave: no connection could be made.
    NotSent,
    /// A member answered that it did not serve the request, and that nothing was changed.
    NotServed {
        /// The address of the leader, if the member named one.
        leader: Option<String>,
    },
    /// A member answered that a bound is reached, and that nothing was changed.
    Overloaded,
    /// A member answered that its disk is nearly full, and that nothing was changed.
    LowOnSpace,
    /// A member answered that the request cannot succeed as things are; nothing was changed by this
    /// attempt.
    Refused,
    /// A member answered with something that should not happen.
    Broken,
    /// A member answered that it does not know what becomes of the request.
    Undecided,
    /// It was sent, and no answer came back: the connection broke, or time ran out.
    Lost,
}

/// gRPC's status codes, by their numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code(pub i32);

impl Code {
    /// No error.
    pub const OK: Self = Self(0);
    /// The call was given up.
    pub const CANCELLED: Self = Self(1);
    /// The request can never succeed as it is.
    pub const INVALID_ARGUMENT: Self = Self(3);
    /// Not answered in time.
    pub const DEADLINE_EXCEEDED: Self = Self(4);
    /// What the request names does not exist.
    pub const NOT_FOUND: Self = Self(5);
    /// What the request makes exists.
    pub const ALREADY_EXISTS: Self = Self(6);
    /// The caller may not.
    pub const PERMISSION_DENIED: Self = Self(7);
    /// A bound is reached.
    pub const RESOURCE_EXHAUSTED: Self = Self(8);
    /// The state of the cluster forbids it.
    pub const FAILED_PRECONDITION: Self = Self(9);
    /// The revision cannot be read.
    pub const OUT_OF_RANGE: Self = Self(11);
    /// The server does not know the call.
    pub const UNIMPLEMENTED: Self = Self(12);
    /// Not served, nothing changed.
    pub const UNAVAILABLE: Self = Self(14);
    /// The caller is not known.
    pub const UNAUTHENTICATED: Self = Self(16);
}

impl Failure {
    /// What a status proves that a member of the cluster answered with. `leader` is the leader it
    /// named.
    #[must_use]
    pub fn answered(code: Code, leader: Option<String>) -> Self {
        match code {
            Code::UNAVAILABLE => Self::NotServed { leader },
            Code::RESOURCE_EXHAUSTED => Self::Overloaded,
            Code::INVALID_ARGUMENT
            | Code::NOT_FOUND
            | Code::ALREADY_EXISTS
            | Code::PERMISSION_DENIED
            | Code::FAILED_PRECONDITION
            | Code::OUT_OF_RANGE
            | Code::UNIMPLEMENTED
            | Code::UNAUTHENTICATED => Self::Refused,
            // The server gives up on a deadline with either of these.
            Code::DEADLINE_EXCEEDED | Code::CANCELLED => Self::Undecided,
            _ => Self::Broken,
        }
    }

    /// Whether this attempt may have changed something.
    #[must_use]
    pub fn may_have_taken_effect(&self, operation: Operation) -> bool {
        match self {
            Self::NotSent
            | Self::NotServed { .. }
            | Self::Overloaded
            | Self::LowOnSpace
            | Self::Refused => false,
            Self::Broken | Self::Undecided | Self::Lost => operation.writes(),
        }
    }

    /// Whether the cause may pass.
    #[must_use]
    pub fn may_pass(&self, operation: Operation) -> bool {
        match self {
            Self::NotSent
            | Self::NotServed { .. }
            | Self::Overloaded
            | Self::LowOnSpace
            | Self::Undecided
            | Self::Lost => true,
            Self::Refused => false,
            // Only a stamped write gains: what became of it is stored in the cluster.
            Self::Broken => operation == Operation::Once,
        }
    }

    /// Whether the member behind the connection can serve nobody now, as far as this tells: it does
    /// not answer, or knows no leader.
    #[must_use]
    pub fn serves_nobody(&self) -> bool {
        match self {
            Self::NotSent | Self::Lost | Self::Undecided | Self::NotServed { leader: None } => true,
            Self::NotServed { leader: Some(_) }
            | Self::Overloaded
            | Self::LowOnSpace
            | Self::Refused
            | Self::Broken => false,
        }
    }

    /// Whether whoever was taken for the leader may be it no more.
    #[must_use]
    pub fn unsettles_leader(&self) -> bool {
        match self {
            Self::NotSent | Self::NotServed { .. } | Self::Undecided | Self::Lost => true,
            Self::Overloaded | Self::LowOnSpace | Self::Refused | Self::Broken => false,
        }
    }

    /// Whether no member was reached that could have served it.
    #[must_use]
    pub fn waits_for_leader(&self) -> bool {
        match self {
            Self::NotSent | Self::NotServed { .. } => true,
            Self::Overloaded
            | Self::LowOnSpace
            | Self::Refused
            | Self::Broken
            | Self::Undecided
            | Self::Lost => false,
        }
    }
}

/// How often a call that was refused for lack of space is sent again: for half a second, in which a
/// leader transfers leadership to a member with more space. If no member has more, only deleting
/// keys or a larger volume helps, and further retries are useless.
const LOW_ON_SPACE_RETRIES_MAX: usize = 4;

/// No pause is longer, its random part aside, where no member was reached that could have served
/// the call. A member says in an instant that it knows no leader, and whoever pauses for longer is
/// still pausing when the next leader is there.
const PAUSE_WITHOUT_LEADER_MAX: Duration = Duration::from_millis(100);

/// So many attempts that only wait for a leader count as one: their pauses are a fifth as long.
const WAITS_AS_ONE: usize = 5;
/// To find out for longer that there is no connection is no waiting for a leader: a machine on
/// which no member listens says so in an instant.
const WAIT_MAX: Duration = PAUSE_WITHOUT_LEADER_MAX;

/// No attempt is to follow that would have less time than this. It could hardly be answered, and
/// what a write came to would be unknown.
const ATTEMPT_MIN: Duration = Duration::from_millis(20);

/// Pauses between attempts: each twice as long as the one before, plus up to as much again at
/// random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts after the first, of which five count as one while only a leader is wanting. 0 turns
    /// retries off.
    pub retries_max: usize,
    /// The first pause. Zero would be a hot loop and is refused.
    pub delay_min: Duration,
    /// No pause grows beyond this, its random part aside; nor beyond 100 ms while only a leader is
    /// wanting.
    pub delay_max: Duration,
    /// How long the first attempt of a call that may be repeated without harm waits for its answer;
    /// each attempt after it waits twice as long as the one before. Bounds what a member that is
    /// silent costs a call. A plain write is waited for as long as its call lasts: it can't be sent
    /// again.
    pub attempt_timeout: Duration,
}

impl RetryPolicy {
    /// Every failure is returned as it is.
    pub const NONE: Self = Self {
        retries_max: 0,
        ..Self::STANDARD
    };

    /// Rides out some elections: 8 s of pauses at least, cut by the request's timeout.
    pub const STANDARD: Self = Self {
        retries_max: 20,
        delay_min: Duration::from_millis(20),
        delay_max: Duration::from_millis(500),
        attempt_timeout: Duration::from_secs(2),
    };

    /// The pause before retry number `retry`, counted from 0; `random` is any number, drawn evenly.
    #[must_use]
    pub fn delay(&self, retry: usize, random: u32) -> Duration {
        self.delay_below(self.delay_max, retry, random)
    }

    /// The pause before the next retry after these failures, the last of which was this one.
    #[must_use]
    pub fn pause(&self, failure: &Failure, failures: Failures, random: u32) -> Duration {
        let most = match failure.waits_for_leader() {
            true => PAUSE_WITHOUT_LEADER_MAX
                .max(self.delay_min)
                .min(self.delay_max),
            false => self.delay_max,
        };
        self.delay_below(most, failures.all.saturating_sub(1), random)
    }

    /// Whether there may be another attempt after these failures.
    #[must_use]
    pub fn may_retry(&self, failures: Failures) -> bool {
        let others = failures.all - failures.waits;
        others + failures.waits.div_ceil(WAITS_AS_ONE) <= self.retries_max
    }

    fn delay_below(&self, most: Duration, retry: usize, random: u32) -> Duration {
        let doublings = u32::try_from(retry.min(31)).expect("31 at most");
        let base = self.delay_min.saturating_mul(1 << doublings).min(most);
        let part = (base.as_nanos() * u128::from(random)) >> 32;
        base + Duration::from_nanos(u64::try_from(part).unwrap_or(u64::MAX))
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::STANDARD
    }
}

/// How many attempts have failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    all: usize,
    /// Those that only a leader was wanting for.
    waits: usize,
}

impl Failures {
    /// One more, of an attempt that took so long.
    pub fn add(&mut self, failure: &Failure, took: Duration) {
        self.all += 1;
        let was_silent = *failure == Failure::NotSent && took > WAIT_MAX;
        self.waits += usize::from(failure.waits_for_leader() && !was_silent);
    }
}

/// Where an attempt goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// To this lane, or the next healthy one after it; see [`Lanes`](super::Lanes).
    From(usize),
    /// To the leader that a member named.
    Leader {
        /// Its address, in the member's words.
        address: String,
        /// The lane to take instead if that is no usable address.
        otherwise: usize,
    },
}

/// What to do after a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Pause, then send the request again, exactly as it was.
    Again {
        /// How long to pause.
        after: Duration,
        /// Where to send it.
        to: Target,
    },
    /// Tell the caller.
    Stop(End),
}

/// What the caller is told when a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The failure of the last attempt, which is the whole truth.
    LastFailure,
    /// That the write may or may not have taken effect, whatever the last attempt failed with.
    UnknownOutcome,
}

/// The attempts of one call.
#[derive(Clone, Debug)]
pub struct Attempts {
    policy: RetryPolicy,
    operation: Operation,
    deadline: Duration,
    lane: usize,
    /// When the latest attempt began.
    began: Duration,
    failures: Failures,
    /// Those of them that got no answer at all.
    attempts_lost: usize,
    /// Those of them that were refused for want of space.
    attempts_without_space: usize,
    /// Whether any attempt so far may have taken effect. What a later one fails with cannot undo
    /// that.
    maybe_done: bool,
}

impl Attempts {
    /// A call whose first attempt goes to [`Target::From`]`(lane)` and that must be over at
    /// `deadline`.
    #[must_use]
    pub fn new(policy: RetryPolicy, operation: Operation, lane: usize, deadline: Duration) -> Self {
        Self {
            policy,
            operation,
            deadline,
            lane,
            began: Duration::ZERO,
            failures: Failures::default(),
            attempts_lost: 0,
            attempts_without_space: 0,
            maybe_done: false,
        }
    }

    /// Where the first attempt goes.
    #[must_use]
    pub fn first(&self) -> Target {
        Target::From(self.lane)
    }

    /// An attempt begins at `now`. Returns when it is given up, so that another member may be asked
    /// in time.
    pub fn begin(&mut self, now: Duration) -> Duration {
        self.began = now;
        let mut next = self.failures;
        next.add(&Failure::Lost, Duration::ZERO);
        if !self.operation.repeatable() || !self.policy.may_retry(next) {
            return self.deadline;
        }
        self.silent_at().min(self.deadline)
    }

    /// When whoever has not answered the attempt that began last is silent, whether it is given up
    /// then or not: other calls are better sent to another member.
    #[must_use]
    pub fn silent_at(&self) -> Duration {
        let doublings = u32::try_from(self.attempts_lost.min(31)).expect("31 at most");
        let patience = self.policy.attempt_timeout.saturating_mul(1 << doublings);
        self.began.saturating_add(patience)
    }

    /// Decides what follows from an attempt that failed at `now`. `random` is any number, drawn
    /// evenly.
    pub fn failed(&mut self, failure: &Failure, now: Duration, random: u32) -> Next {
        self.maybe_done |= failure.may_have_taken_effect(self.operation);
        let took = now.saturating_sub(self.began);
        self.failures.add(failure, took);
        self.attempts_lost += usize::from(*failure == Failure::Lost);
        self.attempts_without_space += usize::from(*failure == Failure::LowOnSpace);
        let again = failure.may_pass(self.operation)
            && (self.operation.repeatable() || !self.maybe_done)
            && self.policy.may_retry(self.failures)
            && self.attempts_without_space <= LOW_ON_SPACE_RETRIES_MAX;
        let after = self.policy.pause(failure, self.failures, random);
        if !again || now + after + ATTEMPT_MIN > self.deadline {
            return Next::Stop(self.end());
        }
        self.lane += 1;
        let to = match failure {
            Failure::NotServed {
                leader: Some(leader),
            } => Target::Leader {
                address: leader.clone(),
                otherwise: self.lane,
            },
            Failure::NotServed { leader: None }
            | Failure::NotSent
            | Failure::Overloaded
            | Failure::LowOnSpace
            | Failure::Refused
            | Failure::Broken
            | Failure::Undecided
            | Failure::Lost => Target::From(self.lane),
        };
        Next::Again { after, to }
    }

    /// How the call ends instead of going on at `now`, if its pause took so long that no time is
    /// left for another attempt.
    #[must_use]
    pub fn too_late(&self, now: Duration) -> Option<End> {
        // Timers are late by a little, which is no reason to have paused in vain.
        (now + ATTEMPT_MIN / 2 > self.deadline).then(|| self.end())
    }

    fn end(&self) -> End {
        if self.maybe_done {
            End::UnknownOutcome
        } else {
            End::LastFailure
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy = RetryPolicy::STANDARD;
    const SECOND: Duration = Duration::from_secs(1);

    fn not_served() -> Failure {
        Failure::NotServed { leader: None }
    }

    /// Fails one attempt after the other with `failures`; how the last one ended.
    fn check(operation: Operation, failures: &[Failure], expect: &str) {
        let mut attempts = Attempts::new(POLICY, operation, 0, SECOND);
        let mut next = None;
        for failure in failures {
            assert!(
                !matches!(next, Some(Next::Stop(_))),
                "{operation:?} {failures:?} ended early"
            );
            next = Some(attempts.failed(failure, Duration::ZERO, 0));
        }
        let found = match next.expect("at least one failure") {
            Next::Again { .. } => "again",
            Next::Stop(End::LastFailure) => "last failure",
            Next::Stop(End::UnknownOutcome) => "unknown",
        };
        assert_eq!(found, expect, "{operation:?} {failures:?}");
    }

    #[test]
    fn what_changed_nothing_and_may_pass_is_sent_again() {
        for operation in [Operation::Read, Operation::Write, Operation::Once] {
            let passing = [
                Failure::NotSent,
                not_served(),
                Failure::Overloaded,
                Failure::LowOnSpace,
            ];
            for failure in passing {
                check(operation, &[failure], "again");
            }
            check(operation, &[Failure::Refused], "last failure");
        }
    }

    #[test]
    fn a_plain_write_is_never_sent_again_once_it_may_have_taken_effect() {
        for failure in [Failure::Lost, Failure::Undecided, Failure::Broken] {
            check(Operation::Write, &[failure], "unknown");
        }
        check(
            Operation::Write,
            &[Failure::Overloaded, Failure::Lost],
            "unknown",
        );
    }

    /// It was sent twenty times more, for ten seconds, as if a full disk were load that passes.
    #[test]
    fn a_full_disk_is_waited_for_no_longer_than_a_leader_takes_to_hand_over() {
        let full = vec![Failure::LowOnSpace; LOW_ON_SPACE_RETRIES_MAX + 1];
        for operation in [Operation::Write, Operation::Once] {
            check(operation, &full[1..], "again");
            check(operation, &full, "last failure");
            let between = [&full[1..], &[not_served(), Failure::LowOnSpace]].concat();
            check(operation, &between, "last failure");
        }
        let longest = (0..LOW_ON_SPACE_RETRIES_MAX).map(|retry| POLICY.delay(retry, u32::MAX));
        assert!(longest.sum::<Duration>() < SECOND);
    }

    #[test]
    fn reads_and_stamped_writes_are_sent_again_without_an_answer() {
        for operation in [Operation::Read, Operation::Once] {
            check(operation, &[Failure::Lost], "again");
            check(operation, &[Failure::Undecided], "again");
        }
        check(Operation::Once, &[Failure::Broken], "again");
        check(Operation::Read, &[Failure::Broken], "last failure");
    }

    #[test]
    fn a_later_refusal_does_not_undo_what_an_earlier_attempt_may_have_done() {
        // The session may have expired after the first attempt was applied.
        check(
            Operation::Once,
            &[Failure::Lost, Failure::Refused],
            "unknown",
        );
        let mut attempts = Attempts::new(POLICY, Operation::Once, 0, SECOND);
        attempts.failed(&Failure::Undecided, Duration::ZERO, 0);
        assert_eq!(
            attempts.failed(&Failure::Overloaded, SECOND, 0),
            Next::Stop(End::UnknownOutcome),
            "out of time"
        );
    }

    /// Its timer was late, the attempt behind it had no time at all, and a write that had never
    /// left was of unknown outcome.
    #[test]
    fn no_attempt_follows_that_has_next_to_no_time() {
        let now = Duration::ZERO;
        let pause = POLICY.delay_min;
        for (deadline, follows) in [
            (pause + ATTEMPT_MIN, true),
            (pause + ATTEMPT_MIN - Duration::from_nanos(1), false),
            (pause + Duration::from_nanos(1), false),
        ] {
            for operation in [Operation::Read, Operation::Write, Operation::Once] {
                let mut attempts = Attempts::new(POLICY, operation, 0, deadline);
                let expect = match follows {
                    true => Next::Again {
                        after: pause,
                        to: Target::From(1),
                    },
                    false => Next::Stop(End::LastFailure),
                };
                let next = attempts.failed(&Failure::NotSent, now, 0);
                assert_eq!(next, expect, "{operation:?} until {deadline:?}");
            }
        }
    }

    #[test]
    fn whose_pause_took_too_long_is_told_of_the_attempts_before_it() {
        for (operation, failure, end) in [
            (Operation::Write, Failure::NotSent, End::LastFailure),
            (Operation::Read, Failure::Lost, End::LastFailure),
            (Operation::Once, Failure::Lost, End::UnknownOutcome),
        ] {
            let mut attempts = Attempts::new(POLICY, operation, 0, SECOND);
            attempts.failed(&failure, Duration::ZERO, 0);
            assert_eq!(attempts.too_late(SECOND - ATTEMPT_MIN), None);
            assert_eq!(attempts.too_late(SECOND), Some(end), "{operation:?}");
        }
    }

    #[test]
    fn no_pause_reaches_beyond_the_deadline() {
        let deadline = Duration::from_millis(25) + ATTEMPT_MIN;
        let mut attempts = Attempts::new(POLICY, Operation::Read, 0, deadline);
        let now = Duration::from_millis(4);
        assert!(matches!(
            attempts.failed(&Failure::Lost, now, 0),
            Next::Again { .. }
        ));
        assert_eq!(
            attempts.failed(&Failure::Lost, now, 0),
            Next::Stop(End::LastFailure)
        );
    }

    /// Otherwise one member that is silent costs a call all of its time, and no retry ever acts.
    #[test]
    fn an_attempt_that_may_be_repeated_leaves_time_for_another() {
        let (five, two) = (5 * SECOND, 2 * SECOND);
        for operation in [Operation::Read, Operation::Once] {
            let mut attempts = Attempts::new(POLICY, operation, 0, five);
            assert_eq!(attempts.begin(Duration::ZERO), two);
            assert!(matches!(
                attempts.failed(&Failure::Lost, two, 0),
                Next::Again { .. }
            ));
            assert_eq!(
                attempts.begin(two),
                five,
                "twice as long, cut by the deadline"
            );
        }
        let mut write = Attempts::new(POLICY, Operation::Write, 0, five);
        assert_eq!(write.begin(Duration::ZERO), five);
        assert_eq!(write.silent_at(), two, "other calls need not wait for it");
        let mut once = Attempts::new(RetryPolicy::NONE, Operation::Read, 0, five);
        assert_eq!(once.begin(Duration::ZERO), five, "there is no other");
    }

    #[test]
    fn what_is_wrong_with_a_request_says_nothing_of_the_leader() {
        let settled = [
            Failure::Refused,
            Failure::Overloaded,
            Failure::LowOnSpace,
            Failure::Broken,
        ];
        for settled in settled {
            assert!(!settled.unsettles_leader(), "{settled:?}");
        }
        for unsettled in [Failure::Lost, Failure::Undecided, not_served()] {
            assert!(unsettled.unsettles_leader(), "{unsettled:?}");
        }
    }

    #[test]
    fn retries_end_by_number() {
        let mut attempts = Attempts::new(RetryPolicy::NONE, Operation::Read, 0, SECOND);
        assert_eq!(
            attempts.failed(&not_served(), Duration::ZERO, 0),
            Next::Stop(End::LastFailure)
        );
    }

    #[test]
    fn the_leader_that_is_named_is_asked_next_and_otherwise_the_next_lane() {
        let mut attempts = Attempts::new(POLICY, Operation::Write, 5, SECOND);
        assert_eq!(attempts.first(), Target::From(5));
        let named = Failure::NotServed {
            leader: Some("b:1".to_owned()),
        };
        let target = |next| match next {
            Next::Again { to, .. } => to,
            Next::Stop(end) => panic!("{end:?}"),
        };
        assert_eq!(
            target(attempts.failed(&named, Duration::ZERO, 0)),
            Target::Leader {
                address: "b:1".to_owned(),
                otherwise: 6
            }
        );
        assert_eq!(
            target(attempts.failed(&not_served(), Duration::ZERO, 0)),
            Target::From(7)
        );
    }

    /// A second of three without a leader was such a pause.
    #[test]
    fn who_waits_for_a_leader_only_looks_often_and_for_longer_than_elections_take() {
        let pauses = |failure: &Failure| -> Vec<Duration> {
            let mut attempts = Attempts::new(POLICY, Operation::Write, 0, Duration::MAX);
            let pause = |_| match attempts.failed(failure, Duration::ZERO, 0) {
                Next::Again { after, .. } => Some(after),
                Next::Stop(_) => None,
            };
            (0..).map_while(pause).collect()
        };
        let millis = |of: &[Duration]| of.iter().map(Duration::as_millis).max();
        for failure in [Failure::NotSent, not_served()] {
            let pauses = pauses(&failure);
            assert_eq!(millis(&pauses), Some(100), "{failure:?}");
            assert!(pauses.iter().sum::<Duration>() > 8 * SECOND);
        }
        let overloaded = pauses(&Failure::Overloaded);
        assert_eq!(overloaded.len(), POLICY.retries_max);
        assert_eq!(millis(&overloaded), Some(500), "load takes time to pass");
        let slow = RetryPolicy {
            delay_min: SECOND,
            delay_max: 2 * SECOND,
            ..POLICY
        };
        let mut failures = Failures::default();
        (0..5).for_each(|_| failures.add(&not_served(), Duration::ZERO));
        let pause = slow.pause(&not_served(), failures, 0);
        assert_eq!(pause, SECOND, "as was asked for");
    }

    /// Addresses that swallow what is sent to them: a watch, which has no time of its own, told of
    /// it after four minutes.
    #[test]
    fn whoever_is_not_reached_for_long_is_not_waited_for_as_a_leader_is() {
        let waits = POLICY.retries_max * WAITS_AS_ONE;
        for (failure, took, attempts) in [
            (Failure::NotSent, WAIT_MAX, waits),
            (Failure::NotSent, 2 * SECOND, POLICY.retries_max),
            // A member far away that has answered.
            (not_served(), SECOND / 2, waits),
        ] {
            let (mut failures, mut retries) = (Failures::default(), 0);
            loop {
                failures.add(&failure, took);
                if !POLICY.may_retry(failures) {
                    break;
                }
                retries += 1;
            }
            assert_eq!(retries, attempts, "{failure:?} after {took:?}");
        }
    }

    #[test]
    fn a_longest_pause_below_the_first_one_is_kept_to() {
        let odd = RetryPolicy {
            delay_min: SECOND,
            delay_max: SECOND / 2,
            ..POLICY
        };
        let mut failures = Failures::default();
        failures.add(&Failure::NotSent, Duration::ZERO);
        assert_eq!(odd.pause(&Failure::NotSent, failures, 0), SECOND / 2);
    }

    #[test]
    fn pauses_grow_to_a_bound_and_are_jittered() {
        let least: Vec<_> = (0..8).map(|n| POLICY.delay(n, 0).as_millis()).collect();
        assert_eq!(least, [20, 40, 80, 160, 320, 500, 500, 500]);
        assert_eq!(POLICY.delay(0, u32::MAX / 2 + 1).as_millis(), 30);
        assert!(POLICY.delay(1000, u32::MAX) < 2 * POLICY.delay_max);
    }

    #[test]
    fn only_two_codes_promise_that_the_same_write_may_be_sent_again() {
        for code in 1..=16 {
            let failure = Failure::answered(Code(code), None);
            let again = failure.may_pass(Operation::Write)
                && !failure.may_have_taken_effect(Operation::Write);
            let promised = [Code::UNAVAILABLE, Code::RESOURCE_EXHAUSTED].contains(&Code(code));
            assert_eq!(again, promised, "{code}");
        }
    }
}
