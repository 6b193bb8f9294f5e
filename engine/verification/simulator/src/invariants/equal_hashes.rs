//! Members that have applied the same entries hold the same records, down to the byte.

use std::collections::BTreeMap;

use dengine_types::{Index, MemberId};

use super::{Invariant, Seen};

#[derive(Default)]
pub(super) struct EqualHashes {
    hashes: BTreeMap<Index, (u64, MemberId)>,
}

impl Invariant for EqualHashes {
    fn name(&self) -> &'static str {
        "equal hashes"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        if let Seen::LossAccepted { index, .. } = seen {
            self.hashes.split_off(&index.next());
        }
        let Seen::Applied {
            member,
            index,
            hash,
        } = seen
        else {
            return Ok(());
        };
        let (known, first) = *self.hashes.entry(*index).or_insert((*hash, *member));
        if known == *hash {
            Ok(())
        } else {
            Err(format!(
                "members {first} and {member} applied everything up to entry {index}, and hold \
                 different records"
            ))
        }
    }
}
