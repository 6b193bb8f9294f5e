//! Several pods that send one load together, as one process on a larger machine would.
//!
//! All are started with the same command line. The first (index 0) runs the session as it would
//! alone: it checks health and room, fills the key space, judges, deletes the keys and reports.
//! The others keep a connection to it and do what it orders: connect, wait for the keys, send their
//! part of a load ([`crate::load::Part`]).
//!
//! # Together
//!
//! A load begins once all pods say that their clients are ready: the first sends `Go`, each other
//! one says `Begun` and begins, and when it has that of all, so does the first. How far apart that
//! was is known from the first pod's clock alone: no pod can have begun before `Go` was sent, nor
//! later than when its `Begun` arrived, but for what it says itself that it lost in between. No two
//! clocks are compared. A pod that may have begun later than `--begin-within` after that makes the
//! result invalid; so does one that is lost.
//!
//! # One result
//!
//! Each pod sends its histogram as it is, in HdrHistogram's own format, and the first adds them up,
//! count by count: the result is that of one histogram of all latencies. The time is that of the
//! pod that ended last, counted from when the first `Go` was sent, so what they were apart makes no
//! throughput look better.

mod follow;
mod lead;
mod line;
mod merge;

use std::time::Duration;

pub use self::follow::follow;
pub use self::lead::Team;
pub(crate) use self::merge::Spans;

/// After an order to stop, a pod that says nothing for so long is lost.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// A pod whose first one is gone ends by itself; until then the first's verdict counts, not its own
/// clock.
const AFTER_THE_FIRST: Duration = Duration::from_secs(120);

/// What to do about a pod that was lost or did not come.
const ADVICE: &str = "its events and log say why (kubectl describe pod, kubectl logs); all pods \
    need room at once (spec.resources, spec.scheduling), and each has to reach the first, where \
    --first-pod says; then run again";

/// A pod, in words.
fn named(index: u32, pods: u32) -> String {
    format!("pod {index} of {pods} (counted from 0)")
}
