//! A member's id is never given to another one, not even after its removal: who was wiped must not
//! vote again as if it remembered.

use std::collections::BTreeMap;

use dengine_types::MemberId;

use super::{Invariant, Seen};

#[derive(Default)]
pub(super) struct MemberIdNeverReused {
    /// The folder that each id was given to.
    folders: BTreeMap<MemberId, String>,
}

impl Invariant for MemberIdNeverReused {
    fn name(&self) -> &'static str {
        "member id never reused"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen::Members(membership) = seen else {
            return Ok(());
        };
        for member in membership.members.values() {
            let folder = member.folder_id.clone();
            let first = self.folders.entry(member.id).or_insert(folder);
            if *first != member.folder_id {
                return Err(format!(
                    "id {} was given to {first} and then to {}",
                    member.id, member.folder_id
                ));
            }
        }
        Ok(())
    }
}
