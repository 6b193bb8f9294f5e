//! Which threads of this machine have a processor whenever they want one: those that stand for
//! other machines, or for its disk. How long they wait for a processor says nothing of the member.

use std::path::Path;
use std::process::{Command, Stdio};

/// Gives the thread that calls it precedence.
pub(crate) fn take() {
    let thread = fs_err::read_link("/proc/thread-self").unwrap();
    let thread = thread.file_name().unwrap().to_str().unwrap();
    assert!(
        schedule("--fifo", "1", thread),
        "root may do that, and has chrt"
    );
}

/// The kernel's threads that carry requests to disks and tell of their end, with precedence; until
/// this is dropped.
///
/// Linux 6.18 leaves them waiting for up to half a second, though they are nicer to nobody (-20),
/// beside threads that wake each other often and have little weight: every `fdatasync` of the
/// machine takes as long, while the disk answers within 2 ms (`perf sched record`,
/// `perf record -e block:*`). docs/testing.md has both figures.
pub(crate) struct Disk {
    threads: Vec<String>,
}

impl Disk {
    pub(crate) fn first() -> Self {
        let threads = fs_err::read_dir("/proc").unwrap().filter_map(|process| {
            let process = process.unwrap();
            let id = process.file_name().into_string().ok()?;
            let carries = id.parse::<u32>().is_ok() && carries(&process.path());
            // It may have ended.
            (carries && schedule("--fifo", "1", &id)).then_some(id)
        });
        Self {
            threads: threads.collect(),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for thread in &self.threads {
            schedule("--other", "0", thread);
        }
    }
}

/// Whether it is `ksoftirqd/0`, or a worker of the pools of high priority, `kworker/0:1H-kblockd`.
fn carries(process: &Path) -> bool {
    let name = fs_err::read_to_string(process.join("comm")).unwrap_or_default();
    let worker = |name: &str| {
        let (place, _) = name.split_once('-').unwrap_or((name, ""));
        place.trim_end().ends_with('H')
    };
    name.starts_with("ksoftirqd/") || name.strip_prefix("kworker/").is_some_and(worker)
}

fn schedule(policy: &str, priority: &str, thread: &str) -> bool {
    let chrt = Command::new("chrt")
        .args([policy, "--pid", priority, thread])
        .stderr(Stdio::null())
        .status();
    chrt.is_ok_and(|it| it.success())
}
