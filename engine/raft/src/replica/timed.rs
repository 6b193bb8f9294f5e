//! For tests: a leader in time. Its disk and its applier take some, and its keeper works.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use dengine_kv as kv;
use dengine_kv::store::MemoryStore;
use dengine_kv::{
    Batch, BatchOperation, Command, CommandVersion, Put, RetentionSetting, SessionStamp,
};
use dengine_types::{Entry, MemberId, Moment, Revision, SessionId};

use super::lone::LoneLeader;
use super::{AppliedRange, Keeper};
use crate::consensus::{Role, describe};
use crate::input::{AppendId, EncodedCommand, Input, Write};
use crate::output::{ApplyJob, LogJob, Outbound, Output};

const STEP: Duration = Duration::from_micros(100);

/// What a member is capable of.
#[derive(Clone, Copy)]
struct Speed {
    /// Records that are applied in a millisecond.
    applies: u64,
    /// From being written to being on disk, at least.
    to_commit: Duration,
    /// It takes up to so much longer.
    at_times: Duration,
}

struct Member {
    lone: LoneLeader,
    /// Whose network and disks take no time.
    followers: Vec<LoneLeader>,
    keeper: Keeper<MemoryStore>,
    keeper_at: Moment,
    speed: Speed,
    /// When these are on disk.
    synced: VecDeque<(Moment, AppendId)>,
    jobs: VecDeque<ApplyJob>,
    /// What the applier does until then.
    applying: Option<(Moment, AppliedRange)>,
    /// Committed, and not applied.
    logged: VecDeque<Entry>,
    /// By the first byte of a key: what was asked for, and what is applied.
    asked: BTreeMap<u8, usize>,
    applied: BTreeMap<u8, usize>,
    expired: usize,
    ended: usize,
}

impl Member {
    fn new(speed: Speed) -> Self {
        Self::of(speed, LoneLeader::sharing(16), Vec::new())
    }

    fn with_followers(speed: Speed) -> Self {
        let [leader, second, third] = LoneLeader::three(16);
        Self::of(speed, leader, vec![second, third])
    }

    fn of(speed: Speed, mut lone: LoneLeader, mut followers: Vec<LoneLeader>) -> Self {
        for follower in &mut followers {
            // Until then it does not vote: it may just have followed another one.
            (0..10).for_each(|_| follower.tick());
        }
        while lone.replica.consensus().state().role != Role::Leader {
            lone.tick();
            lone.settle();
            exchange(&mut lone, &mut followers);
        }
        let reader = lone.applier.machine().reader();
        Self {
            keeper: Keeper::new(reader, RetentionSetting::default()),
            keeper_at: lone.now,
            lone,
            followers,
            speed,
            synced: VecDeque::new(),
            jobs: VecDeque::new(),
            applying: None,
            logged: VecDeque::new(),
            asked: BTreeMap::new(),
            applied: BTreeMap::new(),
            expired: 0,
            ended: 0,
        }
    }

    fn now(&self) -> Moment {
        self.lone.now
    }

    fn write(&mut self, request: impl Into<kv::Request>, from: Option<u8>) {
        self.lone.ask(Write::Command {
            command: EncodedCommand::new(request.into(), CommandVersion::CURRENT),
            from: from.map(|client| IpAddr::from([10, 0, 0, client])),
            passes: false,
        });
    }

    /// A client puts so many keys at once.
    fn put(&mut self, client: u8, keys: u16, ttl_ms: u64) {
        let asked = self.asked.entry(client).or_default();
        *asked += 1;
        let name = u32::try_from(*asked).unwrap().to_be_bytes();
        let put = |key: u16| {
            BatchOperation::Put(Put {
                ttl_ms,
                ..Put::new(
                    [&[client][..], &name, &key.to_be_bytes()].concat(),
                    Bytes::new(),
                )
            })
        };
        let batch = Batch {
            then: (0..keys).map(put).collect(),
            ..Batch::default()
        };
        self.write(Command::Batch(batch), Some(client));
    }

    /// How many of a client's writes are not applied.
    fn waiting(&self, client: u8) -> usize {
        let of = |counts: &BTreeMap<u8, usize>| counts.get(&client).copied().unwrap_or_default();
        of(&self.asked) - of(&self.applied)
    }

    fn go_on(&mut self) {
        self.lone.now = self.lone.now.after(STEP);
        let now = self.now();
        if (now.0 / 100_000).is_multiple_of(1_000) {
            self.lone.replica.handle(Input::Tick, now);
        }
        while let Some(&(at, id)) = self.synced.front()
            && at <= now
        {
            self.synced.pop_front();
            self.lone.replica.handle(Input::Persisted(id), now);
        }
        self.apply();
        if self.keeper_at <= now {
            let term = self.lone.replica.consensus().state().term;
            let own = self
                .keeper
                .work(Some(term), CommandVersion::CURRENT, || now);
            self.lone.replica.handle(Input::Propose(own.unwrap()), now);
            self.keeper_at = now.after(self.keeper.pause());
        }
        loop {
            let outputs = self.lone.outputs();
            if outputs.is_empty() {
                return;
            }
            outputs.into_iter().for_each(|it| self.carry_out(it));
            hear(&mut self.lone, &mut self.followers);
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Log(LogJob::Append {
                id,
                hard_state,
                entries,
            }) => {
                self.lone.append(hard_state, entries);
                // Of another length each time, and the same in each run.
                let longer = self.speed.at_times * (id.0 as u32 * 7 % 16) / 15;
                let synced = self.now().after(self.speed.to_commit + longer);
                // One after the other.
                let synced = self.synced.back().map_or(synced, |last| last.0.max(synced));
                self.synced.push_back((synced, id));
            }
            Output::Apply(job) => {
                self.logged.extend(job.entries.iter().cloned());
                self.jobs.push_back(job);
            }
            Output::Send(messages) => self.lone.sent.extend(messages),
            _ => {}
        }
    }

    /// What was begun is done, and the next part begins.
    fn apply(&mut self) {
        let now = self.now();
        if self
            .applying
            .as_ref()
            .is_some_and(|(until, _)| now < *until)
        {
            return;
        }
        if let Some((_, range)) = self.applying.take() {
            self.count(&range);
            self.lone.replica.handle(Input::Applied(range), now);
        }
        let jobs = std::iter::from_fn(|| self.jobs.pop_front());
        if let Some(done) = self.lone.applier.work(jobs, || now).unwrap() {
            let mut range = done.range;
            let micros = range.records as u64 * 1_000 / self.speed.applies;
            range.at = now.after(Duration::from_micros(micros));
            self.applying = Some((range.at, range));
        }
    }

    fn count(&mut self, range: &AppliedRange) {
        while let Some(entry) = self.logged.front()
            && entry.index <= range.index
        {
            let data = self.logged.pop_front().unwrap().data;
            let Ok(Ok(logged)) = kv::Request::decode(data) else {
                continue;
            };
            match logged.request.command {
                Command::Batch(batch) => {
                    let BatchOperation::Put(put) = &batch.then[0] else {
                        unreachable!("nobody else writes batches");
                    };
                    *self.applied.entry(put.key[0]).or_default() += 1;
                }
                Command::ExpireKeys { keys } => self.expired += keys.len(),
                Command::ExpireSession { .. } => self.ended += 1,
                _ => {}
            }
        }
    }
}

/// Until no member has more to send.
fn exchange(leader: &mut LoneLeader, followers: &mut [LoneLeader]) {
    while !leader.sent.is_empty() {
        hear(leader, followers);
        leader.settle();
    }
}

/// A leader tells it of commits at once.
#[test]
fn a_follower_says_that_somebody_waits_there() {
    let speed = Speed {
        applies: 1,
        to_commit: STEP,
        at_times: STEP,
    };
    let Member {
        lone: mut leader,
        mut followers,
        ..
    } = Member::with_followers(speed);
    followers[0]
        .replica
        .handle(Input::CommitsAwaited, leader.now);
    leader.ask(Write::settle());
    leader.settle();
    let answers = answers(&mut leader, &mut followers);
    let said = answers.iter().map(|it| (it.from, describe(&it.bytes)));
    let awaits: Vec<_> = said
        .filter(|(_, said)| said.contains("has"))
        .map(|(from, said)| (from.0, said.contains("awaits commits")))
        .collect();
    assert_eq!(awaits, [(2, true), (3, false)]);
}

/// Followers hear what their leader has sent, and it hears their answers.
fn hear(leader: &mut LoneLeader, followers: &mut [LoneLeader]) {
    for Answer { from, bytes } in answers(leader, followers) {
        let answer = Input::Message { from, bytes };
        leader.replica.handle(answer, leader.now);
    }
}

struct Answer {
    from: MemberId,
    bytes: Bytes,
}

fn answers(leader: &mut LoneLeader, followers: &mut [LoneLeader]) -> Vec<Answer> {
    let from = leader.replica.config.member_id;
    let mut answers = Vec::new();
    for Outbound { to, bytes, .. } in std::mem::take(&mut leader.sent) {
        let is_to = |it: &&mut LoneLeader| it.replica.config.member_id == to;
        let follower = followers.iter_mut().find(is_to).expect("a member");
        follower.now = leader.now;
        let message = Input::Message { from, bytes };
        follower.replica.handle(message, follower.now);
        follower.settle();
        let sent = std::mem::take(&mut follower.sent).into_iter();
        answers.extend(sent.map(|it| Answer {
            from: to,
            bytes: it.bytes,
        }));
    }
    answers
}

/// What clients put in a second whose batches of so many keys wait by the thousand keys, in percent
/// of what is applied by then.
fn used(mut member: Member, clients: u8, keys: u16) -> u64 {
    const SECONDS: u64 = 2;
    for _ in 0..SECONDS * 10_000 {
        for client in 1..=clients {
            while member.waiting(client) < 4_096 / usize::from(keys.max(8)) {
                member.put(client, keys, 0);
            }
        }
        member.go_on();
    }
    let put = member.applied.values().sum::<usize>() as u64 * u64::from(keys);
    put * 100 / (member.speed.applies * 1_000 * SECONDS)
}

/// All that might be under way was applied before anybody heard of it, and the applier waited for
/// the disk: two clients' batches were put at a third of the rate of one's.
#[test]
fn several_clients_keep_the_applier_as_busy_as_one() {
    for (millis, keys) in [(1, 16), (3, 1), (3, 16), (3, 128), (20, 128)] {
        let speed = Speed {
            applies: 48,
            to_commit: Duration::from_millis(millis),
            at_times: Duration::ZERO,
        };
        let [one, two] = [1, 2].map(|clients| used(Member::new(speed), clients, keys));
        assert!(
            two >= 80,
            "{keys} keys, {millis} ms: {two} %, and alone {one} %"
        );
    }
}

/// The followers are a majority without the leader, whose applier waits for its own disk: how long
/// that takes was left out.
#[test]
fn a_leader_whose_disk_is_slower_than_those_of_its_followers_keeps_its_applier_busy() {
    for (millis, keys) in [(3, 1), (3, 128), (20, 128)] {
        let speed = Speed {
            applies: 48,
            to_commit: Duration::from_millis(millis),
            at_times: Duration::ZERO,
        };
        let two = used(Member::with_followers(speed), 2, keys);
        assert!(two >= 80, "{keys} keys, {millis} ms: {two} %");
    }
}

/// By the shortest commit, and what was applied at that pace, less and less was under way: a
/// thirtieth of what the applier could do.
#[test]
fn several_clients_keep_the_applier_busy_where_commits_take_turns_in_being_slow() {
    let speed = Speed {
        applies: 48,
        to_commit: Duration::from_millis(2),
        at_times: Duration::from_millis(8),
    };
    for keys in [1, 16] {
        let used = used(Member::new(speed), 2, keys);
        assert!(used >= 25, "{keys} keys: {used} %");
    }
}

/// What was given up was proposed again when the client had filled up everything again. And it
/// counted as due only then.
#[test]
fn what_is_due_beside_a_bulk_load_expires_or_is_known_to_be_late() {
    let speed = Speed {
        applies: 4,
        to_commit: Duration::from_millis(3),
        at_times: Duration::ZERO,
    };
    let mut member = Member::new(speed);
    member.put(1, 128, 10_000);
    for step in 0..300_000 {
        while member.waiting(1) < 512.min(2 + step / 100) {
            member.put(1, 128, 0);
        }
        member.go_on();
        let due = Moment(0).after(Duration::from_millis(10_300));
        if member.expired == 0 && member.now() > due {
            let late = member.now().since(due);
            let known = member.keeper.behind().unwrap_or_default();
            assert!(
                known + Duration::from_millis(400) >= late,
                "{known:?} of {late:?}"
            );
        }
    }
    assert_eq!(member.expired, 128);
}

/// They were ended by the hundred, whatever had been applied, and before everybody's turn: no
/// client wrote for seconds.
#[test]
fn clients_write_while_many_sessions_end() {
    const SESSIONS: usize = 200;
    let mut member = Member::new(Speed {
        applies: 1_000_000,
        to_commit: Duration::ZERO,
        at_times: Duration::ZERO,
    });
    (0..SESSIONS).for_each(|_| member.write(Command::OpenSession { ttl_ms: 60_000 }, None));
    (0..100).for_each(|_| member.go_on());
    let reader = member.lone.applier.machine().reader();
    let sessions = reader.sessions(SessionId(0), 1024).unwrap();
    assert_eq!(sessions.len(), SESSIONS);
    for session in &sessions {
        for sequence in 1..=254 {
            let stamp = SessionStamp {
                id: session.id,
                sequence,
                acknowledged: 0,
            };
            let request = kv::Request {
                session: Some(stamp),
                command: Command::Compact {
                    revision: Revision(0),
                },
            };
            member.write(request, None);
        }
        member.go_on();
    }
    (0..10_000).for_each(|_| member.go_on());
    // It is seen what has used them last, and then nothing does.
    member.speed = Speed {
        applies: 20,
        to_commit: Duration::from_millis(3),
        at_times: Duration::ZERO,
    };
    for seconds in [16, 61] {
        member.lone.now = member.now().after(Duration::from_secs(seconds));
        (0..2_000).for_each(|_| member.go_on());
    }
    let mut longest = Duration::ZERO;
    let mut since = member.now();
    for _ in 0..100_000 {
        if member.waiting(2) == 0 {
            since = member.now();
            member.put(2, 1, 0);
        }
        member.go_on();
        longest = longest.max(member.now().since(since));
    }
    assert_eq!(member.ended, SESSIONS);
    assert!(longest < Duration::from_millis(100), "{longest:?}");
}
