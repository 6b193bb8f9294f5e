//! What a table has no column for, in a line for each result.

use dengine_bench_model::results::{Listing, RunResult, Settling};

use super::grouped;

/// What there is to say of a result beside its numbers; empty if nothing.
#[must_use]
pub fn note(result: &RunResult) -> String {
    let settled = result.settling.as_ref().map(settled);
    let listed = result.listing.as_ref().map(listed);
    settled
        .into_iter()
        .chain(listed)
        .collect::<Vec<_>>()
        .join("; ")
}

/// How long the servers took until they were idle.
pub(super) fn settled(settling: &Settling) -> String {
    let seconds = settling.total_seconds;
    match settling.idle {
        true => format!("servers were idle after {seconds:.0} s"),
        false => {
            format!("servers were still busy after {seconds:.0} s, when the wait was given up")
        }
    }
}

/// How often all keys were listed, and how long that took.
pub(super) fn listed(listing: &Listing) -> String {
    let (keys, lists) = (grouped(listing.keys), grouped(listing.lists));
    let (avg, max) = (listing.seconds_avg, listing.seconds_max);
    format!("{lists} lists of {keys} keys, {avg:.2} s on average and {max:.2} s at most")
}

/// The notes of several results, each behind its name.
pub(super) fn lines(results: &[RunResult]) -> String {
    let notes = results.iter().map(|result| (&result.name, note(result)));
    let some = notes.filter(|(_, note)| !note.is_empty());
    some.map(|(name, note)| format!("{name}: {note}\n"))
        .collect()
}
