//! The keys of a request.

use bytes::Bytes;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRange {
    One(Bytes),
    /// Every key in `[start, end)`; empty if `end` is not above `start`.
    Between {
        /// The first key of the range.
        start: Bytes,
        /// The first key after the range.
        end: Bytes,
    },
    /// Every key from this one on.
    From(Bytes),
}

impl KeyRange {
    /// How many bytes its bounds take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::One(key) | Self::From(key) => key.len(),
            Self::Between { start, end } => start.len() + end.len(),
        }
    }

    /// Decodes the convention of the wire: an empty `range_end` means `key` alone, a single zero
    /// byte means to the end. The result is a copy, because a range may be kept while its request
    /// waits, and must not hold on to the whole message.
    #[must_use]
    pub fn from_wire(key: &[u8], range_end: &[u8]) -> Self {
        let [key, end] = [key, range_end].map(Bytes::copy_from_slice);
        match range_end {
            [] => Self::One(key),
            [0] => Self::From(key),
            _ => Self::Between { start: key, end },
        }
    }

    /// The key alone, or the lower bound of the range.
    #[must_use]
    pub fn start(&self) -> &Bytes {
        match self {
            Self::One(key) | Self::From(key) => key,
            Self::Between { start, .. } => start,
        }
    }

    /// Whether the range contains `key`.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::One(only) => key == only,
            Self::Between { start, end } => key >= &start[..] && key < &end[..],
            Self::From(start) => key >= &start[..],
        }
    }

    /// The keys of the range that come after `key`, which is one of them.
    #[must_use]
    pub fn after(&self, key: &[u8]) -> Self {
        let start = Bytes::from([key, b"\0"].concat());
        match self {
            Self::Between { end, .. } => Self::Between {
                start,
                end: end.clone(),
            },
            Self::From(_) => Self::From(start),
            // There are none.
            Self::One(_) => Self::Between {
                end: start.clone(),
                start,
            },
        }
    }
}
