//! Which keys a request is about.

use bytes::Bytes;

/// One key, or all keys between two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRange {
    /// This key only.
    One(Bytes),
    /// Every key in `[start, end)`; empty if `end` does not lie behind `start`.
    Between {
        /// The first key that belongs to the range.
        start: Bytes,
        /// The first key that no longer does.
        end: Bytes,
    },
    /// Every key from here to the last.
    From(Bytes),
}

impl KeyRange {
    /// Reads the convention of the wire: an empty `range_end` means `key` alone, a
    /// single zero byte means to the end. A range may be waited for: it is a copy, and keeps nothing of the message that it
    /// came in.
    #[must_use]
    pub fn from_wire(key: &[u8], range_end: &[u8]) -> Self {
        let [key, end] = [key, range_end].map(Bytes::copy_from_slice);
        match range_end {
            [] => Self::One(key),
            [0] => Self::From(key),
            _ => Self::Between { start: key, end },
        }
    }

    /// The key alone, or the first key that could belong to the range.
    #[must_use]
    pub fn start(&self) -> &Bytes {
        match self {
            Self::One(key) | Self::From(key) => key,
            Self::Between { start, .. } => start,
        }
    }

    /// Whether `key` belongs to the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::One(only) => key == only,
            Self::Between { start, end } => key >= &start[..] && key < &end[..],
            Self::From(start) => key >= &start[..],
        }
    }
}
