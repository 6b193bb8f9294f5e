//! Prepares the next segment's file while the current one is written: piece by piece, on another
//! thread if there is one.
//!
//! Each piece is synced. A sync that allocates a file's space waits for the file system's journal,
//! which may write other files' data first: tens of milliseconds. Syncs of a segment whose space is
//! already allocated do not wait for it, so appends go on meanwhile.

use std::sync::Arc;

use super::disk::{Disk, DiskFile};
use super::error::LogError;
use super::files::{Filling, Spare};
use super::format::SEGMENT_HEADER_BYTES;
use super::names::Name;
use super::writer::Log;

/// The spare that is being prepared.
#[derive(Debug)]
pub(super) enum Next<F> {
    None,
    Here(Filling<F>),
    /// A [`Piece`] has it.
    Away {
        number: u64,
    },
}

impl<F: DiskFile> Next<F> {
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Here(filling) => Some(filling.number()),
            Self::Away { number } => Some(*number),
        }
    }

    pub(super) fn take(&mut self) -> Option<Filling<F>> {
        match std::mem::replace(self, Self::None) {
            Self::Here(filling) => Some(filling),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// A piece of the next segment's file, to be filled with zeros. If it is dropped, the next opening
/// removes the file.
pub struct Piece<D: Disk> {
    disk: Arc<D>,
    filling: Filling<D::File>,
    upto: u32,
}

/// The result of a [`Piece`], for [`Log::take_back`].
pub struct Filled<D: Disk>(Result<Done<D::File>, LogError>);

enum Done<F> {
    InPart(Filling<F>),
    Entirely(Spare),
}

impl<D: Disk> Piece<D> {
    /// Fills the piece and syncs it, for as long as the disk takes.
    #[must_use = "the log needs it back"]
    pub fn fill(mut self) -> Filled<D> {
        if let Err(error) = self.filling.fill_upto(self.upto) {
            return Filled(Err(self.filling.abandon(&*self.disk, error)));
        }
        Filled(match self.filling.filled() {
            Some(_) => Ok(Done::InPart(self.filling)),
            None => self.filling.finish(&*self.disk).map(Done::Entirely),
        })
    }
}

impl<D: Disk> Log<D> {
    /// A piece of the next segment's file to fill, if the file lags behind the current segment and
    /// no other piece is out. Call this after a sync, when the callers have their answers; without
    /// it the append that needs the next segment has to write all of it at once.
    ///
    /// # Errors
    ///
    /// As [`Log::prepare`].
    pub fn next_piece(&mut self) -> Result<Option<Piece<D>>, LogError> {
        self.check_poison()?;
        // Twice the pace of the current segment, so that the file is complete when that one is half
        // full.
        let due = 2 * u64::from(self.offset - SEGMENT_HEADER_BYTES);
        let done = match &self.next {
            Next::None => 0,
            Next::Here(filling) => filling.filled().unwrap_or(u32::MAX),
            Next::Away { .. } => return Ok(None),
        };
        if !self.spares.is_empty() || u64::from(done) >= due {
            return Ok(None);
        }
        let filling = match self.next.take() {
            Some(filling) => filling,
            None => {
                let begun = self.begin_filling(self.options.segment_bytes);
                self.usable_or_fatal(begun)?
            }
        };
        // At least a 64th of the segment, so that there are few syncs whatever the size.
        let least = (self.options.segment_bytes / 64).max(SEGMENT_HEADER_BYTES);
        let upto = u32::try_from(due).unwrap_or(u32::MAX);
        let upto = upto.max(done.saturating_add(least));
        self.next = Next::Away {
            number: filling.number(),
        };
        Ok(Some(Piece {
            disk: Arc::clone(&self.disk),
            filling,
            upto,
        }))
    }

    /// Whether a piece is out. Its file takes space: an append without space takes it back before
    /// it waits for more.
    #[must_use]
    pub fn is_piece_away(&self) -> bool {
        matches!(self.next, Next::Away { .. })
    }

    /// Whether a piece is out without which the next segment may not be ready in time: an append
    /// would then write all of another file at once.
    #[must_use]
    pub fn awaits_piece(&self) -> bool {
        self.is_piece_away()
            && self.spares.is_empty()
            && self.offset > self.current.capacity / 4 * 3
    }

    /// Takes a filled piece back.
    ///
    /// # Errors
    ///
    /// As [`Log::prepare`].
    pub fn take_back(&mut self, filled: Filled<D>) -> Result<(), LogError> {
        self.next = Next::None;
        match self.usable_or_fatal(filled.0)? {
            Done::InPart(filling) => self.next = Next::Here(filling),
            Done::Entirely(spare) => self.spares.push(spare),
        }
        Ok(())
    }

    /// Removes the files that were prepared, or kept, for the next segments, except for a piece
    /// that is out.
    ///
    /// # Errors
    ///
    /// If the disk fails; the log is unusable then.
    pub fn give_back_next(&mut self) -> Result<(), LogError> {
        self.check_poison()?;
        let mut names: Vec<_> = self
            .spares
            .drain(..)
            .map(|spare| Name::Spare(spare.number))
            .collect();
        names.extend(
            self.next
                .take()
                .map(|filling| Name::Unfinished(filling.number())),
        );
        for name in &names {
            let removed = self.disk.remove(&name.to_string());
            self.usable_or_fatal(removed.map_err(LogError::Disk))?;
        }
        Ok(())
    }

    /// Fills the next piece on this thread.
    ///
    /// # Errors
    ///
    /// [`LogError::NoSpace`] leaves the log unchanged, and may be ignored. After any other error
    /// the log is unusable.
    pub fn prepare(&mut self) -> Result<(), LogError> {
        match self.next_piece()? {
            Some(piece) => self.take_back(piece.fill()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::LogOptions;
    use super::super::conformance::{batch, small_options};
    use super::super::memory::MemoryDisk;
    use super::*;

    const MIB: usize = 1 << 20;

    /// How many syncs the next segment takes beside a log that writes `bytes` between two of its
    /// own, on a disk on which every sync takes the same time. The segment must be ready in time.
    fn syncs_of_next(bytes: usize) -> u64 {
        let disk = MemoryDisk::new();
        let options = LogOptions {
            segment_bytes: 64 << 20,
            ..small_options()
        };
        let (mut log, _) = Log::open(disk.clone(), options).unwrap();
        let (mut syncs, mut away) = (0, None);
        for index in 1.. {
            log.append(&batch(1, index..=index, bytes)).unwrap();
            log.sync().unwrap();
            assert_eq!(log.current.number, 1, "the log is full");
            match away.take() {
                Some((0, filled)) => log.take_back(filled).unwrap(),
                Some((left, filled)) => away = Some((left - 1, filled)),
                None => {}
            }
            if !log.spares.is_empty() {
                break;
            }
            if away.is_none()
                && let Some(piece) = log.next_piece().unwrap()
            {
                let before = disk.counts().syncs;
                let filled = piece.fill();
                let took = disk.counts().syncs - before;
                syncs += took;
                away = Some((took - 1, filled));
            }
        }
        syncs
    }

    /// With one sync for each MiB the log waited for dozens of them, on a disk where one takes a
    /// tenth of a second.
    #[test]
    fn larger_appends_prepare_the_next_segment_with_fewer_syncs() {
        assert!(syncs_of_next(MIB / 4) >= 60, "each is small");
        assert!(syncs_of_next(MIB) <= 40);
        let few = syncs_of_next(4 * MIB);
        assert!(
            (9..=16).contains(&few),
            "{few} syncs: none writes all that is due"
        );
    }
}
