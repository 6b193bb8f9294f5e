//! Disks that others have filled for good: only what a log gives back itself is free again.
//!
//! A member that waits for space has its state flushed, so that segments of its log are needed no
//! more. With that and nothing else it must go on, also when the faults have ended. Each run
//! decides apart from all that it draws besides whether it is about this, so that the others are
//! what they would be if there were none.

use super::plan::{Fault, Plan, Weather};
use super::queue::{MILLI, SECOND};
use super::random::Random;

/// Longer than anything that these members write at once: a longer segment would not fit where a
/// shorter one was.
const SEGMENT_BYTES: u32 = 32 << 10;
/// Beside the segment that it writes, a log needs the one that is full before it, and the next one.
const SEGMENTS_BESIDE: u64 = 2;

/// Makes a plan one for this story, in a few of the runs.
pub(super) fn take_over(plan: &mut Plan, seed: u64) {
    let mut random = Random::new(seed ^ 0x0066_756c_6c21);
    if !random.chance(40_000) {
        return;
    }
    plan.stays_full = true;
    plan.members = *random.pick(&[1, 1, 3]).expect("not empty");
    plan.memory_first = false;
    plan.weather = Weather::CALM;
    plan.faults = vec![(Fault::FullDisk, random.between(3, 8) * SECOND)];
    if random.chance(500_000) {
        let every = random.between(3, 8) * SECOND;
        plan.faults.push((Fault::SlowDisk, every));
    }
    plan.clients = plan.clients.max(6);
    plan.think = (2 << random.below(3)) * MILLI;
    plan.load.writes = plan.load.writes.max(500);
    for settings in &mut plan.settings {
        settings.segment_bytes = SEGMENT_BYTES;
        settings.log_keep_bytes = random.below(4 << 10);
        settings.uncommitted_bytes = 16 << 10;
        (settings.message_bytes, settings.messages_in_flight) = (1 << 10, 8);
        // No flush comes of itself.
        settings.flush_bytes = 1 << 30;
    }
}

/// What others leave of a disk for good, beside what its log has now.
pub(super) fn space_left(random: &mut Random) -> u64 {
    SEGMENTS_BESIDE * u64::from(SEGMENT_BYTES) + random.below(64 << 10)
}
