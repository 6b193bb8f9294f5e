//! The encoding of manifests: one encoding for each, and nothing else is accepted.

use super::*;
use crate::{FILES_MAX, MANIFEST_BYTES_MAX, NAME_BYTES_MAX, RESERVED};

fn file(name: &str) -> FileEntry {
    FileEntry {
        name: name.to_owned(),
        bytes: 5,
        crc: 6,
    }
}

fn manifest(files: Vec<FileEntry>) -> Result<Manifest, SnapshotError> {
    Manifest::new(CLUSTER, SnapshotId(u128::MAX - 1), position(8, 9), files)
}

/// An edited manifest with a matching checksum.
fn sealed(edit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = manifest(vec![file("a"), file("b")]).unwrap().encode();
    edit(&mut bytes);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[8..12]), &bytes[16..]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn refusal(bytes: &[u8]) -> String {
    Manifest::decode(bytes).unwrap_err().to_string()
}

#[test]
fn a_manifest_round_trips() {
    let manifest = manifest(vec![file("b"), file("a.sst"), file("A-1_2")]).unwrap();
    assert_eq!(Manifest::decode(&manifest.encode()).unwrap(), manifest);
    let names: Vec<_> = manifest.files().iter().map(|file| &file.name[..]).collect();
    assert_eq!(names, ["A-1_2", "a.sst", "b"]);
    assert_eq!(
        (manifest.bytes(), manifest.cluster(), manifest.last()),
        (15, CLUSTER, position(8, 9))
    );
}

#[test]
fn flipped_bits_and_truncation_are_refused() {
    let bytes = outgoing(1).manifest().encode();
    for byte in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[byte] ^= 1 << bit;
            Manifest::decode(&damaged).unwrap_err();
        }
        Manifest::decode(&bytes[..byte]).unwrap_err();
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(refusal(&longer).contains("checksum"));
}

#[test]
fn wrong_contents_are_refused_despite_a_matching_checksum() {
    assert_eq!(
        sealed(|_| {}),
        manifest(vec![file("a"), file("b")]).unwrap().encode()
    );
    type Edit = fn(&mut Vec<u8>);
    let cases: [(Edit, &str); 10] = [
        (|b| b.push(0), "something follows"),
        (|b| b.truncate(b.len() - 1), "cut"),
        (|b| b[8] = 0, "version is 0"),
        (|b| b[8] = 2, "reads formats up to 1"),
        (|b| b[16..24].fill(0), "is 0"),
        (|b| b[40..48].fill(0), "is 0"),
        (|b| b[56..60].fill(255), "claims 4294967295 files"),
        (|b| b.truncate(60), "claims 2 files"),
        (|b| b[60..68].fill(255), "add up to too much"),
        (|b| b[73] = b'c', "not in order"),
    ];
    for (edit, expected) in cases {
        let message = refusal(&sealed(edit));
        assert!(message.contains(expected), "{expected}: {message}");
    }
    assert!(refusal(&vec![0; MANIFEST_BYTES_MAX + 1]).contains("bytes"));
    assert!(refusal(b"DEngSnp").contains("cut"));
    assert!(refusal(b"DEngSnp!aaaabbbb").contains("something else"));
}

#[test]
fn names_stay_in_the_directory_and_have_no_special_meaning() {
    let reserved = format!("{RESERVED}snapshot.complete");
    let long = "a".repeat(NAME_BYTES_MAX + 1);
    let bad = [
        "",
        ".",
        "..",
        "../x",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "a\0b",
        "a b",
        ".hidden",
        "ä",
        "a:b",
        "a\n",
        &reserved,
        &long,
    ];
    for name in bad {
        let error = manifest(vec![file(name)]).unwrap_err().to_string();
        assert!(error.contains("name is"), "{name:?}: {error}");
        let length = name.len() as u8;
        let bytes = sealed(|b| {
            b.truncate(60 + 12);
            b[56] = 1;
            b.push(length);
            b.extend(name.as_bytes());
        });
        Manifest::decode(&bytes).unwrap_err();
    }
    manifest(vec![file(&"a".repeat(NAME_BYTES_MAX))]).unwrap();
    let error = manifest(vec![file("a"), file("A")]).unwrap_err();
    assert!(error.to_string().contains("same name"), "{error}");
}

#[test]
fn the_number_of_files_is_bounded_and_not_zero() {
    let files = |count: usize| {
        (0..count)
            .map(|n| file(&format!("{n:064}")))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        manifest(files(FILES_MAX)).unwrap().encode().len(),
        MANIFEST_BYTES_MAX
    );
    manifest(files(FILES_MAX + 1)).unwrap_err();
    manifest(Vec::new()).unwrap_err();
    let mut huge = files(2);
    huge[0].bytes = u64::MAX;
    manifest(huge).unwrap_err();
    let empty = FileEntry {
        bytes: 0,
        ..file("a")
    };
    manifest(vec![empty]).unwrap_err();
}
