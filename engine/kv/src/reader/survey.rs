//! What a command would visit: measured before it is proposed, where no limit that is part of its
//! meaning counts it.

use std::ops::ControlFlow;

use super::{ReadError, Reader};
use crate::scan::{Scan, Seen};
use crate::store::Store;
use crate::{KeyRange, RANGE_VISIT_BYTES_MAX, RANGE_VISIT_KEYS_MAX, Refusal};

/// So many times the limit of a command its ranges may hold in all: it does one of two lists of
/// operations, and both are surveyed.
const LISTS: usize = 2;

/// The content of ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Keys that were deleted and compacted, and still have to be stepped over: those that are not
    /// collected yet, and those whose records the storage has not merged away. They differ between
    /// members, so no [limit of a command](RANGE_VISIT_KEYS_MAX) may count them.
    pub gone: usize,
    /// All others, which the limit counts since [version 3](crate::CommandVersion::V3) of commands.
    pub keys: usize,
    /// Bytes of these and their values.
    pub bytes: usize,
}

impl Survey {
    /// Refuses a command that would visit all of this, by the limits of a counting command.
    ///
    /// # Errors
    ///
    /// It exceeds what one command may visit.
    pub fn check(&self) -> Result<(), Refusal> {
        self.check_lists(1)
    }

    /// Refuses a command that would visit too much whichever of its lists of operations is done.
    ///
    /// # Errors
    ///
    /// Its ranges hold more than two commands may visit.
    pub fn check_either(&self) -> Result<(), Refusal> {
        self.check_lists(LISTS)
    }

    fn check_lists(&self, lists: usize) -> Result<(), Refusal> {
        let fits = self.keys <= lists * RANGE_VISIT_KEYS_MAX
            && self.bytes <= lists * RANGE_VISIT_BYTES_MAX;
        fits.then_some(()).ok_or(Refusal::RangesTooLarge {
            keys_max: RANGE_VISIT_KEYS_MAX as u64,
            bytes_max: RANGE_VISIT_BYTES_MAX as u64,
        })
    }
}

impl<S: Store> Reader<S> {
    /// Measures these ranges. It ends soon after more than `gone_max` of their keys are gone, or
    /// once they hold more than [`Survey::check_either`] lets pass, and visits no more of each than
    /// a command may.
    ///
    /// # Errors
    ///
    /// The read was stopped, or the storage fails.
    pub fn survey(&self, ranges: &[KeyRange], gone_max: usize) -> Result<Survey, ReadError> {
        let (mut all, mut records) = (Survey::default(), 0);
        for keys in ranges {
            let mut own = Survey::default();
            let mut stopped = false;
            let scan = Scan::new(&self.shared.store, keys);
            let compacted = self.compact_revision();
            let run = scan.run(self.revision(), |seen| {
                stopped = !self.goes_on(records);
                records += 1;
                match seen {
                    Seen::Deleted { revision, .. } if *revision <= compacted => own.gone += 1,
                    Seen::Live(found) => {
                        own.keys += 1;
                        own.bytes += found.size_bytes(false);
                    }
                    Seen::Deleted { .. } | Seen::Later => own.keys += 1,
                }
                let is_enough = all.gone + own.gone > gone_max || own.check().is_err();
                Ok(match stopped || is_enough {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                })
            });
            let stepped_over = self.shared.reported(run)?;
            if stopped {
                return Err(ReadError::Stopped { records });
            }
            all.gone += own.gone + stepped_over;
            all.keys += own.keys;
            all.bytes += own.bytes;
            if all.gone > gone_max || all.check_either().is_err() {
                break;
            }
        }
        Ok(all)
    }
}
