//! Giving back what deleted records take on a disk that is nearly full.
//!
//! RocksDB does so by itself where it has space to merge in. Two things keep it from that when it is needed most. A few large files at
//! level 0 are no reason for it to merge, whatever they delete. And once a merge found no space, none begins unless twice as much is free
//! as it would read, although one of deleted records writes next to nothing; that ends when as much is free as the last merge
//! read that had room (`SstFileManagerImpl::EnoughRoomForCompaction` and `ClearError`). So a very small one is made.

use super::rocks::{MERGE_BYTES, RocksStore, failed};
use dengine_core::kv::StoreError;
use dengine_core::kv::store::Reclaimed;
use rocksdb::properties as named;
use rocksdb::{
    BottommostLevelCompaction, CompactOptions, IngestExternalFileOptions, LiveFile, Options,
    SstFileWriter,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Behind all records, and never one itself.
const BEHIND_ALL: [u8; 32] = [0xff; 32];
/// Where it is made. RocksDB clears such a name away when it opens the folder.
const SMALL_FILE: &str = "small.dbtmp";
/// For less it is not worth to read and write everything.
const WORTH_BYTES: u64 = 16 << 20;
/// So many of the last level, with what is above them.
const FILES_AT_ONCE: usize = 16;
/// What is to be left for others while it merges.
const SPARED_BYTES: u64 = 16 << 20;

/// How many of RocksDB's failures were answered with a small merge.
#[derive(Debug, Default)]
pub(super) struct Failures(AtomicU64);

/// What a store's records are, deletions among them.
#[derive(Clone, Copy, Debug, Default)]
struct Records {
    bytes: u64,
    entries: u64,
    deletions: u64,
    /// What the largest merge would read.
    merge_bytes: u64,
}

impl Records {
    fn of(files: &[LiveFile]) -> Self {
        let level_bytes = |level| {
            let files = files.iter().filter(|file| file.level == level);
            files.map(|file| file.size as u64).sum::<u64>()
        };
        // All of level 0 is merged with all of the first level below it.
        let first = files
            .iter()
            .map(|file| file.level)
            .filter(|it| *it > 0)
            .min();
        let merge_bytes = level_bytes(0) + first.map_or(0, level_bytes);
        Self {
            bytes: files.iter().map(|file| file.size as u64).sum(),
            entries: files.iter().map(|file| file.num_entries).sum(),
            deletions: files.iter().map(|file| file.num_deletions).sum(),
            merge_bytes: merge_bytes.max(MERGE_BYTES),
        }
    }

    /// How many bytes of so many would be left, if those that are deleted are as large as the others: each of our deletions is of one
    /// record.
    fn left_of(&self, bytes: u64) -> u64 {
        let written = self.entries.saturating_sub(self.deletions).max(1);
        let left = written.saturating_sub(self.deletions);
        let left = u128::from(bytes) * u128::from(left) / u128::from(written);
        u64::try_from(left).unwrap_or(u64::MAX)
    }

    fn are_worth_it(&self) -> bool {
        self.bytes - self.left_of(self.bytes) >= WORTH_BYTES
    }

    fn fit(&self, free_bytes: u64) -> bool {
        self.left_of(self.merge_bytes) + SPARED_BYTES <= free_bytes
    }
}

impl RocksStore {
    /// See [`Store::reclaim`](dengine_core::kv::store::Store::reclaim).
    pub(super) fn reclaim_some(&self, free_bytes: u64) -> Result<Reclaimed, StoreError> {
        let files = self.database().live_files();
        let files = files.map_err(|error| failed("listing files", error))?;
        let mut records = Records::of(&files);
        for (entries, deletions) in [
            (
                named::NUM_ENTRIES_ACTIVE_MEM_TABLE,
                named::NUM_DELETES_ACTIVE_MEM_TABLE,
            ),
            (
                named::NUM_ENTRIES_IMM_MEM_TABLES,
                named::NUM_DELETES_IMM_MEM_TABLES,
            ),
        ] {
            records.entries += self.property(entries);
            records.deletions += self.property(deletions);
        }
        if !records.are_worth_it() || !records.fit(free_bytes) {
            return Ok(Reclaimed::Nothing);
        }
        let before = self.failures_now();
        if self.failures().0.swap(before, Ordering::Relaxed) != before {
            self.merge_a_small_file()?;
            return Ok(Reclaimed::NotYet);
        }
        let mut begin = None;
        for end in bounds(&files).into_iter().map(Some).chain([None]) {
            if self.patience().has_ended() {
                return Ok(Reclaimed::NotYet);
            }
            let (from, to) = (begin.as_deref(), end.as_deref());
            self.database()
                .compact_range_opt(from, to, &beside_others());
            begin = end;
        }
        if self.failures_now() == before {
            return Ok(Reclaimed::Some);
        }
        Err(StoreError::NoSpace {
            doing: "merging",
            reason: "what would be left takes more than is free".to_owned(),
        })
    }

    fn failures_now(&self) -> u64 {
        self.property(named::BACKGROUND_ERRORS)
    }

    /// A deletion of what was never there: what merges it leaves nothing.
    fn merge_a_small_file(&self) -> Result<(), StoreError> {
        let doing = "merging a small file";
        let path = self.database().path().join(SMALL_FILE);
        let options = Options::default();
        let mut file = SstFileWriter::create(&options);
        file.open(&path)
            .and_then(|()| file.delete(BEHIND_ALL))
            .and_then(|()| file.finish())
            .map_err(|error| failed(doing, error))?;
        let mut ingest = IngestExternalFileOptions::default();
        ingest.set_move_files(true);
        self.database()
            .ingest_external_file_opts(&ingest, vec![&path])
            .map_err(|error| failed(doing, error))?;
        let mut options = beside_others();
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        let only = Some(&BEHIND_ALL[..]);
        self.database().compact_range_opt(only, only, &options);
        Ok(())
    }
}

/// Where to look up whether to go on: nobody can end a merge that a member waits for when it stops.
fn bounds(files: &[LiveFile]) -> Vec<Vec<u8>> {
    let last = files
        .iter()
        .map(|file| file.level)
        .max()
        .unwrap_or_default();
    let files = files.iter().filter(|file| file.level == last && last > 0);
    let mut starts: Vec<_> = files.filter_map(|file| file.start_key.clone()).collect();
    starts.sort_unstable();
    starts.into_iter().step_by(FILES_AT_ONCE).skip(1).collect()
}

fn beside_others() -> CompactOptions {
    let mut options = CompactOptions::default();
    options.set_exclusive_manual_compaction(false);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(entries: u64, deletions: u64) -> Records {
        Records {
            bytes: 800 << 20,
            entries,
            deletions,
            merge_bytes: 160 << 20,
        }
    }

    #[test]
    fn it_merges_what_is_worth_it_and_fits() {
        for (entries, deletions, worth_it, needs_mib) in [
            (1_000, 0, false, 160),
            (1_010, 10, false, 158),
            (1_030, 30, true, 155),
            (1_500, 500, true, 80),
            (2_000, 1_000, true, 0),
            // Some may be in files that are gone meanwhile.
            (1_000, 1_000, true, 0),
        ] {
            let records = records(entries, deletions);
            let what = format!("{deletions} of {entries}");
            assert_eq!(records.are_worth_it(), worth_it, "{what}");
            let needs = (needs_mib << 20) + SPARED_BYTES;
            assert!(records.fit(needs + (1 << 20)), "{what}");
            assert!(needs_mib == 0 || !records.fit(needs - (1 << 20)), "{what}");
        }
    }

    #[test]
    fn level_0_is_merged_with_the_first_level_below() {
        let file = |level, mib: usize| LiveFile {
            column_family_name: String::new(),
            name: String::new(),
            size: mib << 20,
            level,
            start_key: None,
            end_key: None,
            num_entries: 3,
            num_deletions: 1,
        };
        let records = Records::of(&[file(0, 100), file(5, 50), file(5, 50), file(6, 1_000)]);
        assert_eq!(records.merge_bytes, 200 << 20);
        assert_eq!((records.bytes, records.entries), (1_200 << 20, 12));
        assert_eq!(records.deletions, 4);
        assert_eq!(Records::of(&[file(6, 1)]).merge_bytes, MERGE_BYTES);
    }
}
