//! How often in a row the server of a pod failed by itself. Kubernetes keeps only the last end and
//! a restart count, which does not say how it ended before; so this process counts the ends that it
//! sees. After a restart of the operator the count starts at zero, which delays a replacement, and
//! never causes a wrong one.

use std::collections::HashMap;
use std::sync::Mutex;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::pod_trouble::{is_its_own_fault, last_end, not_ready_since};

/// Pods whose ends are kept.
const KEPT_MAX: usize = 4096;

/// Ends of pods that are not Ready, by UID.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    rows: Mutex<HashMap<String, Row>>,
}

/// Ends of one pod's server since the pod was Ready last.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    not_ready_since: Time,
    /// The last end that was counted.
    last: Time,
    /// How many in a row, up to the last one, were the server's own failure.
    own: u32,
}

impl Ends {
    /// Counts the last end of the pod, unless it was counted. Returns how many in a row were the
    /// server's own failure.
    pub(super) fn of(&self, pod: &core::Pod) -> u32 {
        let uid = pod.uid().unwrap_or_default();
        let mut rows = self.rows.lock().expect("nobody panics with the lock");
        let Some(row) = counted(rows.get(&uid), pod) else {
            rows.remove(&uid);
            return 0;
        };
        let own = row.own;
        if rows.len() >= KEPT_MAX && !rows.contains_key(&uid) {
            rows.clear();
        }
        rows.insert(uid, row);
        own
    }
}

/// `None` for a pod that is Ready, or has not ended since.
fn counted(before: Option<&Row>, pod: &core::Pod) -> Option<Row> {
    let since = not_ready_since(pod)?;
    let before = before.filter(|row| row.not_ready_since == *since);
    let ended = last_end(pod)?;
    let at = ended.finished_at.as_ref().filter(|at| *at >= since)?;
    if let Some(row) = before.filter(|row| row.last == *at) {
        return Some(row.clone());
    }
    let own = if is_its_own_fault(ended) {
        before.map_or(0, |row| row.own) + 1
    } else {
        0
    };
    Some(Row {
        not_ready_since: since.clone(),
        last: at.clone(),
        own,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::pod_trouble::tests::{crashing, ended_with};

    /// Ends of one pod with these exit codes, a minute apart.
    fn seen(ends: &Ends, since: i64, codes: &[i32]) -> u32 {
        let ends_seen = (1..).zip(codes).map(|(minute, code)| {
            let mut pod = crashing(since, since + 60 * minute);
            ended_with(&mut pod, *code, "Error");
            // Counted once, however often it is seen.
            assert_eq!(ends.of(&pod), ends.of(&pod));
            ends.of(&pod)
        });
        ends_seen.last().unwrap_or_default()
    }

    #[test]
    fn only_consecutive_failures_of_the_server_count() {
        let own = |codes: &[i32]| seen(&Ends::default(), 1_000, codes);
        assert_eq!(own(&[1, 1, 1]), 3);
        assert_eq!(own(&[137, 137, 137, 137, 1]), 1);
        assert_eq!(own(&[1, 1, 137, 1]), 1);
        assert_eq!(own(&[1, 1, 4]), 0);
    }

    #[test]
    fn a_pod_that_was_ready_meanwhile_counts_from_zero() {
        let ends = Ends::default();
        assert_eq!(seen(&ends, 1_000, &[1, 1, 1]), 3);
        assert_eq!(seen(&ends, 5_000, &[1]), 1, "not seen while it was ready");
        let old = crashing(9_000, 8_999);
        assert_eq!(ends.of(&old), 0, "the end that made it not ready");
        assert_eq!(ends.rows.lock().unwrap().len(), 0);
    }
}
