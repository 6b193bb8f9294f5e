//! Batches that change nothing: answered at one revision, without a log entry.

use std::ops::ControlFlow;
use std::vec;

use bytes::Bytes;
use dengine_types::Revision;

use super::{ReadError, Reader};
use crate::scan::{Scan, find};
use crate::store::{Scope, Store};
use crate::view::{Get, Live, ReadRoom, View, Visited, check_past};
use crate::visits::{VisitBounds, Visits};
use crate::{
    BATCH_READ_BYTES_MAX, Batch, BatchAnswer, BatchOperation, KeyRange, KeyValue, Outcome, Refusal,
};

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
    /// would or might change something. The limits are those of a command, but that whole reads
    /// may return [`READER_BATCH_BYTES_MAX`](crate::READER_BATCH_BYTES_MAX): no other command waits
    /// for them.
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
                // compaction, or one of the past was, which is refused next time: try again.
                Err(ReadError::Compacted { .. }) => {}
                done => return done.map(Some),
            }
        }
    }

    fn batch_at(&self, batch: &Batch, at: Revision) -> Result<Outcome, ReadError> {
        let mut state = StateAt {
            reader: self,
            at,
            visits: Visits::within(VisitBounds::ALL).with_single_keys(batch.is_new()),
            records: 0,
            buffer: Vec::new(),
        };
        let mut verdicts = Vec::new();
        state.judge(batch, &mut verdicts)?;
        let mut operations = Vec::new();
        batch.add_chosen(&mut verdicts.iter().copied(), &mut operations);
        if let Err(refusal) = state
            .visits
            .check()
            .and(self.check_past_of(&operations, at))
        {
            return Ok(Outcome::Refused(refusal));
        }
        let mut rest = Rest {
            verdicts: verdicts.into_iter(),
            room: BATCH_READ_BYTES_MAX,
            read_room: ReadRoom::OF_READER,
        };
        let done = state.operations(batch, &mut rest)?;
        Ok(match done {
            Ok((succeeded, answers)) => Outcome::Batch {
                revision: at,
                succeeded,
                answers,
            },
            Err(refusal) => Outcome::Refused(refusal),
        })
    }

    /// Whether all revisions that are asked for can be read.
    fn check_past_of(
        &self,
        operations: &[&BatchOperation],
        current: Revision,
    ) -> Result<(), Refusal> {
        let compacted = self.compact_revision();
        let mut revisions = operations.iter().filter_map(|operation| match operation {
            BatchOperation::Range(read) => read.revision,
            _ => None,
        });
        revisions.try_for_each(|at| check_past(at, current, compacted))
    }
}

/// What is known of the operations that are left to do.
struct Rest {
    /// Whether the comparisons hold of each batch that is done.
    verdicts: vec::IntoIter<bool>,
    room: usize,
    read_room: ReadRoom,
}

impl<S: Store> StateAt<'_, S> {
    /// Visits what is live at `past`, or at the revision of the state.
    fn visit_at(
        &mut self,
        keys: &KeyRange,
        past: Option<Revision>,
        mut visit: impl FnMut(&Live<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let at = past.unwrap_or(self.at);
        let scan = Scan::at(&self.reader.shared.store, keys, past);
        self.reader.check_compacted(at)?;
        let compacted = self.reader.compact_revision();
        let is_counted = self.visits.counts(keys);
        let mut stopped = false;
        let run = scan.run(at, |seen| {
            if !self.reader.goes_on(self.records) {
                stopped = true;
                return Ok(ControlFlow::Break(()));
            }
            self.records += 1;
            let visited = Visited::of(seen)?;
            // What is later than the newest revision was written meanwhile; a command would not
            // meet it.
            let counts = is_counted && (past.is_some() || !matches!(visited, Visited::Later));
            if counts
                && let Some(bytes) = visited.cost_bytes(compacted)
                && self.visits.add(bytes).is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
            Ok(match &visited {
                Visited::Live(live) => visit(live),
                Visited::Deleted(..) | Visited::Later => ControlFlow::Continue(()),
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

    /// Does what the verdict says, and returns it with the answers.
    fn operations(
        &mut self,
        batch: &Batch,
        rest: &mut Rest,
    ) -> Result<Result<(bool, Vec<BatchAnswer>), Refusal>, ReadError> {
        let holds = rest.verdicts.next().expect("each batch was judged");
        let operations = batch.list(holds);
        let mut answers = Vec::with_capacity(operations.len());
        for operation in operations {
            let answer = match operation {
                BatchOperation::Batch(inner) => {
                    let done = self.operations(inner, rest)?;
                    done.map(|(succeeded, answers)| BatchAnswer::Batch { succeeded, answers })
                }
                BatchOperation::Range(read) => self.range(read, &mut rest.read_room)?,
                BatchOperation::Get { .. }
                | BatchOperation::Put(_)
                | BatchOperation::Delete { .. } => {
                    let get = Get::of(operation).expect("the batch only reads");
                    Ok(self.get(get, &mut rest.room)?)
                }
            };
            match self.visits.check().and(answer) {
                Ok(answer) => answers.push(answer),
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        Ok(Ok((holds, answers)))
    }
}

impl<S: Store> View for StateAt<'_, S> {
    type Error = ReadError;

    fn newest(&mut self, key: &Bytes, with_value: bool) -> Result<Option<KeyValue>, ReadError> {
        if let Some(known) = self.reader.shared.keys.get_at(key, self.at, with_value) {
            return Ok(known);
        }
        let mut cursor = self.reader.shared.store.cursor(Scope::OneKey);
        self.reader.check_compacted(self.at)?;
        let found = find(&mut cursor, &mut self.buffer, key, self.at);
        let found = self.reader.shared.reported(found)?;
        Ok(found.map(|found| found.to_key_value(key.clone(), with_value)))
    }

    fn visit_live(
        &mut self,
        keys: &KeyRange,
        visit: impl FnMut(&Live<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        self.visit_at(keys, None, visit)
    }

    fn visit_past(
        &mut self,
        keys: &KeyRange,
        at: Revision,
        visit: impl FnMut(&Live<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        self.visit_at(keys, Some(at), visit)
    }

    fn visits(&mut self) -> &mut Visits {
        &mut self.visits
    }
}
