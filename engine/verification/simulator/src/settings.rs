//! What members are started with. Those of one cluster may be set differently, as they are while a
//! change of the settings is rolled out, and each start takes any of the settings that there are.
//! Ticks and election timeouts are drawn apart: see [`Plan::timers`](super::plan::Plan::timers).

use dengine_kv::RetentionSetting;

use super::random::Random;

/// The largest frame that members take: one message with the largest entry, and little more.
pub(super) const FRAME_BYTES_MAX: usize = 12 << 10;

/// See [the module](self).
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberSettings {
    /// Length of a segment of the log.
    pub(super) segment_bytes: u32,
    /// Bytes of the log that are kept although the state machine has them.
    pub(super) log_keep_bytes: u64,
    /// So many bytes are applied before the state is flushed.
    pub(super) flush_bytes: u64,
    /// Revisions that are kept, if not all.
    pub(super) keep_revisions: Option<u64>,
    /// Bytes of log in one message, unless it is a single entry.
    pub(super) message_bytes: usize,
    /// Messages with log that may be on their way to one member.
    pub(super) messages_in_flight: usize,
    /// Bytes of messages that may wait for one member. In some members less than what may be on its
    /// way.
    pub(super) queue_bytes: usize,
    /// Bytes of entries that are proposed and not committed.
    pub(super) uncommitted_bytes: u64,
    /// Bytes of entries in one batch that is handed out to be applied.
    pub(super) apply_bytes: u64,
    /// Bytes of recent entries that are kept in memory.
    pub(super) cache_bytes: u64,
    /// For so long what is committed waits for an append that tells of it.
    pub(super) commit_news_delay_ms: u64,
}

impl MemberSettings {
    /// Those of every member, or, so many times in a million, two others or three.
    pub(super) fn draw_all(random: &mut Random, differ: u32) -> Vec<Self> {
        let count = match random.chance(differ) {
            true => random.between(2, 4),
            false => 1,
        };
        (0..count).map(|_| Self::draw(random)).collect()
    }

    fn draw(random: &mut Random) -> Self {
        let usual = random.chance(600_000);
        let mut one_of = |values: [u64; 3]| match usual {
            true => values[0],
            false => *random.pick(&values).expect("not empty"),
        };
        let message_bytes = one_of([4 << 10, 1 << 10, 8 << 10]);
        let messages_in_flight = one_of([8, 4, 16]);
        let ample = messages_in_flight * FRAME_BYTES_MAX as u64;
        let queue_bytes = one_of([ample, 2 * message_bytes, message_bytes]);
        let uncommitted_bytes = one_of([64 << 10, 16 << 10, 256 << 10]);
        let apply_bytes = one_of([4 << 10, 1 << 10, 32 << 10]);
        let cache_bytes = one_of([4 << 10, 0, 64 << 10]);
        let commit_news_delay_ms = one_of([1, 0, 20]);
        Self {
            segment_bytes: 4096 * (2 << random.below(4)) as u32,
            log_keep_bytes: match random.below(3) {
                0 => u64::MAX / 4,
                1 => random.below(64 << 10),
                _ => random.below(4 << 10),
            },
            flush_bytes: 1 << random.between(9, 15),
            keep_revisions: random.chance(500_000).then(|| random.between(1, 500)),
            message_bytes: message_bytes as usize,
            messages_in_flight: messages_in_flight as usize,
            queue_bytes: queue_bytes as usize,
            uncommitted_bytes,
            apply_bytes,
            cache_bytes,
            commit_news_delay_ms,
        }
    }

    pub(super) fn retention(&self) -> RetentionSetting {
        RetentionSetting {
            revisions: self.keep_revisions,
            duration: None,
            bytes: None,
        }
    }
}
