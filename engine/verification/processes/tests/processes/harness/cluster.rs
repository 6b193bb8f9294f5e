//! Several members that form a cluster.

use std::process::Output;

use dengine_client::{Client, ClientOptions, RetryPolicy};
use tempfile::TempDir;

use super::{Member, PATIENCE, dengine, eventually, scratch};

/// Members in a folder of their own. They end before the folder goes.
pub(crate) struct Cluster {
    pub(crate) members: Vec<Member>,
    pub(crate) home: TempDir,
}

impl Cluster {
    /// Starts `size` members and forms them into a cluster with `dengine init`.
    pub(crate) async fn form(size: usize) -> Self {
        Self::form_with(size, |_| {}).await
    }

    /// The same, with each member changed before its first start.
    pub(crate) async fn form_with(size: usize, change: impl Fn(&mut Member)) -> Self {
        Self::form_by(size, change, &[]).await
    }

    /// The same, with further flags of `dengine init`.
    pub(crate) async fn form_by(size: usize, change: impl Fn(&mut Member), flags: &[&str]) -> Self {
        let mut cluster = Self::start(size, change);
        let output = cluster.init_with(flags);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complained = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "dengine init: {said}{complained}");
        for member in &mut cluster.members {
            member.ready().await;
        }
        cluster
    }

    /// Starts `size` members that wait.
    pub(crate) fn start(size: usize, change: impl Fn(&mut Member)) -> Self {
        let home = scratch();
        let mut members = Vec::new();
        for place in 0..size {
            let mut member = Member::new(home.path(), &format!("m{place}"));
            change(&mut member);
            member.start();
            members.push(member);
        }
        Self { members, home }
    }

    /// Runs `dengine init` on all members.
    pub(crate) fn init(&self) -> Output {
        self.init_with(&[])
    }

    /// The same, with further flags.
    pub(crate) fn init_with(&self, flags: &[&str]) -> Output {
        let endpoints = self.endpoints().join(",");
        dengine()
            .args(["init", "--endpoints", &endpoints])
            .args(flags)
            .output()
            .unwrap()
    }

    /// Client addresses of all members.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Member::address).collect()
    }

    /// A client of the whole cluster that rides out elections.
    pub(crate) async fn client(&self) -> Client {
        let endpoints = self.endpoints();
        eventually("the cluster accepts clients", || async {
            Client::connect_with(endpoints.clone(), ClientOptions::default())
                .await
                .ok()
        })
        .await
    }

    /// A client of the whole cluster that goes on trying for longer than any test kills anybody.
    pub(crate) async fn patient_client(&self) -> Client {
        let options = ClientOptions {
            connections: self.members.len(),
            request_timeout: PATIENCE,
            retry: RetryPolicy {
                retries_max: 10_000,
                ..RetryPolicy::STANDARD
            },
            ..ClientOptions::default()
        };
        let endpoints = self.endpoints();
        eventually("the cluster accepts clients", || async {
            Client::connect_with(endpoints.clone(), options.clone())
                .await
                .ok()
        })
        .await
    }

    /// Which running member leads, by its own word and that of a quorum.
    pub(crate) async fn leader(&self) -> usize {
        eventually("the cluster has a leader", || async {
            for (place, member) in self.members.iter().enumerate() {
                let Ok(admin) = dengine_client::AdminClient::connect(&member.address()).await
                else {
                    continue;
                };
                let Ok(status) = admin.status().await else {
                    continue;
                };
                let leads = status.member_id != 0 && status.leader_id == status.member_id;
                if leads && admin.members().await.is_ok() {
                    return Some(place);
                }
            }
            None
        })
        .await
    }

    /// Some member that does not lead.
    pub(crate) async fn follower(&self) -> usize {
        let leader = self.leader().await;
        (leader + 1) % self.members.len()
    }
}
