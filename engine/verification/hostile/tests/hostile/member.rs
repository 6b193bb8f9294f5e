//! A member in a cgroup of its own, and the cluster of one or three.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use dengine_client::AdminClient;
use dengine_client::proto::StatusResponse;
use dengine_testkit::{Listen, Process, built_program, serve, without_settings};
use serde::{Deserialize, Serialize};

use crate::cgroup::{Bounds, Cgroup, Memory};

/// Each member's.
pub(crate) const MEMORY_BYTES: u64 = 512 << 20;
/// Longest wait for what takes well under a second.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The doors of a member.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Doors {
    pub(crate) client: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) monitor: SocketAddr,
    pub(crate) etcd: SocketAddr,
}

impl Doors {
    /// Those of a member that listens there.
    fn of(listen: &Listen) -> Self {
        Self {
            client: listen.client,
            peer: listen.peer,
            admin: listen.admin.expect("the member is of this release"),
            monitor: listen.monitor,
            etcd: listen.etcd.expect("it was asked for"),
        }
    }

    pub(crate) fn all(self) -> [SocketAddr; 5] {
        [self.client, self.peer, self.admin, self.monitor, self.etcd]
    }
}

/// One process in its cgroup. Killed, by its process id, when dropped.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) doors: Doors,
    pub(crate) log: PathBuf,
    process: Process,
    // Behind the process, which must have ended before it goes.
    cgroup: Cgroup,
}

impl Member {
    fn start(home: &Path, name: &str) -> Self {
        let bounds = Bounds {
            memory_bytes: MEMORY_BYTES,
            processors: None,
        };
        let cgroup = Cgroup::new(name, bounds);
        let log = home.join(format!("{name}.log"));
        let listen = Listen::free_with_etcd();
        let mut command = cgroup.command(&program());
        serve(&mut command, name, &listen, &home.join(name));
        Self {
            doors: Doors::of(&listen),
            process: Process::start(&mut command, &log),
            log,
            cgroup,
        }
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<String> {
        self.process.ended().map(|it| it.to_string())
    }

    pub(crate) fn killed_for_memory(&self) -> u64 {
        self.cgroup.killed_for_memory()
    }

    /// To look at its memory while somebody else has the member.
    pub(crate) fn memory(&self) -> Memory {
        self.cgroup.memory()
    }

    /// What it says of itself, if it answers.
    async fn status(&self) -> Option<StatusResponse> {
        let admin = AdminClient::connect(&self.doors.client.to_string()).await;
        admin.ok()?.status().await.ok()
    }
}

/// Who leads, since when, and who everybody is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lead {
    pub(crate) leader: u64,
    pub(crate) term: u64,
    pub(crate) cluster: u64,
    /// The leader's.
    pub(crate) folder: String,
}

/// Where the honest find the members.
#[derive(Clone, Debug)]
pub(crate) struct Endpoints {
    pub(crate) client: Vec<String>,
    pub(crate) etcd: Vec<String>,
}

/// All members, and the folder that they live in.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) members: Vec<Member>,
    _home: tempfile::TempDir,
}

impl Cluster {
    pub(crate) async fn form(size: usize) -> Self {
        let home = tempfile::TempDir::with_prefix_in("cluster-", crate::report::folder()).unwrap();
        let members: Vec<_> = (0..size)
            .map(|place| Member::start(home.path(), &format!("m{place}")))
            .collect();
        let cluster = Self {
            members,
            _home: home,
        };
        let mut init = Command::new(program());
        without_settings(&mut init);
        let endpoints = cluster.endpoints().client.join(",");
        let said = init.args(["init", "--endpoints", &endpoints]).output();
        let said = said.unwrap();
        assert!(said.status.success(), "dengine init: {said:?}");
        cluster.lead().await;
        cluster
    }

    pub(crate) fn endpoints(&self) -> Endpoints {
        let of = |door: fn(Doors) -> SocketAddr| -> Vec<String> {
            let members = self.members.iter();
            members.map(|it| door(it.doors).to_string()).collect()
        };
        Endpoints {
            client: of(|it| it.client),
            etcd: of(|it| it.etcd),
        }
    }

    /// Who leads, once all that answer agree; `None` if they do not in a long time.
    pub(crate) async fn try_lead(&self) -> Option<(usize, Lead)> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(found) = self.leads_now().await {
                return Some(found);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        None
    }

    /// Who leads, and its place.
    pub(crate) async fn lead(&self) -> (usize, Lead) {
        self.try_lead().await.expect("a cluster has a leader")
    }

    async fn leads_now(&self) -> Option<(usize, Lead)> {
        let mut leading = None;
        for (place, member) in self.members.iter().enumerate() {
            let status = member.status().await?;
            if !status.ready {
                return None;
            }
            if status.leader_id == status.member_id {
                let lead = Lead {
                    leader: status.leader_id,
                    term: status.term,
                    cluster: status.cluster_id,
                    folder: status.folder_id,
                };
                leading = Some((place, lead));
            }
        }
        leading
    }
}

/// The program under attack.
pub(crate) fn program() -> PathBuf {
    built_program("make hostile")
}
