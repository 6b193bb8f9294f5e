//! What was promised to the honest, and which promises an attack broke.

use std::fmt::Write as _;
use std::time::Duration;

use crate::honest::Met;

/// How much longer the slowest of a hundred honest calls may take than without attackers.
const TIMES_SLOWER_MAX: u32 = 10;
/// And how long at most.
const LATENCY_MAX: Duration = Duration::from_millis(500);

/// What was seen of an attack.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The honest, right before it, beside a neighbour who attacks nothing.
    pub(crate) before: Met,
    /// The honest, while it lasted.
    pub(crate) during: Met,
    /// Most memory that a member had that it could not have given back.
    pub(crate) memory_peak_bytes: u64,
    pub(crate) memory_bytes_max: u64,
    /// Processes of members that the kernel ended for want of memory.
    pub(crate) killed_for_memory: u64,
    /// Members that ended, and how.
    pub(crate) ended: Vec<String>,
    pub(crate) lead_lost: bool,
    /// Whether the attackers did anything at all.
    pub(crate) attacked: bool,
}

/// The promises that were broken, in words; none if all is well.
pub(crate) fn broken(seen: &Seen) -> Vec<String> {
    let mut broken = Vec::new();
    if !seen.attacked {
        broken.push("the attackers did nothing".to_owned());
    }
    for ended in &seen.ended {
        broken.push(format!("a member ended: {ended}"));
    }
    if seen.killed_for_memory > 0 || seen.memory_peak_bytes > seen.memory_bytes_max {
        let mib = seen.memory_peak_bytes >> 20;
        broken.push(format!("out of memory: {mib} MiB were seen"));
    }
    if seen.lead_lost {
        broken.push("the lead was lost".to_owned());
    }
    if seen.during.errors > 0 {
        let mut words = format!("{} honest requests failed", seen.during.errors);
        for complaint in &seen.during.complaints {
            let _ = write!(words, "; {complaint}");
        }
        broken.push(words);
    }
    let Seen { before, during, .. } = seen;
    for (what, before, during) in [
        ("write", before.write_p99, during.write_p99),
        ("read", before.read_p99, during.read_p99),
        ("etcd write", before.etcd_write_p99, during.etcd_write_p99),
        ("etcd read", before.etcd_read_p99, during.etcd_read_p99),
    ] {
        if during > LATENCY_MAX || during > before * TIMES_SLOWER_MAX {
            broken.push(format!("{what} p99 {during:?}, without it {before:?}"));
        }
    }
    broken
}

mod tests {
    use super::*;

    fn well() -> Seen {
        let met = |ms| Met {
            write_p99: Duration::from_millis(ms),
            read_p99: Duration::from_millis(ms),
            etcd_write_p99: Duration::from_millis(ms),
            etcd_read_p99: Duration::from_millis(ms),
            ..Met::default()
        };
        Seen {
            before: met(3),
            during: met(30),
            memory_peak_bytes: 10,
            memory_bytes_max: 10,
            attacked: true,
            ..Seen::default()
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Seen), words: &str) {
        let mut seen = well();
        change(&mut seen);
        let broken = broken(&seen);
        assert!(
            matches!(&broken[..], [one] if one.contains(words)),
            "{words}: {broken:?}"
        );
    }

    #[test]
    fn what_the_honest_do_not_notice_breaks_no_promise() {
        assert_eq!(broken(&well()), Vec::<String>::new());
    }

    #[test]
    fn each_promise_can_be_broken() {
        check(|it| it.attacked = false, "did nothing");
        check(|it| it.ended.push("signal 9".to_owned()), "signal 9");
        check(|it| it.killed_for_memory = 1, "out of memory");
        check(|it| it.memory_peak_bytes = 11, "out of memory");
        check(|it| it.lead_lost = true, "the lead");
        check(|it| it.during.errors = 1, "1 honest requests");
        let slow = Duration::from_millis(31);
        check(|it| it.during.write_p99 = slow, "write p99 31ms");
        check(|it| it.during.read_p99 = slow, "read p99 31ms");
        check(|it| it.during.etcd_write_p99 = slow, "etcd write p99 31ms");
        check(|it| it.during.etcd_read_p99 = slow, "etcd read p99 31ms");
        check(
            |it| {
                it.before.write_p99 = Duration::from_secs(1);
                it.during.write_p99 = Duration::from_millis(501);
            },
            "write p99 501ms",
        );
    }
}
