//! Comparisons of transactions. etcd knows none that is not well-formed: a missing operand is 0 or
//! empty, and a number that names no target or no relation means something too.

use bytes::Bytes;
use dengine_kv::{Compare, CompareTarget, KeyRange, Relation};
use dengine_types::{LeaseId, Revision};

use crate::etcdserverpb as wire;
use crate::etcdserverpb::compare::{CompareResult, CompareTarget as WireTarget, TargetUnion};

/// The comparisons of a transaction, without those that always hold.
pub(super) fn compares(compares: &[wire::Compare]) -> Vec<Compare> {
    compares.iter().filter_map(compare).collect()
}

/// The comparison; `None` if it holds whatever the store has.
fn compare(compare: &wire::Compare) -> Option<Compare> {
    let keys = KeyRange::from_wire(&compare.key, &compare.range_end);
    let relation = CompareResult::try_from(compare.result).ok();
    let Ok(target) = WireTarget::try_from(compare.target) else {
        // Of an attribute that does not exist everything is equal.
        return match relation {
            Some(CompareResult::Equal) | None => None,
            Some(CompareResult::NotEqual | CompareResult::Greater | CompareResult::Less) => {
                Some(never(&keys))
            }
        };
    };
    if target == WireTarget::Value {
        return Some(match relation {
            Some(relation) => Compare {
                keys,
                relation: known(relation),
                target: CompareTarget::Value(match &compare.target_union {
                    Some(TargetUnion::Value(value)) => value.clone(),
                    _ => Bytes::new(),
                }),
            },
            // Of a key that does not exist no comparison of its value holds.
            None => exists(keys),
        });
    }
    let relation = relation?;
    let operand = operand(compare, target);
    if target == WireTarget::Lease {
        return Some(Compare {
            keys,
            relation: known(relation),
            target: CompareTarget::Lease(LeaseId(operand)),
        });
    }
    // No number of the store is negative.
    let Ok(operand) = u64::try_from(operand) else {
        return match relation {
            CompareResult::NotEqual | CompareResult::Greater => None,
            CompareResult::Equal | CompareResult::Less => Some(never(&keys)),
        };
    };
    Some(Compare {
        keys,
        relation: known(relation),
        target: match target {
            WireTarget::Create => CompareTarget::CreateRevision(Revision(operand)),
            WireTarget::Mod => CompareTarget::ModRevision(Revision(operand)),
            WireTarget::Version | WireTarget::Value | WireTarget::Lease => {
                CompareTarget::Version(operand)
            }
        },
    })
}

/// What the target is compared with; 0 if there is nothing, or something for another target.
fn operand(compare: &wire::Compare, target: WireTarget) -> i64 {
    match (target, &compare.target_union) {
        (WireTarget::Version, Some(TargetUnion::Version(operand)))
        | (WireTarget::Create, Some(TargetUnion::CreateRevision(operand)))
        | (WireTarget::Mod, Some(TargetUnion::ModRevision(operand)))
        | (WireTarget::Lease, Some(TargetUnion::Lease(operand))) => *operand,
        _ => 0,
    }
}

fn known(relation: CompareResult) -> Relation {
    match relation {
        CompareResult::Equal => Relation::Equal,
        CompareResult::NotEqual => Relation::NotEqual,
        CompareResult::Greater => Relation::Greater,
        CompareResult::Less => Relation::Less,
    }
}

/// Holds if a key of the range exists.
fn exists(keys: KeyRange) -> Compare {
    Compare {
        keys,
        relation: Relation::Greater,
        target: CompareTarget::Version(0),
    }
}

/// Never holds. It looks at one key only.
fn never(keys: &KeyRange) -> Compare {
    Compare {
        keys: KeyRange::One(keys.start().clone()),
        relation: Relation::Less,
        target: CompareTarget::Version(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(target: i32, result: i32, target_union: Option<TargetUnion>) -> wire::Compare {
        wire::Compare {
            result,
            target,
            key: "a".into(),
            target_union,
            range_end: "b".into(),
        }
    }

    fn check(asked: &wire::Compare, expect: impl Into<Option<Compare>>) {
        assert_eq!(compare(asked), expect.into(), "{asked:?}");
    }

    fn keys() -> KeyRange {
        KeyRange::from_wire(b"a", b"b")
    }

    fn expected(relation: Relation, target: CompareTarget) -> Option<Compare> {
        Some(Compare {
            keys: keys(),
            relation,
            target,
        })
    }

    #[test]
    fn all_targets_and_relations() {
        use TargetUnion::{CreateRevision, ModRevision, Value, Version};
        let number = 7;
        let revision = Revision(7);
        check(
            &asked(0, 0, Some(Version(number))),
            expected(Relation::Equal, CompareTarget::Version(7)),
        );
        check(
            &asked(1, 1, Some(CreateRevision(number))),
            expected(Relation::Greater, CompareTarget::CreateRevision(revision)),
        );
        check(
            &asked(2, 2, Some(ModRevision(number))),
            expected(Relation::Less, CompareTarget::ModRevision(revision)),
        );
        check(
            &asked(3, 3, Some(Value("v".into()))),
            expected(Relation::NotEqual, CompareTarget::Value("v".into())),
        );
    }

    #[test]
    fn a_missing_operand_is_zero_or_empty() {
        check(
            &asked(0, 0, Some(TargetUnion::ModRevision(7))),
            expected(Relation::Equal, CompareTarget::Version(0)),
        );
        check(
            &asked(2, 0, None),
            expected(Relation::Equal, CompareTarget::ModRevision(Revision(0))),
        );
        check(
            &asked(3, 0, Some(TargetUnion::Version(7))),
            expected(Relation::Equal, CompareTarget::Value("".into())),
        );
    }

    #[test]
    fn negative_operands_are_below_everything() {
        let asked = |result| asked(2, result, Some(TargetUnion::ModRevision(-1)));
        check(&asked(0), Some(never(&keys())));
        check(&asked(1), None);
        check(&asked(2), Some(never(&keys())));
        check(&asked(3), None);
    }

    #[test]
    fn an_unknown_relation_holds_where_there_is_something_to_compare() {
        check(&asked(0, 4, None), None);
        check(&asked(3, 4, None), Some(exists(keys())));
        check(&asked(9, 4, None), None);
    }

    #[test]
    fn an_unknown_target_is_equal() {
        check(&asked(5, 0, None), None);
        for result in 1..=3 {
            check(&asked(5, result, None), Some(never(&keys())));
        }
    }

    #[test]
    fn an_id_of_a_lease_may_be_negative() {
        check(
            &asked(4, 1, Some(TargetUnion::Lease(-1))),
            expected(Relation::Greater, CompareTarget::Lease(LeaseId(-1))),
        );
        check(&asked(4, 4, Some(TargetUnion::Lease(1))), None);
    }
}
