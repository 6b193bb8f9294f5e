//! How much memory a small command takes on every member while it is applied.

use bytes::Bytes;
use dengine_kv::store::MemoryStore;
use dengine_kv::{
    Batch, BatchOperation, Command, CommandVersion, KeyRange, PREVIOUS_BYTES_MAX, Put, Request,
    StateMachine,
};
use dengine_types::EntryKind;

use crate::memory::most_held;
use crate::targets::kv;

const VALUE_BYTES: usize = 1 << 20;
const KEYS: u8 = 64;

fn key(number: u8) -> Bytes {
    vec![number].into()
}

/// The most that a state machine with large values holds while it applies this.
fn held_by(command: Command) -> usize {
    let mut machine = StateMachine::open(MemoryStore::default()).unwrap();
    let mut apply = |command: Command| {
        let data = Request::from(command).encode(CommandVersion::CURRENT);
        most_held(|| kv::apply(&mut machine, EntryKind::Command, &data).unwrap()).1
    };
    for number in 0..KEYS {
        apply(Command::put(key(number), vec![7; VALUE_BYTES]));
    }
    apply(command)
}

/// A batch of 128 puts made 192 MiB of it.
#[test]
fn what_a_batch_returns_of_the_past_is_bounded_before_it_is_copied() {
    let put = |number| {
        BatchOperation::Put(Put {
            prev_kv: true,
            ..Put::new(key(number), Bytes::new())
        })
    };
    let delete = |number| BatchOperation::Delete {
        keys: KeyRange::One(key(number)),
        prev_kv: true,
    };
    for then in [
        (0..KEYS).map(put).collect::<Vec<_>>(),
        (0..KEYS).map(delete).collect(),
    ] {
        let held = held_by(Command::Batch(Batch {
            then,
            ..Batch::default()
        }));
        assert!(held < PREVIOUS_BYTES_MAX + 2 * VALUE_BYTES, "{held} bytes");
    }
}
