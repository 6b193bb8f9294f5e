//! What can be said of the operations of a batch, and of those within them.

use super::{Batch, BatchOperation, Compare, RangeRead};
use crate::KeyRange;

impl Batch {
    /// Whether neither list changes anything, whatever the result of the comparisons.
    #[must_use]
    pub fn reads_only(&self) -> bool {
        !self.any_operation(&|operation| match operation {
            BatchOperation::Put(_) | BatchOperation::Delete { .. } => true,
            BatchOperation::Get { .. } | BatchOperation::Range(_) | BatchOperation::Batch(_) => {
                false
            }
        })
    }

    /// Whether either list sets a key, so that it takes space.
    #[must_use]
    pub fn puts(&self) -> bool {
        self.any_operation(&|operation| matches!(operation, BatchOperation::Put(_)))
    }

    /// How many batches are within each other; 1 if there is none in this one.
    #[must_use]
    pub fn depth(&self) -> usize {
        let inner = self.inner().map(Self::depth);
        1 + inner.max().unwrap_or(0)
    }

    /// The memory of its parts besides the bytes that they were sent as.
    #[must_use]
    pub fn parts_bytes(&self) -> usize {
        let ranges = self.operations().map(|operation| match operation {
            BatchOperation::Range(_) => size_of::<RangeRead>(),
            BatchOperation::Batch(batch) => size_of::<Self>() + batch.parts_bytes(),
            _ => 0,
        });
        size_of::<Compare>() * self.compares.len()
            + size_of::<BatchOperation>() * (self.then.len() + self.otherwise.len())
            + ranges.sum::<usize>()
    }

    /// What is done if its comparisons hold, or do not.
    pub(crate) fn list(&self, holds: bool) -> &[BatchOperation] {
        match holds {
            true => &self.then,
            false => &self.otherwise,
        }
    }

    /// Adds all operations that are done, of the batches within it too, in their order. `verdicts`
    /// says for each of these batches whether its comparisons hold.
    pub(crate) fn add_chosen<'a>(
        &'a self,
        verdicts: &mut impl Iterator<Item = bool>,
        chosen: &mut Vec<&'a BatchOperation>,
    ) {
        let holds = verdicts.next().expect("each batch that is done was judged");
        for operation in self.list(holds) {
            match operation {
                BatchOperation::Batch(inner) => inner.add_chosen(verdicts, chosen),
                single => chosen.push(single),
            }
        }
    }

    /// The operations of both lists.
    fn operations(&self) -> impl Iterator<Item = &BatchOperation> {
        self.then.iter().chain(&self.otherwise)
    }

    fn inner(&self) -> impl Iterator<Item = &Self> {
        self.operations().filter_map(|operation| match operation {
            BatchOperation::Batch(batch) => Some(&**batch),
            _ => None,
        })
    }

    /// Whether there is such an operation, here or in a batch within this one.
    pub(crate) fn any_operation(&self, is_one: &impl Fn(&BatchOperation) -> bool) -> bool {
        self.operations().any(is_one) || self.inner().any(|batch| batch.any_operation(is_one))
    }

    /// Hands over what it compares, reads and deletes, and what the batches within it do.
    pub(super) fn for_each_range<'a>(&'a self, take: &mut impl FnMut(&'a KeyRange)) {
        self.compares.iter().for_each(|it| take(&it.keys));
        for operation in self.operations() {
            match operation {
                BatchOperation::Get { keys, .. } | BatchOperation::Delete { keys, .. } => {
                    take(keys);
                }
                BatchOperation::Range(read) => take(&read.keys),
                BatchOperation::Put(_) | BatchOperation::Batch(_) => {}
            }
        }
        self.inner().for_each(|batch| batch.for_each_range(take));
    }

    /// Hands over what it deletes and returns, and what the batches within it do.
    pub(super) fn for_each_returned<'a>(&'a self, take: &mut impl FnMut(&'a KeyRange)) {
        for operation in self.operations() {
            if let BatchOperation::Delete {
                keys,
                prev_kv: true,
            } = operation
            {
                take(keys);
            }
        }
        self.inner().for_each(|batch| batch.for_each_returned(take));
    }

    /// How many records it visits at most, as far as it names them.
    pub(super) fn records(&self) -> usize {
        let of_list = |list: &[BatchOperation]| {
            let each = list.iter().map(|operation| match operation {
                BatchOperation::Batch(batch) => 1 + batch.records(),
                _ => 1,
            });
            each.sum::<usize>()
        };
        self.compares.len() + of_list(&self.then).max(of_list(&self.otherwise))
    }
}
