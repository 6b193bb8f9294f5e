//! Leases in the model: which keys are attached to one is asked of all keys.

use bytes::Bytes;
use dengine_types::{Index, LeaseId, Revision};

use super::Model;
use crate::{Command, KeyRange, LeaseCheckpoint, LeaseEnd, LeaseInfo, Outcome, PutLease, Refusal};

#[derive(Clone, Copy)]
pub(super) struct ModelLease {
    ttl_ms: u64,
    remaining_ms: u64,
    /// The entry that last changed it.
    pub(super) touched: u64,
}

impl ModelLease {
    pub(super) fn info(self, id: LeaseId) -> LeaseInfo {
        LeaseInfo {
            id,
            ttl_ms: self.ttl_ms,
            remaining_ms: self.remaining_ms,
            touched: Index(self.touched),
            dying: false,
        }
    }
}

impl Model {
    /// The keys that are attached to a lease.
    pub(super) fn attached(&self, lease: LeaseId) -> Vec<Bytes> {
        let mut now = self.now(&KeyRange::From(Bytes::new()));
        now.retain(|kv| kv.lease == lease);
        now.into_iter().map(|kv| kv.key).collect()
    }

    pub(super) fn refuses_put(&self, key: &Bytes, lease: PutLease) -> Option<Refusal> {
        match lease {
            PutLease::Attach(lease) if !self.leases.contains_key(&lease) => {
                Some(Refusal::LeaseNotFound(lease))
            }
            PutLease::Keep if self.get(key, self.revision).is_none() => Some(Refusal::KeyNotFound),
            _ => None,
        }
    }

    pub(super) fn lease_command(&mut self, index: u64, command: &Command) -> Outcome {
        match command {
            Command::GrantLease { lease, ttl_ms } => self.grant(index, *lease, *ttl_ms),
            Command::RevokeLease { lease } => match self.leases.contains_key(lease) {
                true => self.end(*lease),
                false => Outcome::Refused(Refusal::LeaseNotFound(*lease)),
            },
            Command::ExpireLease { lease, seen } => {
                let found = self.leases.get(lease);
                if found.is_some_and(|found| Index(found.touched) == *seen) {
                    return self.end(*lease);
                }
                Outcome::LeaseEnded {
                    lease: *lease,
                    revision: Revision(self.revision),
                    deleted: 0,
                    end: LeaseEnd::NotDone,
                }
            }
            Command::CheckpointLeases { leases } => {
                let recorded = leases.iter().filter_map(|it| self.checkpoint(index, *it));
                Outcome::LeasesCheckpointed {
                    leases: recorded.collect(),
                }
            }
            other => panic!("{other:?} is not about a lease"),
        }
    }

    fn grant(&mut self, index: u64, lease: LeaseId, ttl_ms: u64) -> Outcome {
        if lease == LeaseId::NONE {
            return Outcome::Refused(Refusal::LeaseNotFound(lease));
        }
        if self.leases.contains_key(&lease) {
            return Outcome::Refused(Refusal::LeaseExists(lease));
        }
        let granted = ModelLease {
            ttl_ms,
            remaining_ms: ttl_ms,
            touched: index,
        };
        self.leases.insert(lease, granted);
        let revision = Revision(self.revision);
        Outcome::LeaseGranted {
            lease,
            ttl_ms,
            revision,
        }
    }

    fn end(&mut self, lease: LeaseId) -> Outcome {
        let keys = self.attached(lease);
        for key in &keys {
            self.change(key, |_| None);
        }
        self.leases.remove(&lease);
        Outcome::LeaseEnded {
            lease,
            revision: Revision(self.revision),
            deleted: keys.len() as u64,
            end: LeaseEnd::Gone,
        }
    }

    fn checkpoint(&mut self, index: u64, checkpoint: LeaseCheckpoint) -> Option<LeaseCheckpoint> {
        let found = self.leases.get_mut(&checkpoint.lease);
        let found = found.filter(|found| Index(found.touched) == checkpoint.seen)?;
        found.remaining_ms = checkpoint.remaining_ms.min(found.ttl_ms);
        found.touched = index;
        Some(LeaseCheckpoint {
            remaining_ms: found.remaining_ms,
            ..checkpoint
        })
    }
}
