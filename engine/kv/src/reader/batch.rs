//! Batches that change nothing: answered at one revision, without a log entry.

use std::ops::ControlFlow;

use bytes::Bytes;
use dengine_types::Revision;

use super::{ReadError, Reader};
use crate::scan::{Scan, Seen, find};
use crate::store::{Scope, Store};
use crate::view::{Get, Live, View, Visited};
use crate::visits::{VisitBounds, Visits};
use crate::{BATCH_READ_BYTES_MAX, Batch, BatchAnswer, KeyRange, KeyValue, Outcome};

/// The state at one revision.
struct StateAt<'r, S> {
    reader: &'r Reader<S>,
    at: Revision,
    visits: Visits,
    records: u64,
    buffer: Vec<u8>,
}

impl<S: Store> Reader<S> {
    /// The outcome that [`Command::Batch`](crate::Command::Batch) would have now; `None` if it
    /// would or might change something. The limits are those of a command.
    ///
    /// # Errors
    ///
    /// The read was stopped, or the storage fails.
    pub fn batch(&self, batch: &Batch) -> Result<Option<Outcome>, ReadError> {
        if !batch.reads_only() {
            return Ok(None);
        }
        loop {
            match self.batch_at(batch, self.revision()) {
                // The newest revision was compacted during the read, which takes a write and a
                // compaction: try again.
                Err(ReadError::Compacted { .. }) => {}
                done => return done.map(Some),
            }
        }
    }

    fn batch_at(&self, batch: &Batch, at: Revision) -> Result<Outcome, ReadError> {
        let mut state = StateAt {
            reader: self,
            at,
            visits: Visits::within(VisitBounds::ALL),
            records: 0,
            buffer: Vec::new(),
        };
        let succeeded = state.first_that_fails(&batch.compares)?.is_none();
        let operations = match succeeded {
            true => &batch.then,
            false => &batch.otherwise,
        };
        let mut room = BATCH_READ_BYTES_MAX;
        let mut answers: Vec<BatchAnswer> = Vec::with_capacity(operations.len());
        for get in operations.iter().filter_map(Get::of) {
            answers.push(state.get(get, &mut room)?);
        }
        Ok(match state.visits.check() {
            Ok(()) => Outcome::Batch {
                revision: at,
                succeeded,
                answers,
            },
            Err(refusal) => Outcome::Refused(refusal),
        })
    }
}

impl<S: Store> View for StateAt<'_, S> {
    type Error = ReadError;

    fn newest(&mut self, key: &Bytes, with_value: bool) -> Result<Option<KeyValue>, ReadError> {
        let mut cursor = self.reader.shared.store.cursor(Scope::OneKey);
        self.reader.check_compacted(self.at)?;
        let found = find(&mut cursor, &mut self.buffer, key, self.at);
        let found = self.reader.shared.reported(found)?;
        Ok(found.map(|found| found.to_key_value(key.clone(), with_value)))
    }

    fn visit_live(
        &mut self,
        keys: &KeyRange,
        mut visit: impl FnMut(&Live<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let scan = Scan::new(&self.reader.shared.store, keys);
        self.reader.check_compacted(self.at)?;
        let compacted = self.reader.compact_revision();
        let is_range = !matches!(keys, KeyRange::One(_));
        let mut stopped = false;
        let run = scan.run(self.at, |seen| {
            if !self.reader.goes_on(self.records) {
                stopped = true;
                return Ok(ControlFlow::Break(()));
            }
            self.records += 1;
            let visited = match seen {
                Seen::Live(found) => Visited::Live(Live::Stored(found.key()?, found)),
                Seen::Deleted { prefix, revision } => Visited::Deleted(prefix.len(), *revision),
                Seen::Later => return Ok(ControlFlow::Continue(())),
            };
            if is_range
                && let Some(bytes) = visited.cost_bytes(compacted)
                && self.visits.add(bytes).is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
            Ok(match &visited {
                Visited::Live(live) => visit(live),
                Visited::Deleted(..) => ControlFlow::Continue(()),
            })
        });
        self.reader.shared.reported(run)?;
        match stopped {
            true => Err(ReadError::Stopped {
                records: self.records,
            }),
            false => Ok(()),
        }
    }

    fn visits(&self) -> &Visits {
        &self.visits
    }
}
