//! What the API server keeps its objects in: one etcd, or three members of DEngine in its place, or
//! three of etcd for whoever compares.

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
/// Three members of etcd, at the same addresses.
const ETCD_MEMBERS: [Member; 3] = [
    Member {
        name: "etcd-1",
        ..MEMBERS[0]
    },
    Member {
        name: "etcd-2",
        ..MEMBERS[1]
    },
    Member {
        name: "etcd-3",
        ..MEMBERS[2]
    },
];
/// etcd's, for its other members.
const ETCD_PEER_PORT: u16 = 2380;

/// Its programs, in the order in which they are started.
pub(crate) fn components(store: &Store, layout: &Layout, programs: &Programs) -> Vec<Component> {
    match store {
        Store::Etcd => {
            let etcd = programs.path("etcd");
            vec![Component::new(
                "etcd",
                etcd,
                Needs::Nothing,
                etcd_arguments("etcd", "127.0.0.1", layout),
            )]
        }
        Store::EtcdOfThree => {
            let members = ETCD_MEMBERS.iter().map(|member| {
                let mut arguments = etcd_arguments(member.name, member.host, layout);
                arguments.extend(etcd_cluster(*member));
                let program = programs.path("etcd");
                Component::new(member.name, program, Needs::Nothing, arguments)
            });
            members.collect()
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
        Store::Etcd | Store::EtcdOfThree => Needs::Tcp(([127, 0, 0, 1], ETCD_PORT).into()),
        Store::Dengine(_) => Needs::File(formed(layout)),
    }
}

/// Where the API server finds it: the value of its `--etcd-servers`.
pub(crate) fn servers(store: &Store) -> String {
    match store {
        Store::Etcd => format!("http://127.0.0.1:{ETCD_PORT}"),
        // Both have members at the same addresses.
        Store::EtcdOfThree | Store::Dengine(_) => MEMBERS
            .map(|member| format!("http://{}:{ETCD_PORT}", member.host))
            .join(","),
    }
}

/// The names of its programs, and so of its logs.
pub(crate) fn names(store: &Store) -> Vec<&'static str> {
    let mut names = members(store);
    if let Store::Dengine(_) = store {
        names.push(INIT);
    }
    names
}

/// The names of those of its programs that run always.
pub(crate) fn members(store: &Store) -> Vec<&'static str> {
    let name = |member: &Member| member.name;
    match store {
        Store::Etcd => vec!["etcd"],
        Store::EtcdOfThree => ETCD_MEMBERS.iter().map(name).collect(),
        Store::Dengine(_) => MEMBERS.iter().map(name).collect(),
    }
}

fn etcd_arguments(name: &str, host: &str, layout: &Layout) -> Vec<String> {
    vec![
        format!("--data-dir={}", layout.join(name).display()),
        format!("--listen-peer-urls=http://{host}:{ETCD_PEER_PORT}"),
        format!("--listen-client-urls=http://{host}:{ETCD_PORT}"),
        format!("--advertise-client-urls=http://{host}:{ETCD_PORT}"),
        // The cluster does not outlive the machine's boot, and the syncs of what runs on it should
        // have the disk.
        "--unsafe-no-fsync".into(),
    ]
}

/// What makes a member one of three.
fn etcd_cluster(member: Member) -> [String; 3] {
    let url = |member: Member| format!("http://{}:{ETCD_PEER_PORT}", member.host);
    let all = ETCD_MEMBERS.map(|member| format!("{}={}", member.name, url(member)));
    [
        format!("--name={}", member.name),
        format!("--initial-advertise-peer-urls={}", url(member)),
        format!("--initial-cluster={}", all.join(",")),
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

    #[test]
    fn members_of_etcd_are_where_the_api_server_looks_and_know_each_other() {
        let servers = servers(&Store::EtcdOfThree);
        for (member, server) in ETCD_MEMBERS.into_iter().zip(servers.split(',')) {
            let arguments = etcd_arguments(member.name, member.host, &Layout::at("/state"));
            assert!(arguments.contains(&format!("--listen-client-urls={server}")));
            let [_, own, all] = etcd_cluster(member);
            let (_, url) = own.split_once('=').unwrap();
            assert!(all.contains(&format!("{}={url}", member.name)), "{all}");
        }
    }
}
