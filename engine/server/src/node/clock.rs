//! The member's clock.

use dengine_types::Moment;
use rustix::time::{ClockId, clock_gettime};

/// Now, on a clock that never goes back and counts on while the machine sleeps: a lease that was
/// granted before a suspend must be over after it.
pub(super) fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    Moment(seconds * 1_000_000_000 + nanos)
}
