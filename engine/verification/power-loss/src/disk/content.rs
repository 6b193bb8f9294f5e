//! The bytes of one file, and which of them are durable.

use std::collections::BTreeMap;

use super::coins::Coins;

/// What a disk writes at once or not at all.
pub const SECTOR_BYTES: usize = 512;

type Sector = [u8; SECTOR_BYTES];

/// Of what was overwritten and not synced any part may survive: for each sector any of the versions
/// that it had since. Of what was appended a first part survives, up to some sector.
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

    /// What is there after the power loss, all of it durable.
    pub(super) fn survivor(&self, coins: &mut Coins) -> Self {
        let before = self.durable.len();
        let mut bytes = self.durable.clone();
        let length = survivor(&self.lengths, coins).map_or(before, |length| *length);
        let appended = before / SECTOR_BYTES..length.div_ceil(SECTOR_BYTES);
        let whole = appended.start + appended.filter(|_| coins.toss()).count();
        bytes.resize(length.min(before.max(whole * SECTOR_BYTES)), 0);
        for (number, versions) in &self.sectors {
            let is_appended = bytes.len() > before && (number + 1) * SECTOR_BYTES > before;
            let sector = match is_appended {
                true => versions.last(),
                false => survivor(versions, coins),
            };
            if let Some(sector) = sector {
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

/// Each version reached the disk or did not; there is the newest that did. `None`: what was durable
/// before.
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
