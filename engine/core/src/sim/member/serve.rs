//! Answering reads from the state machine.

use super::process::Process;
use super::{Actor, Machine};
use crate::kv::KeyValue;
use crate::replica::RequestError;
use crate::sim::client::{self, Outcome};
use crate::sim::queue::{MILLI, Nanos};
use crate::sim::surroundings::Surroundings;
use crate::types::Revision;
use bytes::Bytes;

/// A read that may be answered from what is applied here, once that has come to `after`.
#[derive(Clone, Debug)]
pub(in crate::sim) struct ReadJob {
    pub(in crate::sim) client: u64,
    pub(in crate::sim) attempt: u64,
    pub(in crate::sim) keys: Vec<String>,
    pub(in crate::sim) after: Revision,
    pub(in crate::sim) deadline: Nanos,
}

impl Process {
    /// Answers a read, or lets it wait a little longer.
    pub(super) fn serve(&self, sim: &mut Surroundings, machine: Machine, job: ReadJob) {
        let reader = self.applier.machine().reader();
        if !reader.revision().covers(job.after) {
            if sim.now < job.deadline {
                machine.plan(sim, MILLI, Actor::Serve(job));
            }
            return;
        }
        let revision = reader.revision();
        let found: Result<Vec<Option<KeyValue>>, _> = job
            .keys
            .iter()
            .map(|key| {
                let read = reader.get(&Bytes::from(key.clone()), Some(revision));
                read.map(|(_, found)| found)
            })
            .collect();
        let outcome = match found {
            Ok(found) => Outcome::Read(revision, found),
            Err(error) => Outcome::ReadRefused(RequestError::Storage(error.to_string())),
        };
        client::reply(sim, machine.id, (job.client, job.attempt), outcome);
    }
}
