//! A member in a cgroup of its own, and the cluster of one or three.

use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use dengine_client::{AdminClient, proto::StatusResponse};
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
}

impl Doors {
    fn free() -> Self {
        Self {
            client: free_port(),
            peer: free_port(),
            admin: free_port(),
            monitor: free_port(),
        }
    }

    pub(crate) fn all(self) -> [SocketAddr; 4] {
        [self.client, self.peer, self.admin, self.monitor]
    }
}

/// One process in its cgroup. Killed, by its process id, when dropped.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) doors: Doors,
    pub(crate) log: PathBuf,
    child: Child,
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
        let doors = Doors::free();
        let mut command = cgroup.command(&program());
        without_settings(&mut command);
        let child = command
            .args(["serve", "--name", name])
            .args(["--listen-client", &doors.client.to_string()])
            .args(["--listen-peer", &doors.peer.to_string()])
            .args(["--listen-admin", &doors.admin.to_string()])
            .args(["--listen-monitor", &doors.monitor.to_string()])
            .arg("--data-dir")
            .arg(home.join(name))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self {
            doors,
            log,
            child,
            cgroup,
        }
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<String> {
        self.child.try_wait().unwrap().map(|it| it.to_string())
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

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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
        let endpoints = cluster.endpoints().join(",");
        let said = init.args(["init", "--endpoints", &endpoints]).output();
        let said = said.unwrap();
        assert!(said.status.success(), "dengine init: {said:?}");
        cluster.lead().await;
        cluster
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        let address = |member: &Member| member.doors.client.to_string();
        self.members.iter().map(address).collect()
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

/// The program under attack: beside this one, where cargo puts both.
pub(crate) fn program() -> PathBuf {
    if let Some(named) = std::env::var_os("DENGINE_BIN") {
        return named.into();
    }
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap().join("dengine");
    assert!(
        built.exists(),
        "{} is missing: `make hostile` builds it, or DENGINE_BIN names another one",
        built.display()
    );
    built
}

/// The caller's own settings are not the member's.
fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DENGINE_")) {
        command.env_remove(name);
    }
}

/// A port that nobody listens on, below those that the system gives to outgoing connections.
fn free_port() -> SocketAddr {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 20_000;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    // Test programs that run at the same time begin far from each other.
    let begin = std::process::id().wrapping_mul(101);
    loop {
        let offset = begin.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(FIRST + offset).expect("below 30,000");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
