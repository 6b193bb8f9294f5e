//! The files behind the segments: creating spares, turning them into segments, and cleaning up.

use std::sync::Arc;

use dengine_types::{HardState, NUMBER_MAX};

use super::LogOptions;
use super::disk::{Disk, DiskError, DiskFile};
use super::error::LogError;
use super::format::SegmentHeader;
use super::names::Name;
use super::open::{Found, Tail};
use super::segments::{SegmentFile, Segments};
use super::state::{LogState, Position};

/// Zeros are written in pieces of this size. The page cache may keep what one call wrote as one
/// folio (ext4 since Linux 6.16, XFS for longer), and each small append later walks all blocks of
/// the folio that it is in: with a mebibyte that took longer than the append itself.
pub const FILL_BYTES: u32 = 64 << 10;

/// The zeros that are due are written with about this many syncs, unless each would carry less than
/// [`SYNC_BYTES_MIN`]. Where the filling keeps up with the log, each sync then carries half as much
/// as the log's own.
const SYNCS: u32 = 4;
const SYNC_BYTES_MIN: u32 = 1 << 20;

static ZEROS: [u8; FILL_BYTES as usize] = [0; FILL_BYTES as usize];

/// An unused file of the usual segment size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spare {
    pub(super) number: u64,
    /// Whether it may contain old batches; otherwise it is all zeros.
    pub(super) recycled: bool,
}

/// The epoch of a segment: different for every segment under one seed, and never 0 (SplitMix64's
/// finisher is a bijection).
pub(super) fn epoch(seed: u64, number: u64) -> u64 {
    let mut z = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).max(1)
}

/// A spare that is being filled with zeros, piece by piece. Its space is allocated before the first
/// piece, and it is named as a spare after the last one.
#[derive(Debug)]
pub(super) struct Filling<F> {
    file: F,
    number: u64,
    capacity: u32,
    filled: u32,
}

impl<F: DiskFile> Filling<F> {
    pub(super) fn begin<D: Disk<File = F>>(
        disk: &D,
        number: u64,
        capacity: u32,
        leave: u64,
    ) -> Result<Self, LogError> {
        let name = Name::Unfinished(number).to_string();
        let file = disk.create(&name).map_err(no_space)?;
        if let Err(error) = file.reserve(u64::from(capacity), leave) {
            disk.remove(&name)?;
            return Err(no_space(error));
        }
        Ok(Self {
            file,
            number,
            capacity,
            filled: 0,
        })
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// How many bytes are filled and durable; `None` if all are.
    pub(super) fn filled(&self) -> Option<u32> {
        (self.filled < self.capacity).then_some(self.filled)
    }

    /// Fills the file up to `upto`, with few syncs: if much is due, the log writes much between two
    /// of its own syncs, and a disk may take as long for each whatever it carries. If little is
    /// due, each sync is small, so that the log's own do not wait behind it.
    pub(super) fn fill_upto(&mut self, upto: u32) -> Result<(), DiskError> {
        let upto = upto.min(self.capacity);
        let piece = (upto.saturating_sub(self.filled) / SYNCS).max(SYNC_BYTES_MIN);
        while self.filled < upto {
            let end = upto.min(self.filled.saturating_add(piece));
            for at in (self.filled..end).step_by(FILL_BYTES as usize) {
                let bytes = FILL_BYTES.min(end - at) as usize;
                self.file.write_at(at.into(), &ZEROS[..bytes])?;
            }
            self.file.sync_data()?;
            self.filled = end;
        }
        Ok(())
    }

    /// Fills the rest and names the spare. Without space for it, the file is removed.
    pub(super) fn finish<D: Disk<File = F>>(mut self, disk: &D) -> Result<Spare, LogError> {
        if let Err(error) = self.fill_upto(self.capacity) {
            return Err(self.abandon(disk, error));
        }
        let unfinished = Name::Unfinished(self.number).to_string();
        disk.rename(&unfinished, &Name::Spare(self.number).to_string())?;
        disk.sync_dir()?;
        Ok(Spare {
            number: self.number,
            recycled: false,
        })
    }

    /// Removes the file after a failure.
    pub(super) fn abandon<D: Disk<File = F>>(self, disk: &D, error: DiskError) -> LogError {
        match disk.remove(&Name::Unfinished(self.number).to_string()) {
            Ok(()) => no_space(error),
            Err(error) => LogError::Disk(error),
        }
    }
}

fn no_space(error: DiskError) -> LogError {
    if error.is_no_space() {
        LogError::NoSpace(error)
    } else {
        LogError::Disk(error)
    }
}

/// Turns a spare into a segment. Its header is durable before it is named as a segment.
pub(super) fn begin_segment<D: Disk>(
    disk: &D,
    spare: Spare,
    header: &SegmentHeader,
) -> Result<Arc<SegmentFile<D::File>>, DiskError> {
    let spare = Name::Spare(spare.number).to_string();
    let file = disk.open(&spare)?;
    file.write_at(0, &header.encode())?;
    file.sync_data()?;
    drop(file);
    let name = Name::Segment(header.number).to_string();
    disk.rename(&spare, &name)?;
    disk.sync_dir()?;
    // Opened again, so that errors show its new name.
    Ok(Arc::new(SegmentFile {
        file: disk.open(&name)?,
        path: disk.path(&name),
        number: header.number,
        epoch: header.epoch,
        capacity: header.capacity,
    }))
}

/// Removes unfinished files that a crash left, and returns the usable spares.
pub(super) fn clear_spares<D: Disk>(
    disk: &D,
    options: &LogOptions,
    names: Vec<Name>,
) -> Result<Vec<Spare>, LogError> {
    let mut spares = Vec::new();
    for name in names {
        if let Name::Spare(number) = name {
            let bytes = disk.open(&name.to_string())?.len()?;
            // The next spare gets a higher number than all others, so one with an impossible number
            // is removed.
            let usable = bytes == u64::from(options.segment_bytes) && number <= NUMBER_MAX;
            if usable && spares.len() < options.spares_max {
                spares.push(Spare {
                    number,
                    recycled: true,
                });
                continue;
            }
        }
        disk.remove(&name.to_string())?;
    }
    Ok(spares)
}

/// Creates the first segment of an empty log.
pub(super) fn create_log<D: Disk>(
    disk: &D,
    options: &LogOptions,
    spares: &mut Vec<Spare>,
) -> Result<Found<D::File>, LogError> {
    let number = 1;
    let spare = match spares.pop() {
        Some(spare) => spare,
        None => Filling::begin(disk, number, options.segment_bytes, 0)?.finish(disk)?,
    };
    let header = SegmentHeader {
        number,
        epoch: epoch(options.epoch_seed, number),
        cluster: options.cluster,
        member: options.member,
        base: Position::default(),
        hard_state: HardState::default(),
        previous_crc: 0,
        capacity: options.segment_bytes,
        recycled: spare.recycled,
    };
    let file = begin_segment(disk, spare, &header)?;
    let mut segments = Segments::new(LogState::new(header.base, header.hard_state));
    segments.push_segment(file);
    Ok(Found {
        segments,
        tail: Tail::at_start(0),
        torn: None,
    })
}

#[cfg(test)]
mod tests {
    use dengine_types::Index;

    use super::super::Log;
    use super::super::conformance::{batch, small_options};
    use super::super::memory::MemoryDisk;
    use super::*;

    /// The next spare gets a higher number than all existing ones.
    #[test]
    fn a_spare_with_an_impossible_number_is_removed() {
        let disk = MemoryDisk::new();
        let usual = Name::Spare(7).to_string();
        let last = Name::Spare(NUMBER_MAX).to_string();
        let foreign = [NUMBER_MAX + 1, u64::MAX].map(|number| Name::Spare(number).to_string());
        for name in [&usual, &last].into_iter().chain(&foreign) {
            let file = disk.create(name).unwrap();
            file.reserve(u64::from(small_options().segment_bytes), 0)
                .unwrap();
        }
        let mut options = small_options();
        options.spares_max = 4;
        let (mut log, _) = Log::open(disk.clone(), options).unwrap();
        let names = disk.list().unwrap();
        assert!(
            !foreign.iter().any(|name| names.contains(name)),
            "{names:?}"
        );
        // One of the other spares became the first segment; this batch needs a larger file than the
        // second.
        log.append(&batch(1, 1..=3, 4000)).unwrap();
        assert_eq!(disk.list().unwrap().len(), 3);
    }

    /// The first numbers of SplitMix64 from seed 0, as the author's program prints them.
    #[test]
    fn epochs_are_those_of_splitmix64() {
        let epochs = [1, 2, 3].map(|number| epoch(0, number));
        let expected = [
            0xe220_a839_7b1d_cdaf,
            0x6e78_9e6a_a1b9_65f4,
            0x06c4_5d18_8009_454f,
        ];
        assert_eq!(epochs, expected);
        assert_eq!(epoch(0, 0), 1, "only 0 is mapped, since it is no epoch");
        assert_ne!(epoch(1, 1), epochs[0]);
    }

    #[test]
    fn at_most_spares_max_dropped_segments_are_kept() {
        for spares_max in [0, 1, 3] {
            let disk = MemoryDisk::new();
            let mut options = small_options();
            options.spares_max = spares_max;
            let (mut log, _) = Log::open(disk.clone(), options.clone()).unwrap();
            for index in 1..=120 {
                log.append(&batch(1, index..=index, 400)).unwrap();
            }
            let count = |kind: &str| {
                let names = disk.list().unwrap();
                names.iter().filter(|name| name.ends_with(kind)).count()
            };
            assert!(count(".segment") > 5);
            log.truncate_prefix(Index(120)).unwrap();
            assert_eq!((count(".segment"), count(".spare")), (1, spares_max));
            // The next opening removes those beyond a smaller limit.
            drop(log);
            options.spares_max = 1;
            Log::open(disk.clone(), options).unwrap();
            let left = disk.list().unwrap();
            let left = left.iter().filter(|name| name.ends_with(".spare"));
            assert_eq!(left.count(), spares_max.min(1));
        }
    }
}
