//! After any additions and removals the index finds what asking each watch would find.

use proptest::prelude::*;

use super::intervals::Intervals;
use super::*;

fn key() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(0_u8..4, 0..4).prop_map(Bytes::from)
}

fn keys() -> impl Strategy<Value = KeyRange> {
    prop_oneof![
        key().prop_map(KeyRange::One),
        (key(), key()).prop_map(|(start, end)| KeyRange::Between { start, end }),
        key().prop_map(KeyRange::From),
    ]
}

fn found(index: &KeyIndex<u64>, key: &[u8]) -> Vec<u64> {
    let mut found = Vec::new();
    let _: ControlFlow<()> = index.visit(key, |id| {
        found.push(id);
        ControlFlow::Continue(())
    });
    found.sort_unstable();
    found
}

proptest! {
    #[test]
    fn the_index_finds_what_asking_each_watch_would_find(
        added in prop::collection::vec((keys(), any::<bool>()), 0..40),
        asked in prop::collection::vec(key(), 1..20),
    ) {
        let mut index = KeyIndex::default();
        for (id, (keys, _)) in (0..).zip(&added) {
            index.insert(keys, id);
        }
        for (id, (keys, stays)) in (0..).zip(&added) {
            if !stays {
                index.remove(keys, id);
            }
        }
        for key in asked {
            let wanted = |(id, (keys, stays)): (u64, &(KeyRange, bool))| {
                (*stays && keys.contains(&key)).then_some(id)
            };
            let expect: Vec<_> = (0..).zip(&added).filter_map(wanted).collect();
            prop_assert_eq!(index.contains(&key), !expect.is_empty());
            prop_assert_eq!(found(&index, &key), expect);
        }
    }
}

#[test]
fn a_tree_stays_shallow_in_any_order_of_insertions_and_removals() {
    let number = |n: u32| KeyRange::Between {
        start: Bytes::copy_from_slice(&n.to_be_bytes()),
        end: Bytes::copy_from_slice(&(n + 100).to_be_bytes()),
    };
    let mut tree = Intervals::default();
    for n in 0..4_096 {
        tree.insert(&number(n), n);
    }
    assert!(tree.height() <= 17, "{}", tree.height());
    for n in (0..4_096).filter(|n| n % 64 != 0) {
        tree.remove(&number(n), n);
    }
    assert!(tree.height() <= 9, "{}", tree.height());
    for n in (0..4_096).filter(|n| n % 64 == 0) {
        tree.remove(&number(n), n);
    }
    assert!(tree.is_empty());
}
