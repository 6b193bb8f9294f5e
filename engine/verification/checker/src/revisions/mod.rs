//! What revisions alone prove, over all keys and all levels of reads.
//!
//! Every change names the revision that it took, and every answer the revision as of which it is
//! true, so the order in which things took effect is written in the history; it only has to be
//! compared with real time ([`order`]) and with what was seen ([`content`]). Changes of unknown
//! outcome are the one gap: they are placed where some client saw them, and what they might explain
//! is not reported. So what is reported here is wrong for certain, while
//! [`linearizable`](super::linearizable) also finds the few cases in which each sighting alone
//! could be explained, but not all together.

mod content;
mod order;
mod timeline;

use super::history::History;
use super::prepare::prepare;
use super::violation::Violation;

/// Checks a whole history.
///
/// # Errors
/// The first guarantee that it breaks.
pub fn check(history: &History) -> Result<(), Violation> {
    let ready = prepare(history)?;
    let floors = order::real_time(history, &ready)?;
    order::sessions(history, &ready)?;
    let facts = timeline::Facts {
        history,
        ready: &ready,
        floors: &floors,
    };
    let taken = order::revisions_taken(&facts)?;
    content::check(&facts, &taken)
}
