//! The log ([`Log`]), written by one thread and read by others, who hold files that the writer no
//! longer needs.

use dengine_log::conformance::{batch, small_options};
use dengine_log::memory::MemoryDisk;
use dengine_log::{Log, LogError, LogReader};
use dengine_planted::{Bug, plant};
use dengine_types::Index;
use shuttle::thread;

use super::{any_turns, long_turns};

/// So large that a segment takes two of them.
const ENTRY_BYTES: usize = 1_900;

fn append(log: &mut Log<MemoryDisk>, index: u64) {
    let appended = log.append(&batch(1, index..=index, ENTRY_BYTES));
    appended.expect("memory can be written");
}

/// Reads whatever there is, twice.
fn read(reader: &LogReader<MemoryDisk>) {
    for _ in 0..2 {
        let (first, last) = (reader.first_index(), reader.last_index());
        match reader.entries(first, last.next(), u64::MAX) {
            Ok(entries) => {
                let all = batch(1, first.0..=last.0, ENTRY_BYTES).entries;
                assert_eq!(entries, all, "other entries than were written");
            }
            // The writer has dropped them since.
            Err(LogError::OutOfRange { .. }) => {}
            Err(error) => panic!("a reader found damage: {error}"),
        }
    }
}

fn what_is_read_was_written() {
    let (mut log, _) = Log::open(MemoryDisk::new(), small_options()).expect("memory opens");
    (1..=6).for_each(|index| append(&mut log, index));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let reader = log.reader();
            thread::spawn(move || read(&reader))
        })
        .collect();
    for index in 7..=12 {
        let dropped = log.truncate_prefix(Index(index - 3));
        dropped.expect("memory can be written");
        append(&mut log, index);
    }
    readers
        .into_iter()
        .for_each(|it| it.join().expect("it read"));
}

#[test]
fn a_reader_never_sees_what_comes_later_in_a_file() {
    any_turns(200, what_is_read_was_written);
    long_turns(2_000, what_is_read_was_written);
}

#[test]
#[should_panic(expected = "a reader found damage")]
fn a_file_that_is_used_again_too_early_is_found() {
    plant(Some(Bug::FileReusedWhileRead));
    long_turns(2_000, what_is_read_was_written);
}
