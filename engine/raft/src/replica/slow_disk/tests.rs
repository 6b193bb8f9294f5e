use std::collections::VecDeque;

use dengine_kv::MembershipChange;

use super::*;
use crate::input::{Input, Successor, Write};
use crate::output::{LogJob, Outbound};
use crate::replica::lone::{LoneLeader, record};

const STEP: Duration = Duration::from_millis(1);
const BOUNDS: SlowDisk = SlowDisk::of_at_least(Duration::from_millis(5));

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A leader and two followers, one client, and how long each takes.
struct Cluster {
    leader: LoneLeader,
    followers: Vec<LoneLeader>,
    own: Duration,
    /// From an append to a follower until the leader has its answer.
    others: [Duration; 2],
    synced: VecDeque<(Moment, AppendId)>,
    answers: Vec<(Moment, MemberId, Outbound)>,
    handed_over: Vec<(Moment, HandOver)>,
    /// It gets nothing but log.
    deaf: Option<MemberId>,
}

impl Cluster {
    fn new(own: Duration, others: [Duration; 2]) -> Self {
        let [leader, second, third] = LoneLeader::three(16);
        let mut cluster = Self {
            leader,
            followers: vec![second, third],
            own: Duration::ZERO,
            others: [Duration::ZERO; 2],
            synced: VecDeque::new(),
            answers: Vec::new(),
            handed_over: Vec::new(),
            deaf: None,
        };
        cluster.leader.replica.config.slow_disk = Some(BOUNDS);
        cluster.leader.replica.own_disk = OwnDisk::new(BOUNDS);
        for follower in &mut cluster.followers {
            // Until then it does not vote: it may just have followed another one.
            (0..10).for_each(|_| follower.tick());
        }
        while !cluster.leads() {
            cluster.go_on(false);
        }
        (cluster.own, cluster.others) = (own, others);
        cluster
    }

    fn leads(&self) -> bool {
        self.leader.replica.consensus().state().role == Role::Leader
    }

    /// What happens in [`STEP`].
    fn go_on(&mut self, writes: bool) {
        let now = self.leader.now.after(STEP);
        self.leader.now = now;
        if (now.0 / 1_000_000).is_multiple_of(100) {
            self.leader.replica.handle(Input::Tick, now);
        }
        while let Some((_, id)) = self.synced.pop_front_if(|it| it.0 <= now) {
            self.leader.replica.handle(Input::Persisted(id), now);
        }
        let (due, later) = std::mem::take(&mut self.answers)
            .into_iter()
            .partition(|(at, ..)| *at <= now);
        self.answers = later;
        let due: Vec<(Moment, MemberId, Outbound)> = due;
        for (_, from, Outbound { bytes, .. }) in due {
            let answer = Input::Message { from, bytes };
            self.leader.replica.handle(answer, now);
        }
        if writes && self.synced.is_empty() {
            self.leader.ask(Write::settle());
        }
        loop {
            let outputs = self.leader.outputs();
            if outputs.is_empty() {
                return;
            }
            outputs.into_iter().for_each(|it| self.carry_out(it));
        }
    }

    fn carry_out(&mut self, output: Output) {
        let now = self.leader.now;
        match output {
            Output::Log(LogJob::Append {
                id,
                hard_state,
                entries,
            }) => {
                self.leader.append(hard_state, entries);
                self.synced.push_back((now.after(self.own), id));
            }
            Output::Send(messages) => messages.into_iter().for_each(|it| self.deliver(it)),
            Output::HandsOver(hand_over) => self.handed_over.push((now, hand_over)),
            other => self.leader.carry_out(other),
        }
    }

    fn deliver(&mut self, message: Outbound) {
        if self.deaf == Some(message.to) && !message.carries_log {
            return;
        }
        let Outbound { to, bytes, .. } = message;
        let place = usize::try_from(to.0 - 2).expect("few members");
        let follower = &mut self.followers[place];
        follower.now = self.leader.now;
        let from = self.leader.replica.config.member_id;
        let message = Input::Message { from, bytes };
        follower.replica.handle(message, follower.now);
        follower.settle();
        let at = self.leader.now.after(self.others[place]);
        let answers = std::mem::take(&mut follower.sent).into_iter();
        self.answers.extend(answers.map(|it| (at, to, it)));
    }

    /// How long it takes until it hands over, and to whom, in so many seconds of writes at most.
    fn hands_over(&mut self, seconds: u32) -> Option<(Duration, HandOver)> {
        let since = self.leader.now;
        let before = self.handed_over.len();
        for _ in 0..seconds * 1_000 {
            self.go_on(true);
            if let Some((at, hand_over)) = self.handed_over.get(before) {
                return Some((at.since(since), *hand_over));
            }
        }
        None
    }
}

#[test]
fn a_leader_with_a_slow_disk_hands_over_within_five_seconds() {
    for own in [10, 20, 100, 300] {
        let mut cluster = Cluster::new(ms(own), [ms(2), ms(3)]);
        let (took, hand_over) = cluster.hands_over(10).expect("its disk is slow");
        assert!(took < ms(5_000), "{took:?} with {own} ms");
        assert!(took > ms(2_900), "{took:?} is no habit yet");
        assert!(
            hand_over.own >= ms(own) && hand_over.others <= ms(4),
            "{hand_over:?}"
        );
        let rests_until = cluster.leader.replica.own_disk.rests_until;
        assert_eq!(rests_until, cluster.leader.now.after(BOUNDS.rest));
        // Until then the transfer is under way.
        let begun = cluster.leader.now;
        while cluster.leads() {
            cluster.go_on(true);
            assert!(cluster.leader.now.since(begun) < ms(1_000));
        }
        let place = usize::try_from(hand_over.to.0 - 2).expect("few members");
        let next = cluster.followers[place].replica.consensus().state();
        assert_eq!(next.role, Role::Candidate);
    }
}

#[test]
fn the_lead_stays_where_the_move_would_gain_nothing() {
    for (own, others, why) in [
        (4, [1, 1], "that is no slow disk"),
        (20, [10, 10], "all have such disks"),
        (
            20,
            [2, 20],
            "with the slow one the next leader has no quorum without this one",
        ),
        (20, [25, 25], "a slow network of the leader looks like that"),
        (2, [20, 20], "others are slow"),
    ] {
        let mut cluster = Cluster::new(ms(own), others.map(ms));
        let moved = cluster.hands_over(6);
        assert!(moved.is_none(), "{moved:?}: {why}");
    }
}

#[test]
fn a_disk_that_is_slow_for_two_seconds_or_every_other_time_moves_nothing() {
    let mut cluster = Cluster::new(ms(1), [ms(1); 2]);
    for second in 0..24 {
        cluster.own = ms(if second % 4 < 2 { 50 } else { 1 });
        assert!(cluster.hands_over(1).is_none(), "second {second}");
    }
    for step in 0..6_000 {
        cluster.own = ms(if step % 200 < 100 { 50 } else { 1 });
        cluster.go_on(true);
    }
    assert!(cluster.handed_over.is_empty());
}

/// Appends of so many seconds, all of them slow.
fn slow_for(disk: &mut OwnDisk, seconds: u64, mut now: Moment) -> Moment {
    let [member, ..] = LoneLeader::three(1);
    let members = member.replica.membership();
    for number in 1..=seconds * 10 {
        let id = AppendId(number);
        disk.appended(id, Index(number), now);
        for by in [2, 3].map(MemberId) {
            disk.acknowledged(by, now);
        }
        now = now.after(ms(100));
        disk.persisted(id, now, members);
    }
    now
}

#[test]
fn who_gets_the_lead_back_keeps_it_for_a_minute() {
    let mut disk = OwnDisk::new(BOUNDS);
    let now = slow_for(&mut disk, 4, Moment(0));
    assert!(disk.slowness(now).is_some());
    disk.forget();
    disk.rests_until = now.after(BOUNDS.rest);
    let now = slow_for(&mut disk, 59, now);
    assert!(disk.slowness(now).is_none());
    let now = slow_for(&mut disk, 2, now);
    assert!(disk.slowness(now).is_some());
}

/// As where a disk is slow because its member leads.
#[test]
fn a_lead_that_goes_round_comes_to_rest() {
    let mut disk = OwnDisk::new(BOUNDS);
    let minute = 60_000;
    for (at, leader) in [(0, 1), (4_000, 2), (5_000, 2), (8_000, 1)] {
        disk.leads
            .observe(MemberId(leader), Moment(0).after(ms(at)));
    }
    let now = slow_for(&mut disk, 4, Moment(0).after(ms(8_000)));
    assert!(disk.slowness(now).is_none(), "two changes in a minute");
    disk.forget();
    let now = slow_for(&mut disk, 4, Moment(0).after(ms(minute)));
    assert_eq!(now, Moment(0).after(ms(minute + 4_000)));
    assert!(disk.slowness(now).is_some(), "the first was a minute ago");
}

#[test]
fn a_disk_that_has_done_nothing_since_is_slow_no_more() {
    let mut disk = OwnDisk::new(BOUNDS);
    let now = slow_for(&mut disk, 3, Moment(0));
    assert!(disk.slowness(now).is_some());
    assert!(
        disk.slowness(now.after(BOUNDS.window * NEWS_WINDOWS))
            .is_none()
    );
}

#[test]
fn the_next_one_is_prompt_fit_and_caught_up() {
    let of = |member, matched| Progress {
        member: MemberId(member),
        matched: Index(matched),
        recently_active: true,
        keeps_up: true,
        fit: Some(true),
        voter: true,
    };
    let disk = OwnDisk {
        prompt: [(2, 40), (3, 90), (4, 100)]
            .map(|(id, times)| (MemberId(id), times))
            .into(),
        ..OwnDisk::new(BOUNDS)
    };
    let best = of(4, 9);
    for (changed, expected) in [
        (best, Some(4)),
        (of(4, 6), Some(3)),
        (Progress { fit: None, ..best }, Some(3)),
        (
            Progress {
                voter: false,
                ..best
            },
            Some(3),
        ),
        (
            Progress {
                keeps_up: false,
                ..best
            },
            Some(3),
        ),
        (
            Progress {
                recently_active: false,
                ..best
            },
            Some(3),
        ),
    ] {
        let others = [of(2, 9), of(3, 7), changed, of(5, 9)];
        let next = disk.successor(others.iter(), Index(7)).map(|it| it.0);
        assert_eq!(next, expected, "{changed:?}");
    }
    let behind = [of(2, 6), of(3, 6), of(5, 9)];
    assert_eq!(disk.successor(behind.iter(), Index(7)), None);
}

#[test]
fn nothing_moves_while_the_members_change() {
    let mut cluster = Cluster::new(ms(20), [ms(2); 2]);
    cluster.leader.holds_apply = true;
    let change = MembershipChange::AddLearner(record(4));
    cluster.leader.ask(Write::Change(change));
    assert!(cluster.hands_over(6).is_none());
}

#[test]
fn a_transfer_that_is_under_way_is_not_replaced() {
    let mut cluster = Cluster::new(ms(20), [ms(2); 2]);
    cluster.leader.replica.own_disk.rests_until = cluster.leader.now.after(ms(4_001));
    assert!(cluster.hands_over(4).is_none());
    cluster.deaf = Some(MemberId(2));
    let token = cluster.leader.replica.name();
    let to = Successor::Named(MemberId(2));
    let transfer = Input::Transfer { token, to };
    cluster.leader.replica.handle(transfer, cluster.leader.now);
    let (took, _) = cluster.hands_over(6).expect("it was given up");
    assert!(took >= ms(1_900), "{took:?}");
}
