//! Answering reads from the state machine.

use bytes::Bytes;
use dengine_kv::KeyValue;
use dengine_raft::replica::RequestError;
use dengine_types::Revision;

use super::process::Process;
use super::{Actor, Machine};
use crate::client::{self, Outcome};
use crate::queue::{MILLI, Nanos};
use crate::surroundings::Surroundings;

/// A read that may be answered from what is applied here, once that has come to `after`.
#[derive(Clone, Debug)]
pub(crate) struct ReadJob {
    pub(crate) client: u64,
    pub(crate) attempt: u64,
    pub(crate) keys: Vec<String>,
    pub(crate) after: Revision,
    pub(crate) deadline: Nanos,
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
