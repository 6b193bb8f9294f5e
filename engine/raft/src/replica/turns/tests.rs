use bytes::Bytes;
use dengine_kv::{Batch, BatchOperation, Command, CommandVersion, ExpiredKey, Put, Request};
use dengine_types::{Entry, Revision};

use super::*;
use crate::input::{Input, Write};
use crate::output::{LogJob, Output};
use crate::replica::lone::LoneLeader;

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn from(last: u8) -> Writer {
    Writer::Client(address(last))
}

const SECOND: Moment = Moment(1_000_000_000);

fn next<T>(turns: &mut Turns<T>) -> Option<T> {
    turns.next(SECOND, |_| false).map(|it| it.1)
}

fn all<T>(turns: &mut Turns<T>) -> Vec<T> {
    std::iter::from_fn(|| next(turns)).collect()
}

#[test]
fn the_writes_of_a_client_keep_their_order_and_clients_take_turns() {
    let mut turns = Turns::default();
    for (client, write) in [(1, "a"), (1, "b"), (1, "c"), (2, "x"), (3, "y"), (2, "z")] {
        turns.wait(from(client), 1, write, SECOND);
    }
    assert_eq!(all(&mut turns), ["a", "x", "y", "b", "z", "c"]);
    turns.wait(from(2), 7, "again", SECOND);
    assert_eq!(turns.next(SECOND, |_| false), Some((7, "again")));
}

/// Behind thirty-two of 16 KiB it would have waited for half a MiB.
#[test]
fn clients_have_equal_shares_by_what_their_writes_ask_for() {
    let mut turns = Turns::default();
    for write in ["large 1", "large 2", "large 3"] {
        turns.wait(from(1), 4, write, SECOND);
    }
    for write in ["a", "b", "c", "d", "e", "f"] {
        turns.wait(from(2), 1, write, SECOND);
    }
    let order: Vec<_> = (0..7).filter_map(|_| next(&mut turns)).collect();
    assert_eq!(order, ["large 1", "a", "b", "c", "d", "large 2", "e"]);
    // A new writer has saved nothing.
    turns.wait(from(3), 1, "new", SECOND);
    assert_eq!(all(&mut turns), ["new", "f", "large 3"]);
    // None waited, so none has had too much.
    turns.wait(from(1), 4, "large 4", SECOND);
    turns.wait(from(3), 1, "later", SECOND);
    assert_eq!(next(&mut turns), Some("large 4"));
    // Since then somebody waits, and who had much is not forgiven.
    turns.wait(from(1), 4, "large 5", SECOND);
    turns.wait(from(3), 1, "latest", SECOND);
    assert_eq!(all(&mut turns), ["later", "latest", "large 5"]);
}

/// Three clients put keys as fast as they can, and whatever is put has to end.
#[test]
fn the_leaders_own_work_has_as_much_as_all_clients_together() {
    let mut turns = Turns::default();
    for client in 1..=3 {
        (0..40).for_each(|_| turns.wait(from(client), 1, "put", SECOND));
    }
    assert!(turns.are_shared(SECOND));
    (0..10).for_each(|_| turns.wait(Writer::Leader, 12, "expire", SECOND));
    let order: Vec<_> = (0..130).filter_map(|_| next(&mut turns)).collect();
    for (ends, writes) in (1..).zip(order.chunks(13)) {
        let expired = writes.iter().filter(|it| **it == "expire").count();
        assert_eq!(expired, 1, "in the {ends}. part");
    }
}

/// Weighed by their bytes alone, a client's batches of a hundred puts had thirty-seven keys put
/// for each that was expired.
#[test]
fn as_many_keys_expire_as_are_put_in_batches() {
    let mut leader = Alone::sharing(64);
    let put = |key: u32| {
        BatchOperation::Put(Put {
            ttl_ms: 1,
            ..Put::new(key.to_be_bytes().to_vec(), Bytes::new())
        })
    };
    let batch = Command::Batch(Batch {
        compares: Vec::new(),
        then: (0..128).map(put).collect(),
        otherwise: Vec::new(),
    });
    let expired = |key: u32| ExpiredKey {
        key: key.to_be_bytes().to_vec().into(),
        mod_revision: Revision(1),
    };
    let keys = (0..96).map(expired).collect();
    let [batch, expiry] = [batch, Command::ExpireKeys { keys }]
        .map(|it| EncodedCommand::new(Request::from(it), CommandVersion::CURRENT));
    for _ in 0..1_000 {
        leader.0.ask(Write::Command {
            command: batch.clone(),
            from: Some(address(1)),
            passes: false,
        });
    }
    let replica = &mut leader.0.replica;
    let own = OwnCommands {
        in_turn: vec![expiry; 1_000],
        ..OwnCommands::default()
    };
    replica.handle(Input::Propose(own), leader.0.now);
    let turns = (0..1_000).filter_map(|_| next(&mut replica.turns));
    let (expire, put): (Vec<_>, Vec<_>) = turns.partition(|it| it.command.records == 96);
    let (expired, put) = (expire.len() * 96, put.len() * 128);
    assert!(
        (put * 9 / 10..put * 11 / 10).contains(&expired),
        "{expired} of {put}"
    );
}

#[test]
fn the_leaders_own_work_alone_is_bounded_for_those_who_read() {
    let mut turns = Turns::default();
    turns.wait(Writer::Leader, 1, (), SECOND);
    assert!(turns.are_shared(SECOND));
    assert!(next(&mut turns).is_some());
    turns.wait(from(1), 1, (), SECOND);
    assert!(!turns.are_shared(SECOND), "none of it waits");
}

/// Each was before all that waited, for what it had had was forgotten when its next write came.
#[test]
fn who_writes_much_but_seldom_is_not_always_first() {
    let milli = |at: u64| Moment(at * 1_000_000);
    let (small, mut small_had) = (from(0), 0);
    let mut turns = Turns::default();
    // When the next write comes of each of the forty: a little more than a second after the
    // last one was proposed.
    let mut due: Vec<_> = (1_000..1_040).map(Some).collect();
    for at in 1_000..11_000 {
        if at % 100 == 0 {
            turns.forget(milli(at), |_| false);
        }
        for (client, due) in (1..).zip(&mut due) {
            if due.take_if(|due| *due <= at).is_some() {
                turns.wait(from(client), 1_024, client, milli(at));
            }
        }
        // A member that proposes a load of 32 in a millisecond.
        let mut proposed = 0;
        while proposed < 32 {
            turns.wait(small, 1, 0, milli(at));
            let (load, client) = turns.next(milli(at), |_| false).unwrap();
            proposed += load;
            match client {
                0 => small_had += load,
                _ => due[usize::from(client) - 1] = Some(at + 1_100),
            }
        }
    }
    let fair = 10_000 * 32 / 41;
    assert!(small_had > fair / 2, "{small_had} of {fair}");
}

#[test]
fn a_client_counts_for_a_second_and_while_its_writes_wait() {
    let mut turns = Turns::default();
    turns.wait(from(1), 1, (), Moment(0));
    assert!(!turns.are_shared(SECOND));
    turns.wait(from(2), 1, (), SECOND);
    for at in [Moment(0), SECOND] {
        turns.next(at, |()| false);
    }
    turns.forget(Moment(999_999_999), |()| false);
    assert!(turns.are_shared(SECOND));
    turns.forget(SECOND, |()| false);
    assert!(turns.are_shared(SECOND), "it has had what others have not");
    assert_eq!(next(&mut turns), None);
    turns.forget(SECOND, |()| false);
    assert!(!turns.are_shared(SECOND), "the first one is silent");
    turns.wait(from(1), 1, (), SECOND);
    let late = Moment(SECOND.0 * 9);
    turns.forget(late, |()| false);
    // A disk hung; the client whose write is proposed at last writes.
    assert!(turns.next(late, |()| false).is_some());
    assert!(turns.next(late, |()| false).is_none());
    turns.forget(late, |()| false);
    assert_eq!(turns.writers.len(), 1);
    turns.forget(Moment(SECOND.0 * 10), |()| false);
    assert!(turns.writers.is_empty());
}

/// A leader whose disk hangs proposes none of them for minutes, and its clients try again and
/// again.
#[test]
fn writes_that_nobody_waits_for_are_not_kept() {
    let mut turns = Turns::default();
    for (client, write) in [
        (1, "gone"),
        (1, "awaited"),
        (2, "gone"),
        (3, "gone"),
        (3, "gone"),
    ] {
        turns.wait(from(client), 1, write, SECOND);
    }
    turns.forget(SECOND, |write| *write == "gone");
    assert_eq!((turns.round.len(), turns.writers.len()), (1, 3));
    turns.wait(from(2), 1, "again", SECOND);
    assert_eq!(all(&mut turns), ["awaited", "again"]);
}

/// Of a client whose writes are late because it waits, ever more were gone when their turn
/// came, and it waited longer because of them.
#[test]
fn what_nobody_waits_for_is_on_no_clients_account() {
    let mut turns = Turns::default();
    for (client, write) in [
        (1, "gone"),
        (1, "gone"),
        (1, "a"),
        (1, "b"),
        (2, "x"),
        (3, "gone"),
        (2, "y"),
    ] {
        turns.wait(from(client), 1, write, SECOND);
    }
    let awaited = || turns.next(SECOND, |it| *it == "gone").map(|it| it.1);
    let order: Vec<_> = std::iter::from_fn(awaited).collect();
    assert_eq!(order, ["a", "x", "b", "y"]);
}

/// A member of whose entries one at a time may be under way while clients share.
struct Alone(LoneLeader);

impl Alone {
    fn new() -> Self {
        Self::sharing(1)
    }

    /// Of whose entries without bytes so many may.
    fn sharing(entries: usize) -> Self {
        let mut leader = LoneLeader::sharing(entries);
        leader.elect();
        leader.settle();
        Self(leader)
    }

    /// A client queues so many writes; each is known by its number.
    fn write(&mut self, client: u8, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            let revision = Revision(number);
            let command = Command::Compact { revision };
            let data = Request::from(command).encode(CommandVersion::CURRENT);
            self.write_data(client, data);
        }
    }

    fn write_data(&mut self, client: u8, data: Bytes) {
        let command = EncodedCommand { data, records: 1 };
        let from = Some(address(client));
        self.0.ask(Write::Command {
            command,
            from,
            passes: false,
        });
    }

    /// How many bytes the entries have that are proposed together next.
    fn next_bytes(&mut self) -> Vec<usize> {
        let outputs = self.0.outputs();
        let entries = outputs.iter().flat_map(|output| match output {
            Output::Log(LogJob::Append { entries, .. }) => entries.as_slice(),
            _ => &[],
        });
        entries.map(|it| it.data.len()).collect()
    }

    /// The writes that are proposed together next.
    fn next(&mut self) -> Vec<u64> {
        let outputs = self.0.outputs();
        let entries = outputs.iter().flat_map(|output| match output {
            Output::Log(LogJob::Append { entries, .. }) => entries.as_slice(),
            _ => &[],
        });
        // Without that with which a leader begins its term.
        let entries = entries.filter(|it| !it.data.is_empty());
        let proposed = entries.map(number).collect();
        for output in outputs {
            self.0.carry_out(output);
        }
        proposed
    }
}

fn number(entry: &Entry) -> u64 {
    let logged = Request::decode(entry.data.clone()).unwrap().unwrap();
    match logged.request.command {
        Command::Compact { revision } => revision.0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_alone_has_all_its_writes_under_way() {
    let mut leader = Alone::new();
    leader.write(1, 100..1_100);
    assert_eq!(leader.next().len(), 1_000);
}

/// Who wrote once in two seconds waited for a hundred MiB of it each time.
#[test]
fn a_client_alone_has_no_more_under_way_than_keeps_a_member_busy() {
    let mut leader = Alone::new();
    for _ in 0..64 {
        leader.write_data(1, Bytes::from(vec![0; 1 << 20]));
    }
    assert_eq!(leader.next_bytes().len(), 16);
    leader.write_data(2, Bytes::from_static(b"small"));
    assert!(leader.next_bytes().is_empty());
}

/// It waited for all of them.
#[test]
fn behind_thousands_of_writes_another_client_waits_for_few() {
    let mut leader = Alone::new();
    leader.write(2, [1]);
    assert_eq!(leader.next(), [1]);
    leader.0.settle();
    leader.write(1, 100..5_100);
    assert_eq!(leader.next(), [100], "the other one may come back");
    leader.write(2, [2]);
    let mut proposed: Vec<_> = (0..20).flat_map(|_| leader.next()).collect();
    proposed.truncate(3);
    assert_eq!(proposed, [2, 101, 102]);
    // No client has come back for a second.
    for _ in 0..11 {
        leader.0.tick();
    }
    let proposed: Vec<_> = (0..20).flat_map(|_| leader.next()).collect();
    assert!(proposed.len() > 4_000, "{}", proposed.len());
}

/// Sixty-four of them were a MiB, and took fifteen milliseconds.
#[test]
fn of_large_entries_fewer_are_under_way() {
    let mut leader = Alone::sharing(64);
    leader.write(2, [1]);
    leader.next();
    leader.0.settle();
    let large = 16 << 10;
    for _ in 0..64 {
        leader.write_data(1, Bytes::from(vec![0; large]));
    }
    leader.write_data(2, Bytes::from_static(b"small"));
    // Until there are 64 KiB, with a KiB for each entry; what is not on the disk keeps the rest
    // waiting.
    assert_eq!(leader.next_bytes(), [large, 5, large, large, large]);
    assert!(leader.next_bytes().is_empty());
}

/// A read waited for all that were proposed, of a hundred keys each, and so did every write.
#[test]
fn of_the_leaders_own_commands_as_many_are_under_way_as_their_records_allow() {
    let mut leader = Alone::sharing(64);
    let own = |number: u8, records| EncodedCommand {
        data: vec![number; 8].into(),
        records,
    };
    let propose = Input::Propose(OwnCommands {
        at_once: vec![own(9, 1)],
        in_turn: (1..=4).map(|it| own(it, 48)).collect(),
    });
    leader.0.replica.handle(propose, leader.0.now);
    for number in [7, 8] {
        leader.write_data(1, vec![number; 8].into());
    }
    let appended = |leader: &mut Alone| {
        let outputs = leader.0.outputs();
        let entries = outputs.into_iter().flat_map(|output| match output {
            Output::Log(LogJob::Append { entries, .. }) => entries,
            _ => Vec::new(),
        });
        entries.map(|it| it.data).collect::<Vec<_>>()
    };
    let order: Vec<_> = appended(&mut leader).iter().map(|it| it[0]).collect();
    // What waits for no turn is first, and after 48, two writes and 48 more there is enough.
    assert_eq!(order, [9, 1, 7, 8, 2]);
    assert!(appended(&mut leader).is_empty());
    // What is not applied for so long the keeper proposes again.
    leader.0.now = leader.0.now.after(GIVEN_UP_AFTER);
    leader.0.replica.handle(Input::Tick, leader.0.now);
    assert!(appended(&mut leader).is_empty());
    assert!(next(&mut leader.0.replica.turns).is_none());
}

/// It was lost, and its proposer waited four seconds before it proposed anything else.
#[test]
fn what_is_refused_of_the_leaders_own_is_proposed_once_there_is_room() {
    let mut leader = Alone::new();
    let fills = Bytes::from(vec![0; 64 << 20]);
    let own = Request::from(Command::OpenSession { ttl_ms: 1 });
    let own = own.encode(CommandVersion::CURRENT);
    let propose = |leader: &mut Alone, data: &Bytes| {
        let command = EncodedCommand {
            data: data.clone(),
            records: 1,
        };
        let own = OwnCommands {
            at_once: vec![command],
            ..OwnCommands::default()
        };
        leader.0.replica.handle(Input::Propose(own), leader.0.now);
    };
    propose(&mut leader, &fills);
    let held = leader.0.outputs();
    propose(&mut leader, &own);
    assert!(leader.next_bytes().is_empty(), "too much is uncommitted");
    held.into_iter().for_each(|it| leader.0.carry_out(it));
    leader.0.settle();
    let last = leader.0.appended.last();
    assert!(last.is_some_and(|it| it.data == own));
}

#[test]
fn who_does_not_lead_keeps_nobody_waiting() {
    let mut member = Alone(LoneLeader::learner());
    for client in [1, 2] {
        member.write(client, 100..1_100);
    }
    let data = Bytes::from_static(b"own");
    let own = EncodedCommand { data, records: 9 };
    let propose = Input::Propose(OwnCommands {
        in_turn: vec![own],
        ..OwnCommands::default()
    });
    member.0.replica.handle(propose, member.0.now);
    assert!(member.next().is_empty());
    assert!(next(&mut member.0.replica.turns).is_none());
}

/// Who asked for another member has to be told.
#[test]
fn who_has_left_is_handed_back_whoever_finds_out() {
    let mut turns = Turns::default();
    for write in 0..4 {
        turns.wait(from(1), 1, write, Moment(0));
    }
    assert_eq!(turns.next(Moment(1), |it| *it == 0), Some((1, 1)));
    turns.forget(Moment(1), |it| *it == 2);
    assert_eq!(turns.take_gone(), [0, 2]);
    assert_eq!(turns.next(Moment(1), |_| false), Some((1, 3)));
}
