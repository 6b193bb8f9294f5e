//! File descriptors: a log or a store that finds none left ends its member, so there must be more of them than clients
//! can take.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises what this process may open to what the system lets it. Once, at the start of a program.
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    // A process may always raise its own limit so far; where it may not, the limit as it is is reckoned with.
    if current != maximum && setrlimit(Resource::Nofile, raised).is_err() {
        tracing::debug!(?current, ?maximum, "the limit of open files stays");
    }
}

/// How many files and connections this process may have open; `None`: any number.
pub(super) fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}
