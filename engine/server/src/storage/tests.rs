//! RocksDB as a [`Store`], and the state machine on it.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::io::{BufRead as _, Write as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use dengine_kv::store::conformance::Suite;
use dengine_kv::store::{Cursor, MemoryStore, Scope, WriteBatch};
use dengine_kv::{
    Command, CommandVersion, KeyRange, RangeQuery, RangeResult, ReadError, Request, StateMachine,
    Store, StoreError,
};
use dengine_snapshot as snapshot;
use dengine_snapshot::Checkpoint;
use dengine_types::{Entry, EntryKind, Index, Revision, Term};
use tempfile::TempDir;

use super::rocks::BLOCK_BYTES;
use super::{RocksOptions, RocksStore, StoreCounters, StoreStatistics};

/// So small that a test's data fills several memtables.
const SMALL: RocksOptions = RocksOptions {
    write_buffer_bytes: 64 << 10,
    block_cache_bytes: 1 << 20,
};

/// A store with a directory of its own, which goes with it.
struct Owned {
    store: RocksStore,
    _folder: Option<TempDir>,
}

impl Owned {
    fn new(options: &RocksOptions) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let store = RocksStore::open(folder.path(), options).expect("an empty directory opens");
        Self {
            store,
            _folder: Some(folder),
        }
    }
}

impl Checkpoint<Path> for Owned {
    fn checkpoint(&self, place: &Path) -> Result<(), StoreError> {
        self.store.checkpoint(place)
    }

    fn open_checkpoint(place: &Path) -> Result<Self, StoreError> {
        Ok(Self {
            store: RocksStore::open_checkpoint(place)?,
            _folder: None,
        })
    }
}

impl Store for Owned {
    type Cursor<'a> = super::RocksCursor<'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.store.get(key)
    }

    fn cursor(&self, scope: Scope) -> Self::Cursor<'_> {
        self.store.cursor(scope)
    }

    fn cursor_of_one_pass(&self, scope: Scope) -> Self::Cursor<'_> {
        self.store.cursor_of_one_pass(scope)
    }

    fn write(&self, batch: &WriteBatch) -> Result<(), StoreError> {
        self.store.write(batch)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.store.flush()
    }

    fn approximate_bytes(&self) -> u64 {
        self.store.approximate_bytes()
    }
}

#[test]
fn conforms() {
    Suite::new(|| Owned::new(&RocksOptions::default())).test_all();
}

#[test]
fn conforms_with_tiny_memtables() {
    Suite::new(|| Owned::new(&SMALL)).test_all();
}

/// RocksDB would write one while it holds a lock that reads and writes wait for, however long the
/// disk takes.
#[test]
fn there_is_no_log_of_rocksdb_in_the_directory() {
    let folder = tempfile::tempdir().expect("a directory");
    let store = RocksStore::open(folder.path(), &SMALL).expect("it opens");
    store.flush().expect("it flushes");
    drop(store);
    RocksStore::open_read_only(folder.path()).expect("it opens to be read");
    let names = fs_err::read_dir(folder.path()).expect("it can be listed");
    let names = names.map(|entry| entry.expect("an entry").file_name());
    let logs: Vec<_> = names
        .filter(|name| name.to_string_lossy().starts_with("LOG"))
        .collect();
    assert!(logs.is_empty(), "{logs:?}");
}

/// Who must not wait for a disk is told so, and finds it once somebody else has waited.
#[test]
fn what_is_not_in_memory_is_not_at_hand() {
    let folder = tempfile::tempdir().expect("a directory");
    let open = || RocksStore::open(folder.path(), &SMALL).expect("it opens");
    let (key, value) = (b"mkey", Bytes::from_static(b"value"));
    let mut batch = WriteBatch::default();
    batch.put(key, &value);
    let store = open();
    store.write_at_hand(&batch).expect("there is room");
    assert_eq!(store.get_at_hand(key), Ok(Some(value.clone())));
    store.flush().expect("it flushes");
    drop(store);
    let store = open();
    let sought = |store: &RocksStore| {
        let mut cursor = store.cursor_at_hand(Scope::Between(key.to_vec()..b"n".to_vec()));
        cursor.seek(key).map(|()| cursor.record().is_some())
    };
    assert_eq!(store.get_at_hand(key), Err(StoreError::NotAtHand));
    assert_eq!(sought(&store), Err(StoreError::NotAtHand));
    assert_eq!(store.get(key), Ok(Some(value.clone())));
    assert_eq!(store.get_at_hand(key), Ok(Some(value)));
    assert_eq!(sought(&store), Ok(true));
    assert_eq!(store.get_at_hand(b"mother"), Ok(None));
}

/// A place for checkpoints; each asks for a directory that is not there yet.
fn places() -> (TempDir, impl Fn() -> PathBuf) {
    let folder = tempfile::tempdir().expect("a directory");
    let (path, count) = (folder.path().to_owned(), AtomicU64::new(0));
    let next = move || path.join(count.fetch_add(1, Ordering::Relaxed).to_string());
    (folder, next)
}

#[test]
fn checkpoints_conform() {
    let (_folder, place) = places();
    snapshot::conformance::test_all::<_, Path, PathBuf>(|| Owned::new(&SMALL), place);
}

#[test]
fn a_checkpoint_is_only_the_files_of_a_state_and_opens_as_one() {
    let (_folder, place) = places();
    let place = place();
    let store = Owned::new(&SMALL);
    let mut machine = StateMachine::open(store).expect("open");
    let entries: Vec<_> = (1..=2000).map(entry).collect();
    machine.apply(&entries).expect("apply");
    machine
        .flusher()
        .with_store(|store| store.checkpoint(&*place))
        .expect("checkpoint");
    machine.apply(&[entry(2001)]).expect("apply");
    let names = || {
        let mut names: Vec<_> = fs_err::read_dir(&place)
            .expect("list")
            .map(|entry| {
                entry
                    .expect("list")
                    .file_name()
                    .into_string()
                    .expect("text")
            })
            .collect();
        names.sort();
        names
    };
    let before = names();
    let (last, _) = snapshot::describe::<RocksStore, Path>(&place).expect("describe");
    assert_eq!((last.index, last.term), (Index(2000), Term(1)));
    assert_eq!(names(), before, "looking changes nothing");
    let files = ["CURRENT", "MANIFEST-", "OPTIONS-"];
    for name in &before {
        let known = name.ends_with(".sst") || files.iter().any(|file| name.starts_with(file));
        // RocksDB's own log is off, and so it is empty.
        let bytes = fs_err::metadata(place.join(name))
            .expect("it is there")
            .len();
        assert!(known || (name.ends_with(".log") && bytes == 0), "{name}");
    }
    // As a member's own state, written to.
    let store = RocksStore::open(&place, &SMALL).expect("open");
    assert_eq!(dump(&store), expected(2000));
    let mut machine = StateMachine::open(store).expect("open");
    machine.apply(&[entry(2001)]).expect("apply");
}

#[test]
fn a_watch_tells_when_the_last_user_is_gone() {
    let folder = tempfile::tempdir().expect("a directory");
    let store = RocksStore::open(folder.path(), &SMALL).expect("open");
    let watch = store.watch();
    let machine = StateMachine::open(store).expect("open");
    let reader = machine.reader();
    drop(machine);
    assert!(watch.is_open());
    drop(reader);
    assert!(!watch.is_open());
    RocksStore::open(folder.path(), &SMALL).expect("the directory is free");
}

/// A put, or now and then a delete, of one of 50 keys.
fn entry(index: u64) -> Entry {
    let key = Bytes::from(format!("key {}", index * 7 % 50));
    let command = if index.is_multiple_of(10) {
        Command::Delete {
            keys: KeyRange::From(key),
            prev_kv: false,
        }
    } else {
        Command::put(key, Bytes::from(vec![index.to_be_bytes()[7]; 100]))
    };
    entry_of(index, command)
}

fn entry_of(index: u64, command: Command) -> Entry {
    Entry {
        index: Index(index),
        term: Term(1),
        kind: EntryKind::Command,
        context: Bytes::new(),
        data: Request::from(command).encode(CommandVersion::CURRENT),
    }
}

fn dump(store: &impl Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut cursor = store.cursor(Scope::Between(Vec::new()..vec![0xff; 16]));
    let mut records = Vec::new();
    cursor.seek(&[]).expect("seek");
    while let Some((key, value)) = cursor.record() {
        records.push((key.to_vec(), value.to_vec()));
        cursor.next().expect("next");
    }
    records
}

/// What the first `count` entries leave in a store.
fn expected(count: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let store = MemoryStore::default();
    let mut machine = StateMachine::open(store.clone()).expect("open");
    let entries: Vec<_> = (1..=count).map(entry).collect();
    machine.apply(&entries).expect("apply");
    dump(&store)
}

/// Applies entries, gives up the older half of history and collects it, all in small pieces.
fn apply_and_collect(machine: &mut StateMachine<impl Store>) {
    const COUNT: u64 = 2000;
    let mut collector = machine.collector();
    for index in 1..=COUNT {
        let compact = Command::Compact {
            revision: Revision(machine.revision().0 / 2),
        };
        let entry = match index % 500 {
            0 => entry_of(index, compact),
            _ => entry(index),
        };
        machine.apply(&[entry]).expect("apply");
        collector.step(1).expect("collect");
    }
    while !collector.step(100).expect("collect").done {}
}

#[test]
fn what_compaction_gave_up_is_collected_as_in_memory() {
    let memory = MemoryStore::default();
    let mut in_memory = StateMachine::open(memory.clone()).expect("open");
    apply_and_collect(&mut in_memory);
    let expected = in_memory.reader().logical_hash().expect("hash");

    let folder = tempfile::tempdir().expect("a directory");
    let store = RocksStore::open(folder.path(), &SMALL).expect("open");
    let mut machine = StateMachine::open(store).expect("open");
    apply_and_collect(&mut machine);
    machine.flush().expect("flush");
    drop(machine);

    let store = RocksStore::open(folder.path(), &SMALL).expect("open again");
    assert_eq!(dump(&store), dump(&memory));
    let machine = StateMachine::open(store).expect("open again");
    assert_eq!(machine.reader().logical_hash(), Ok(expected));
}

/// Where the child of the test below finds its directory.
const CRASH_FOLDER: &str = "DENGINE_TEST_CRASH_FOLDER";

/// Applies entries and flushes now and then until it is killed, and says what it has flushed.
fn apply_until_killed(folder: &Path) {
    let store = RocksStore::open(folder, &SMALL).expect("open");
    let mut machine = StateMachine::open(store).expect("open");
    for index in machine.applied().0.0 + 1.. {
        machine.apply(&[entry(index)]).expect("apply");
        if index.is_multiple_of(300) {
            let flushed = machine.flush().expect("flush");
            writeln!(std::io::stdout(), "\nflushed {flushed}").expect("the parent listens");
        }
    }
}

#[test]
fn a_killed_process_leaves_the_state_after_some_entry_at_or_behind_its_last_flush() {
    if let Some(folder) = std::env::var_os(CRASH_FOLDER) {
        return apply_until_killed(Path::new(&folder));
    }
    let folder = tempfile::tempdir().expect("a directory");
    for round in 1..=4 {
        let flushed = kill_after_flushes(folder.path(), round);
        let store = RocksStore::open(folder.path(), &SMALL).expect("open after the kill");
        let machine = StateMachine::open(store).expect("open after the kill");
        let applied = machine.applied().0;
        drop(machine);
        assert!(
            applied.0 >= flushed,
            "{applied} lies before {flushed}, which was flushed"
        );
        let store = RocksStore::open(folder.path(), &SMALL).expect("open once more");
        assert_eq!(dump(&store), expected(applied.0));
    }
}

/// Runs this program as the child, kills it after so many flushes and returns the last one.
fn kill_after_flushes(folder: &Path, flushes: usize) -> u64 {
    let test = "storage::tests::a_killed_process_leaves_the_state_after_some_entry_at_or_behind_its_last_flush";
    let mut child = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        .env(CRASH_FOLDER, folder)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the child starts");
    let output = std::io::BufReader::new(child.stdout.take().expect("it is piped"));
    let flushed = output
        .lines()
        .map(|line| line.expect("the child writes text"))
        .filter_map(|line| line.strip_prefix("flushed ").map(str::parse))
        .nth(flushes)
        .expect("the child runs until it is killed");
    child.kill().expect("kill");
    child.wait().expect("wait");
    flushed.expect("an index")
}

#[test]
fn a_folder_with_other_files_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("a directory");
    fs_err::write(folder.path().join("holiday.jpg"), "x").expect("write");
    let error = RocksStore::open(folder.path(), &SMALL).expect_err("not ours");
    assert!(matches!(error, StoreError::Foreign(_)), "{error}");
    assert!(error.to_string().contains("holiday.jpg"), "{error}");
    assert_eq!(fs_err::read_dir(folder.path()).expect("list").count(), 1);
}

#[test]
fn a_folder_in_use_is_refused() {
    let folder = tempfile::tempdir().expect("a directory");
    let _store = RocksStore::open(folder.path(), &SMALL).expect("open");
    let error = RocksStore::open(folder.path(), &SMALL).expect_err("in use");
    assert!(
        error.to_string().contains("stop the other process"),
        "{error}"
    );
}

#[test]
fn a_missing_manifest_or_current_file_is_damage_and_not_an_empty_store() {
    let folder = tempfile::tempdir().expect("a directory");
    let store = RocksStore::open(folder.path(), &SMALL).expect("open");
    let mut batch = WriteBatch::default();
    batch.put(b"a", b"1");
    store.write(&batch).expect("write");
    store.flush().expect("flush");
    drop(store);
    let current = folder.path().join("CURRENT");
    let manifest = fs_err::read_to_string(&current).expect("read");
    let manifest = folder.path().join(manifest.trim());
    let name = fs_err::read(&current).expect("read");
    fs_err::write(&current, b"\xff\xfe\n").expect("write");
    let error = RocksStore::open(folder.path(), &SMALL).expect_err("damaged");
    assert!(matches!(error, StoreError::Corrupt(_)), "{error}");
    fs_err::write(&current, name).expect("write");
    for lost in [manifest, current] {
        fs_err::remove_file(lost).expect("remove");
        let error = RocksStore::open(folder.path(), &SMALL).expect_err("damaged");
        assert!(matches!(error, StoreError::Corrupt(_)), "{error}");
    }
}

/// Everything a user can read from the directory.
fn read_all(folder: &Path) -> Result<RangeResult, ReadError> {
    let machine = StateMachine::open(RocksStore::open(folder, &SMALL)?)?;
    let all = RangeQuery::new(KeyRange::From(Bytes::new()));
    machine.reader().range(&all)
}

#[test]
fn flipped_bits_are_damage_and_never_other_data() {
    let folder = tempfile::tempdir().expect("a directory");
    let store = RocksStore::open(folder.path(), &SMALL).expect("open");
    let mut machine = StateMachine::open(store).expect("open");
    let entries: Vec<_> = (1..=9).map(entry).collect();
    machine.apply(&entries).expect("apply");
    machine.flush().expect("flush");
    drop(machine);
    let whole = read_all(folder.path()).expect("nothing is damaged yet");
    let mut files = fs_err::read_dir(folder.path()).expect("list");
    let file = files
        .find_map(|entry| {
            let path = entry.expect("list").path();
            path.extension()
                .is_some_and(|extension| extension == "sst")
                .then_some(path)
        })
        .expect("the flush made a file");
    let content = fs_err::read(&file).expect("read");
    let mut noticed = 0;
    for at in (0..content.len()).step_by(97) {
        let mut damaged = content.clone();
        damaged[at] ^= 0x10;
        fs_err::write(&file, damaged).expect("write");
        // Some bytes hold no data: filters, padding, statistics.
        match read_all(folder.path()) {
            Ok(found) => assert_eq!(found, whole, "byte {at}"),
            Err(ReadError::Store(StoreError::Corrupt(_))) => noticed += 1,
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    assert!(noticed > 0);
}

/// Whoever walks over them takes as long as if they were there.
#[test]
fn a_cursor_says_how_many_deleted_records_it_stepped_over() {
    const RECORDS: u8 = 100;
    let owned = Owned::new(&SMALL);
    let write = |put: bool, records: std::ops::Range<u8>| {
        let mut batch = WriteBatch::default();
        for record in records {
            match put {
                true => batch.put(&[record], b"value"),
                false => batch.delete(&[record]),
            }
        }
        owned.store.write(&batch).expect("written");
    };
    let walk = || {
        let mut cursor = owned.store.cursor(Scope::Between(vec![0]..vec![u8::MAX]));
        assert_eq!(cursor.stepped_over(), 0);
        cursor.seek(&[0]).expect("sought");
        while cursor.record().is_some() {
            cursor.next().expect("moved");
        }
        cursor.stepped_over()
    };
    write(true, 0..RECORDS);
    assert_eq!(walk(), 0);
    write(false, 10..60);
    assert_eq!(walk(), 50);
    owned.store.flush().expect("flushed");
    assert_eq!(
        walk(),
        50,
        "older ones lie in no other file that hides them"
    );
}

/// A member whose store counts, as one that installs snapshots opens it again and again.
struct Counted {
    folder: TempDir,
    counters: StoreCounters,
}

impl Counted {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a directory"),
            counters: StoreCounters::start(),
        }
    }

    fn open(&self, key_cache_bytes: usize) -> StateMachine<RocksStore> {
        let store = RocksStore::open_counted(self.folder.path(), &SMALL, &self.counters);
        StateMachine::open_with_key_cache(store.expect("open"), key_cache_bytes).expect("open")
    }
}

fn statistics(machine: &StateMachine<RocksStore>) -> StoreStatistics {
    let asked = machine.flusher().with_store(|store| Ok(store.statistics()));
    asked.expect("asking does not fail")
}

/// Keys that are there, and as many that never were.
fn read_each(machine: &StateMachine<RocksStore>) {
    for number in 0..50 {
        for key in [format!("key {number}"), format!("key {number} not")] {
            let read = machine.reader().get(&Bytes::from(key), None);
            read.expect("read");
        }
    }
}

fn apply_and_flush(machine: &mut StateMachine<RocksStore>, indexes: RangeInclusive<u64>) {
    let entries: Vec<_> = indexes.map(entry).collect();
    machine.apply(&entries).expect("apply");
    machine.flush().expect("flush");
}

/// Puts of one of many keys each, in an order other than theirs.
fn put_again(index: u64) -> Entry {
    let key = Bytes::from(format!("key {:05}", index.wrapping_mul(7919) % 100_000));
    entry_of(index, Command::put(key, random_value(index, 8)))
}

/// They leave a deletion beside each put, and one for what history lists: files of these were
/// merged once more as soon as they were written, and again on each level.
#[test]
fn keys_that_are_written_again_and_again_are_not_merged_more_often_for_it() {
    const PUTS: u64 = 300_000;
    const HISTORY: u64 = 10_000;
    let folder = tempfile::tempdir().expect("a directory");
    let options = RocksOptions {
        write_buffer_bytes: 8 << 20,
        ..SMALL
    };
    let counters = StoreCounters::start();
    let store = RocksStore::open_counted(folder.path(), &options, &counters).expect("open");
    let mut machine = StateMachine::open(store).expect("open");
    let mut collector = machine.collector();
    for first in (1..PUTS).step_by(500) {
        let mut entries: Vec<_> = (first..first + 499).map(put_again).collect();
        let revision = Revision(machine.revision().0.saturating_sub(HISTORY).max(1));
        entries.push(entry_of(first + 499, Command::Compact { revision }));
        machine.apply(&entries).expect("apply");
        while !collector.step(100).expect("collect").done {}
    }
    let counted = statistics(&machine);
    assert!(counted.flush_written_bytes > 16 << 20, "{counted:?}");
    let merged = counted.merge_written_bytes;
    assert!(merged < counted.flush_written_bytes, "{counted:?}");
}

fn merge_all(machine: &StateMachine<RocksStore>) {
    let merged = machine.flusher().with_store(|store| {
        store.database().compact_range(None::<&[u8]>, None::<&[u8]>);
        Ok(())
    });
    merged.expect("merge");
}

#[test]
fn a_store_tells_what_its_cache_and_its_filters_spare() {
    let member = Counted::new();
    // What is read must be looked for in the store.
    let mut machine = member.open(0);
    apply_and_flush(&mut machine, 1..=200);
    let flushed = statistics(&machine);
    assert_eq!(flushed.cache_capacity_bytes, SMALL.block_cache_bytes as u64);
    assert!(flushed.flush_written_bytes > 0 && flushed.table_bytes > 0);
    assert!(flushed.memtable_bytes > 0, "{flushed:?}");
    assert!(!flushed.are_writes_slowed && !flushed.are_writes_stopped);

    read_each(&machine);
    let once = statistics(&machine);
    assert!(once.data.misses > flushed.data.misses, "{once:?}");
    assert!(once.cache_used_bytes > 0, "{once:?}");
    // One in a hundred is wrong.
    let skips = once.filter_skips - flushed.filter_skips;
    assert!(skips > 25, "{once:?}");
    let checks = once.filter_checks - flushed.filter_checks;
    assert!(checks >= skips + 25, "{once:?}");

    read_each(&machine);
    let twice = statistics(&machine);
    assert!(twice.data.hits >= once.data.hits + 25, "{twice:?}");
}

/// A put of a new key, whose value can't be compressed.
fn random_entry(index: u64) -> Entry {
    let key = Bytes::from(format!("key {index:04}"));
    entry_of(index, Command::put(key, random_value(index, 64)))
}

fn random_value(index: u64, words: u64) -> Bytes {
    let words = (0..words).map(|word| hash_of(&(index, word)).to_be_bytes());
    Bytes::from(words.collect::<Vec<_>>().concat())
}

fn hash_of(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Later pages of a long list, and what counts or hashes all keys, leave the cache to what is read
/// more often.
#[test]
fn who_reads_much_through_takes_no_place_in_the_cache() {
    let member = Counted::new();
    let mut machine = member.open(0);
    let entries: Vec<_> = (1..=4_000).map(random_entry).collect();
    machine.apply(&entries).expect("apply");
    machine.flush().expect("flush");
    merge_all(&machine);
    let reader = machine.reader();
    let now = reader.revision();
    let used_by = |read: &dyn Fn()| {
        let before = statistics(&machine);
        read();
        let after = statistics(&machine);
        let asked = after.data.misses - before.data.misses;
        let used = after
            .cache_used_bytes
            .saturating_sub(before.cache_used_bytes);
        (asked > 4, used as usize)
    };
    let list = |start: &'static str, end: &'static str, revision| {
        let query = RangeQuery {
            revision,
            ..RangeQuery::new(KeyRange::Between {
                start: Bytes::from(start),
                end: Bytes::from(end),
            })
        };
        assert!(!reader.range(&query).expect("read").kvs.is_empty());
    };
    let all = KeyRange::From(Bytes::new());
    let count = RangeQuery {
        count_only: true,
        ..RangeQuery::new(all)
    };
    // The files' indexes and filters.
    list("key 0001", "key 0002", None);
    let passes: [&dyn Fn(); 4] = [
        &|| list("key", "l", Some(now)),
        &|| drop(reader.range(&count).expect("read")),
        &|| assert_ne!(reader.revision_hash(now).expect("read").hash, 0),
        &|| assert_ne!(reader.logical_hash().expect("read").hash, 0),
    ];
    for (number, pass) in passes.into_iter().enumerate() {
        let (asked, used) = used_by(pass);
        assert!(asked && used < 4 * BLOCK_BYTES, "{number}: {used}");
    }
    // Of what is little, later pages stay as well.
    let (asked, used) = used_by(&|| list("key 1000", "key 1200", Some(now)));
    assert!(asked && used > 8 * BLOCK_BYTES, "{used}");
}

/// A member opens its store again when a snapshot has become its state.
#[test]
fn what_a_store_counts_goes_on_when_it_is_opened_again() {
    let member = Counted::new();
    let mut machine = member.open(16 << 20);
    apply_and_flush(&mut machine, 1..=200);
    apply_and_flush(&mut machine, 201..=400);
    merge_all(&machine);
    read_each(&machine);
    read_each(&machine);
    let before = statistics(&machine);
    assert!(before.merge_written_bytes > 0, "{before:?}");
    assert!(before.data.hits > 0, "{before:?}");
    drop(machine);

    let mut machine = member.open(16 << 20);
    apply_and_flush(&mut machine, 401..=600);
    let after = statistics(&machine);
    assert!(after.data.hits >= before.data.hits, "{after:?}");
    assert!(after.merge_written_bytes >= before.merge_written_bytes);
    assert!(after.flush_written_bytes > before.flush_written_bytes);
}
