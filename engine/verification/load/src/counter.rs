//! A counter that one client counts up and others read.

use std::sync::Arc;

use dengine_checker::{Answer, Call, CallId, Expected, Level, Seen};
use dengine_client::{self as client, Client, Consistency, Error, GetResult, KeyValue};

use crate::Notes;

/// The key of the counter.
pub const COUNTER: &str = "counter";

/// Counts by compare-and-swap, so that a write of unknown outcome that arrives late changes
/// nothing.
pub(crate) async fn count(id: usize, client: Client, notes: Arc<Notes>) {
    while notes.goes_on() {
        if let Err((call, error)) = count_once(id, &client, &notes).await {
            notes.failed(call, &error).await;
        }
    }
}

async fn count_once(id: usize, client: &Client, notes: &Notes) -> Result<(), (CallId, Error)> {
    let found = get(id, client, notes).await?.kv;
    let value = (found.as_ref().map_or(0, number) + 1).to_string();
    let revision = found.map_or(0, |kv| kv.mod_revision);
    let call = notes.call(
        id,
        Call::CompareAndSwap {
            key: COUNTER.to_owned(),
            expected: Expected::ModRevision(revision),
            value: value.clone(),
            expires: false,
        },
    );
    let expected = client::Expected::ModRevision(revision);
    let swapped = client.compare_and_swap(COUNTER, expected, value).await;
    let swap = swapped.map_err(|error| (call, error))?;
    notes.answer(
        call,
        Answer::CompareAndSwap {
            revision: swap.header.revision,
            succeeded: swap.succeeded,
            previous: swap.previous.as_ref().map(seen),
        },
    );
    Ok(())
}

/// Reads it all the time.
pub(crate) async fn read(id: usize, client: Client, notes: Arc<Notes>) {
    while notes.goes_on() {
        match get(id, &client, &notes).await {
            Ok(_) => notes.told.lock().unwrap().reads += 1,
            Err((call, error)) => notes.failed(call, &error).await,
        }
    }
}

async fn get(id: usize, client: &Client, notes: &Notes) -> Result<GetResult, (CallId, Error)> {
    let call = notes.call(id, read_of(COUNTER));
    let read = client.get(COUNTER, Consistency::Linearizable).await;
    let read = read.map_err(|error| (call, error))?;
    notes.answer(
        call,
        Answer::Read {
            revision: read.header.revision,
            found: vec![read.kv.as_ref().map(seen)],
        },
    );
    Ok(read)
}

/// A linearizable read of one key.
pub(crate) fn read_of(key: &str) -> Call {
    Call::Read {
        keys: vec![key.to_owned()],
        level: Level::Linearizable,
    }
}

/// A pair as a history has it.
pub(crate) fn seen(kv: &KeyValue) -> Seen {
    Seen {
        value: text(&kv.value),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
    }
}

/// Loads write nothing but text.
pub(crate) fn text(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).unwrap().to_owned()
}

fn number(kv: &KeyValue) -> u64 {
    text(&kv.value).parse().unwrap()
}
