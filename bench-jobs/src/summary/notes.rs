//! What a table has no column for, in a line for each result.

use dengine_bench_model::results::{RunResult, Settling};

/// What there is to say of a result beside its numbers; empty if nothing.
#[must_use]
pub fn note(result: &RunResult) -> String {
    let settled = result.settling.as_ref().map(settled);
    settled.into_iter().collect::<Vec<_>>().join("; ")
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

/// The notes of several results, each behind its name.
pub(super) fn lines(results: &[RunResult]) -> String {
    let notes = results.iter().map(|result| (&result.name, note(result)));
    let some = notes.filter(|(_, note)| !note.is_empty());
    some.map(|(name, note)| format!("{name}: {note}\n"))
        .collect()
}
