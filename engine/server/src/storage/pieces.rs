//! Where a merge of everything is cut into pieces.
//!
//! Nobody can end a piece once it has begun, and a member that stops or installs a snapshot waits
//! for it. So whoever merges looks before each whether to go on.

use rocksdb::LiveFile;

/// So much of the last level, with what is above it; one file may be larger.
const PIECE_BYTES: u64 = 128 << 20;

/// The keys at which the pieces meet: first keys of files of the last level.
pub(super) fn bounds(files: &[LiveFile]) -> Vec<Vec<u8>> {
    let last = files
        .iter()
        .map(|file| file.level)
        .max()
        .unwrap_or_default();
    let files = files.iter().filter(|file| file.level == last && last > 0);
    let mut files: Vec<_> = files
        .filter_map(|file| Some((file.start_key.as_deref()?, file.size as u64)))
        .collect();
    files.sort_unstable();
    let mut bounds = Vec::new();
    let mut piece_bytes = 0;
    for (start, bytes) in files {
        if piece_bytes > 0 && piece_bytes + bytes > PIECE_BYTES {
            bounds.push(start.to_vec());
            piece_bytes = 0;
        }
        piece_bytes += bytes;
    }
    bounds
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn file(level: i32, mib: usize, start: &str) -> LiveFile {
        LiveFile {
            column_family_name: String::new(),
            name: String::new(),
            size: mib << 20,
            level,
            start_key: Some(start.as_bytes().to_vec()),
            end_key: None,
            num_entries: 0,
            num_deletions: 0,
        }
    }

    fn check(files: &[LiveFile], expected: &[&str]) {
        let bounds = bounds(files);
        let bounds: Vec<_> = bounds
            .iter()
            .map(|it| String::from_utf8_lossy(it))
            .collect();
        assert_eq!(bounds, expected, "of {files:?}");
    }

    #[test]
    fn pieces_are_cut_by_the_bytes_of_the_last_level() {
        check(&[], &[]);
        check(&[file(0, 500, "a"), file(0, 500, "b")], &[]);
        check(&[file(6, 64, "a"), file(6, 64, "b")], &[]);
        // The list is in no order, and what lies above the last level cuts nothing.
        let files = [
            file(6, 64, "d"),
            file(6, 64, "a"),
            file(5, 500, "bb"),
            file(6, 1, "c"),
            file(6, 64, "b"),
            file(0, 500, "cc"),
            file(6, 64, "e"),
        ];
        check(&files, &["c", "e"]);
    }

    #[test]
    fn a_piece_has_one_file_at_least() {
        let files = [
            file(6, 500, "a"),
            file(6, 1, "b"),
            file(6, 500, "c"),
            file(6, 500, "d"),
        ];
        check(&files, &["b", "c", "d"]);
    }
}
