//! No command reaches the log of a member that does not read it: that member would stop, and no
//! restart would help. Who was removed may meet one, from a leader that has not applied its
//! removal.

use std::collections::{BTreeMap, BTreeSet};

use dengine_kv::CommandVersion;
use dengine_types::{Entry, EntryKind, MemberId};

use super::{Invariant, Seen};

#[derive(Default)]
pub(super) struct CommandsAreRead {
    reads: BTreeMap<MemberId, CommandVersion>,
    removed: BTreeSet<MemberId>,
}

impl CommandsAreRead {
    fn on_appends(&self, member: MemberId, entries: &[Entry]) -> Result<(), String> {
        let Some(reads) = self.reads.get(&member).map(|it| it.number()) else {
            return Ok(());
        };
        let commands = entries.iter().filter(|it| it.kind == EntryKind::Command);
        let newest = commands.filter_map(|it| it.data.first()).max();
        match newest {
            Some(version) if *version > reads && !self.removed.contains(&member) => Err(format!(
                "{member} reads commands up to version {reads}, and gets one of version {version}"
            )),
            _ => Ok(()),
        }
    }
}

impl Invariant for CommandsAreRead {
    fn name(&self) -> &'static str {
        "commands are read"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        match seen {
            Seen::Starts {
                member, reads_max, ..
            } => {
                self.reads.insert(*member, *reads_max);
            }
            Seen::Members(membership) => {
                let known = self
                    .reads
                    .keys()
                    .filter(|id| **id <= membership.last_member_id);
                let gone = known.filter(|id| !membership.members.contains_key(id));
                self.removed.extend(gone);
            }
            Seen::Appends {
                member, entries, ..
            } => return self.on_appends(*member, entries),
            _ => {}
        }
        Ok(())
    }
}
