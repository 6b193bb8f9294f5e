//! Contests on a state machine, by the same translation as any transaction.

use dengine_kv::store::MemoryStore;
use dengine_kv::{Command, CommandVersion, StateMachine};
use dengine_types::{Entry, EntryKind, Index, LeaseId, Term};
use tonic::{Code, Status};

use super::*;
use crate::header::Header;
use crate::range::Range;
use crate::writes;

/// A member by itself.
struct Machine {
    machine: StateMachine<MemoryStore>,
    applied: u64,
}

impl Machine {
    fn with_leases(leases: &[i64]) -> Self {
        let machine = StateMachine::open(MemoryStore::default()).unwrap();
        let mut machine = Self {
            machine,
            applied: 0,
        };
        for lease in leases {
            machine.apply(Command::GrantLease {
                lease: LeaseId(*lease),
                ttl_ms: 60_000,
            });
        }
        machine
    }

    fn apply(&mut self, command: Command) -> dengine_kv::Outcome {
        self.applied += 1;
        let entry = Entry {
            index: Index(self.applied),
            term: Term(1),
            kind: EntryKind::Command,
            context: Bytes::new(),
            data: dengine_kv::Request::from(command).encode(CommandVersion::CURRENT),
        };
        let applied = self.machine.apply(&[entry]).unwrap();
        applied.into_iter().next().expect("it is new").outcome
    }

    fn txn(&mut self, txn: &TxnRequest) -> Result<TxnResponse, EtcdError> {
        let command = writes::command(txn)?.command;
        let outcome = self.apply(command);
        writes::answer(txn, Header::default(), outcome)
    }

    fn enter(&mut self, contest: &Contest, lease: i64, value: &'static str) -> Contender {
        self.enter_or_find(contest, lease, value).0
    }

    /// And whether its key was made.
    fn enter_or_find(
        &mut self,
        contest: &Contest,
        lease: i64,
        value: impl Into<Bytes>,
    ) -> (Contender, bool) {
        let enter = contest.enter(lease, value.into());
        let answer = self.txn(&enter).unwrap();
        let (entered, is_new) = contest.entered(lease, answer).unwrap();
        (entered.contender, is_new)
    }

    fn find(&self, request: &RangeRequest) -> Option<KeyValue> {
        let range = Range::new(request).unwrap();
        let found = self.machine.reader().range(&range.query).unwrap();
        only(range.response(Header::default(), found, 0))
    }
}

/// Clients find each other's keys by this, whichever of them and of the services made one.
#[test]
fn a_key_is_the_name_and_the_lease_in_hexadecimal() {
    let check = |name: &str, lease, expect: &str| {
        assert_eq!(Contest::new(name.as_bytes()).key(lease), expect);
    };
    check("lock", 0x694d_7a1b, "lock/694d7a1b");
    check("", 10, "/a");
    check("a/b", -7, "a/b/-7");
    check("a", i64::MIN, "a/-8000000000000000");
    let contest = Contest::new(b"a");
    assert_eq!(contest.key(i64::MIN).len(), contest.key_bytes_max());
}

#[test]
fn who_came_first_is_before_all_others_and_each_waits_for_the_one_before() {
    let mut machine = Machine::with_leases(&[1, 2, 3]);
    let contest = Contest::new(b"n");
    // Its key is behind theirs, and that of another name beside them.
    let [first, second, third] = [3, 1, 2].map(|it| machine.enter(&contest, it, ""));
    machine.enter(&Contest::new(b"n0"), 1, "");
    let before = |machine: &Machine, of: &Contender| {
        let found = machine.find(&contest.next_before(of));
        found.map(|it| it.key)
    };
    assert_eq!(before(&machine, &first), None);
    assert_eq!(before(&machine, &second), Some(first.key.clone()));
    assert_eq!(before(&machine, &third), Some(second.key.clone()));
    let leads = |machine: &Machine| machine.find(&contest.first());
    assert!(first.is(&leads(&machine).unwrap()));
    // One in the middle goes: nobody comes earlier to the lead by that.
    assert!(machine.txn(&second.leave()).unwrap().succeeded);
    assert_eq!(before(&machine, &third), Some(first.key.clone()));
    assert!(machine.txn(&first.leave()).unwrap().succeeded);
    assert_eq!(before(&machine, &third), None);
    assert!(third.is(&leads(&machine).unwrap()));
    assert!(third.is(&machine.find(&third.own()).unwrap()));
    assert!(machine.txn(&third.leave()).unwrap().succeeded);
    assert_eq!(leads(&machine), None);
}

/// Otherwise a client that asks again would wait behind itself.
#[test]
fn a_lease_contends_once() {
    let mut machine = Machine::with_leases(&[1]);
    let contest = Contest::new(b"n");
    let (entered, is_new) = machine.enter_or_find(&contest, 1, "one");
    assert!(is_new);
    let (again, is_new) = machine.enter_or_find(&contest, 1, "other");
    assert_eq!((again, is_new), (entered.clone(), false));
    let held = machine.find(&entered.proclaimed()).unwrap();
    assert!(entered.is(&held));
    assert_eq!(held.value, "one");
}

/// It was in the request twice for an hour.
#[test]
fn a_candidate_may_proclaim_as_much_as_a_put_may_set() {
    let value = Bytes::from(vec![7; crate::REQUEST_BYTES_MAX - 1024]);
    let contest = Contest::new(b"n");
    assert!(writes::command(&contest.enter(1, value)).is_ok());
}

/// By a key whose value is 1 MiB, a thousand locks at a time had the applier copy half a gigabyte a
/// second.
#[test]
fn no_value_is_found_with_a_key_that_is_there() {
    let mut machine = Machine::with_leases(&[1]);
    let contest = Contest::new(b"n");
    let (entered, _) = machine.enter_or_find(&contest, 1, vec![7; 4096]);
    let command = writes::command(&contest.enter(1, Bytes::new()))
        .unwrap()
        .command;
    let bytes = machine.apply(command).pairs_bytes();
    assert!(bytes < 1024, "{bytes}");
    assert_eq!(machine.find(&entered.own()).unwrap().value, "");
}

#[test]
fn a_key_that_was_made_again_is_not_the_one_that_was_lost() {
    let mut machine = Machine::with_leases(&[1]);
    let contest = Contest::new(b"n");
    let lost = machine.enter(&contest, 1, "one");
    assert!(machine.txn(&lost.proclaim("two".into())).unwrap().succeeded);
    assert!(lost.is(&machine.find(&lost.own()).unwrap()));
    assert_eq!(machine.find(&contest.first()).unwrap().value, "two");
    assert!(machine.txn(&lost.leave()).unwrap().succeeded);
    assert_eq!(machine.find(&lost.own()), None);
    let again = machine.enter(&contest, 1, "three");
    assert!(!lost.is(&machine.find(&lost.own()).unwrap()));
    assert!(!machine.txn(&lost.proclaim("x".into())).unwrap().succeeded);
    assert!(!machine.txn(&lost.leave()).unwrap().succeeded);
    assert!(again.is(&machine.find(&again.own()).unwrap()));
}

#[test]
fn without_its_lease_nobody_contends() {
    let mut machine = Machine::with_leases(&[1]);
    let contest = Contest::new(b"n");
    let refused = machine.txn(&contest.enter(2, Bytes::new()));
    assert_eq!(refused, Err(EtcdError::LeaseNotFound));
    let contender = machine.enter(&contest, 1, "");
    machine.apply(Command::RevokeLease { lease: LeaseId(1) });
    assert_eq!(machine.find(&contender.own()), None);
}

#[test]
fn an_answer_to_another_question_is_none() {
    let entered = Contest::new(b"n").entered(1, TxnResponse::default());
    assert_eq!(entered, Err(EtcdError::OfAnotherKind));
}

/// Callers compare the words; the codes are those that etcd's service has.
#[test]
fn errors_are_those_of_a_client_behind_a_service() {
    let check = |status: Status, code, words: &str| {
        assert_eq!((status.code(), status.message()), (code, words));
    };
    check(
        ContestError::NoLeader.into(),
        Code::Unknown,
        "election: no leader",
    );
    check(
        by_way_of_a_client(&EtcdError::LeaseNotFound.into()),
        Code::Unknown,
        "etcdserver: requested lease not found",
    );
    check(
        by_way_of_a_client(&EtcdError::DeadlineExceeded.into()),
        Code::DeadlineExceeded,
        "etcdserver: context deadline exceeded",
    );
    check(
        by_way_of_a_client(&EtcdError::Stopped.into()),
        Code::Unavailable,
        "etcdserver: server stopped",
    );
    check(
        by_way_of_a_client(&EtcdError::LeaderChanged.into()),
        Code::Unknown,
        "etcdserver: leader changed",
    );
}
