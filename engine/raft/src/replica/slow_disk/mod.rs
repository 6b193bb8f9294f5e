//! Whether this leader's disk is much slower than the others', and the hand-over that ends that.
//!
//! A write is answered once it is applied at the leader, and nothing is applied that is not on its
//! own disk. So a follower with a slow disk slows nothing down while the others are a quorum, and a
//! leader with one slows down every write.
//!
//! One append at a time is followed: how long it takes to be on this member's disk, and who of the
//! others has acknowledged it by then, their disks and the network included. The leader hands over
//! if those who would be a quorum without it had it in a third of the time, nearly always, for
//! seconds; to one of them, so the next leader does not find itself slow for the same reason. Where
//! others are as slow, or are reached as slowly, nothing would be gained, and nothing happens: also
//! where the leader alone is reached slowly, which it cannot tell from slow others.

use std::collections::BTreeMap;
use std::time::Duration;

use dengine_kv::Membership;
use dengine_types::{Index, MemberId, Moment};

use super::Replica;
use crate::consensus::{LogRead, Progress, ReplicaState, Role};
use crate::input::AppendId;
use crate::output::{HandOver, Output};

/// The others need at most this part of the leader's time.
const TIMES: u32 = 3;
/// Of so many appends at least a window consists.
const APPENDS_MIN: u32 = 4;
/// A disk is slow that was so in so many windows in a row.
const WINDOWS: u32 = 3;
/// What was found counts for so many windows, which are some ticks.
const NEWS_WINDOWS: u32 = 2;
/// A member hands over for no slow disk while the lead has changed hands so often within
/// [`SlowDisk::rest`]: what leading itself slows down, as reads do that only a leader has, would
/// move it round forever.
const CHANGES: usize = 2;

/// When a leader's disk is slow, and how often that moves the lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowDisk {
    /// The least that an append takes on a slow disk.
    pub least: Duration,
    /// Appends are judged together that were followed in so long; three times in a row they have
    /// to be slow. Some ticks.
    pub window: Duration,
    /// After a hand-over, whatever came of it, this member hands over for no slow disk for so long:
    /// whoever gave it the lead back may have a reason. Nor does any while the lead has changed
    /// hands twice in that time.
    pub rest: Duration,
}

impl SlowDisk {
    /// No disk is slow.
    pub(super) const NEVER: Self = Self::of_at_least(Duration::MAX);

    /// Windows of a second, and rest for a minute.
    #[must_use]
    pub const fn of_at_least(least: Duration) -> Self {
        Self {
            least,
            window: Duration::from_secs(1),
            rest: Duration::from_secs(60),
        }
    }
}

/// How the disk of a leader does beside those of others.
#[derive(Debug)]
pub(super) struct OwnDisk {
    bounds: SlowDisk,
    followed: Option<Followed>,
    /// Who has acknowledged that append, and after how long, which only grows.
    by: Vec<(MemberId, Duration)>,
    window: Window,
    /// Windows in a row in which it was slow.
    slow_windows: u32,
    /// In the last of them, and when that ended.
    slow: Option<(Slowness, Moment)>,
    /// How often others were prompt in these and since.
    prompt: BTreeMap<MemberId, u32>,
    rests_until: Moment,
    leads: Leads,
}

/// Who led last, and when the lead last changed hands.
#[derive(Clone, Copy, Debug, Default)]
struct Leads {
    last: Option<MemberId>,
    changed: [Option<Moment>; CHANGES],
}

impl Leads {
    fn observe(&mut self, leader: MemberId, now: Moment) {
        if self.last.replace(leader).is_some_and(|it| it != leader) {
            self.changed.rotate_right(1);
            self.changed[0] = Some(now);
        }
    }

    fn is_restless(&self, now: Moment, rest: Duration) -> bool {
        self.changed[CHANGES - 1].is_some_and(|at| now.since(at) < rest)
    }
}

/// An append that is not on this member's disk yet.
#[derive(Debug)]
struct Followed {
    id: AppendId,
    last: Index,
    since: Moment,
}

/// How long appends take on average until they are on a slow disk, and on a quorum of others.
#[derive(Clone, Copy, Debug)]
struct Slowness {
    own: Duration,
    others: Duration,
}

/// Appends that are judged together.
#[derive(Debug, Default)]
struct Window {
    since: Moment,
    appends: u32,
    slow: u32,
    /// Of the slow ones together.
    own: Duration,
    others: Duration,
}

impl Window {
    fn is_full(&self, now: Moment, least: Duration) -> bool {
        self.appends >= APPENDS_MIN && now.since(self.since) >= least
    }

    /// If nearly all were slow.
    fn slowness(&self) -> Option<Slowness> {
        let is_slow = self.slow * 4 >= self.appends * 3;
        is_slow.then(|| Slowness {
            own: self.own / self.slow,
            others: self.others / self.slow,
        })
    }
}

impl OwnDisk {
    pub(super) fn new(bounds: SlowDisk) -> Self {
        Self {
            bounds,
            followed: None,
            by: Vec::new(),
            window: Window::default(),
            slow_windows: 0,
            slow: None,
            prompt: BTreeMap::new(),
            rests_until: Moment::default(),
            leads: Leads::default(),
        }
    }

    /// An append is handed out, up to this entry.
    fn appended(&mut self, id: AppendId, last: Index, now: Moment) {
        if self.followed.is_none() {
            let since = now;
            self.followed = Some(Followed { id, last, since });
            self.by.clear();
        }
    }

    /// What this member is to acknowledge, if that is to be noted.
    fn awaits(&self, member: MemberId) -> Option<Index> {
        let followed = self.followed.as_ref()?;
        let has = self.by.iter().any(|(by, _)| *by == member);
        (!has).then_some(followed.last)
    }

    fn acknowledged(&mut self, by: MemberId, now: Moment) {
        if let Some(followed) = &self.followed {
            self.by.push((by, now.since(followed.since)));
        }
    }

    /// The appends up to this one are on this member's disk.
    fn persisted(&mut self, id: AppendId, now: Moment, members: &Membership) {
        let Some(followed) = self.followed.take_if(|it| it.id <= id) else {
            return;
        };
        let own = now.since(followed.since);
        let votes = |id: &MemberId| members.members.get(id).is_some_and(|it| it.voter);
        let quorum = members.voters().count() / 2 + 1;
        self.by
            .retain(|(by, took)| votes(by) && *took * TIMES <= own);
        for (by, _) in &self.by {
            let times = self.prompt.entry(*by).or_default();
            *times = times.saturating_add(1);
        }
        let window = &mut self.window;
        if window.appends == 0 {
            window.since = followed.since;
        }
        window.appends += 1;
        if let Some((_, others)) = self.by.get(quorum - 1)
            && own >= self.bounds.least
        {
            window.slow += 1;
            window.own += own;
            window.others += *others;
        }
        if window.is_full(now, self.bounds.window) {
            self.end_window(now);
        }
    }

    fn end_window(&mut self, now: Moment) {
        match std::mem::take(&mut self.window).slowness() {
            Some(slowness) => {
                self.slow = Some((slowness, now));
                self.slow_windows = self.slow_windows.saturating_add(1);
            }
            None => self.forget(),
        }
    }

    /// If this disk is so slow that another member should lead.
    fn slowness(&self, now: Moment) -> Option<Slowness> {
        let (slowness, at) = self.slow?;
        let is_news = now.since(at) < self.bounds.window * NEWS_WINDOWS;
        let has_rested = now >= self.rests_until && !self.leads.is_restless(now, self.bounds.rest);
        let is_slow = self.slow_windows >= WINDOWS && is_news && has_rested;
        is_slow.then_some(slowness)
    }

    /// Of those that are caught up, the one that was prompt most often.
    fn successor<'a>(
        &self,
        others: impl Iterator<Item = &'a Progress>,
        committed: Index,
    ) -> Option<MemberId> {
        let answers = |p: &Progress| p.voter && p.recently_active && p.fit == Some(true);
        let suits = |p: &&Progress| answers(p) && p.keeps_up && p.matched >= committed;
        let prompt = others.filter(suits).filter_map(|p| {
            let times = self.prompt.get(&p.member)?;
            Some((*times, std::cmp::Reverse(p.member)))
        });
        prompt.max().map(|(_, member)| member.0)
    }

    /// What was measured counts no more.
    fn forget(&mut self) {
        *self = Self {
            rests_until: self.rests_until,
            leads: self.leads,
            ..Self::new(self.bounds)
        };
    }
}

impl<L: LogRead> Replica<L> {
    /// An append is handed out.
    pub(super) fn follow_append(&mut self, id: AppendId, last: Option<Index>) {
        let leads = self.consensus.state().role == Role::Leader;
        if let Some(last) = last.filter(|_| leads && self.config.slow_disk.is_some()) {
            self.own_disk.appended(id, last, self.now);
        }
    }

    /// Something came from a peer.
    pub(super) fn note_acknowledgement(&mut self, from: MemberId) {
        if let Some(last) = self.own_disk.awaits(from)
            && self.consensus.matched(from) >= last
        {
            self.own_disk.acknowledged(from, self.now);
        }
    }

    pub(super) fn note_own_disk(&mut self, id: AppendId) {
        if self.config.slow_disk.is_some() {
            self.own_disk.persisted(id, self.now, &self.membership);
        }
    }

    /// Whoever does not lead follows no appends, and comes to lead as if its disk were new.
    pub(super) fn forget_own_disk(&mut self, state: ReplicaState) {
        if let Some(leader) = state.leader {
            self.own_disk.leads.observe(leader, self.now);
        }
        if state.role != Role::Leader {
            self.own_disk.forget();
        }
    }

    /// Hands over if this leader's disk is slow, and nothing else is under way.
    pub(super) fn hand_over_if_slow(&mut self) {
        let Some(Slowness { own, others }) = self.own_disk.slowness(self.now) else {
            return;
        };
        if self.transfer.is_some() || self.consensus.may_change_members() {
            return;
        }
        // To read it for another slows the disk down, and the next leader would begin it again.
        if self.consensus.is_busy_with_a_snapshot() {
            self.own_disk.forget();
            return;
        }
        let progress = self.consensus.progress();
        let peers = progress
            .iter()
            .filter(|it| it.member != self.config.member_id);
        let committed = self.consensus.commit_index();
        let Some(to) = self.own_disk.successor(peers, committed) else {
            return;
        };
        self.own_disk.forget();
        self.own_disk.rests_until = self.now.after(self.own_disk.bounds.rest);
        let hand_over = HandOver { to, own, others };
        self.outputs.push(Output::HandsOver(hand_over));
        self.begin_transfer(None, to);
    }
}

#[cfg(test)]
mod tests;
