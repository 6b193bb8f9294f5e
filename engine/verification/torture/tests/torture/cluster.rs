//! The members together: forming, healing, replacing one, and comparing what they hold.

use std::future::Future;
use std::time::{Duration, Instant};

use dengine_client::proto::{AddLearnerRequest, JoinRequest, StatusResponse};
use dengine_client::{AdminClient, Client, ClientOptions};
use tempfile::TempDir;

use crate::member::Member;
use crate::network::Network;

/// Longest wait for what takes seconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);

const CLUSTER_ID: u64 = 77;

/// A cluster under torture.
pub(crate) struct Cluster {
    pub(crate) members: Vec<Member>,
    pub(crate) network: Network,
    pub(crate) home: TempDir,
}

impl Cluster {
    /// Starts the members and makes them one cluster.
    pub(crate) async fn form(network: Network, size: usize) -> Self {
        let home = TempDir::with_prefix("dengine-torture-").unwrap();
        let members = (0..size).map(|place| Member::new(&network, home.path(), place));
        let mut cluster = Self {
            members: members.collect(),
            network,
            home,
        };
        cluster.members.iter_mut().for_each(Member::start);
        cluster.bootstrap().await;
        for place in 1..size {
            cluster.join(place).await;
        }
        cluster
    }

    async fn bootstrap(&self) {
        let (admin, status) = self.reach(0).await;
        eventually("bootstrap", || async {
            admin
                .bootstrap(CLUSTER_ID, status.folder_id.clone())
                .await
                .ok()
        })
        .await;
    }

    /// Its `Admin` service and status, once it answers.
    async fn reach(&self, place: usize) -> (AdminClient, StatusResponse) {
        eventually("a member answers", || async {
            let admin = self.members[place].admin().await?;
            let status = admin.status().await.ok()?;
            Some((admin, status))
        })
        .await
    }

    /// Makes the stranger in a place a voter.
    async fn join(&self, place: usize) {
        let learner = self.add(place).await;
        let id = self.tell(place, learner).await;
        self.promote(id).await;
    }

    /// First step of joining: the cluster knows the stranger in a place as a learner.
    pub(crate) async fn add(&self, place: usize) -> JoinRequest {
        let (_, status) = self.reach(place).await;
        let addition = AddLearnerRequest {
            name: status.name,
            peer_address: status.peer_address,
            client_address: status.client_address,
            folder_id: status.folder_id.clone(),
        };
        let added = eventually("a learner is added", || async {
            self.leader_admin()
                .await?
                .add_learner(addition.clone())
                .await
                .ok()
        })
        .await;
        JoinRequest {
            cluster_id: added.cluster_id,
            member_id: added.member.unwrap().id,
            folder_id: status.folder_id,
        }
    }

    /// Second step of joining: the stranger is told who it is. Returns its id.
    pub(crate) async fn tell(&self, place: usize, learner: JoinRequest) -> u64 {
        eventually("it joins", || async {
            let newcomer = self.members[place].admin().await?;
            newcomer.join(learner.clone()).await.ok()
        })
        .await;
        learner.member_id
    }

    /// Last step of joining: a learner that has caught up votes.
    pub(crate) async fn promote(&self, id: u64) {
        eventually("it is promoted", || async {
            self.leader_admin().await?.promote(id).await.ok()
        })
        .await;
    }

    /// Who lives in a place.
    pub(crate) async fn id(&self, place: usize) -> u64 {
        eventually("a member says who it is", || async {
            let id = self.members[place].status().await?.member_id;
            (id != 0).then_some(id)
        })
        .await
    }

    /// Removes the member in a place; if it leads, it hands over first.
    pub(crate) async fn remove(&self, place: usize, id: u64) {
        eventually("a member is removed", || async {
            let admin = self.leader_admin().await?;
            if self.leader().await == Some(place) {
                let other = (place + 1) % self.members.len();
                let other = self.members[other].status().await?.member_id;
                admin.transfer_leader(other).await.ok()?;
            }
            self.leader_admin().await?.remove(id).await.ok()
        })
        .await;
    }

    /// Starts a stranger in one more place, which it returns.
    pub(crate) fn make_place(&mut self) -> usize {
        let place = self.members.len();
        let mut member = Member::new(&self.network, self.home.path(), place);
        member.start();
        self.members.push(member);
        place
    }

    /// The `Admin` service of whoever leads by its own word and that of a quorum.
    pub(crate) async fn leader_admin(&self) -> Option<AdminClient> {
        let leader = self.leader().await?;
        self.members[leader].admin().await
    }

    /// Where whoever leads lives.
    pub(crate) async fn leader(&self) -> Option<usize> {
        for (place, member) in self.members.iter().enumerate() {
            let Some(status) = soon(member.status()).await.flatten() else {
                continue;
            };
            if status.member_id != 0 && status.leader_id == status.member_id {
                return Some(place);
            }
        }
        None
    }

    /// Ends every fault.
    pub(crate) fn heal(&mut self) {
        self.network.heal();
        for member in &mut self.members {
            member.resume();
            member.empty_disk();
            if !member.runs() {
                member.start();
            }
        }
    }

    /// A client of every member.
    pub(crate) async fn client(&self, options: ClientOptions) -> Client {
        let endpoints: Vec<String> = self.members.iter().map(Member::address).collect();
        eventually("clients connect", || async {
            Client::connect_with(endpoints.clone(), options.clone())
                .await
                .ok()
        })
        .await
    }

    /// Waits until every member holds the same, as it does once nothing is under way.
    pub(crate) async fn is_equal(&self) {
        eventually("all members hold the same", || async {
            let mut all = Vec::new();
            for member in &self.members {
                let hash = member.admin().await?.hash().await.ok()?;
                all.push((
                    hash.applied_index,
                    hash.revision,
                    hash.compact_revision,
                    hash.hash,
                ));
            }
            all.windows(2).all(|pair| pair[0] == pair[1]).then_some(())
        })
        .await;
    }
}

/// Waits until `look` returns something; fails with `what` if it does not in time.
pub(crate) async fn eventually<T, F>(what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let begun = Instant::now();
    loop {
        if let Some(found) = soon(look()).await.flatten() {
            return found;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "{what}: not within {PATIENCE:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Gives up after seconds: a paused member never answers.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_secs(8), what)
        .await
        .ok()
}
