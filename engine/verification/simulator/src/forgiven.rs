//! What counts of what clients were told, where a loss was accepted.
//!
//! Logs lose their ends, so a first part of what was written behind the last safe revision is kept,
//! and the rest is lost. What the changes of each revision were before, and what they are after,
//! says which is which: values are never written twice. Of what is kept every answer counts, and
//! what is lost never happened. Only deletes that look alike leave a doubt.

use std::collections::BTreeMap;

use dengine_checker::{Answer, Call, History};
use dengine_kv::{Event, EventKind};
use dengine_types::Revision;

use super::queue::Nanos;

/// There are fewer clients than this.
const CLIENTS_MAX: u64 = 1000;

/// What each revision changed.
pub(super) type Changes = BTreeMap<Revision, Vec<Event>>;

/// The losses that were accepted, one after the other.
#[derive(Default)]
pub(super) struct Losses(Vec<Loss>);

struct Loss {
    at: Nanos,
    /// Behind it history may have begun again.
    safe: Revision,
    /// What was behind it before.
    before: Changes,
}

/// Which revisions that were there before are there still.
struct Fate {
    at: Nanos,
    kept_to: Revision,
    lost_from: Option<Revision>,
}

impl Losses {
    /// Whether none was accepted.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, at: Nanos, safe: Revision, before: Changes) {
        self.0.push(Loss { at, safe, before });
    }

    /// A history of which nothing is asked that is lost; `changes` are those that there are in the
    /// end.
    pub(super) fn forgive(&self, history: &History, changes: &Changes) -> History {
        let mut forgiven = history.clone();
        if self.0.is_empty() {
            return forgiven;
        }
        // What was lost never comes back, so the end says what became of it, whatever was lost
        // later.
        let fates: Vec<_> = self.0.iter().map(|it| it.fate(changes)).collect();
        for operation in &mut forgiven.operations {
            let losses = self.0.iter().filter(|it| operation.invoked.nanos > it.at);
            // Whoever begins again remembers nothing, also of what was kept after all.
            operation.client += CLIENTS_MAX * losses.count() as u64;
        }
        forgiven.operations.retain_mut(|operation| {
            let completed = operation.completed.map(|it| it.nanos);
            let revision = operation.answer.revision().map(Revision);
            let (Some(completed), Some(revision)) = (completed, revision) else {
                return true;
            };
            let next = fates.iter().find(|it| completed <= it.at);
            let Some(fate) = next.filter(|it| revision > it.kept_to) else {
                return true;
            };
            let lost = fate.lost_from.is_some_and(|it| revision >= it);
            operation.completed = None;
            operation.answer = Answer::Unknown;
            !lost && !matches!(operation.call, Call::Read { .. })
        });
        forgiven
    }
}

impl Loss {
    fn fate(&self, after: &Changes) -> Fate {
        let mut fate = Fate {
            at: self.at,
            kept_to: self.safe,
            lost_from: None,
        };
        let newest = after.last_key_value().map(|(newest, _)| *newest);
        let mut revision = self.safe.next();
        loop {
            match (self.before.get(&revision), after.get(&revision)) {
                (Some(before), Some(after)) if same(before, after) => {
                    if before.iter().any(|it| it.kind == EventKind::Put) {
                        fate.kept_to = revision;
                    }
                }
                (Some(_), Some(_)) => {
                    fate.lost_from = Some(revision);
                    return fate;
                }
                _ => {
                    // What was compacted before it was seen may be either.
                    fate.lost_from = newest.filter(|it| revision > *it).map(|_| revision);
                    return fate;
                }
            }
            revision = revision.next();
        }
    }
}

fn same(before: &[Event], after: &[Event]) -> bool {
    let what = |it: &Event| (it.kind, it.sub, it.kv.key.clone(), it.kv.value.clone());
    before.iter().map(what).eq(after.iter().map(what))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dengine_checker::{Moment, Operation};
    use dengine_kv::KeyValue;
    use dengine_types::LeaseId;

    use super::*;

    fn change(revision: u64, value: &str) -> (Revision, Vec<Event>) {
        let revision = Revision(revision);
        let kv = KeyValue {
            key: Bytes::from("k"),
            value: Bytes::from(value.to_owned()),
            mod_revision: revision,
            create_revision: revision,
            version: 1,
            ttl_ms: 0,
            lease: LeaseId::NONE,
        };
        let kind = match value {
            "" => EventKind::Delete,
            _ => EventKind::Put,
        };
        let event = Event {
            kind,
            sub: 0,
            kv,
            prev: None,
        };
        (revision, vec![event])
    }

    fn fate(before: &[(u64, &str)], after: &[(u64, &str)]) -> (u64, Option<u64>) {
        let changes = |of: &[(u64, &str)]| of.iter().map(|(r, v)| change(*r, v)).collect();
        let loss = Loss {
            at: 0,
            safe: Revision(5),
            before: changes(before),
        };
        let fate = loss.fate(&changes(after));
        (fate.kept_to.0, fate.lost_from.map(|it| it.0))
    }

    #[test]
    fn what_is_the_same_is_kept_up_to_the_first_difference() {
        let before = [(6, "a"), (7, "b"), (8, "c")];
        assert_eq!(fate(&before, &[(4, "x"), (5, "y")]), (5, Some(6)));
        assert_eq!(fate(&before, &[(6, "a"), (7, "n"), (8, "c")]), (6, Some(7)));
        assert_eq!(fate(&before, &[(6, "a"), (7, "b")]), (7, Some(8)));
        assert_eq!(fate(&before, &before), (8, Some(9)));
    }

    #[test]
    fn a_delete_may_be_another_one_unless_something_behind_it_is_kept() {
        let before = [(6, ""), (7, "b")];
        assert_eq!(fate(&before, &[(6, ""), (7, "n")]), (5, Some(7)));
        assert_eq!(fate(&before, &[(6, ""), (7, "b")]), (7, Some(8)));
    }

    /// It goes on from the revision of the loss, and may read what is older than what it has
    /// written before.
    #[test]
    fn whoever_begins_anew_is_another_client_to_the_checker() {
        let put = |nanos, revision| Operation {
            client: 3,
            member: 1,
            call: Call::Put {
                key: "k".to_owned(),
                value: "v".to_owned(),
                expires: false,
            },
            invoked: Moment { nanos, order: 0 },
            completed: Some(Moment { nanos, order: 1 }),
            answer: Answer::Put { revision },
        };
        let mut losses = Losses::default();
        losses.add(10, Revision(5), Changes::new());
        let history = History {
            operations: vec![put(5, 4), put(15, 6)],
            ..History::default()
        };
        let forgiven = losses.forgive(&history, &Changes::new());
        let clients: Vec<_> = forgiven.operations.iter().map(|it| it.client).collect();
        assert_eq!(clients, [3, 3 + CLIENTS_MAX]);
    }

    #[test]
    fn of_what_was_never_seen_nothing_is_known() {
        assert_eq!(
            fate(&[(6, "a"), (8, "c")], &[(6, "a"), (9, "d")]),
            (6, None)
        );
    }
}
