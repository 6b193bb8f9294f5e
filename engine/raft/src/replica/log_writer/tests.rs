use bytes::Bytes;
use dengine_log::LogOptions;
use dengine_log::conformance::small_options;
use dengine_log::memory::MemoryDisk;
use dengine_types::{Entry, EntryKind, Index, MemberId, Term};

use super::*;

const LATER: SyncRule = SyncRule::Later {
    bytes: 1_000,
    interval: Duration::from_millis(100),
};

/// Who fills pieces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filler {
    AtOnce,
    /// No sooner than it is waited for.
    Slow,
    Gone,
}

/// A log and its writer, whose thread this is. One append was written already.
struct Writer {
    disk: MemoryDisk,
    log: Log<MemoryDisk>,
    writer: LogWriter,
    filler: Filler,
    away: Option<Piece<MemoryDisk>>,
    now: Moment,
    term: Term,
    /// The last entry that was queued.
    last: Index,
    commit: Index,
    appends: u64,
}

impl Writer {
    fn new(rule: SyncRule, filler: Filler) -> Self {
        Self::on(MemoryDisk::new(), rule, filler)
    }

    fn on(disk: MemoryDisk, rule: SyncRule, filler: Filler) -> Self {
        Self::with(disk, small_options(), rule, filler)
    }

    fn with(disk: MemoryDisk, options: LogOptions, rule: SyncRule, filler: Filler) -> Self {
        let (log, _) = Log::open(disk.clone(), options).unwrap();
        let mut this = Self {
            disk,
            writer: LogWriter::new(rule, &log),
            log,
            filler,
            away: None,
            now: Moment(1_000_000_000),
            term: Term(1),
            last: Index(0),
            commit: Index(0),
            appends: 0,
        };
        this.append(10);
        assert_eq!(this.work(), ["sync", "persisted 1", "fill", "wait"]);
        this
    }

    /// Queues an entry of so many bytes.
    fn append(&mut self, bytes: usize) {
        self.append_of(EntryKind::Command, "", bytes);
    }

    /// Queues a change of the members.
    fn append_change(&mut self) {
        self.append_of(EntryKind::Membership, "", 10);
    }

    /// Queues what settles a change of the members.
    fn append_settling(&mut self) {
        self.append_of(EntryKind::Command, "context", 0);
    }

    fn append_of(&mut self, kind: EntryKind, context: &'static str, bytes: usize) {
        self.last = self.last.next();
        let entry = Entry {
            index: self.last,
            term: self.term,
            kind,
            context: Bytes::from(context),
            data: Bytes::from(vec![7; bytes]),
        };
        self.queue(vec![entry]);
    }

    /// Queues that everything up to this entry is committed.
    fn commit(&mut self, upto: Index) {
        self.commit = upto;
        self.queue(Vec::new());
    }

    fn queue(&mut self, entries: Vec<Entry>) {
        self.appends += 1;
        self.writer.add(LogJob::Append {
            id: AppendId(self.appends),
            hard_state: Some(HardState {
                term: self.term,
                vote: MemberId(1),
                commit: self.commit,
            }),
            entries,
        });
    }

    fn pass(&mut self, millis: u64) {
        self.now = self.now.after(Duration::from_millis(millis));
    }

    fn step(&mut self) -> LogStep<MemoryDisk> {
        self.writer.step(&mut self.log, self.now).unwrap()
    }

    fn take_back(&mut self) {
        if let Some(piece) = self.away.take_if(|_| self.filler != Filler::Gone) {
            let filled = piece.fill();
            let taken = self.writer.take_back(&mut self.log, filled, self.now);
            taken.unwrap();
        }
    }

    /// Does what is to be done until there is nothing but to wait.
    fn work(&mut self) -> Vec<String> {
        let mut done = Vec::new();
        loop {
            assert!(done.len() < 20, "it never waits: {done:?}");
            match self.step() {
                LogStep::Sync => {
                    self.log.sync().unwrap();
                    done.push("sync".to_owned());
                }
                LogStep::Persisted { id, .. } => done.push(format!("persisted {}", id.0)),
                LogStep::Fill(piece) => {
                    self.away = Some(piece);
                    if self.filler == Filler::AtOnce {
                        self.take_back();
                    }
                    done.push("fill".to_owned());
                }
                LogStep::AwaitPiece => {
                    self.take_back();
                    done.push("await".to_owned());
                }
                LogStep::Wait { longest, full } => {
                    let what = full.map_or("wait", |_| "full, wait");
                    let longest = longest.map(|it| format!(" {it:?}"));
                    done.push(what.to_owned() + &longest.unwrap_or_default());
                    return done;
                }
            }
        }
    }
}

/// Such as that with which a leader begins its term.
#[test]
fn a_failed_sync_may_lose_an_acknowledged_entry_without_data() {
    let mut this = Writer::new(LATER, Filler::AtOnce);
    this.append(0);
    assert_eq!(this.work(), ["persisted 2", "wait 100ms"]);
    this.pass(100);
    this.disk.fail_sync_after(0);
    assert!(matches!(this.step(), LogStep::Sync));
    this.log.sync().unwrap_err();
    assert!(this.writer.may_have_lost(&this.log));
}

#[test]
fn a_failed_sync_loses_nothing_that_nobody_was_told_of() {
    for rule in [SyncRule::AtOnce, LATER] {
        let mut this = Writer::new(rule, Filler::AtOnce);
        this.append(1_000);
        assert!(matches!(this.step(), LogStep::Sync));
        this.disk.fail_sync_after(0);
        this.log.sync().unwrap_err();
        assert!(!this.writer.may_have_lost(&this.log), "{rule:?}");
    }
}

#[test]
fn what_is_synced_later_waits_for_so_long_or_so_many_bytes() {
    let mut this = Writer::new(LATER, Filler::AtOnce);
    this.append(300);
    assert_eq!(this.work(), ["persisted 2", "wait 100ms"]);
    this.pass(60);
    this.append(300);
    assert_eq!(this.work(), ["persisted 3", "wait 40ms"]);
    this.append(400);
    assert_eq!(this.work(), ["sync", "persisted 4", "wait"]);
    this.append(10);
    assert_eq!(this.work(), ["persisted 5", "wait 100ms"]);
    this.pass(100);
    assert_eq!(this.work(), ["sync", "wait"]);
    this.append(10);
    assert_eq!(this.work(), ["persisted 6", "wait 100ms"]);
    this.pass(100);
    this.append(10);
    assert_eq!(this.work(), ["sync", "persisted 7", "wait"]);
}

#[test]
fn a_term_is_synced_before_anybody_hears_of_it_however_late_it_is_written() {
    let mut this = Writer::new(LATER, Filler::AtOnce);
    this.term = Term(2);
    this.append(10);
    assert_eq!(this.work(), ["sync", "persisted 2", "wait"]);
    this.disk.leave_space(0);
    this.term = Term(3);
    this.append(5_000);
    assert_eq!(this.work(), ["full, wait 500ms"]);
    this.append(10);
    this.disk.set_space_bytes(None);
    this.pass(500);
    assert_eq!(this.work()[..2], ["sync", "persisted 4"]);
}

/// A member that is known to be gone is switched off: no loss of power may have the others wait
/// for it again. They would if they had lost what it has, for it would not vote for them.
#[test]
fn from_a_change_of_the_members_on_all_is_synced_until_it_is_known_to_be_committed() {
    let mut this = Writer::new(LATER, Filler::AtOnce);
    this.append(10);
    assert_eq!(this.work(), ["persisted 2", "wait 100ms"]);
    this.append_change();
    assert_eq!(this.work(), ["sync", "persisted 3", "wait"]);
    this.append(10);
    assert_eq!(this.work(), ["sync", "persisted 4", "wait"]);
    this.commit(Index(2));
    assert_eq!(this.work(), ["sync", "persisted 5", "wait"]);
    this.commit(Index(3));
    assert_eq!(this.work(), ["sync", "persisted 6", "wait"]);
    this.append(10);
    assert_eq!(this.work(), ["persisted 7", "wait 100ms"]);
}

/// A member that knows of the change could otherwise have lost what one has kept that does not know
/// of it: that one does not vote for it, and cannot be elected without the member that is gone.
#[test]
fn what_settles_a_change_is_synced_though_the_change_is_known_to_be_committed() {
    let mut this = Writer::new(LATER, Filler::AtOnce);
    this.append_change();
    this.commit(Index(2));
    assert_eq!(this.work(), ["sync", "persisted 3", "wait"]);
    this.append(10);
    assert_eq!(this.work(), ["persisted 4", "wait 100ms"]);
    this.append_settling();
    assert_eq!(this.work(), ["sync", "persisted 5", "wait"]);
    // Whatever it is written with.
    this.append(10);
    this.append_settling();
    this.append(10);
    assert_eq!(this.work(), ["sync", "persisted 8", "wait"]);
}

#[test]
fn who_starts_with_what_may_be_a_change_of_the_members_syncs_all_behind_it() {
    let mut this = Writer::new(LATER, Filler::AtOnce);
    this.append_change();
    assert_eq!(this.work(), ["sync", "persisted 2", "wait"]);
    this.writer = LogWriter::new(LATER, &this.log);
    this.append(10);
    assert_eq!(this.work(), ["sync", "persisted 3", "wait"]);
    this.commit(Index(3));
    assert_eq!(this.work(), ["sync", "persisted 4", "wait"]);
    this.writer = LogWriter::new(LATER, &this.log);
    this.append(10);
    assert_eq!(this.work(), ["persisted 5", "wait 100ms"]);
}

/// A change, and what settles one.
const OF_CHANGES: [fn(&mut Writer); 2] = [Writer::append_change, Writer::append_settling];

#[test]
fn what_goes_with_a_change_is_synced_whatever_it_is_written_with() {
    for append in OF_CHANGES {
        let mut this = Writer::new(LATER, Filler::AtOnce);
        this.append(10);
        append(&mut this);
        this.append(10);
        assert_eq!(this.work(), ["sync", "persisted 4", "wait"]);
    }
}

#[test]
fn what_goes_with_a_change_is_synced_before_anybody_hears_of_it_however_late_it_is_written() {
    let much_later = SyncRule::Later {
        bytes: 1_000_000,
        interval: Duration::from_secs(10),
    };
    for append in OF_CHANGES {
        let mut this = Writer::new(much_later, Filler::AtOnce);
        append(&mut this);
        this.disk.leave_space(0);
        this.append(5_000);
        assert_eq!(this.work(), ["full, wait 500ms"]);
        this.disk.set_space_bytes(None);
        this.pass(500);
        assert_eq!(this.work()[..2], ["sync", "persisted 3"]);
    }
}

#[test]
fn a_sync_that_fails_over_what_goes_with_a_change_has_told_nobody_of_it() {
    for append in OF_CHANGES {
        let mut this = Writer::new(LATER, Filler::AtOnce);
        append(&mut this);
        assert!(matches!(this.step(), LogStep::Sync));
        this.disk.fail_sync_after(0);
        this.log.sync().unwrap_err();
        assert!(!this.writer.may_have_lost(&this.log));
    }
}

#[test]
fn what_queues_while_the_log_is_synced_is_not_told_before_it_is_synced_too() {
    let mut this = Writer::new(SyncRule::AtOnce, Filler::AtOnce);
    this.append(10);
    assert!(matches!(this.step(), LogStep::Sync));
    this.append(10);
    this.log.sync().unwrap();
    assert_eq!(this.work(), ["sync", "persisted 3", "wait"]);
}

#[test]
fn a_full_disk_syncs_what_it_has() {
    let mut this = Writer::new(LATER, Filler::AtOnce);
    this.append(10);
    assert_eq!(this.work(), ["persisted 2", "wait 100ms"]);
    this.disk.leave_space(0);
    this.append(5_000);
    assert_eq!(this.work(), ["full, wait 100ms"]);
    this.pass(100);
    assert_eq!(this.work(), ["sync", "full, wait 500ms"]);
}

/// As a truncation does, or a new segment.
#[test]
fn what_was_synced_on_the_way_need_not_be_synced_again() {
    let mut this = Writer::new(LATER, Filler::AtOnce);
    this.append(10);
    assert_eq!(this.work(), ["persisted 2", "wait 100ms"]);
    this.writer.add(LogJob::TruncatePrefix(Index(1)));
    assert_eq!(this.work(), ["wait"]);
    this.append(10);
    assert_eq!(this.work(), ["persisted 3", "wait 100ms"]);
}

#[test]
fn a_full_disk_has_the_space_of_the_next_segment_before_it_waits_for_more() {
    let mut this = Writer::new(SyncRule::AtOnce, Filler::Slow);
    this.disk.leave_space(0);
    this.append(4_000);
    assert_eq!(this.work(), ["await", "sync", "persisted 2", "wait"]);
    this.append(4_000);
    assert_eq!(this.work(), ["full, wait 500ms"]);
    this.append(10);
    this.writer.add(LogJob::TruncatePrefix(Index(1)));
    assert_eq!(this.work(), ["full, wait 500ms"], "both take a larger file");
    this.disk.set_space_bytes(None);
    this.pass(500);
    assert_eq!(this.work()[..2], ["sync", "persisted 4"]);
}

/// Its thread wrote zeros and removed them without end, and took no more jobs, where a file system
/// sets no space aside. Later it did so with each write, and RocksDB found the disk full in the
/// middle of it.
#[test]
fn a_piece_without_space_is_not_tried_again_soon() {
    for filler in [Filler::AtOnce, Filler::Slow] {
        let disk = MemoryDisk::new();
        disk.cannot_reserve();
        let mut this = Writer::on(disk, SyncRule::AtOnce, filler);
        this.disk.leave_space(0);
        this.append(2_200);
        let waited = match filler {
            Filler::Slow => "await",
            _ => "fill",
        };
        assert_eq!(this.work(), ["sync", "persisted 2", waited, "wait"]);
        this.append(10);
        assert_eq!(this.work(), ["sync", "persisted 3", "wait"]);
        this.disk.set_space_bytes(None);
        this.pass(10_000);
        this.append(10);
        assert!(this.work().contains(&"fill".to_owned()));
    }
}

/// One that found no space, and whose next segment is not made.
fn full() -> Writer {
    let mut this = Writer::new(SyncRule::AtOnce, Filler::Gone);
    this.append(2_500);
    assert_eq!(this.work(), ["sync", "persisted 2", "await", "wait"]);
    this.disk.leave_space(0);
    this.append(4_000);
    assert_eq!(this.work(), ["full, wait 500ms"]);
    this
}

/// Each try took all that there was for a moment, while the state was being flushed to make room.
#[test]
fn a_segment_without_space_is_tried_again_after_a_while_or_once_something_is_dropped() {
    let mut this = full();
    this.disk.set_space_bytes(None);
    this.append(10);
    this.pass(499);
    assert_eq!(this.work(), ["full, wait 500ms"], "nothing is tried");
    this.writer.add(LogJob::TruncatePrefix(Index(1)));
    assert_eq!(this.work(), ["sync", "persisted 4", "wait"]);
    this.disk.leave_space(0);
    this.append(4_000);
    this.append(4_000);
    assert_eq!(this.work(), ["full, wait 500ms"]);
    this.disk.set_space_bytes(None);
    this.pass(500);
    assert_eq!(this.work(), ["sync", "persisted 6", "wait"]);
}

/// A log took all that there was while the state waited for space: what it held was never applied,
/// so never dropped.
#[test]
fn a_segment_leaves_space_for_the_state_as_long_as_that_may_help() {
    let mut options = small_options();
    options.leave_bytes = 10_000;
    let mut this = Writer::with(MemoryDisk::new(), options, SyncRule::AtOnce, Filler::AtOnce);
    this.writer.save_space(true);
    this.disk
        .leave_space(u64::from(small_options().segment_bytes) + 9_000);
    this.append(4_000);
    assert_eq!(
        this.work(),
        ["sync", "persisted 2", "wait"],
        "nothing else can be dropped"
    );
    this.disk
        .leave_space(u64::from(small_options().segment_bytes) + 9_000);
    this.append(4_000);
    assert_eq!(this.work(), ["full, wait 500ms"]);
    this.pass(14_999);
    assert_eq!(this.work(), ["full, wait 500ms"]);
    this.writer.add(LogJob::TruncatePrefix(Index(1)));
    assert_eq!(
        this.work(),
        ["sync", "persisted 3", "wait"],
        "there is more"
    );
    this.disk
        .leave_space(u64::from(small_options().segment_bytes) + 9_000);
    this.append(4_000);
    assert_eq!(this.work(), ["full, wait 500ms"]);
    this.pass(15_000);
    assert_eq!(
        this.work(),
        ["sync", "persisted 4", "wait"],
        "it did not help"
    );
}

/// The next piece was made of what was to be left, for nothing was written in between.
#[test]
fn after_a_segment_that_could_leave_no_space_the_next_piece_leaves_it() {
    let segment = u64::from(small_options().segment_bytes);
    let mut options = small_options();
    options.leave_bytes = 3 * segment;
    let later = SyncRule::Later {
        bytes: 1_000_000,
        interval: Duration::from_secs(600),
    };
    let mut this = Writer::with(MemoryDisk::new(), options, later, Filler::AtOnce);
    this.writer.save_space(true);
    this.append(4_000);
    assert_eq!(this.work()[0], "persisted 2");
    this.writer.save_space(false);
    this.disk.leave_space(3 * segment);
    this.append(4_000);
    assert!(this.work()[0].starts_with("full"));
    this.pass(15_000);
    let done = this.work();
    assert_eq!(done[0], "persisted 3");
    assert!(!done.contains(&"fill".to_owned()), "{done:?}");
}

/// It took what a member had given up of its spare segments, so that the state could be flushed.
#[test]
fn no_piece_is_filled_while_space_is_saved() {
    let mut this = Writer::new(SyncRule::AtOnce, Filler::AtOnce);
    this.writer.save_space(true);
    this.append(2_200);
    assert_eq!(this.work(), ["sync", "persisted 2", "wait"]);
    this.append(4_000);
    assert_eq!(this.work(), ["sync", "persisted 3", "wait"], "it is needed");
    this.writer.save_space(false);
    this.append(2_200);
    assert!(this.work().contains(&"fill".to_owned()));
}

/// On a disk of 500 MB a member kept a quarter of it for segments that it did not need, while there
/// was no space to merge in.
#[test]
fn what_was_made_ahead_is_given_back_while_space_is_saved() {
    let mut this = Writer::new(SyncRule::AtOnce, Filler::AtOnce);
    let ahead = |this: &Writer| {
        let names = this.disk.list().unwrap();
        names
            .iter()
            .filter(|name| !name.ends_with(".segment"))
            .count()
    };
    assert_eq!(ahead(&this), 1);
    this.writer.save_space(true);
    assert_eq!(this.work(), ["wait"]);
    assert_eq!(ahead(&this), 0);
    this.append(4_000);
    this.append(4_000);
    assert!(this.work().contains(&"persisted 3".to_owned()));
    this.writer.add(LogJob::TruncatePrefix(Index(2)));
    assert_eq!(this.work(), ["wait"]);
    assert_eq!(
        ahead(&this),
        0,
        "nor are the files of dropped segments kept"
    );
}

#[test]
fn a_piece_whose_thread_is_gone_is_waited_for_once() {
    let mut this = full();
    this.disk.set_space_bytes(None);
    this.pass(500);
    assert_eq!(this.work(), ["sync", "persisted 3", "wait"]);
}
