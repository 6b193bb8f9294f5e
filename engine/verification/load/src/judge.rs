//! What came of a load.

use std::collections::BTreeMap;
use std::time::Duration;

use dengine_checker::linearizable::DEFAULT_STEPS;
use dengine_checker::{Answer, Summary, Violation, check};
use dengine_client::{Client, Error, KeyRange, RangeQuery};
use tokio::time::Instant;

use crate::counter::{read_of, seen, text};
use crate::{Notes, Told, longest_pause};

/// Keys that one read asks for.
const PAGE: usize = 2_000;
/// Who reads everything at the end.
const READER: usize = usize::MAX;

/// What came of a load, once everything that was acknowledged has been looked for.
#[derive(Debug)]
pub struct Outcome {
    /// Writes that were acknowledged.
    pub acknowledged: usize,
    /// Calls without an outcome.
    pub unknown: usize,
    /// Calls that failed, and did nothing.
    pub refused: usize,
    /// Keys whose acknowledged value is not there.
    pub lost: Vec<String>,
    /// The longest time in which no write was acknowledged.
    pub longest_pause: Duration,
    /// The first error that a client got.
    pub first_error: Option<String>,
    /// The first that neither could be retried nor left the outcome unknown.
    pub unexpected: Option<String>,
    /// What the checker says of all calls and answers.
    pub verdict: Result<Summary, Box<Violation>>,
}

/// Reads all keys that were ever written, page by page; each key's answer is one for the checker.
pub(crate) async fn read_everything(
    client: &Client,
    notes: &Notes,
) -> Result<BTreeMap<String, String>, Error> {
    let mut found = BTreeMap::new();
    let keys: Vec<String> = written(&notes.told.lock().unwrap());
    for page in keys.chunks(PAGE) {
        let (Some(first), Some(last)) = (page.first(), page.last()) else {
            continue;
        };
        let calls: Vec<_> = page
            .iter()
            .map(|key| notes.call(READER, read_of(key)))
            .collect();
        // Nobody else writes between these keys.
        let range = KeyRange::between(first.clone(), format!("{last}\0"));
        let read = client.range(RangeQuery::new(range)).await?;
        let mut pairs: BTreeMap<String, _> = (read.kvs.iter())
            .map(|kv| (text(&kv.key), seen(kv)))
            .collect();
        for (key, call) in page.iter().zip(calls) {
            let pair = pairs.remove(key);
            found.extend(pair.as_ref().map(|it| (key.clone(), it.value.clone())));
            let revision = read.header.revision;
            let found = vec![pair];
            notes.answer(call, Answer::Read { revision, found });
        }
    }
    Ok(found)
}

/// The writers' keys, those of unknown outcome included, in order.
fn written(told: &Told) -> Vec<String> {
    let operations = told.recorder.history().operations.iter();
    let mut keys: Vec<_> = operations
        .filter_map(|operation| match &operation.call {
            dengine_checker::Call::Put { key, .. } => Some(key.clone()),
            _ => None,
        })
        .collect();
    keys.sort_unstable();
    keys
}

pub(crate) fn judge(told: Told, found: &BTreeMap<String, String>, started: Instant) -> Outcome {
    let lost = told
        .acknowledged
        .iter()
        .filter(|(key, value)| found.get(*key) != Some(*value));
    Outcome {
        acknowledged: told.acknowledged.len(),
        unknown: told.unknown,
        refused: told.refused,
        lost: lost.map(|(key, _)| key.clone()).collect(),
        longest_pause: longest_pause(&told.at, started),
        first_error: told.first_error,
        unexpected: told.unexpected,
        verdict: check(&told.recorder.into_history(), DEFAULT_STEPS).map_err(Box::new),
    }
}
