//! Giving back what deleted records take on a disk that is nearly full.
//!
//! RocksDB does so by itself where it has space to merge in. Two things keep it from that when it
//! is needed most. A few large files at level 0 are no reason for it to merge, whatever they
//! delete. And once a merge found no space, none begins unless twice as much is free as it would
//! read, although one of deleted records writes next to nothing; that ends when as much is free as
//! the last merge read that had room (`SstFileManagerImpl::EnoughRoomForCompaction` and
//! `ClearError`). So a very small one is made.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use dengine_kv::StoreError;
use dengine_kv::layout::{Stamp, change_range};
use dengine_kv::store::{Cursor as _, Reclaimed, Scope, Store as _};
use dengine_types::Revision;
use rocksdb::{
    BottommostLevelCompaction, CompactOptions, IngestExternalFileOptions, LiveFile, Options,
    ReadOptions, SstFileWriter, properties as named,
};

use super::pieces::bounds;
use super::rocks::{MERGE_BYTES, RocksStore, failed};

/// Behind all records, and never one itself.
const BEHIND_ALL: [u8; 32] = [0xff; 32];
/// Where it is made.
const SMALL_FILE: &str = "small.dbtmp";
/// For less it is not worth to read and write everything.
const WORTH_BYTES: u64 = 16 << 20;
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
    /// What changes take that are not among them: they are deleted.
    left_out_bytes: u64,
    /// What a record has on average, unpacked, if that is known.
    record_bytes: Option<u64>,
    /// What the largest merge would read.
    merge_bytes: u64,
}

/// Changes that a deletion of a part of history removed, which does not say how many they were.
#[derive(Clone, Copy, Debug, Default)]
struct DeletedChanges {
    /// In files.
    bytes: u64,
    /// What a change has, unpacked.
    change_bytes: u64,
}

impl Records {
    fn of(files: &[LiveFile]) -> Self {
        let level_bytes = |level| bytes_of(files.iter().filter(|file| file.level == level));
        // All of level 0 is merged with all of the first level below it.
        let below = files.iter().map(|file| file.level).filter(|it| *it > 0);
        let merge_bytes = level_bytes(0) + below.min().map_or(0, level_bytes);
        Self {
            bytes: bytes_of(files),
            entries: 0,
            deletions: 0,
            left_out_bytes: 0,
            record_bytes: None,
            merge_bytes: merge_bytes.max(MERGE_BYTES),
        }
    }

    /// Adds what the tables are said to hold. The list of files says it of those only whose
    /// properties were read since it was opened.
    fn count_tables(&mut self, properties: &str) {
        let number = |name: &str| {
            let values = properties
                .split(';')
                .filter_map(|it| it.trim().strip_prefix(name));
            values
                .filter_map(|it| it.strip_prefix('=')?.parse::<u64>().ok())
                .next()
        };
        let entries = number("# entries").unwrap_or_default();
        let bytes = number("raw key size").unwrap_or_default()
            + number("raw value size").unwrap_or_default();
        self.record_bytes = bytes.checked_div(entries);
        self.entries += entries;
        self.deletions += number("# deletions").unwrap_or_default();
    }

    /// Takes all of them to be as those are of which the list of files says what they hold, and
    /// leaves out what is in memory. If it says it of none, nothing is known to be deleted.
    fn estimate(&mut self, files: &[LiveFile]) {
        let known = || files.iter().filter(|file| file.num_entries > 0);
        let known_bytes = bytes_of(known());
        let of_all = |known: u64| part_of(known, self.bytes, known_bytes);
        let entries = of_all(known().map(|file| file.num_entries).sum());
        let deletions = of_all(known().map(|file| file.num_deletions).sum());
        (self.entries, self.deletions) = (entries, deletions);
    }

    /// Leaves out changes that are deleted without a deletion for each, if they can be packed as
    /// well as the others.
    fn leave_out(&mut self, deleted: DeletedChanges) {
        let record_bytes = self.record_bytes.unwrap_or(deleted.change_bytes);
        let unpacked = part_of(self.entries * record_bytes, deleted.bytes, self.bytes);
        let changes = unpacked / deleted.change_bytes.max(1);
        self.entries = self.entries.saturating_sub(changes).max(self.deletions);
        self.left_out_bytes = deleted.bytes;
    }

    /// How many bytes of so many would be left, if those that are deleted are as large as the
    /// others: each of our deletions is of one record.
    fn left_of(&self, bytes: u64) -> u64 {
        let bytes = bytes - part_of(bytes, self.left_out_bytes, self.bytes).min(bytes);
        let written = self.entries.saturating_sub(self.deletions).max(1);
        let left = written.saturating_sub(self.deletions);
        part_of(bytes, left, written)
    }

    fn are_worth_it(&self) -> bool {
        self.bytes - self.left_of(self.bytes) >= WORTH_BYTES
    }

    /// RocksDB itself asks for a write buffer besides.
    fn fit(&self, free_bytes: u64, write_buffer_bytes: u64) -> bool {
        self.left_of(self.merge_bytes) + write_buffer_bytes + SPARED_BYTES <= free_bytes
    }
}

/// `number * of / all`.
fn part_of(number: u64, of: u64, all: u64) -> u64 {
    let part = u128::from(number) * u128::from(of) / u128::from(all.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

fn bytes_of<'a>(files: impl IntoIterator<Item = &'a LiveFile>) -> u64 {
    files.into_iter().map(|file| file.size as u64).sum()
}

impl RocksStore {
    /// See [`Store::reclaim`](dengine_kv::store::Store::reclaim).
    pub(super) fn reclaim_some(&self, free_bytes: u64) -> Result<Reclaimed, StoreError> {
        let files = self.files()?;
        let records = self.records(&files)?;
        if !records.are_worth_it() || !records.fit(free_bytes, self.write_buffer_bytes()) {
            return Ok(Reclaimed::Nothing);
        }
        let before = self.failures_now();
        if self.failures().0.swap(before, Ordering::Relaxed) != before {
            self.merge_a_small_file(&files)?;
            return Ok(Reclaimed::NotYet);
        }
        if !self.merge(&files, || true) {
            return Ok(Reclaimed::NotYet);
        }
        if self.failures_now() != before {
            return Err(no_space());
        }
        // What keeps it from merging otherwise is said to nobody.
        let is_less = bytes_of(&self.files()?) < records.bytes;
        Ok(match is_less {
            true => Reclaimed::GivenBack,
            false => Reclaimed::Nothing,
        })
    }

    /// Merges everything, whatever that gives back. Whether it came to the end, which it does not
    /// once the store is to be closed, or it is wanted no more.
    ///
    /// # Errors
    /// So much is not free.
    pub(crate) fn merge_all(
        &self,
        free_bytes: u64,
        is_wanted: impl Fn() -> bool,
    ) -> Result<bool, StoreError> {
        let files = self.files()?;
        let before = self.failures_now();
        if !Records::of(&files).fit(free_bytes, self.write_buffer_bytes()) {
            return Err(no_space());
        }
        let is_whole = self.merge(&files, is_wanted);
        match self.failures_now() == before {
            true => Ok(is_whole),
            false => Err(no_space()),
        }
    }

    /// Merges everything, beside what else is merged. Whether it came to the end.
    fn merge(&self, files: &[LiveFile], is_wanted: impl Fn() -> bool) -> bool {
        let mut begin = None;
        for end in bounds(files).into_iter().map(Some).chain([None]) {
            if self.patience().has_ended() || !is_wanted() {
                return false;
            }
            let (from, to) = (begin.as_deref(), end.as_deref());
            self.database()
                .compact_range_opt(from, to, &beside_others());
            begin = end;
        }
        true
    }

    fn files(&self) -> Result<Vec<LiveFile>, StoreError> {
        let files = self.database().live_files();
        files.map_err(|error| failed("listing files", error))
    }

    fn records(&self, files: &[LiveFile]) -> Result<Records, StoreError> {
        let mut records = Records::of(files);
        // Of many tables some are closed again before the last is open, and RocksDB would have to
        // read them all the same.
        if files.len() > self.tables_open_together() {
            records.estimate(files);
            records.leave_out(self.deleted_changes()?);
            return Ok(records);
        }
        self.open_tables(files);
        let tables = self.database();
        let tables = tables.property_value(named::AGGREGATED_TABLE_PROPERTIES);
        let tables = tables.map_err(|error| failed("looking at tables", error))?;
        records.count_tables(&tables.unwrap_or_default());
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
        records.leave_out(self.deleted_changes()?);
        Ok(records)
    }

    /// They are the oldest: whatever the files have before the first change that is there.
    fn deleted_changes(&self) -> Result<DeletedChanges, StoreError> {
        let all = change_range(Stamp::start_of(Revision(0)), Revision(u64::MAX));
        let mut changes = self.cursor(Scope::Between(all.clone()));
        changes.seek(&all.start)?;
        let Some((key, change)) = changes.record() else {
            return Ok(DeletedChanges::default());
        };
        let before = rocksdb::Range::new(&all.start, key);
        let bytes = self.database().get_approximate_sizes(&[before]);
        Ok(DeletedChanges {
            bytes: bytes.iter().sum(),
            change_bytes: (key.len() + change.len()) as u64,
        })
    }

    /// RocksDB reads what it does not know of a table while it holds the lock that everybody needs:
    /// so whoever asks about tables has each of them opened before, without it.
    fn open_tables(&self, files: &[LiveFile]) {
        let mut read = ReadOptions::default();
        read.set_total_order_seek(true);
        read.fill_cache(false);
        // Its first record may be deleted, and all behind it: one by one, or as a part of history.
        #[expect(
            deprecated,
            reason = "RocksDB advises against it for speed, and has nothing else for this"
        )]
        read.set_ignore_range_deletions(true);
        read.set_max_skippable_internal_keys(1);
        let mut tables = self.database().raw_iterator_opt(read);
        for key in files.iter().filter_map(|file| file.start_key.as_ref()) {
            if self.patience().has_ended() {
                break;
            }
            tables.seek(key);
        }
    }

    fn failures_now(&self) -> u64 {
        self.property(named::BACKGROUND_ERRORS)
    }

    /// A deletion of what was never there: what merges it leaves nothing. One that an earlier try
    /// could not merge is taken again.
    fn merge_a_small_file(&self, files: &[LiveFile]) -> Result<(), StoreError> {
        let is_there = |file: &LiveFile| file.start_key.as_deref() == Some(&BEHIND_ALL);
        if !files.iter().any(is_there) {
            self.ingest_a_small_file()?;
        }
        let mut options = beside_others();
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        let only = Some(&BEHIND_ALL[..]);
        self.database().compact_range_opt(only, only, &options);
        Ok(())
    }

    /// The file is copied, and one that a crash left is removed and not written again: a link would
    /// be the database's own file.
    fn ingest_a_small_file(&self) -> Result<(), StoreError> {
        let doing = "adding a small file";
        let path = self.database().path().join(SMALL_FILE);
        remove(&path)?;
        let options = Options::default();
        let mut file = SstFileWriter::create(&options);
        let ingested = file
            .open(&path)
            .and_then(|()| file.delete(BEHIND_ALL))
            .and_then(|()| file.finish())
            .and_then(|()| {
                let options = IngestExternalFileOptions::default();
                self.database()
                    .ingest_external_file_opts(&options, vec![&path])
            });
        let removed = remove(&path);
        ingested.map_err(|error| failed(doing, error)).and(removed)
    }
}

fn no_space() -> StoreError {
    StoreError::NoSpace {
        doing: "merging",
        reason: "what would be left takes more than is free".to_owned(),
    }
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match fs_err::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::Failed {
            doing: "removing a small file",
            reason: error.to_string(),
        }),
        _ => Ok(()),
    }
}

fn beside_others() -> CompactOptions {
    let mut options = CompactOptions::default();
    options.set_exclusive_manual_compaction(false);
    options
}

#[cfg(test)]
mod tests {
    use dengine_kv::layout::put_change_key;
    use dengine_kv::store::WriteBatch;

    use rocksdb::statistics::Ticker;

    use super::super::pieces::tests::file;
    use super::super::{RocksOptions, StoreCounters};
    use super::*;

    const MIB: u64 = 1 << 20;

    fn records(entries: u64, deletions: u64) -> Records {
        Records {
            bytes: 800 * MIB,
            entries,
            deletions,
            left_out_bytes: 0,
            record_bytes: None,
            merge_bytes: 160 * MIB,
        }
    }

    #[test]
    fn tables_of_which_nothing_is_known_are_taken_to_be_as_others() {
        let files = [file(1, 100, "a"), file(1, 300, "b")];
        let mut records = Records::of(&files);
        records.estimate(&files);
        assert!(!records.are_worth_it(), "nothing is known to be deleted");
        let [mut known, unknown] = files;
        (known.num_entries, known.num_deletions) = (1_000, 400);
        let files = [known, unknown];
        records.estimate(&files);
        assert_eq!((records.entries, records.deletions), (4_000, 1_600));
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
            let needs = needs_mib * MIB + 64 * MIB + SPARED_BYTES;
            assert!(records.fit(needs + MIB, 64 * MIB), "{what}");
            assert!(!records.fit(needs - MIB, 64 * MIB), "{what}");
        }
    }

    #[test]
    fn level_0_is_merged_with_the_first_level_below() {
        let file = |level, mib| file(level, mib, "");
        let records = Records::of(&[file(0, 100), file(5, 50), file(5, 50), file(6, 1_000)]);
        assert_eq!(records.merge_bytes, 200 * MIB);
        assert_eq!(records.bytes, 1_200 * MIB);
        assert_eq!(Records::of(&[file(6, 1)]).merge_bytes, MERGE_BYTES);
    }

    fn open(folder: &Path) -> RocksStore {
        RocksStore::open(folder, &RocksOptions::default()).expect("open")
    }

    /// Records of 64 KiB that can't be packed.
    fn write(store: &RocksStore, keys: std::ops::Range<u32>) {
        for number in keys {
            let mut value = vec![0; 64 << 10];
            rand::fill(&mut value[..]);
            let mut batch = WriteBatch::default();
            batch.put(&number.to_be_bytes(), &value);
            store.write(&batch).expect("write");
        }
    }

    fn delete(store: &RocksStore, keys: std::ops::Range<u32>) {
        let mut batch = WriteBatch::default();
        keys.for_each(|number| batch.delete(&number.to_be_bytes()));
        store.write(&batch).expect("write");
    }

    /// After it was opened again the list of files knew the number of records of a few of them
    /// only.
    #[test]
    fn what_is_deleted_is_given_back_also_by_who_opens_the_store_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        // More files than RocksDB reads the properties of when it opens them.
        for part in 0..30 {
            write(&store, part * 32..(part + 1) * 32);
            store.flush().expect("flush");
        }
        assert_eq!(store.reclaim(1 << 40), Ok(Reclaimed::Nothing));
        delete(&store, 0..480);
        store.flush().expect("flush");
        drop(store);
        let store = open(folder.path());
        let before = bytes_of(&store.files().unwrap());
        let records = store.records(&store.files().unwrap()).unwrap();
        let left = records.left_of(before);
        assert!(
            left.abs_diff(before / 2) < before / 20,
            "{left} of {before}"
        );
        assert_eq!(store.reclaim(40 * MIB), Ok(Reclaimed::Nothing), "no room");
        assert_eq!(store.reclaim(1 << 40), Ok(Reclaimed::GivenBack));
        let after = bytes_of(&store.files().unwrap());
        assert!(after < before / 2 + 2 * MIB, "{after} of {before}");
        assert!(store.get(&479u32.to_be_bytes()).unwrap().is_none());
        assert!(store.get(&480u32.to_be_bytes()).unwrap().is_some());
    }

    /// Changes of 1 KiB that can't be packed, in files of 1 MiB.
    fn write_changes(store: &RocksStore, revisions: std::ops::Range<u64>) {
        for revision in revisions {
            let (mut key, mut change) = (Vec::new(), vec![0; 1 << 10]);
            put_change_key(&mut key, Stamp::start_of(Revision(revision)));
            rand::fill(&mut change[..]);
            let mut batch = WriteBatch::default();
            batch.put(&key, &change);
            store.write(&batch).expect("write");
            if revision % 1024 == 0 {
                store.flush().expect("flush");
            }
        }
    }

    fn delete_changes(store: &RocksStore, end: u64) {
        let mut batch = WriteBatch::default();
        let [from, to] = [0, end].map(|it| Stamp::start_of(Revision(it)));
        batch.delete_changes(from..to);
        store.write(&batch).expect("write");
        store.flush().expect("flush");
    }

    /// One record deletes all of them: they were taken to be there, and for what would be left of
    /// them there seemed to be no room.
    #[test]
    fn changes_that_are_deleted_together_are_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        write(&store, 0..128);
        write_changes(&store, 0..24 << 10);
        delete_changes(&store, 23 << 10);
        let check = |store: &RocksStore, left_mib: u64| {
            let files = store.files().unwrap();
            let records = store.records(&files).unwrap();
            let left = records.left_of(records.bytes);
            assert!(left.abs_diff(left_mib * MIB) < 2 * MIB, "{left}");
        };
        check(&store, 9);
        drop(store);
        let store = open(folder.path());
        check(&store, 9);
        assert_eq!(store.reclaim(120 * MIB), Ok(Reclaimed::GivenBack));
        assert!(bytes_of(&store.files().unwrap()) < 10 * MIB);
        check(&store, 9);
    }

    /// Who looks for one that a newer file deletes goes on behind all that it deletes, past files
    /// that RocksDB then opened while everybody waited.
    #[test]
    fn files_of_changes_that_are_deleted_together_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        write_changes(&store, 0..30 << 10);
        store.database().compact_range(None::<&[u8]>, None::<&[u8]>);
        write_changes(&store, 30 << 10..31 << 10);
        delete_changes(&store, 31 << 10);
        drop(store);
        let counters = StoreCounters::start();
        let options = RocksOptions::default();
        let store = RocksStore::open_counted(folder.path(), &options, &counters).expect("open");
        let files = store.files().unwrap();
        store.open_tables(&files);
        let opened = || counters.count(Ticker::NoFileOpens);
        let before = opened();
        let tables = store
            .database()
            .property_value(named::AGGREGATED_TABLE_PROPERTIES);
        assert!(tables.unwrap().is_some());
        assert!(before >= files.len() as u64 && files.len() > 30, "{before}");
        assert_eq!(opened(), before);
    }

    /// A link to a file of the database that a crash left was written over, and the state was lost.
    #[test]
    fn a_small_file_is_merged_without_harm_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        write(&store, 0..16);
        store.flush().expect("flush");
        let files = store.files().unwrap();
        let name = |file: &LiveFile| file.name.trim_start_matches('/').to_owned();
        let table = folder.path().join(name(&files[0]));
        std::fs::hard_link(table, folder.path().join(SMALL_FILE)).unwrap();
        for _ in 0..3 {
            store.merge_a_small_file(&files).expect("merge");
            let names: Vec<_> = store.files().unwrap().iter().map(name).collect();
            assert_eq!(names, [name(&files[0])]);
        }
        assert!(!folder.path().join(SMALL_FILE).exists());
        drop(store);
        let store = open(folder.path());
        assert!((0..16u32).all(|it| store.get(&it.to_be_bytes()).unwrap().is_some()));
    }

    /// Where RocksDB merged none of them, one came each time, until it took no write any more.
    #[test]
    fn a_small_file_that_was_not_merged_is_taken_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        write(&store, 0..16);
        store.flush().expect("flush");
        store.ingest_a_small_file().expect("ingest");
        let files = store.files().unwrap();
        assert_eq!(files.len(), 2);
        store.merge_a_small_file(&files).expect("merge");
        assert_eq!(store.files().unwrap().len(), 1);
    }
    /// It gives back also what is not worth it by itself.
    #[test]
    fn all_is_merged_if_that_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        write(&store, 0..64);
        store.flush().expect("flush");
        delete(&store, 0..32);
        store.flush().expect("flush");
        let before = bytes_of(&store.files().unwrap());
        assert_eq!(store.reclaim(1 << 40), Ok(Reclaimed::Nothing));
        assert_eq!(store.merge_all(MERGE_BYTES, || true), Err(no_space()));
        assert_eq!(bytes_of(&store.files().unwrap()), before);
        assert_eq!(store.merge_all(1 << 40, || false), Ok(false));
        assert_eq!(bytes_of(&store.files().unwrap()), before);
        assert_eq!(store.merge_all(1 << 40, || true), Ok(true));
        let after = bytes_of(&store.files().unwrap());
        assert!(after < before / 2 + MIB / 4, "{after} of {before}");
        assert!(store.get(&31u32.to_be_bytes()).unwrap().is_none());
        assert!(store.get(&32u32.to_be_bytes()).unwrap().is_some());
        store.watch().end_patience();
        assert_eq!(store.merge_all(1 << 40, || true), Ok(false));
    }
}
