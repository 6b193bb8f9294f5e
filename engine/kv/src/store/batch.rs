//! A batch of writes in one buffer, instead of one allocation for each key and value.

use std::ops::Range;

use crate::layout::{Stamp, put_change_key};

/// How much memory an emptied batch keeps, for writes and for their places each.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Writes that become visible and durable together. Later ones override earlier ones.
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

#[derive(Clone, Debug)]
struct Span {
    key: Range<usize>,
    write: Write,
}

/// What happens at a key.
#[derive(Clone, Debug)]
enum Write {
    Put(Range<usize>),
    Delete,
    /// Deletes the keys from this one up to another, which is not deleted.
    DeleteTo(Range<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    Put {
        key: &'a [u8],
        value: &'a [u8],
    },
    /// Removes a key if it exists.
    Delete {
        key: &'a [u8],
    },
    /// Removes the keys of changes from one up to another, which stays.
    DeleteChanges {
        from: &'a [u8],
        to: &'a [u8],
    },
}

impl<'a> Operation<'a> {
    /// The key that it changes, or the first of them.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        match self {
            Self::Put { key, .. }
            | Self::Delete { key }
            | Self::DeleteChanges { from: key, .. } => key,
        }
    }
}

impl WriteBatch {
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.put_with(
            |bytes| bytes.extend_from_slice(key),
            |bytes| bytes.extend_from_slice(value),
        );
    }

    /// Sets a key; both parts are appended directly to the batch's buffer.
    pub fn put_with(&mut self, key: impl FnOnce(&mut Vec<u8>), value: impl FnOnce(&mut Vec<u8>)) {
        let key = self.append(key);
        let write = Write::Put(self.append(value));
        self.spans.push(Span { key, write });
    }

    /// Removes a key if it exists.
    pub fn delete(&mut self, key: &[u8]) {
        self.delete_with(|bytes| bytes.extend_from_slice(key));
    }

    /// Removes a key if it exists; the key is appended directly to the batch's buffer.
    pub fn delete_with(&mut self, key: impl FnOnce(&mut Vec<u8>)) {
        let key = self.append(key);
        let write = Write::Delete;
        self.spans.push(Span { key, write });
    }

    /// Removes the changes in this part of history: one record in the store, however many they are.
    /// But every read looks whether what it found lies in such a part: there are to be few.
    pub fn delete_changes(&mut self, places: Range<Stamp>) {
        let key = self.append(|out| put_change_key(out, places.start));
        let write = Write::DeleteTo(self.append(|out| put_change_key(out, places.end)));
        self.spans.push(Span { key, write });
    }

    /// The writes, in order.
    pub fn operations(&self) -> impl Iterator<Item = Operation<'_>> {
        self.spans.iter().map(|span| {
            let key = &self.bytes[span.key.clone()];
            match &span.write {
                Write::Put(value) => Operation::Put {
                    key,
                    value: &self.bytes[value.clone()],
                },
                Write::Delete => Operation::Delete { key },
                Write::DeleteTo(to) => Operation::DeleteChanges {
                    from: key,
                    to: &self.bytes[to.clone()],
                },
            }
        })
    }

    /// Removes all writes but the first `operations`, which had [`Self::size_bytes`] `bytes`
    /// together.
    pub(crate) fn truncate(&mut self, operations: usize, bytes: usize) {
        self.spans.truncate(operations);
        self.bytes.truncate(bytes);
    }

    /// Removes all writes, and keeps the memory for the next ones unless it is unusually much.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES_MAX);
        self.spans.clear();
        self.spans.shrink_to(KEPT_BYTES_MAX / size_of::<Span>());
    }

    /// The number of writes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Bytes of all keys and values.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The memory that a copy of it takes.
    pub(crate) fn copy_bytes(&self) -> usize {
        self.bytes.len() + self.spans.len() * size_of::<Span>()
    }

    fn append(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> Range<usize> {
        let start = self.bytes.len();
        fill(&mut self.bytes);
        start..self.bytes.len()
    }
}
