use dengine_kv::{CommandVersion, Put};

use super::under_way::{WINDOW_BYTES, Window};
use super::*;
use crate::input::{Input, Write};
use crate::output::Outbound;
use crate::replica::lone::LoneLeader;
use crate::replica::{Announcement, RequestError};

/// What became of a follower's callers.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Applied(Token),
    Refused(Token),
    Lost(Token),
    Forgotten(Token),
}

/// Three members, of which the first leads and takes what the second passes on.
struct Three {
    members: [LoneLeader; 3],
    told: Vec<Told>,
}

impl Three {
    fn led_by_the_first() -> Self {
        let mut three = Self {
            members: LoneLeader::three_told_within(Duration::from_secs(3600), 64),
            told: Vec::new(),
        };
        three.has_lead(0);
        three.takes(1, 1, true);
        three.time_passes(3);
        three
    }

    /// Member `by` of the three is the only one whose time passes until it leads.
    fn has_lead(&mut self, by: usize) {
        for _ in 0..200 {
            let leads = self.members[by].replica.consensus().state().role == Role::Leader;
            let agreed = self
                .members
                .iter()
                .all(|it| it.replica.consensus().state().leader == Some(MemberId(by as u64 + 1)));
            if leads && agreed {
                return;
            }
            // The others do not stand, and grant votes once they have been silent for long.
            self.members[by].tick();
            if self.members[by].replica.consensus().state().role != Role::Leader {
                for other in (0..3).filter(|it| *it != by) {
                    self.members[other].tick();
                    self.settle_alone(other);
                }
            }
            self.settle();
        }
        panic!("nobody was elected");
    }

    /// So many ticks.
    fn time_passes(&mut self, ticks: usize) {
        for _ in 0..ticks {
            self.members.iter_mut().for_each(LoneLeader::tick);
            self.settle();
        }
    }

    fn takes(&mut self, follower: usize, leader: u64, takes_passed_on: bool) {
        let announced = Input::Announced {
            member: MemberId(leader),
            by: Announcement::Ack { takes_passed_on },
            reads_max: CommandVersion::CURRENT,
        };
        let member = &mut self.members[follower];
        member.replica.handle(announced, member.now);
    }

    /// Does what follows at one, and drops what it says.
    fn settle_alone(&mut self, place: usize) {
        let sent = self.outputs_of(place);
        drop(sent);
    }

    /// What one has to send, once all else is done.
    fn outputs_of(&mut self, place: usize) -> Vec<Outbound> {
        loop {
            let outputs = self.members[place].outputs();
            if outputs.is_empty() {
                return std::mem::take(&mut self.members[place].sent);
            }
            for output in outputs {
                match &output {
                    Output::Apply(job) => {
                        let told = job.awaited.iter().map(|(_, it)| Told::Applied(*it));
                        self.told.extend(told);
                    }
                    Output::Refused { tokens, error } => {
                        assert!(matches!(error, RequestError::NotLeader { .. }), "{error}");
                        self.told.extend(tokens.iter().map(|it| Told::Refused(*it)));
                    }
                    Output::Lost(token) => self.told.push(Told::Lost(*token)),
                    Output::Forgotten(token) => self.told.push(Told::Forgotten(*token)),
                    _ => {}
                }
                self.members[place].carry_out(output);
            }
        }
    }

    fn deliver(&mut self, from: usize, message: &Outbound) {
        let to = message.to.0 as usize - 1;
        let member = &mut self.members[to];
        let input = Input::Message {
            from: MemberId(from as u64 + 1),
            bytes: message.bytes.clone(),
        };
        member.replica.handle(input, member.now);
    }

    /// Until nobody has anything to say.
    fn settle(&mut self) {
        loop {
            let mut said = false;
            for place in 0..3 {
                for message in self.outputs_of(place) {
                    said = true;
                    self.deliver(place, &message);
                }
            }
            if !said {
                return;
            }
        }
    }

    /// Somebody asks the second for a put.
    fn asks(&mut self, key: &str) -> Token {
        self.asks_from(7, key, Bytes::from_static(b"v"))
    }

    fn asks_from(&mut self, client: u8, key: &str, value: Bytes) -> Token {
        let put = Command::Put(Put::new(key.to_owned(), value));
        self.members[1].ask(Write::Command {
            command: EncodedCommand::new(put.into(), CommandVersion::CURRENT),
            from: Some([10, 0, 0, client].into()),
            passes: true,
        })
    }

    /// And what the second sends for that.
    fn passes(&mut self, key: &str) -> (Token, Vec<Outbound>) {
        let token = self.asks(key);
        (token, self.outputs_of(1))
    }

    /// How many entries with data the first has.
    fn logged(&self) -> usize {
        let entries = self.members[0].appended.iter();
        entries.filter(|it| !it.data.is_empty()).count()
    }
}

#[test]
fn a_followers_caller_is_answered_once_the_follower_has_applied_it() {
    let mut three = Three::led_by_the_first();
    let token = three.asks("a");
    three.settle();
    // It is told at once what is committed, for somebody waits.
    assert_eq!(three.told, [Told::Applied(token)]);
    assert_eq!(three.logged(), 1);
    let ended = three.members[0].replica.take_ended_of_others();
    assert_eq!(ended.calls, 1);
    assert!(!three.members[1].replica.passed_on.is_awaited());
}

/// A network that repeats what it carries had a put applied twice.
#[test]
fn what_arrives_twice_is_proposed_once() {
    let mut three = Three::led_by_the_first();
    let (first, sent) = three.passes("a");
    let (second, later) = three.passes("b");
    for message in later.iter().chain(&sent).chain(&later) {
        three.deliver(1, message);
    }
    three.settle();
    assert_eq!(three.logged(), 1, "the one that came behind was dropped");
    assert_eq!(three.told, [Told::Applied(second)]);
    assert!(
        three.members[1]
            .replica
            .passed_on
            .waiting
            .contains_key(&first)
    );
}

#[test]
fn whom_the_leader_refuses_is_told_to_ask_it() {
    let mut three = Three::led_by_the_first();
    let leader = &mut three.members[0];
    leader.replica.handle(Input::LowOnSpace(true), leader.now);
    let token = three.asks("a");
    three.settle();
    assert_eq!(three.told, [Told::Refused(token)]);
    assert_eq!(three.logged(), 0);
}

#[test]
fn nothing_is_passed_on_to_who_does_not_take_it() {
    let mut three = Three::led_by_the_first();
    assert!(three.members[1].replica.leader_takes().bytes() > 0);
    three.takes(1, 1, false);
    let (token, sent) = three.passes("a");
    assert!(sent.is_empty(), "{sent:?}");
    assert_eq!(three.told, [Told::Refused(token)]);
    assert_eq!(three.members[1].replica.leader_takes().bytes(), 0);
}

#[test]
fn what_breaks_on_its_way_may_or_may_not_be_proposed() {
    let mut three = Three::led_by_the_first();
    let (token, _) = three.passes("a");
    let follower = &mut three.members[1];
    follower
        .replica
        .handle(Input::Disconnected(MemberId(1)), follower.now);
    three.settle();
    assert_eq!(three.told, [Told::Forgotten(token)]);
    // Later ones wait for the next leader, or for this one.
    let (later, sent) = three.passes("b");
    assert!(sent.is_empty(), "{sent:?}");
    assert_eq!(three.told.last(), Some(&Told::Refused(later)));
}

/// Upon a message that had no room, all that were on their way were given up, and nothing was
/// passed on any more until the stream broke.
#[test]
fn a_message_that_was_dropped_says_nothing_of_others() {
    let mut three = Three::led_by_the_first();
    let (dropped, _) = three.passes("a");
    let (token, sent) = three.passes("b");
    let follower = &mut three.members[1];
    follower
        .replica
        .handle(Input::Unreachable(MemberId(1)), follower.now);
    assert!(three.members[1].replica.leader_that_takes().is_some());
    for message in &sent {
        three.deliver(1, message);
    }
    three.settle();
    assert_eq!(three.told, [Told::Applied(token)]);
    // Who waits for it is told nothing certain, and not at the end of an hour.
    three.time_passes(100);
    assert_eq!(three.told[1..], [Told::Forgotten(dropped)]);
    assert_eq!(three.members[1].replica.passed_on.window.bytes, 0);
}

/// Answers to heartbeats, and acknowledgements, waited behind all that a client had sent.
#[test]
fn no_more_is_on_its_way_than_delays_nothing() {
    let mut three = Three::led_by_the_first();
    let value = Bytes::from(vec![0; LARGEST_PASSED_ON_BYTES - 100]);
    let greedy = (0..40).map(|key| three.asks_from(7, &key.to_string(), value.clone()));
    let greedy: Vec<_> = greedy.collect();
    let mut sent = three.outputs_of(1);
    let bytes: usize = sent.iter().map(|it| it.bytes.len()).sum();
    assert!((WINDOW_BYTES * 3 / 8..WINDOW_BYTES * 5 / 8).contains(&bytes));
    // The others go the way of calls, at once.
    let others = three.told.len();
    let refused = greedy[40 - others..].iter().map(|it| Told::Refused(*it));
    assert_eq!(three.told, refused.collect::<Vec<_>>());
    assert_eq!(
        three.members[1].replica.passed_on.waiting.len(),
        40 - others
    );
    // At the leader it would have its turn behind those.
    let modest = three.asks_from(8, "b", Bytes::from_static(b"v"));
    sent.extend(three.outputs_of(1));
    for message in &sent {
        three.deliver(1, message);
    }
    three.settle();
    assert!(three.told.contains(&Told::Applied(modest)));
    assert_eq!(three.told.len(), 41, "all were answered");
    let window = &three.members[1].replica.passed_on.window;
    assert_eq!((window.bytes, window.of_clients.len()), (0, 0));
}

#[test]
fn clients_that_want_all_of_it_come_to_have_as_much_as_one_another() {
    const EACH: usize = 1 << 10;
    let mut window = Window::default();
    let clients: [_; 7] = std::array::from_fn(|it| IpAddr::from([10, 0, 0, it as u8]));
    for client in clients {
        while window.take(client, EACH) {}
    }
    assert!(!window.take(clients[0], EACH), "it has its share");
    for _ in 0..WINDOW_BYTES / EACH {
        for client in clients {
            if window.of_clients.contains_key(&client) {
                window.give_back(client, EACH);
            }
            // As many as it asks for, so that what others give back is had by somebody.
            while window.take(client, EACH) {}
        }
    }
    let shares = clients.map(|it| window.of_clients[&it] * (clients.len() + 1));
    let even = |share: usize| share.abs_diff(WINDOW_BYTES) < WINDOW_BYTES / 10;
    assert!(shares.into_iter().all(even), "{shares:?}");
}

#[test]
fn who_asks_and_leaves_has_no_more_on_its_way() {
    let mut passed_on = UnderWay::default();
    let to = To {
        leader: MemberId(1),
        term: Term(1),
        since: Moment(0),
        client: [10, 0, 0, 7].into(),
        bytes: 7,
    };
    assert!(passed_on.window.take(to.client, to.bytes));
    passed_on.add(Token(1), to);
    let mut left = |after: Duration, is_gone: bool| {
        let forgotten = passed_on.prune(Moment(0).after(after), &|_| is_gone);
        assert_eq!(forgotten, []);
        passed_on.window.bytes
    };
    assert_eq!(left(Duration::ZERO, true), 7);
    assert_eq!(left(WAITS_AT_MOST, false), 7);
    assert_eq!(left(WAITS_AT_MOST, true), 0);
}

/// Its clients' writes were answered once it had caught up, or never.
#[test]
fn a_follower_that_is_behind_passes_nothing_on() {
    let mut three = Three::led_by_the_first();
    three.members[1].holds_apply = true;
    let (_, sent) = three.passes("a");
    for message in &sent {
        three.deliver(1, message);
    }
    three.settle();
    assert!(three.members[1].replica.leader_that_takes().is_some());
    three.time_passes(20);
    assert!(three.members[2].replica.consensus().can_confirm_reads());
    assert_eq!(three.members[1].replica.leader_that_takes(), None);
    let (later, sent) = three.passes("b");
    assert!(sent.is_empty(), "{sent:?}");
    assert_eq!(three.told.last(), Some(&Told::Refused(later)));
}

/// They were dropped, and their callers waited on.
#[test]
fn what_waits_for_too_long_at_the_leader_is_refused() {
    let mut three = Three::led_by_the_first();
    let (token, sent) = three.passes("a");
    for message in &sent {
        three.deliver(1, message);
    }
    let leader = &mut three.members[0];
    leader.now = leader.now.after(WAITS_AT_MOST);
    leader.tick();
    three.settle();
    assert_eq!(three.told, [Told::Refused(token)]);
    assert_eq!(three.logged(), 0);
}

#[test]
fn what_a_leader_has_no_room_for_is_refused() {
    let mut three = Three::led_by_the_first();
    let bytes = Arc::clone(&three.members[0].replica.passed_on_here.waiting_bytes);
    bytes.fetch_add(WAITING_BYTES, Ordering::Relaxed);
    let token = three.asks("a");
    three.settle();
    assert_eq!(three.told, [Told::Refused(token)]);
    bytes.fetch_sub(WAITING_BYTES, Ordering::Relaxed);
    let token = three.asks("a");
    three.settle();
    assert_eq!(three.told.last(), Some(&Told::Applied(token)));
    assert_eq!(bytes.load(Ordering::Relaxed), 0);
}

/// Its limits are lower, or a peer passes on what no client may ask for.
#[test]
fn what_a_leader_does_not_read_is_refused() {
    let mut three = Three::led_by_the_first();
    three.members[0].replica.takes_of_others(Box::new(|_| None));
    let token = three.asks("a");
    three.settle();
    assert_eq!(three.told, [Told::Refused(token)]);
    assert_eq!(three.logged(), 0);
}

/// They were dropped until the leader changed, and their callers waited in vain.
#[test]
fn a_member_that_started_too_often_is_refused() {
    let mut three = Three::led_by_the_first();
    let told = (1..100).map(|boot| {
        three.members[1].replica.config.boot_nonce = boot;
        let token = three.asks("a");
        three.settle();
        let told = three.told.pop().unwrap();
        assert!([Told::Applied(token), Told::Refused(token)].contains(&told));
        told == Told::Applied(token)
    });
    assert_eq!(told.filter(|it| *it).count(), 64);
}

#[test]
fn nothing_is_passed_on_to_whom_this_member_does_not_follow() {
    let mut three = Three::led_by_the_first();
    let consensus = &mut three.members[1].replica.consensus;
    let passed = consensus.pass_on(MemberId(3), [10, 0, 0, 7].into(), Vec::new());
    assert_eq!(passed, Err(Refusal::NotLeader));
    assert!(three.outputs_of(1).is_empty());
}

/// It did not reach the first leader, and must not be proposed by a later one: its caller was
/// told by then that it is lost.
#[test]
fn what_was_passed_on_in_an_earlier_term_is_lost_once_a_later_one_has_committed() {
    let mut three = Three::led_by_the_first();
    let (token, sent) = three.passes("a");
    three.has_lead(2);
    three.settle();
    assert_eq!(three.told, [Told::Lost(token)]);
    three.has_lead(0);
    for message in &sent {
        three.deliver(1, message);
    }
    three.settle();
    assert_eq!(three.logged(), 0);
}

#[test]
fn only_what_names_its_keys_is_passed_on() {
    let put = Command::Put(Put::new("a".to_owned(), Bytes::new()));
    assert!(may_be_passed_on(&put));
    assert!(!may_be_passed_on(&Command::OpenSession { ttl_ms: 1 }));
    let large = EncodedCommand {
        data: Bytes::from(vec![0; LARGEST_PASSED_ON_BYTES + 1]),
        records: 1,
    };
    assert!(!is_small_enough(&large));
}
