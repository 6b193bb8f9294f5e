//! How much of the log one message carries.
//!
//! The `raft` crate makes one append of each stretch of the log that it reads, which is bounded, or
//! puts all of them into one (`batch_append`), which is not: tens of megabytes, for a follower that
//! lags. So it makes one each, and those that follow each other are put together here, as far as
//! they fit.

use dengine_planted::planted;
use prost_raft::Message as _;
use raft::eraftpb::{Message, MessageType};

/// The last append to a member: where it stands among the messages, and the size of its entries.
struct Last {
    to: u64,
    place: usize,
    bytes: u64,
}

/// Puts appends together that follow each other, up to `bytes_max` of entries. Larger ones are of a
/// single entry.
pub(super) fn merge(messages: Vec<Message>, bytes_max: u64) -> Vec<Message> {
    let mut merged: Vec<Message> = Vec::with_capacity(messages.len());
    let mut lasts: Vec<Last> = Vec::new();
    for message in messages {
        if message.msg_type() != MessageType::MsgAppend {
            merged.push(message);
            continue;
        }
        let (to, bytes) = (message.to, entry_bytes(&message));
        let last = lasts.iter_mut().find(|last| last.to == to);
        let fits = |last: &&mut Last| {
            let small = bytes == 0 || last.bytes + bytes <= bytes_max;
            follows(&merged[last.place], &message)
                && (small || planted!(MessagesMergedWithoutBound))
        };
        if let Some(last) = last.filter(fits) {
            let before = &mut merged[last.place];
            before.commit = before.commit.max(message.commit);
            before.entries.extend(message.entries);
            last.bytes += bytes;
            continue;
        }
        lasts.retain(|last| last.to != to);
        let place = merged.len();
        lasts.push(Last { to, place, bytes });
        merged.push(message);
    }
    merged
}

fn follows(before: &Message, message: &Message) -> bool {
    let end = before.index + before.entries.len() as u64;
    before.term == message.term && end == message.index
}

/// As encoded in the message.
fn entry_bytes(message: &Message) -> u64 {
    let entries = message.entries.iter().map(|entry| {
        let bytes = entry.encoded_len();
        bytes + prost_raft::length_delimiter_len(bytes) + 1
    });
    entries.sum::<usize>() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use raft::eraftpb::Entry;

    use super::*;

    /// An append to `to` after `index` with as many entries of about 10 bytes as `entries`.
    fn append(to: u64, index: u64, entries: u64, commit: u64) -> Message {
        let entry = |index| Entry {
            index,
            term: 2,
            data: vec![0; 3],
            ..Entry::default()
        };
        Message {
            msg_type: MessageType::MsgAppend as i32,
            to,
            term: 2,
            index,
            log_term: 2,
            commit,
            entries: (index + 1..=index + entries).map(entry).collect(),
            ..Message::default()
        }
    }

    #[test]
    fn appends_that_follow_each_other_are_one_as_far_as_they_fit() {
        let one = entry_bytes(&append(2, 1, 1, 1));
        let messages = vec![
            append(2, 10, 2, 5),
            append(3, 10, 1, 5),
            append(2, 12, 1, 6),
            append(2, 13, 1, 6),
            append(2, 14, 0, 7),
            append(3, 11, 0, 7),
        ];
        assert_eq!(
            merge(messages, 3 * one),
            [
                append(2, 10, 3, 6),
                append(3, 10, 1, 7),
                append(2, 13, 1, 7)
            ]
        );
    }

    #[test]
    fn what_does_not_follow_stays_apart() {
        let other_term = Message {
            term: 3,
            ..append(2, 11, 1, 5)
        };
        for second in [append(2, 10, 1, 5), append(2, 12, 1, 5), other_term] {
            let messages = vec![append(2, 10, 1, 5), second];
            assert_eq!(merge(messages.clone(), 1 << 20), messages);
        }
    }

    proptest! {
        #[test]
        fn no_message_exceeds_its_bound_and_no_entry_is_lost(
            counts in prop::collection::vec(0_u64..5, 1..40),
            bytes_max in 1_u64..60,
        ) {
            let mut index = 10;
            let mut messages = Vec::new();
            for count in counts {
                messages.push(append(2, index, count, index));
                index += count;
            }
            let largest = messages.iter().map(entry_bytes).max().unwrap_or(0);
            let merged = merge(messages.clone(), bytes_max);
            let entries = |messages: &[Message]| -> Vec<_> {
                messages.iter().flat_map(|it| it.entries.clone()).collect()
            };
            prop_assert_eq!(entries(&merged), entries(&messages));
            for message in &merged {
                prop_assert!(entry_bytes(message) <= bytes_max.max(largest));
                let first = message.entries.first();
                prop_assert!(first.is_none_or(|it| it.index == message.index + 1));
            }
        }
    }
}
