//! The content of a snapshot, and its encoding on disk and on the wire, which `docs/formats.md` has
//! as tables.
//!
//! No input is trusted: every length is checked against the available bytes before it is used, and
//! there is one encoding for every manifest.

use dengine_log::Position;
use dengine_types::{ClusterId, Index, Term};

use super::{Place, SnapshotError};

/// The format that this program writes, and the newest one that it reads.
pub const FORMAT_VERSION: u32 = 1;
/// The maximum number of files. With RocksDB's files of 64 MiB that is a terabyte.
pub const FILES_MAX: usize = 16 * 1024;
pub const NAME_BYTES_MAX: usize = 64;
pub const MANIFEST_BYTES_MAX: usize = HEADER_BYTES + FILES_MAX * (FILE_BYTES + NAME_BYTES_MAX);

const MAGIC: [u8; 8] = *b"DEngSnp\n";
const HEADER_BYTES: usize = 60;
const FILE_BYTES: usize = 13;
/// Magic, version and checksum keep their place in every version.
const CHECKSUMMED_FROM: usize = 16;

/// Identifies one snapshot; drawn at random when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotId(pub u128);

impl std::fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Letters, digits, `.`, `_` and `-`, not beginning with a dot.
    pub name: String,
    pub bytes: u64,
    /// CRC32C of its content.
    pub crc: u32,
}

/// The files of a snapshot, and the state in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    cluster: ClusterId,
    id: SnapshotId,
    last: Position,
    files: Vec<FileEntry>,
    bytes: u64,
}

impl Manifest {
    /// Describes a snapshot. The files may be in any order.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Malformed`] if there are too many files, a name is not allowed or occurs
    /// twice, or the cluster, index or term is 0.
    pub fn new(
        cluster: ClusterId,
        id: SnapshotId,
        last: Position,
        mut files: Vec<FileEntry>,
    ) -> Result<Self, SnapshotError> {
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let mut lengths = files.iter().map(|file| file.bytes);
        let bytes = lengths.try_fold(0u64, u64::checked_add);
        let manifest = Self {
            cluster,
            id,
            last,
            files,
            bytes: bytes.ok_or_else(|| malformed("the files' lengths add up to too much"))?,
        };
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), SnapshotError> {
        if self.cluster.0 == 0 || self.last.index.0 == 0 || self.last.term.0 == 0 {
            return Err(malformed("its cluster, index or term is 0"));
        }
        if self.files.is_empty() || self.files.len() > FILES_MAX {
            return Err(malformed(format!("it has {} files", self.files.len())));
        }
        for file in &self.files {
            if !is_safe(&file.name) {
                let name = file.name.escape_debug();
                return Err(malformed(format!("a file's name is {name:?}")));
            }
            if file.bytes == 0 && file.crc != 0 {
                return Err(malformed("an empty file has a checksum"));
            }
        }
        // File systems that ignore case would make one file of two.
        let names = self.files.iter().map(|f| f.name.to_ascii_lowercase());
        if names.collect::<std::collections::BTreeSet<_>>().len() < self.files.len() {
            return Err(malformed("two files have the same name"));
        }
        if !self.files.is_sorted_by(|a, b| a.name < b.name) {
            return Err(malformed("its files are not in order"));
        }
        Ok(())
    }

    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    #[must_use]
    pub fn id(&self) -> SnapshotId {
        self.id
    }

    /// The last entry that is applied in the state.
    #[must_use]
    pub fn last(&self) -> Position {
        self.last
    }

    /// Whether this is the snapshot that a leader's message announces, which ends at `announced`.
    #[must_use]
    pub fn answers(&self, announced: Option<Position>) -> bool {
        announced == Some(self.last)
    }

    /// The files, in the order of their names.
    #[must_use]
    pub fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// The length of all files together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The file at a place; `None` at the end.
    pub(super) fn file(&self, place: Place) -> Option<&FileEntry> {
        self.files.get(place.file as usize)
    }

    /// The place after the last file.
    pub(super) fn end(&self) -> Place {
        Place {
            file: u32::try_from(self.files.len()).expect("bounded by FILES_MAX"),
            offset: 0,
        }
    }

    /// The encoding, at most [`MANIFEST_BYTES_MAX`] bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.files.len() * 40);
        bytes.extend(MAGIC);
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(self.cluster.0.to_le_bytes());
        bytes.extend(self.id.0.to_le_bytes());
        bytes.extend(self.last.index.0.to_le_bytes());
        bytes.extend(self.last.term.0.to_le_bytes());
        bytes.extend(self.end().file.to_le_bytes());
        for file in &self.files {
            bytes.extend(file.bytes.to_le_bytes());
            bytes.extend(file.crc.to_le_bytes());
            bytes.push(u8::try_from(file.name.len()).expect("bounded by NAME_BYTES_MAX"));
            bytes.extend(file.name.as_bytes());
        }
        let crc = checksum(&bytes);
        bytes[12..CHECKSUMMED_FROM].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes what [`Manifest::encode`] wrote.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Malformed`] if it is anything else, [`SnapshotError::NewerFormat`] if a
    /// newer program wrote it.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(malformed(format!("it has {} bytes", bytes.len())));
        }
        let mut reader = Reader(bytes);
        if reader.take()? != MAGIC {
            return Err(malformed("it begins with something else"));
        }
        let version = u32::from_le_bytes(reader.take()?);
        let crc = u32::from_le_bytes(reader.take()?);
        if crc != checksum(bytes) {
            return Err(malformed("its checksum does not match"));
        }
        match version {
            FORMAT_VERSION => Self::decode_body(reader),
            0 => Err(malformed("its version is 0")),
            found => Err(SnapshotError::NewerFormat {
                found,
                supported: FORMAT_VERSION,
            }),
        }
    }

    fn decode_body(mut reader: Reader<'_>) -> Result<Self, SnapshotError> {
        let cluster = ClusterId(u64::from_le_bytes(reader.take()?));
        let id = SnapshotId(u128::from_le_bytes(reader.take()?));
        let last = Position {
            index: Index(u64::from_le_bytes(reader.take()?)),
            term: Term(u64::from_le_bytes(reader.take()?)),
        };
        let count = u32::from_le_bytes(reader.take()?) as usize;
        if count > FILES_MAX || count > reader.0.len() / FILE_BYTES {
            return Err(malformed(format!("it claims {count} files")));
        }
        let mut files = Vec::with_capacity(count);
        for _ in 0..count {
            files.push(reader.file()?);
        }
        if !reader.0.is_empty() {
            return Err(malformed("something follows its last file"));
        }
        if !files.is_sorted_by(|a, b| a.name < b.name) {
            return Err(malformed("its files are not in order"));
        }
        Self::new(cluster, id, last, files)
    }
}

/// The bytes that are left to decode.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or_else(cut)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn file(&mut self) -> Result<FileEntry, SnapshotError> {
        let bytes = u64::from_le_bytes(self.take()?);
        let crc = u32::from_le_bytes(self.take()?);
        let [name_bytes] = self.take()?;
        let (name, rest) = self
            .0
            .split_at_checked(usize::from(name_bytes))
            .ok_or_else(cut)?;
        self.0 = rest;
        let name = std::str::from_utf8(name)
            .map_err(|_| malformed("a file's name is not text"))?
            .to_owned();
        Ok(FileEntry { name, bytes, crc })
    }
}

fn cut() -> SnapshotError {
    malformed("it was cut")
}

fn malformed(what: impl Into<String>) -> SnapshotError {
    SnapshotError::Malformed(what.into())
}

/// Covers everything but the magic and itself; the version is included.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(
        crc32c::crc32c(&bytes[8..12]),
        &bytes[CHECKSUMMED_FROM.min(bytes.len())..],
    )
}

/// Whether this is a plain file name without a special meaning to any system.
fn is_safe(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(plain)
        && !name.starts_with('.')
        && !name.starts_with(super::RESERVED)
}
