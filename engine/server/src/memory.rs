//! Memory: a process that exceeds its limit is killed, so incoming work is limited to a part of it.
//!
//! Of what the process may have, its control group's limit or the machine's memory, writes that
//! wait get an eighth; connections, what has arrived of requests, and requests that wait, a
//! sixteenth each; answers that wait, calls that are open, what waits for each peer, and messages
//! of peers, a thirty-second each; what watches hold, who contends for a lock or for the lead, and
//! what has arrived on the admin port, half of that: if they want as much. The rest, nearly half of
//! it in a cluster of three, is for the store's tables and caches, of which that of keys may have a
//! fifth of all, and for what is neither counted nor large, and for what those that are counted
//! take besides. Around a change of leaders writes
//! that wait for a leader's answer may take up to another eighth, until those that waited for this
//! member's are told.
//!
//! That is an estimate, and what is on its way between two counts is in neither. So it is also
//! measured what the process has. Above half of what it may have, the allocator gives back at once
//! what is free; where that is not enough, less is taken in from whoever sends much ([`is_short`]);
//! and where that does not end it within a second, or there is hardly any left, connections of
//! whoever has most are closed, for the system would end them all.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use rustix::param::page_size;
use rustix::system::sysinfo;
use tokio_util::sync::CancellationToken;

/// Whether the process has nearly as much as it may.
static SHORT: AtomicBool = AtomicBool::new(false);
/// How often it is looked where much is used,
const LOOK_OFTEN: Duration = Duration::from_millis(20);
/// and where that is far away.
const LOOK_SELDOM: Duration = Duration::from_millis(500);
/// Bytes a second: nobody uses memory faster. In a tenth of a second attackers were seen to take
/// tens of MiB.
const FASTEST: u64 = 2 << 30;

/// What a byte of an answer takes that waits to be sent, measured: its pair, the message, and what
/// of it is on its way.
pub(crate) const OF_AN_ANSWER: usize = 5;

/// The same of what watches hold that their clients have not read.
pub(crate) const OF_A_WATCH: usize = 9;

/// What takes memory because others want something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Connections of clients, with what has arrived on them and was not taken yet.
    Connections,
    /// Writes that wait to be acknowledged.
    Writes,
    /// Answers that wait to be sent; see [`OF_AN_ANSWER`].
    Answers,
    /// What watches hold that their clients have not read; see [`OF_A_WATCH`].
    Watches,
    /// What has arrived of requests that are not whole.
    Requests,
    /// The same on the admin port.
    AdminRequests,
    /// Calls that are open, whatever they ask for, until their answers are sent.
    Calls,
    /// Requests that wait for a place or for their turn.
    Waiting,
    /// Calls that contend for a lock or for the lead of an election, and their keys.
    Contests,
    /// Messages of peers that wait for the replica.
    FromPeers,
    /// Messages that wait for one peer.
    ToPeer,
}

/// How many bytes of those that are wanted may be taken: never fewer than `least`, without which
/// nothing could be served.
pub(crate) fn most(of: Use, wanted: usize, least: usize) -> usize {
    let memory = memory();
    let part = part(of, memory);
    let most = part.max(least).min(wanted);
    if part < least {
        tracing::warn!(
            ?of,
            part,
            least,
            memory,
            "the largest request that the limits let in takes more than its part: give the process \
             more memory, or lower the limits"
        );
    } else if most < wanted {
        tracing::debug!(
            budget = ?of,
            configured = wanted,
            lowered_to = most,
            memory,
            "limit on bytes in memory lowered to fit this process"
        );
    }
    most
}

/// What the newest state of keys may take, if nobody says how much: it grows with the keys that
/// there are, and who has more memory shall read more of them from there.
pub(crate) fn for_keys() -> u64 {
    keys_part(memory())
}

/// Never less than what a hundred thousand short keys take.
fn keys_part(memory: u64) -> u64 {
    (memory / 5).max(48 << 20)
}

fn part(of: Use, memory: u64) -> usize {
    let of_all = match of {
        Use::Writes => 8,
        Use::Connections | Use::Requests | Use::Waiting => 16,
        Use::Answers | Use::Calls | Use::FromPeers | Use::ToPeer => 32,
        Use::Watches | Use::Contests | Use::AdminRequests => 64,
    };
    usize::try_from(memory / of_all).unwrap_or(usize::MAX)
}

/// Whether the process has more than three quarters of the memory that it may have, as far as
/// somebody [watches over](watch_over) it. What the system keeps of files does not count: it is
/// given back when it is wanted.
pub(crate) fn is_short() -> bool {
    SHORT.load(Ordering::Relaxed)
}

/// What is done about memory that is used.
pub(crate) struct Remedies {
    /// Has the process's allocator give back to the system what is free. Called as long as much is
    /// used.
    pub(crate) give_back: fn(),
    /// Closes some of the connections of whoever has most, and says how many. Called where nothing
    /// else has helped.
    pub(crate) shed: Box<dyn Fn() -> usize + Send>,
}

/// Has a thread keep [`is_short`] true until `stop` is cancelled, and use the other remedies. Where
/// the system does not tell what is used, there is no shortage.
///
/// A thread of its own: a runtime that has much to do looks late, and in a tenth of a second an
/// attacker fills tens of MiB.
///
/// # Errors
/// The system gives no more threads.
pub(crate) fn watch_over(remedies: Remedies, stop: CancellationToken) -> io::Result<()> {
    let looks = move || {
        let mut told = Level::Much;
        let mut shortage = Shortage::default();
        while !stop.is_cancelled() {
            let (level, has) = remedies.apply(&mut shortage);
            if level > told {
                told = level;
                tracing::warn!(
                    has,
                    may_have = memory(),
                    "memory is short: less is taken in from clients that send much; give the \
                     process more if they should have it"
                );
            }
            thread::sleep(until_next_look(has, memory()));
        }
        SHORT.store(false, Ordering::Relaxed);
    };
    let thread = thread::Builder::new().name("dengine-memory".to_owned());
    thread.spawn(looks).map(drop)
}

/// Much may be used after that, and not before.
fn until_next_look(has: u64, may_have: u64) -> Duration {
    let room = (may_have / 2).saturating_sub(has);
    Duration::from_millis(room / (FASTEST / 1000)).clamp(LOOK_OFTEN, LOOK_SELDOM)
}

/// Since when memory is short, or since connections were last closed for that.
#[derive(Default)]
struct Shortage(Option<Instant>);

impl Shortage {
    /// Whether connections are to be closed at this level: at the last, or because it has lasted.
    /// Who holds much and does nothing is not slowed down by waiting.
    fn must_end(&mut self, level: Level, now: Instant) -> bool {
        const LONG: Duration = Duration::from_secs(1);
        if level < Level::Short {
            self.0 = None;
            return false;
        }
        let lasts = now - *self.0.get_or_insert(now) >= LONG;
        if lasts {
            self.0 = Some(now);
        }
        lasts || level == Level::Last
    }
}

impl Remedies {
    /// As far as it has come, and what the process has.
    fn apply(&self, shortage: &mut Shortage) -> (Level, u64) {
        let look = || {
            let has = anonymous_bytes().unwrap_or(0);
            (Level::of(has, memory()), has)
        };
        let mut seen = look();
        if seen.0 >= Level::Much {
            (self.give_back)();
            seen = look();
        }
        SHORT.store(seen.0 >= Level::Short, Ordering::Relaxed);
        if shortage.must_end(seen.0, Instant::now()) {
            let closed = (self.shed)();
            if closed > 0 {
                tracing::warn!(
                    closed,
                    has = seen.1,
                    "closed connections of the clients that use most memory: memory is short"
                );
            }
        }
        seen
    }
}

/// How much of what it may have the process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Little,
    /// More than half. What the allocator keeps for the next who asks for as much may be as much as
    /// what is in use: after large requests it was 300 MiB of 437, measured.
    Much,
    /// More than three quarters.
    Short,
    /// More than seven eighths: what is left may be gone before the next look.
    Last,
}

impl Level {
    fn of(has: u64, may_have: u64) -> Self {
        let eighth = may_have / 8;
        match has {
            _ if has > 7 * eighth => Self::Last,
            _ if has > 6 * eighth => Self::Short,
            _ if has > 4 * eighth => Self::Much,
            _ => Self::Little,
        }
    }
}

/// Linux: what is resident and not shared with a file.
fn anonymous_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = statm.split(' ').skip(1).map(str::parse::<u64>);
    let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
    Some(resident.saturating_sub(shared) * page_size() as u64)
}

/// Bytes that this process may have, as it was when they were first asked for.
fn memory() -> u64 {
    static MEMORY: OnceLock<u64> = OnceLock::new();
    *MEMORY.get_or_init(|| {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limit = group_limit(&groups, Path::new("/sys/fs/cgroup"));
        let machine = sysinfo();
        let machine = machine.totalram.saturating_mul(machine.mem_unit.into());
        limit.map_or(machine, |limit| limit.min(machine))
    })
}

/// The lowest limit of the control groups that a process is in, whose `/proc/self/cgroup` this is,
/// and of those around them; `None` if nothing is said. Written out because no crate that this
/// one's minimum of Rust lets in looks further than the group at the root of what is mounted, which
/// is only a container's own.
fn group_limit(groups: &str, mounted: &Path) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (controllers, path) = (fields.nth(1), fields.next());
        let (root, file) = match controllers {
            Some("") => (mounted.to_path_buf(), "memory.max"),
            Some(names) if names.split(',').any(|it| it == "memory") => {
                (mounted.join("memory"), "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        let within = path.unwrap_or_default().trim_start_matches('/');
        let own = root.join(within);
        // In a container the path may be as the machine sees it: then only the root is there.
        let around: Vec<PathBuf> = own.ancestors().map(Path::to_path_buf).collect();
        let around = around.into_iter().filter(|it| it.starts_with(&root));
        around.filter_map(|it| read(&it.join(file))).collect()
    });
    limits.min()
}

/// `None` as well for `max`, which is no limit.
fn read(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_is_left_in_a_cluster_of_three() {
        let all = [
            Use::Connections,
            Use::Writes,
            Use::Answers,
            Use::Watches,
            Use::Requests,
            Use::Calls,
            Use::Waiting,
            Use::AdminRequests,
            Use::FromPeers,
            Use::ToPeer,
            Use::ToPeer,
        ];
        for memory in [256 << 20, 512 << 20, 64 << 30] {
            let taken: usize = all.map(|of| part(of, memory)).iter().sum();
            assert!(taken as u64 <= memory / 2, "{taken} of {memory}");
            let keys = keys_part(memory);
            assert!(keys + taken as u64 <= memory * 7 / 10, "{keys} of {memory}");
        }
        assert_eq!(keys_part(64 << 20), 48 << 20, "there are never fewer");
    }

    #[test]
    fn what_is_wanted_bounds_it_and_what_is_needed_is_always_there() {
        assert_eq!(most(Use::Writes, 10, 1), 10);
        let memory = usize::try_from(memory()).unwrap();
        assert_eq!(most(Use::Writes, usize::MAX, memory), memory);
        assert!(most(Use::Writes, usize::MAX, 1) <= memory / 8);
    }

    #[test]
    fn free_memory_is_given_back_before_anybody_has_to_wait() {
        let levels = [400, 401, 600, 601, 700, 701].map(|has| Level::of(has, 800));
        use Level::{Last, Little, Much, Short};
        assert_eq!(levels, [Little, Much, Much, Short, Short, Last]);
        assert!(Little < Much && Much < Short && Short < Last);
    }

    #[test]
    fn who_uses_little_is_looked_at_seldom_but_before_it_can_use_much() {
        assert_eq!(until_next_look(1 << 20, 64 << 30), LOOK_SELDOM);
        let (has, may_have) = (56 << 20, 512 << 20);
        let pause = until_next_look(has, may_have);
        assert!(LOOK_OFTEN < pause && pause < LOOK_SELDOM, "{pause:?}");
        let taken = pause.as_millis() as u64 * FASTEST / 1000;
        assert!(Level::of(has + taken, may_have) <= Level::Much);
        assert_eq!(until_next_look(255 << 20, may_have), LOOK_OFTEN);
        assert_eq!(until_next_look(500 << 20, may_have), LOOK_OFTEN);
    }

    #[test]
    fn a_shortage_that_lasts_ends_like_the_last_one() {
        let (mut shortage, begun) = (Shortage::default(), Instant::now());
        let at = |millis| begun + Duration::from_millis(millis);
        assert!(!shortage.must_end(Level::Short, at(0)));
        assert!(shortage.must_end(Level::Last, at(10)));
        assert!(!shortage.must_end(Level::Short, at(900)));
        assert!(shortage.must_end(Level::Short, at(1_000)));
        assert!(!shortage.must_end(Level::Short, at(1_900)), "once a second");
        assert!(!shortage.must_end(Level::Much, at(2_000)));
        assert!(
            !shortage.must_end(Level::Short, at(2_900)),
            "it is another one"
        );
    }

    fn limits(files: &[(&str, &str)], groups: &str) -> Option<u64> {
        let mounted = tempfile::tempdir().unwrap();
        for (file, said) in files {
            let file = mounted.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, said).unwrap();
        }
        group_limit(groups, mounted.path())
    }

    #[test]
    fn the_lowest_limit_around_the_process_counts() {
        let files = [
            ("a/memory.max", "1000\n"),
            ("a/b/memory.max", "max\n"),
            ("other/memory.max", "1\n"),
        ];
        assert_eq!(limits(&files, "0::/a/b\n"), Some(1000));
        assert_eq!(limits(&files, "0::/\n"), None);
    }

    #[test]
    fn both_versions_of_control_groups_are_read() {
        let groups = "9:name=systemd:/\n4:memory,hugetlb:/pods/x\n1:cpu:/\n0::/\n";
        let one = [("memory/pods/x/memory.limit_in_bytes", "536870912\n")];
        assert_eq!(limits(&one, groups), Some(512 << 20));
        // The path as it is outside of the container.
        let mounted = [("memory/memory.limit_in_bytes", "1000\n")];
        assert_eq!(limits(&mounted, groups), Some(1000));
        assert_eq!(limits(&[("memory.max", "2000\n")], "0::/\n"), Some(2000));
        assert_eq!(limits(&[("memory.max", "what?\n")], "0::/\n"), None);
        assert_eq!(limits(&[], "nonsense"), None);
    }
}
