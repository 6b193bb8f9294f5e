//! When a cluster is reconciled again if nothing happens to it in Kubernetes: later each time, as
//! long as its status stays the same. Watches report changes in Kubernetes; changes among members
//! are only seen by asking them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

/// Clusters that are remembered; beyond it, all start again with the shortest pause.
const KEPT_MAX: usize = 65_536;

/// How often in a row each cluster had the same status, by its UID.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    seen: Mutex<HashMap<String, Seen>>,
}

#[derive(Debug)]
struct Seen {
    state: String,
    times: u32,
}

impl Pace {
    /// The time to the next reconciliation, from `least` on and doubling up to `most` while the
    /// status stays the same.
    pub(crate) fn next(&self, uid: &str, state: &str, least: Duration, most: Duration) -> Duration {
        let mut seen = self.seen.lock().expect("nobody panics with the lock");
        if seen.len() >= KEPT_MAX {
            seen.clear();
        }
        let last = seen.entry(uid.to_owned()).or_insert_with(|| Seen {
            state: String::new(),
            times: 0,
        });
        if last.state == state {
            last.times = last.times.saturating_add(1);
        } else {
            (last.state, last.times) = (state.to_owned(), 0);
        }
        let factor = 2_u32.saturating_pow(last.times);
        least.saturating_mul(factor).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unchanged_cluster_is_reconciled_less_often() {
        let pace = Pace::default();
        let next = |state: &str| {
            let (least, most) = (Duration::from_secs(3), Duration::from_secs(30));
            pace.next("demo", state, least, most).as_secs()
        };
        let pauses: Vec<u64> = (0..6).map(|_| next("fine")).collect();
        assert_eq!(pauses, [3, 6, 12, 24, 30, 30]);
        assert_eq!(next("another leader"), 3);
        assert_eq!(next("another leader"), 6);
        for _ in 0..100 {
            next("another leader");
        }
        assert_eq!(next("another leader"), 30);
    }
}
