//! Damage is refused with its place, a torn tail is cut, and no wrong entry is ever returned.

use std::path::Path;

use dengine_log::conformance::{batch, small_options};
use dengine_log::memory::{MemoryDisk, SECTOR_BYTES};
use dengine_log::{Log, LogError, Recovered};
use dengine_types::{ClusterId, Entry, Index, MemberId, Term};

const HEADER: usize = 4096;

/// Three segments of synced batches.
struct Sample {
    disk: MemoryDisk,
    /// The segments' names, in order.
    files: Vec<String>,
    entries: Vec<Entry>,
    /// The offset of each batch of the last segment, and the end of the last one.
    offsets: Vec<usize>,
    /// The last index before each of `offsets`.
    lasts: Vec<u64>,
}

fn sample() -> Sample {
    let disk = MemoryDisk::new();
    let (mut log, _) = Log::open(disk.clone(), small_options()).unwrap();
    let mut entries = Vec::new();
    let mut index = 0;
    // One batch of three entries at a time, until the third segment has five of them.
    let (mut offsets, mut lasts) = (Vec::new(), Vec::new());
    while offsets.len() < 6 {
        let batch = batch(1 + index / 20, index + 1..=index + 3, 120);
        if segments(&disk).len() == 3 {
            offsets.push(end_of_data(&disk, &segments(&disk)[2]));
            lasts.push(index);
        }
        if offsets.len() < 6 {
            log.append(&batch).unwrap();
            log.sync().unwrap();
            entries.extend(batch.entries);
            index += 3;
        }
        if segments(&disk).len() == 3 && offsets.is_empty() {
            offsets.push(HEADER);
            lasts.push(index - 3);
        }
    }
    let files = segments(&disk);
    Sample {
        disk,
        files,
        entries,
        offsets,
        lasts,
    }
}

impl Sample {
    /// The bytes of a segment to damage: all, except that of the zeros in the first two only some
    /// are sampled.
    fn places(&self, number: usize) -> impl Iterator<Item = usize> + use<> {
        let bytes = self.disk.contents(&self.files[number]);
        let data_end = end_of_data(&self.disk, &self.files[number]);
        let used = move |at: &usize| *at < 128 || (HEADER - 8..data_end + 8).contains(at);
        (0..bytes.len()).filter(move |at| number == 2 || used(at) || at % 61 == 0)
    }
}

fn segments(disk: &MemoryDisk) -> Vec<String> {
    let mut names = dengine_log::Disk::list(disk).unwrap();
    names.retain(|name| name.ends_with(".segment"));
    names.sort();
    names
}

/// The end of the last batch, whose data never ends in zeros here.
fn end_of_data(disk: &MemoryDisk, file: &str) -> usize {
    let bytes = disk.contents(file);
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    (last + 1).next_multiple_of(8).max(HEADER)
}

/// Opens a copy; its entries have to be a prefix of `entries`.
fn open(disk: &MemoryDisk, entries: &[Entry]) -> Result<(Log<MemoryDisk>, Recovered), LogError> {
    let (log, recovered) = Log::open(disk.clone(), small_options())?;
    let kept = recovered.last_index.0 as usize;
    let read = log
        .reader()
        .entries(Index(1), recovered.last_index.next(), u64::MAX)?;
    assert_eq!(read, entries[..kept]);
    Ok((log, recovered))
}

/// Checks that appends go on after a cut and survive the next opening.
fn assert_goes_on(mut log: Log<MemoryDisk>, disk: &MemoryDisk, entries: &[Entry]) {
    let last = log.reader().last_index().0;
    let next = batch(99, last + 1..=last + 2, 50);
    log.append(&next).unwrap();
    log.sync().unwrap();
    drop(log);
    let mut expected = entries[..last as usize].to_vec();
    expected.extend(next.entries);
    let (_, recovered) = open(disk, &expected).unwrap();
    assert_eq!((recovered.last_index.0, recovered.torn), (last + 2, None));
}

fn corrupt(result: Result<(Log<MemoryDisk>, Recovered), LogError>) -> (String, u64) {
    match result {
        Err(LogError::Corrupt { file, offset, .. }) => (file.to_str().unwrap().to_owned(), offset),
        other => panic!("expected damage to be refused, found {other:?}"),
    }
}

#[test]
fn an_unwritten_tail_is_cut_at_every_point() {
    let sample = sample();
    let file = &sample.files[2];
    for point in HEADER..*sample.offsets.last().unwrap() {
        let disk = sample.disk.duplicate();
        disk.edit(file, |bytes| bytes[point..].fill(0));
        let (log, recovered) = open(&disk, &sample.entries).unwrap();
        // A batch that lost nothing but zeros is whole.
        let lost_nothing = |end: usize| disk_equal(&disk, &sample.disk, file, end);
        let whole = sample
            .offsets
            .iter()
            .rposition(|end| lost_nothing(*end))
            .unwrap();
        assert_eq!(
            recovered.last_index,
            Index(sample.lasts[whole]),
            "zeros from {point}"
        );
        let offset = sample.offsets[whole] as u64;
        assert_eq!(
            recovered.torn.is_some(),
            point as u64 > offset,
            "zeros from {point}"
        );
        if let Some(torn) = recovered.torn {
            assert_eq!(
                (torn.file.as_path(), torn.offset),
                (Path::new(file), offset)
            );
        }
        assert!(
            disk.contents(file)[offset as usize..]
                .iter()
                .all(|byte| *byte == 0)
        );
        assert_goes_on(log, &disk, &sample.entries);
    }
}

fn disk_equal(one: &MemoryDisk, other: &MemoryDisk, file: &str, end: usize) -> bool {
    one.contents(file)[..end] == other.contents(file)[..end]
}

#[test]
fn a_truncated_file_is_refused_at_every_point() {
    let sample = sample();
    for (number, file) in sample.files.iter().enumerate() {
        for point in sample.places(number) {
            let disk = sample.disk.duplicate();
            disk.edit(file, |bytes| bytes.truncate(point));
            let (found, offset) = corrupt(open(&disk, &sample.entries));
            assert_eq!(&found, file);
            assert_eq!(offset as usize, if point < HEADER { 0 } else { point });
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_refused_or_cuts_the_last_batch() {
    let sample = sample();
    let [.., last_start, last_end] = sample.offsets[..] else {
        panic!("several batches")
    };
    for (number, file) in sample.files.iter().enumerate() {
        let data_end = end_of_data(&sample.disk, file);
        for byte in sample.places(number) {
            let disk = sample.disk.duplicate();
            disk.flip_bit(file, byte, (byte % 8) as u8);
            let opened = open(&disk, &sample.entries);
            let in_last_batch = number == 2 && (last_start..last_end).contains(&byte);
            if byte < data_end && !in_last_batch {
                let (found, offset) = corrupt(opened);
                let offset = offset as usize;
                assert_eq!(&found, file, "byte {byte}");
                assert!(offset <= byte, "damage at {byte} found at {offset}");
                continue;
            }
            let (log, recovered) = opened.unwrap();
            let expected = if in_last_batch {
                sample.lasts[4]
            } else {
                sample.lasts[5]
            };
            assert_eq!(recovered.last_index, Index(expected), "byte {byte}");
            assert_eq!(recovered.torn.is_some(), number == 2, "byte {byte}");
            assert_goes_on(log, &disk, &sample.entries);
        }
    }
}

#[test]
fn a_reader_never_returns_a_changed_entry() {
    let sample = sample();
    let disk = sample.disk.duplicate();
    let (log, recovered) = open(&disk, &sample.entries).unwrap();
    let reader = log.reader();
    let read = || reader.entries(Index(1), recovered.last_index.next(), u64::MAX);
    for file in &sample.files {
        for byte in HEADER..end_of_data(&sample.disk, file) {
            disk.flip_bit(file, byte, 3);
            let error = read().unwrap_err();
            assert!(matches!(error, LogError::Corrupt { .. }), "{error}");
            disk.flip_bit(file, byte, 3);
        }
    }
    assert_eq!(read().unwrap(), sample.entries);
}

#[test]
fn a_missing_or_renamed_segment_is_refused() {
    use dengine_log::Disk as _;
    let sample = sample();
    let disk = sample.disk.duplicate();
    disk.remove(&sample.files[1]).unwrap();
    assert_eq!(
        corrupt(open(&disk, &sample.entries)),
        (sample.files[1].clone(), 0)
    );
    disk.rename(&sample.files[2], &sample.files[1]).unwrap();
    assert_eq!(
        corrupt(open(&disk, &sample.entries)),
        (sample.files[1].clone(), 0)
    );
    let error = open(&disk, &sample.entries).unwrap_err().to_string();
    assert!(
        error.contains("renamed") && error.contains("add a new one"),
        "{error}"
    );
}

/// Several batches whose sync never returned: the disk kept the later one and lost the earlier one.
#[test]
fn a_gap_before_an_unsynced_batch_is_no_damage() {
    let disk = MemoryDisk::new();
    let (mut log, _) = Log::open(disk.clone(), small_options()).unwrap();
    let [first, lost, kept] = [(1..=2), (3..=6), (7..=9)].map(|range| batch(1, range, 400));
    log.append(&first).unwrap();
    log.sync().unwrap();
    log.append(&lost).unwrap();
    log.append(&kept).unwrap();
    drop(log);
    let start = end_of_data(&disk, &segments(&disk)[0]) - 8 - 3 * 400;
    disk.edit(&segments(&disk)[0], |bytes| {
        bytes[HEADER + 2 * SECTOR_BYTES..start - 200].fill(0);
    });
    let (log, recovered) = open(&disk, &first.entries).unwrap();
    assert_eq!(recovered.last_index, Index(2));
    assert!(recovered.torn.is_some());
    // No part of the kept batch may reappear once the gap before it is filled.
    log_again(log, &disk, &first.entries, &lost.entries);
}

fn log_again(mut log: Log<MemoryDisk>, disk: &MemoryDisk, before: &[Entry], entries: &[Entry]) {
    for entry in entries {
        let batch = dengine_log::Batch {
            hard_state: None,
            entries: vec![entry.clone()],
        };
        log.append(&batch).unwrap();
        log.sync().unwrap();
    }
    drop(log);
    let all = [before, entries].concat();
    let (_, recovered) = open(disk, &all).unwrap();
    assert_eq!(
        (recovered.last_index, recovered.torn),
        (Index(all.len() as u64), None)
    );
}

/// A write that the disk acknowledged but did not do: an older, valid batch is in its place.
#[test]
fn a_stale_batch_in_the_place_of_another_is_refused() {
    let history = |second: u8| {
        let disk = MemoryDisk::new();
        let (mut log, _) = Log::open(disk.clone(), small_options()).unwrap();
        let mut batches = [1..=2, 3..=4, 5..=6].map(|range| batch(1, range, 100));
        batches[1].entries[0].data = vec![second; 100].into();
        for batch in batches {
            log.append(&batch).unwrap();
            log.sync().unwrap();
        }
        let file = segments(&disk).remove(0);
        (disk, file)
    };
    let ((disk, file), (other, _)) = (history(1), history(2));
    // Header, hard state and two entries with one and two, three and four bytes of context.
    let second = HEADER + (48 + 24 + 2 * (16 + 100) + 1 + 2_usize).next_multiple_of(8);
    let third = second + (48 + 24 + 2 * (16 + 100) + 3 + 4_usize).next_multiple_of(8);
    let exchanged = other.contents(&file)[second..third].to_vec();
    disk.edit(&file, |bytes| {
        bytes[second..third].copy_from_slice(&exchanged);
    });
    let error = Log::open(disk, small_options()).unwrap_err();
    let LogError::Corrupt { offset, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(offset, third as u64);
}

#[test]
fn a_newer_format_and_a_foreign_log_are_refused() {
    let sample = sample();
    let file = &sample.files[2];
    let disk = sample.disk.duplicate();
    disk.edit(file, |bytes| {
        bytes[8] = 2;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..HEADER]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    });
    let before = disk.contents(file);
    let error = open(&disk, &sample.entries).unwrap_err();
    assert!(
        matches!(
            &error,
            LogError::NewerFormat {
                found: 2,
                supported: 1,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(disk.contents(file), before, "nothing was changed");

    let mut options = small_options();
    options.member = MemberId(77);
    let error = Log::open(sample.disk.duplicate(), options).unwrap_err();
    assert!(
        matches!(
            error,
            LogError::WrongOwner {
                found_member: MemberId(2),
                ..
            }
        ),
        "{error}"
    );
    let mut options = small_options();
    options.cluster = ClusterId(77);
    let error = Log::open(sample.disk.duplicate(), options).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("belongs to member 2 of cluster 1"),
        "{error}"
    );
}

/// A recycled file is full of valid batches of an earlier epoch.
#[test]
fn old_batches_in_a_recycled_segment_are_ignored() {
    let disk = MemoryDisk::new();
    let (mut log, _) = Log::open(disk.clone(), small_options()).unwrap();
    let mut index = 0;
    let mut append = |log: &mut Log<MemoryDisk>| {
        index += 1;
        log.append(&batch(1, index..=index, 200)).unwrap();
        log.sync().unwrap();
        index
    };
    while segments(&disk).len() < 3 {
        append(&mut log);
    }
    log.truncate_prefix(log.reader().last_index()).unwrap();
    // The current segment is the third: the first two are spares now.
    while segments(&disk).len() < 2 {
        append(&mut log);
    }
    let file = segments(&disk)[1].clone();
    let stale = disk.contents(&file)[HEADER..]
        .iter()
        .filter(|byte| **byte != 0)
        .count();
    assert!(stale > 2000, "the file holds old batches");
    for _ in 0..5 {
        let last = append(&mut log);
        let copy = disk.duplicate();
        let (log, recovered) = Log::open(copy.clone(), small_options()).unwrap();
        assert_eq!(
            (recovered.last_index, recovered.last_term),
            (Index(last), Term(1))
        );
        assert_eq!(recovered.torn, None, "stale bytes are not a torn tail");
        let reader = log.reader();
        reader
            .entries(reader.first_index(), Index(last + 1), u64::MAX)
            .unwrap();
        drop((log, reader));
        let (_, recovered) = Log::open(copy, small_options()).unwrap();
        assert_eq!(recovered.last_index, Index(last));
    }
}
