//! A segment of the log, with its checksums repaired or not.

use dengine_log::conformance::{batch, small_options};
use dengine_log::memory::MemoryDisk;
use dengine_log::{Batch, Disk as _, DiskFile as _, Log, Recovered};
use dengine_types::{HardState, Index, MemberId, NUMBER_MAX, Term};

use super::repaired;
use crate::driver::Target;

const HEADER_BYTES: usize = 4096;
const BATCH_HEADER_BYTES: usize = 48;

/// A segment, its checksums [`repaired`] or not.
pub(crate) const SEGMENT: Target = Target {
    run,
    seeds,
    // The disk in memory holds every file twice, and reading may copy it a few times.
    memory: (1 << 20, 16),
};

fn run(input: &[u8]) {
    let Some(file) = repaired(input, |file| repair(file)) else {
        return;
    };
    let disk = MemoryDisk::new();
    let written = disk.create(&name()).unwrap();
    written.write_at(0, &file).unwrap();
    written.sync_data().unwrap();
    disk.sync_dir().unwrap();
    if let Ok((log, recovered)) = Log::open(disk.clone(), small_options()) {
        assert_is_startable(&recovered);
        assert_is_usable(disk, log);
    }
}

/// What consensus takes for granted of a log that opens.
fn assert_is_startable(recovered: &Recovered) {
    let Recovered {
        base, hard_state, ..
    } = recovered;
    assert!(hard_state.commit <= recovered.last_index, "{recovered:?}");
    let at_the_start = base.index == Index(0);
    assert_eq!(at_the_start, base.term == Term(0), "{recovered:?}");
    let terms = recovered.last_term.max(hard_state.term);
    let largest = recovered.last_index.0.max(terms.0);
    assert!(largest <= NUMBER_MAX, "{recovered:?}");
}

/// A log that opens can be read, written and opened again.
fn assert_is_usable(disk: MemoryDisk, mut log: Log<MemoryDisk>) {
    let reader = log.reader();
    let (first, last) = (reader.first_index(), reader.last());
    drop(reader.entries(first, last.index.next(), u64::MAX));
    let next = last.index.0.checked_add(1);
    if let Some(next) = next.filter(|next| *next < u64::MAX - 1) {
        let mut more = batch(last.term.0.max(1), next..=next, 10);
        more.hard_state = None;
        drop(log.append(&more).and_then(|()| log.sync()));
    }
    log.prepare().unwrap();
    let end = log.reader().last();
    drop((log, reader));
    let again = Log::open(disk, small_options()).map(|(log, _)| log.reader().last());
    assert_eq!(
        again.unwrap(),
        end,
        "what opened once opens again as it was left"
    );
}

/// Makes all checksums match what they are of, and each batch follow the one before.
fn repair(file: &mut [u8]) {
    if file.len() < HEADER_BYTES {
        return;
    }
    let head = crc32c::crc32c(&file[..12]);
    let crc = crc32c::crc32c_append(head, &file[16..HEADER_BYTES]);
    file[12..16].copy_from_slice(&crc.to_le_bytes());
    let epoch: [u8; 8] = file[24..32].try_into().unwrap();
    let mut previous: [u8; 4] = file[88..92].try_into().unwrap();
    let mut rest = &mut file[HEADER_BYTES..];
    while rest.len() >= BATCH_HEADER_BYTES {
        let bytes = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
        if !(BATCH_HEADER_BYTES..=rest.len()).contains(&bytes) {
            return;
        }
        let (batch, later) = rest.split_at_mut(bytes);
        batch[8..16].copy_from_slice(&epoch);
        batch[16..20].copy_from_slice(&previous);
        previous = crc32c::crc32c(&batch[4..]).to_le_bytes();
        batch[..4].copy_from_slice(&previous);
        rest = later;
    }
}

/// The name of the first segment.
fn name() -> String {
    let disk = MemoryDisk::new();
    drop(Log::open(disk.clone(), small_options()).unwrap());
    disk.list().unwrap().remove(0)
}

fn seeds() -> Vec<Vec<u8>> {
    let disk = MemoryDisk::new();
    let (mut log, _) = Log::open(disk.clone(), small_options()).unwrap();
    let vote = HardState {
        term: Term(2),
        vote: MemberId(2),
        commit: Index(1),
    };
    log.append(&batch(1, 1..=5, 40)).unwrap();
    log.sync().unwrap();
    log.append(&Batch {
        hard_state: Some(vote),
        entries: Vec::new(),
    })
    .unwrap();
    log.append(&Batch {
        hard_state: None,
        ..batch(2, 4..=9, 20)
    })
    .unwrap();
    log.sync().unwrap();
    let file = disk.contents(&name());
    let with_mode = |mode: u8| [&[mode], &file[..]].concat();
    let used = HEADER_BYTES + 1200;
    let cut = [&[1], &file[..used]].concat();
    let first = [with_mode(0), with_mode(1), cut];
    first.into_iter().chain(impossible(&file)).collect()
}

/// The file with one number at a time that no log gets to, and with none.
fn impossible(file: &[u8]) -> Vec<Vec<u8>> {
    // Base index and term, term and commit index of the header; first index and previous term, term
    // and commit index of the first batch, and the term of its first entry.
    let batch = [32, 40, 48, 64, 72].map(|at| HEADER_BYTES + at);
    let numbers = [48, 56, 64, 80].into_iter().chain(batch);
    let with = |at: usize, number: u64| {
        let mut input = [&[1], file].concat();
        input[1 + at..1 + at + 8].copy_from_slice(&number.to_le_bytes());
        input
    };
    numbers
        .flat_map(|at| [0, NUMBER_MAX + 1].map(|number| with(at, number)))
        .collect()
}
