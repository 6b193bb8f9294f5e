//! The bytes of one file, and which of them are durable.

use super::coins::Coins;
use std::collections::BTreeMap;

/// What a disk writes at once or not at all.
pub const SECTOR_BYTES: usize = 512;

type Sector = [u8; SECTOR_BYTES];

/// Of everything that was not synced any part may survive: for each sector any of the versions that it had since,
/// and any of the lengths. What lies between sectors that survived is zero.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    current: Vec<u8>,
    durable: Vec<u8>,
    /// What each sector was since the last sync, the newest last.
    sectors: BTreeMap<usize, Vec<Sector>>,
    /// The same for the length.
    lengths: Vec<usize>,
}

impl Content {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.current
    }

    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.current.len() < end {
            self.set_length(end);
        }
        self.current[offset..end].copy_from_slice(bytes);
        self.note(offset, end);
    }

    /// What is cut off reads as zeros if the file grows again.
    pub(super) fn set_length(&mut self, length: usize) {
        let before = self.current.len();
        if length == before {
            return;
        }
        if length < before {
            self.current[length..].fill(0);
            self.note(length, before);
        }
        self.current.resize(length, 0);
        self.lengths.push(length);
    }

    pub(super) fn sync(&mut self) {
        self.durable.resize(self.current.len(), 0);
        for (number, _) in std::mem::take(&mut self.sectors) {
            let sector = sector_at(&self.current, number);
            put_sector(&mut self.durable, number, &sector);
        }
        self.lengths.clear();
    }

    /// What is there after the power was gone, all of it durable.
    pub(super) fn survivor(&self, coins: &mut Coins) -> Self {
        let mut bytes = self.durable.clone();
        if let Some(length) = survivor(&self.lengths, coins) {
            bytes.resize(*length, 0);
        }
        for (number, versions) in &self.sectors {
            if let Some(sector) = survivor(versions, coins) {
                put_sector(&mut bytes, *number, sector);
            }
        }
        Self {
            current: bytes.clone(),
            durable: bytes,
            ..Self::default()
        }
    }

    /// Remembers the sectors of these bytes as they are now.
    fn note(&mut self, from: usize, to: usize) {
        for number in from / SECTOR_BYTES..to.div_ceil(SECTOR_BYTES) {
            let sector = sector_at(&self.current, number);
            self.sectors.entry(number).or_default().push(sector);
        }
    }
}

/// Each version reached the disk or did not; there is the newest that did. `None`: what was durable before.
fn survivor<'a, T>(versions: &'a [T], coins: &mut Coins) -> Option<&'a T> {
    versions.iter().rev().find(|_| coins.toss())
}

/// Padded with zeros behind the end.
fn sector_at(bytes: &[u8], number: usize) -> Sector {
    let mut sector = [0; SECTOR_BYTES];
    let bytes = bytes.get(number * SECTOR_BYTES..).unwrap_or_default();
    let length = bytes.len().min(SECTOR_BYTES);
    sector[..length].copy_from_slice(&bytes[..length]);
    sector
}

/// As much of it as lies before the end.
fn put_sector(bytes: &mut [u8], number: usize, sector: &Sector) {
    let bytes = bytes.get_mut(number * SECTOR_BYTES..).unwrap_or_default();
    let length = bytes.len().min(SECTOR_BYTES);
    bytes[..length].copy_from_slice(&sector[..length]);
}
