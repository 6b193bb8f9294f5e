//! What a leader proposes by itself.

use super::{Machine, bytes, machine, put, put_for, run, show};
use crate::kv::{Command, ExpiredKey, RetentionSetting, Upkeep};
use crate::types::{Moment, Revision, Term};
use std::time::Duration;

fn ms(at: u64) -> Moment {
    Moment(0).after(Duration::from_millis(at))
}

/// What `upkeep` proposes then, applied at once.
fn work(upkeep: &mut Upkeep, machine: &mut Machine, term: Option<u64>, at_ms: u64) -> Vec<Command> {
    let reader = machine.reader();
    let commands = upkeep.work(&reader, term.map(Term), ms(at_ms));
    let commands = commands.expect("work");
    run(machine, commands.clone());
    commands
}

fn expire(key: &str, revision: u64) -> Command {
    Command::ExpireKeys {
        keys: vec![ExpiredKey {
            key: bytes(key),
            mod_revision: Revision(revision),
        }],
    }
}

#[test]
fn only_a_leader_proposes() {
    let mut machine = machine();
    let mut upkeep = Upkeep::new(RetentionSetting {
        revisions: Some(1),
        duration: None,
    });
    run(&mut machine, [put_for("a", "1", 1), put("b", "1")]);
    for at in 0..10 {
        assert_eq!(work(&mut upkeep, &mut machine, None, at * 1000), []);
    }
    let compact = super::compact(3);
    assert_eq!(work(&mut upkeep, &mut machine, Some(1), 10_000), [compact]);
    let later = work(&mut upkeep, &mut machine, Some(1), 10_100);
    assert_eq!(later, [expire("a", 2)]);
    assert_eq!(show(&machine, "a", None), "-");
}

#[test]
fn a_new_term_starts_all_clocks_again() {
    let mut machine = machine();
    let mut upkeep = Upkeep::new(RetentionSetting::default());
    run(&mut machine, [put_for("a", "1", 1000)]);
    assert_eq!(work(&mut upkeep, &mut machine, Some(1), 0), []);
    assert_eq!(work(&mut upkeep, &mut machine, Some(3), 900), []);
    assert_eq!(work(&mut upkeep, &mut machine, Some(3), 1800), []);
    let due = work(&mut upkeep, &mut machine, Some(3), 1900);
    assert_eq!(due, [expire("a", 2)]);
    run(&mut machine, [put_for("a", "2", 1000)]);
    assert_eq!(work(&mut upkeep, &mut machine, Some(3), 2000), []);
    assert_eq!(work(&mut upkeep, &mut machine, None, 2500), []);
    assert_eq!(work(&mut upkeep, &mut machine, Some(3), 3200), []);
}

#[test]
fn it_looks_at_intervals_and_never_twice_for_one_compaction() {
    let mut machine = machine();
    let mut upkeep = Upkeep::new(RetentionSetting {
        revisions: Some(16),
        duration: None,
    });
    let mut compactions = 0;
    for at in 0..1000_u64 {
        run(&mut machine, [put("a", &at.to_string())]);
        compactions += work(&mut upkeep, &mut machine, Some(1), at * 10).len();
    }
    assert!(
        (8..=10).contains(&compactions),
        "one a second: {compactions}"
    );
    let kept = machine.revision().0 - machine.reader().compact_revision().0;
    assert!((15..=15 + 110).contains(&kept), "{kept} revisions are kept");
}
