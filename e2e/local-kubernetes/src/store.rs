//! What the API server keeps its objects in: one etcd, or three members of DEngine in its place.

use std::path::PathBuf;

use crate::components::{Component, Needs};
use crate::layout::Layout;
use crate::programs::Programs;
use crate::settings::Store;

/// A member of DEngine.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// Its name, and that of its program.
    pub name: &'static str,
    /// Each has an address of its own and the same ports there, as it would have on machines of
    /// their own: clients of etcd are told the other members at the port of the one that they ask.
    pub host: &'static str,
}

/// The members of DEngine.
pub const MEMBERS: [Member; 3] = [
    Member {
        name: "dengine-1",
        host: "127.0.0.1",
    },
    Member {
        name: "dengine-2",
        host: "127.0.0.2",
    },
    Member {
        name: "dengine-3",
        host: "127.0.0.3",
    },
];
/// DEngine's port for its own clients, which answers `dengine health`.
pub const CLIENT_PORT: u16 = 4100;
const PEER_PORT: u16 = 4101;
const MONITOR_PORT: u16 = 4102;
const ADMIN_PORT: u16 = 4103;
/// etcd's, which DEngine has as well.
const ETCD_PORT: u16 = 2379;
/// What forms the members into a cluster.
const INIT: &str = "dengine-init";

/// Its programs, in the order in which they are started.
pub(crate) fn components(store: &Store, layout: &Layout, programs: &Programs) -> Vec<Component> {
    match store {
        Store::Etcd => {
            let etcd = programs.path("etcd");
            vec![Component::new(
                "etcd",
                etcd,
                Needs::Nothing,
                etcd_arguments(layout),
            )]
        }
        Store::Dengine(_) => {
            let members = MEMBERS.iter().map(|member| {
                let program = layout.dengine_program();
                let arguments = member_arguments(*member, layout);
                Component::new(member.name, program, Needs::Nothing, arguments)
            });
            members.chain([init(layout)]).collect()
        }
    }
}

/// What must be there before the API server is started.
pub(crate) fn ready(store: &Store, layout: &Layout) -> Needs {
    match store {
        Store::Etcd => Needs::Tcp(([127, 0, 0, 1], ETCD_PORT).into()),
        Store::Dengine(_) => Needs::File(formed(layout)),
    }
}

/// Where the API server finds it: the value of its `--etcd-servers`.
pub(crate) fn servers(store: &Store) -> String {
    match store {
        Store::Etcd => format!("http://127.0.0.1:{ETCD_PORT}"),
        Store::Dengine(_) => MEMBERS
            .map(|member| format!("http://{}:{ETCD_PORT}", member.host))
            .join(","),
    }
}

/// The names of its programs, and so of its logs.
pub(crate) fn names(store: &Store) -> Vec<&'static str> {
    match store {
        Store::Etcd => vec!["etcd"],
        Store::Dengine(_) => {
            let members = MEMBERS.iter().map(|member| member.name);
            members.chain([INIT]).collect()
        }
    }
}

fn etcd_arguments(layout: &Layout) -> Vec<String> {
    vec![
        format!("--data-dir={}", layout.join("etcd").display()),
        "--listen-peer-urls=http://127.0.0.1:2380".into(),
        format!("--listen-client-urls=http://127.0.0.1:{ETCD_PORT}"),
        format!("--advertise-client-urls=http://127.0.0.1:{ETCD_PORT}"),
        // The cluster does not outlive the machine's boot, and the syncs of what runs on it should
        // have the disk.
        "--unsafe-no-fsync".into(),
    ]
}

fn member_arguments(member: Member, layout: &Layout) -> Vec<String> {
    let listen = |whom: &str, port: u16| format!("--listen-{whom}={}:{port}", member.host);
    vec![
        "serve".into(),
        format!("--name={}", member.name),
        format!("--data-dir={}", layout.join(member.name).display()),
        listen("client", CLIENT_PORT),
        listen("peer", PEER_PORT),
        listen("monitor", MONITOR_PORT),
        listen("admin", ADMIN_PORT),
        listen("etcd", ETCD_PORT),
        // As etcd's --unsafe-no-fsync above.
        "--durability=memory-first".into(),
        // The API server compacts, and fails where history is gone before it did.
        "--retention-revisions=0".into(),
        "--retention-seconds=0".into(),
        // It has a connection to each member and a watch stream for each kind of resource, and a
        // thousand kinds more are to fit. One address has at most half of the connections.
        "--max-connections=8192".into(),
        "--max-watch-streams=8192".into(),
        "--max-watch-streams-per-connection=2048".into(),
    ]
}

/// Waits for the members by itself, and finds nothing to do where they are a cluster.
fn init(layout: &Layout) -> Component {
    let endpoints = MEMBERS.map(|member| format!("{}:{ADMIN_PORT}", member.host));
    let arguments = vec![
        "init".into(),
        format!("--endpoints={}", endpoints.join(",")),
    ];
    let program = layout.dengine_program();
    Component::new(INIT, program, Needs::Nothing, arguments).once(formed(layout))
}

/// The file that says that the members form a cluster.
fn formed(layout: &Layout) -> PathBuf {
    layout.join("dengine-formed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_server_is_told_every_member_and_waits_until_they_are_a_cluster() {
        let (store, layout) = (Store::Dengine("dengine".into()), Layout::at("/state"));
        assert_eq!(
            servers(&store),
            "http://127.0.0.1:2379,http://127.0.0.2:2379,http://127.0.0.3:2379"
        );
        for member in MEMBERS {
            let etcd = format!("--listen-etcd={}:2379", member.host);
            assert!(member_arguments(member, &layout).contains(&etcd), "{etcd}");
        }
        let Needs::File(file) = ready(&store, &layout) else {
            panic!("listening is not enough");
        };
        assert_eq!(init(&layout).done, Some(file));
    }
}
