//! File descriptors: a log or a store that finds none left ends its member, so incoming work is
//! limited to a part of them.
//!
//! Of those that the process may have open at most ([`raise_limit`]), clients get three eighths,
//! the store's tables a quarter, peers a sixteenth, and the ports for people and for probes a
//! thirty-second each, if they want as many. The quarter that is left is for the log, for snapshots
//! and for connections that this member makes; of it, clients of etcd get a half, if they are
//! served.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises what this process may open to what the system lets it. Once, at the start of a program.
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    // A process may always raise its own limit so far; where it may not, the limit as it is is
    // reckoned with.
    if current != maximum && setrlimit(Resource::Nofile, raised).is_err() {
        tracing::debug!(?current, ?maximum, "the limit of open files stays");
    }
}

/// Who has files or connections open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Connections of clients.
    Clients,
    /// Connections of clients of etcd.
    EtcdClients,
    /// Connections of peers to this member.
    Peers,
    /// Connections to the admin port, or to the monitor port.
    SidePort,
    /// Tables of the store.
    Store,
}

/// How many of those that are wanted may be open.
pub(crate) fn most(of: Use, wanted: usize) -> usize {
    // `None`: any number.
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = part(of, descriptors).min(wanted);
    if most < wanted {
        tracing::warn!(
            ?of,
            wanted,
            most,
            descriptors,
            "fewer than wanted, for the process may open few files (ulimit -n)"
        );
    }
    most
}

fn part(of: Use, descriptors: u64) -> usize {
    let (parts, of_all) = match of {
        Use::Clients => (3, 8),
        Use::EtcdClients => (1, 8),
        Use::Store => (1, 4),
        Use::Peers => (1, 16),
        Use::SidePort => (1, 32),
    };
    let part = descriptors / of_all * parts;
    usize::try_from(part).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_left_for_what_must_always_find_some() {
        for descriptors in [64, 256, 1024, 1_048_576] {
            let ports = [Use::Clients, Use::Peers, Use::SidePort, Use::SidePort];
            let taken: usize = ports.map(|of| part(of, descriptors)).iter().sum();
            let taken = (taken + part(Use::Store, descriptors)) as u64;
            assert_eq!(taken, descriptors / 4 * 3, "{descriptors}");
            let more = part(Use::EtcdClients, descriptors) as u64;
            assert_eq!(taken + more, descriptors / 8 * 7, "{descriptors}");
        }
        assert_eq!(part(Use::SidePort, 8), 1, "one at least");
        assert!(part(Use::Clients, u64::MAX) > 1 << 40);
    }
}
