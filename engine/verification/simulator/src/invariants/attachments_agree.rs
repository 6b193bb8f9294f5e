//! On every member, three records agree at all times: a live pair names a lease if and only if that
//! lease lists its key, and every lease that is named or listed exists.

use std::collections::BTreeMap;

use bytes::Bytes;
use dengine_types::LeaseId;

use super::{Invariant, Seen};

pub(super) struct AttachmentsAgree;

impl Invariant for AttachmentsAgree {
    fn name(&self) -> &'static str {
        "attachments agree"
    }

    fn see(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen::Leases {
            member,
            leases,
            pairs,
        } = seen
        else {
            return Ok(());
        };
        let listed: BTreeMap<_, Vec<_>> = leases.iter().cloned().collect();
        let mut named: BTreeMap<LeaseId, Vec<Bytes>> = BTreeMap::new();
        for kv in pairs.iter().filter(|kv| kv.lease != LeaseId::NONE) {
            named.entry(kv.lease).or_default().push(kv.key.clone());
        }
        for lease in listed.keys().chain(named.keys()) {
            let empty = Vec::new();
            let of_pairs = named.get(lease).unwrap_or(&empty);
            match listed.get(lease) {
                Some(keys) if keys == of_pairs => {}
                Some(keys) => {
                    return Err(format!(
                        "at {member}, lease {lease} lists {keys:?}, and {of_pairs:?} name it"
                    ));
                }
                None => {
                    return Err(format!(
                        "at {member}, {of_pairs:?} name lease {lease}, and there is none"
                    ));
                }
            }
        }
        Ok(())
    }
}
