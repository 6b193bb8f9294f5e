//! Every kind of disk passes the same suite.

use dengine_log::conformance::test_all;
use dengine_log::memory::MemoryDisk;
use dengine_log::{Disk as _, RealDisk};

#[test]
fn memory_disk() {
    test_all(|| {
        let disk = MemoryDisk::new();
        move || disk.clone()
    });
}

#[test]
fn real_disk() {
    test_all(|| {
        let directory = tempfile::tempdir().unwrap();
        move || RealDisk::open(directory.path()).unwrap()
    });
}

#[test]
fn a_directory_is_locked_against_a_second_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let disk = RealDisk::open(&path).unwrap();
    let error = RealDisk::open(&path).unwrap_err().to_string();
    assert!(error.contains("another process is using it"), "{error}");
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    assert_eq!(disk.list().unwrap(), Vec::<String>::new());
    drop(disk);
    RealDisk::open(&path).unwrap();
}
