//! The size of a cache: so many bytes, or what suits the memory that there is.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const AUTO: &str = "auto";

/// How much memory a cache may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a number of bytes, or \"auto\"")]
pub enum CacheSize {
    /// So many bytes.
    Bytes(u64),
    /// A part of what the process may have.
    Auto(Auto),
}

/// The word for a size that follows from the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Auto {
    /// As much as suits the machine.
    Auto,
}

impl CacheSize {
    /// [`CacheSize::Auto`].
    pub const AUTO: Self = Self::Auto(Auto::Auto);

    /// The bytes that were said, if any were.
    #[must_use]
    pub const fn bytes(self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Auto(Auto::Auto) => None,
        }
    }
}

/// What was typed is no [`CacheSize`].
#[derive(Debug, thiserror::Error)]
#[error("it must be a number of bytes, or {AUTO}: {0}")]
pub struct NotASize(ParseIntError);

impl FromStr for CacheSize {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, NotASize> {
        match text {
            AUTO => Ok(Self::AUTO),
            number => number.parse().map(Self::Bytes).map_err(NotASize),
        }
    }
}

impl fmt::Display for CacheSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Auto(Auto::Auto) => f.write_str(AUTO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct File {
        size: CacheSize,
    }

    #[test]
    fn a_size_is_a_number_or_auto() {
        for (text, size) in [("0", CacheSize::Bytes(0)), ("auto", CacheSize::AUTO)] {
            assert_eq!(text.parse::<CacheSize>().unwrap(), size);
            assert_eq!(size.to_string(), text);
            let file = File { size };
            let written = toml::to_string(&file).unwrap();
            assert_eq!(toml::from_str::<File>(&written).unwrap(), file);
        }
        for wrong in ["", "-1", "1 GiB", "Auto"] {
            let error = wrong.parse::<CacheSize>().unwrap_err().to_string();
            assert!(error.contains("a number of bytes, or auto"), "{error}");
            let file = format!("size = '{wrong}'");
            let error = toml::from_str::<File>(&file).unwrap_err().to_string();
            assert!(error.contains("a number of bytes, or \"auto\""), "{error}");
        }
    }
}
