//! `folder.toml`: the record of a data directory.

use dengine_types::{ClusterId, MemberId};
use serde::{Deserialize, Serialize};

/// The version that this program writes, and the highest one that it reads.
pub const FORMAT: u32 = 1;
/// Longer than any record; no more of the file is read.
pub(crate) const BYTES_MAX: u64 = 16 * 1024;

const REMARK: &str =
    "# Who this data folder is. Never edit or copy it: two members with one identity lose data.";
/// The beginning of the last line, in every format. The CRC-32C of all bytes before it follows, in
/// hex.
const SEAL: &str = "checksum = \"";

/// The member and cluster to which a data directory belongs. Set once, never changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cluster_id: ClusterId,
    pub member_id: MemberId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub format: u32,
    /// Drawn at random when the directory was first opened. Never empty.
    pub folder_id: String,
    /// Which member this is, after a bootstrap or join.
    pub identity: Option<Identity>,
}

/// Why a record cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A newer dengine wrote it.
    #[error("format {0}, this dengine reads up to {FORMAT}")]
    Newer(u32),
    /// The content is not what was written, or not a record at all.
    #[error("{0}")]
    Damaged(String),
}

/// The lines of format 1. Ids are strings, because TOML's integers are signed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lines {
    format: u32,
    folder_id: String,
    cluster_id: Option<String>,
    member_id: Option<String>,
}

impl Record {
    #[must_use]
    pub fn encode(&self) -> String {
        let lines = Lines {
            format: self.format,
            folder_id: self.folder_id.clone(),
            cluster_id: self
                .identity
                .map(|identity| identity.cluster_id.to_string()),
            member_id: self.identity.map(|identity| identity.member_id.to_string()),
        };
        let lines = toml::to_string(&lines).expect("numbers and strings can be encoded");
        let text = format!("{REMARK}\n{lines}");
        let checksum = crc32c::crc32c(text.as_bytes());
        format!("{text}{SEAL}{checksum:08x}\"\n")
    }

    /// Parses the content of the file.
    ///
    /// # Errors
    ///
    /// [`RecordError`] if the checksum does not match: a flipped bit must not turn one member into
    /// another.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let table = unsealed(bytes)?;
        // The version comes first: a newer record may contain lines that this program does not
        // know.
        let format = table.get("format").and_then(toml::Value::as_integer);
        let format = format.ok_or_else(|| damaged("it has no format"))?;
        if format > i64::from(FORMAT) {
            return Err(RecordError::Newer(
                u32::try_from(format).unwrap_or(u32::MAX),
            ));
        }
        let lines: Lines = table
            .try_into()
            .map_err(|error: toml::de::Error| damaged(error.to_string()))?;
        if lines.folder_id.is_empty() {
            return Err(damaged("folder_id is empty"));
        }
        let identity = match (&lines.cluster_id, &lines.member_id) {
            (None, None) => None,
            (Some(cluster), Some(member)) => Some(Identity {
                cluster_id: ClusterId(id("cluster_id", cluster)?),
                member_id: MemberId(id("member_id", member)?),
            }),
            _ => return Err(damaged("it has half an identity")),
        };
        Ok(Self {
            format: lines.format,
            folder_id: lines.folder_id,
            identity,
        })
    }
}

/// The lines before the checksum, if it matches.
fn unsealed(bytes: &[u8]) -> Result<toml::Table, RecordError> {
    let text = std::str::from_utf8(bytes).map_err(|error| damaged(error.to_string()))?;
    let (text, seal) = text
        .rsplit_once(SEAL)
        .ok_or_else(|| damaged("it has no checksum"))?;
    if seal != format!("{:08x}\"\n", crc32c::crc32c(text.as_bytes())) {
        return Err(damaged("its checksum is wrong"));
    }
    text.parse()
        .map_err(|error: toml::de::Error| damaged(error.to_string()))
}

fn id(what: &str, text: &str) -> Result<u64, RecordError> {
    match text.parse::<u64>() {
        Ok(id) if id > 0 => Ok(id),
        _ => Err(damaged(format!("{what} {text:?} is not a positive number"))),
    }
}

fn damaged(reason: impl Into<String>) -> RecordError {
    RecordError::Damaged(reason.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            format: FORMAT,
            folder_id: "c0ffee".to_owned(),
            identity: Some(Identity {
                cluster_id: ClusterId(u64::MAX),
                member_id: MemberId(7),
            }),
        }
    }

    /// `lines` with their checksum.
    fn sealed(lines: &str) -> String {
        format!("{lines}{SEAL}{:08x}\"\n", crc32c::crc32c(lines.as_bytes()))
    }

    #[test]
    fn records_round_trip() {
        let stranger = Record {
            identity: None,
            ..record()
        };
        for record in [record(), stranger] {
            assert_eq!(Record::decode(record.encode().as_bytes()), Ok(record));
        }
    }

    #[test]
    fn flipped_bits_and_truncation_are_damage() {
        let written = record().encode().into_bytes();
        for (byte, bit) in (0..written.len()).flat_map(|byte| (0..8).map(move |bit| (byte, bit))) {
            let mut bent = written.clone();
            bent[byte] ^= 1 << bit;
            let read = Record::decode(&bent);
            assert!(
                matches!(read, Err(RecordError::Damaged(_))),
                "bit {bit} of byte {byte}: {read:?}"
            );
        }
        for length in 0..written.len() {
            let read = Record::decode(&written[..length]);
            assert!(
                matches!(read, Err(RecordError::Damaged(_))),
                "{length}: {read:?}"
            );
        }
    }

    #[test]
    fn invalid_records_are_refused_with_the_reason() {
        for (lines, expected) in [
            ("folder_id = 'x'\n", "it has no format"),
            ("format = 1\n", "folder_id"),
            ("format = 1\nfolder_id = ''\n", "folder_id is empty"),
            ("format = 1\nfolder_id = 'x'\nnew = 1\n", "new"),
            (
                "format = 1\nfolder_id = 'x'\nmember_id = '3'\n",
                "half an identity",
            ),
            (
                "format = 1\nfolder_id = 'x'\nmember_id = '0'\ncluster_id = '1'\n",
                "not a positive number",
            ),
            ("form", "expected"),
        ] {
            match Record::decode(sealed(lines).as_bytes()) {
                Err(RecordError::Damaged(reason)) => {
                    assert!(reason.contains(expected), "{lines:?}: {reason}");
                }
                other => panic!("{lines:?}: {other:?}"),
            }
        }
        let newer = sealed("format = 2\nfolder_id = 'x'\nnew = 1\n");
        assert_eq!(Record::decode(newer.as_bytes()), Err(RecordError::Newer(2)));
    }
}
