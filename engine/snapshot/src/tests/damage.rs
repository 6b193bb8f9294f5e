//! Every flipped bit of a staged snapshot is detected before the snapshot can become the state.

use super::*;
use crate::Decision;

#[test]
fn a_snapshot_with_a_flipped_bit_is_not_installed() {
    let disk = MemoryDisk::new();
    send(&outgoing(1), &mut open(disk.clone())).unwrap();
    let install = |disk: &MemoryDisk| open(disk.clone()).decide(position(LAST, 3), Index(10));
    assert_eq!(install(&disk).unwrap(), Decision::Install);
    for name in disk.list().unwrap() {
        for byte in 0..disk.contents(&name).len() {
            let damaged = disk.duplicate();
            damaged.flip_bit(&name, byte, byte as u8 % 8);
            let error = install(&damaged).unwrap_err();
            assert!(
                matches!(error, SnapshotError::Missing { .. }),
                "{name}, byte {byte}: {error}"
            );
        }
        let gone = disk.duplicate();
        gone.remove(&name).unwrap();
        assert!(install(&gone).is_err(), "{name}");
    }
}

#[test]
fn a_flipped_bit_in_a_partial_snapshot_costs_one_file() {
    let (from, half) = (outgoing(1), MemoryDisk::new());
    let mut to = open(half.clone());
    let mut place = to.begin(from.manifest().clone()).unwrap();
    while place.file < 3 {
        place = to
            .receive(&from.read(place, CHUNK).unwrap().unwrap())
            .unwrap();
    }
    to.receive(&from.read(place, CHUNK).unwrap().unwrap())
        .unwrap();
    for name in half.list().unwrap() {
        for byte in 0..half.contents(&name).len() {
            let disk = half.duplicate();
            disk.flip_bit(&name, byte, 3);
            let mut to = open(disk.clone());
            // The damage of a partial file shows only once the rest was received.
            if let Err(error) = send(&from, &mut to) {
                assert!(matches!(error, SnapshotError::Damaged { .. }), "{error}");
                send(&from, &mut to).unwrap();
            }
            assert!(holds_files(&disk, &from), "{name}, byte {byte}");
            assert_eq!(
                to.decide(position(LAST, 3), Index(1)).unwrap(),
                Decision::Install
            );
        }
    }
}
