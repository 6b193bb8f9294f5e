//! etcd's `Maintenance` service: what a member tells of itself, merging its state, and handing over
//! the lead.

use std::sync::Arc;

use dengine_etcd::EtcdError;
use dengine_etcd::etcdserverpb::maintenance_server::Maintenance;
use dengine_etcd::etcdserverpb::{
    AlarmRequest, AlarmResponse, DefragmentRequest, DefragmentResponse, DowngradeRequest,
    DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse, MoveLeaderRequest,
    MoveLeaderResponse, SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse,
};
use dengine_etcd::maintenance::{self, MemberStatus};
use dengine_kv::Reader;
use dengine_protocol::checks::status::request_status;
use dengine_types::{MemberId, Revision};
use tokio::sync::Semaphore;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::door::{Door, ServedBy, is_learner};
use super::reads::refused;
use crate::connections::Source;
use crate::error::RequestError;
use crate::node::{NodeStatus, Role};
use crate::server::admin::AdminService;
use crate::server::serving::connection;
use crate::storage::RocksStore;

/// Two would read and write the same.
const MERGES_AT_ONCE: usize = 1;

/// Serves the care of this member.
pub(super) struct MaintenanceService {
    door: Door,
    /// Makes hashes, one at a time.
    admin: AdminService,
    /// Of those who have the state merged.
    merges: Arc<Semaphore>,
}

/// What a call of the service returns.
type Answer<T> = Result<Response<T>, Status>;

impl MaintenanceService {
    pub(super) fn new(door: Door, admin: AdminService) -> Self {
        Self {
            door,
            admin,
            merges: Arc::new(Semaphore::new(MERGES_AT_ONCE)),
        }
    }

    fn node_status(&self) -> NodeStatus {
        self.door.serving().node.status()
    }

    /// Of everything that this member has now.
    async fn hash_of_now(&self, client: &Source) -> Result<HashKvResponse, Status> {
        let hash = self.admin.hashed(Some(client), Reader::logical_hash);
        let hash = hash.await?;
        Ok(maintenance::hash_kv(self.door.header(), &hash))
    }

    /// Of the pairs of a revision.
    async fn hash_at(&self, revision: Revision, client: &Source) -> Result<HashKvResponse, Status> {
        let hash = move |reader: &Reader<RocksStore>| {
            let hash = reader.revision_hash(revision);
            hash.map(Ok).or_else(refused)
        };
        let hash = self.admin.hashed(Some(client), hash).await??;
        Ok(maintenance::hash_kv_at(self.door.header(), &hash))
    }
}

/// Whose disks are nearly full, as far as this member knows: its own.
fn low_on_space(status: &NodeStatus) -> Vec<MemberId> {
    status
        .low_on_space
        .then_some(status.member_id)
        .into_iter()
        .collect()
}

#[tonic::async_trait]
impl Maintenance for MaintenanceService {
    async fn alarm(&self, request: Request<AlarmRequest>) -> Answer<AlarmResponse> {
        self.door.admit(request.metadata(), ServedBy::Voters)?;
        let low = low_on_space(&self.node_status());
        let header = self.door.header();
        Ok(Response::new(maintenance::alarms(
            request.get_ref(),
            header,
            &low,
        )?))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Answer<StatusResponse> {
        let status = self.node_status();
        let member = MemberStatus {
            size_bytes: status.state_bytes,
            in_use_bytes: status.state_bytes,
            // By 0, which a member without a cluster would say, etcdctl divides.
            quota_bytes: (status.state_bytes + status.free_bytes.unwrap_or(0)).max(1),
            leader: status.leader.as_ref().map(|leader| leader.id),
            committed: status.commit_index,
            applied: status.applied_index,
            term: status.term,
            is_learner: is_learner(&status),
            low_on_space: low_on_space(&status),
        };
        Ok(Response::new(maintenance::status(
            self.door.header(),
            &member,
        )))
    }

    /// The store gives space back by itself, only later. Others are served meanwhile.
    async fn defragment(&self, request: Request<DefragmentRequest>) -> Answer<DefragmentResponse> {
        self.door.admit(request.metadata(), ServedBy::Voters)?;
        let place = Arc::clone(&self.merges).try_acquire_owned();
        let place = place.map_err(|_| EtcdError::TooManyRequests)?;
        let serving = self.door.serving();
        let (node, stop) = (serving.node.clone(), serving.stop.clone());
        // It goes on when its caller leaves, and so does its place; once the member stops, it ends
        // after the piece that it merges, and nobody waits here for that.
        let merging = serving.detach(async move {
            let merged = node.merge_state(stop).await;
            drop(place);
            merged
        });
        let merged = tokio::select! {
            merged = merging => merged.map_err(|_| EtcdError::Stopped)?,
            () = serving.stop.cancelled() => return Err(EtcdError::Stopped.into()),
        };
        match merged {
            Ok(()) => Ok(Response::new(DefragmentResponse::default())),
            Err(RequestError::Refused(_)) => Err(EtcdError::NoSpace.into()),
            Err(error) => Err(self.door.in_etcds_words(&request_status(&error))),
        }
    }

    async fn hash(&self, _: Request<HashRequest>) -> Answer<HashResponse> {
        Err(EtcdError::NotServed("Hash, of the bytes of its store: HashKV compares members").into())
    }

    async fn hash_kv(&self, request: Request<HashKvRequest>) -> Answer<HashKvResponse> {
        self.door.admit(request.metadata(), ServedBy::Voters)?;
        let client = connection(&request).source();
        let hashed = match maintenance::hash_revision(request.get_ref().revision) {
            None => self.hash_of_now(client).await,
            Some(revision) => self.hash_at(revision, client).await,
        };
        let hashed = hashed.map_err(|it| self.door.in_etcds_words(&it))?;
        Ok(Response::new(hashed))
    }

    type SnapshotStream = BoxStream<SnapshotResponse>;

    async fn snapshot(&self, _: Request<SnapshotRequest>) -> Answer<Self::SnapshotStream> {
        Err(EtcdError::NotServed("snapshots: a member is restored from the others").into())
    }

    async fn move_leader(&self, request: Request<MoveLeaderRequest>) -> Answer<MoveLeaderResponse> {
        self.door.admit_change_of_members()?;
        self.door.admit(request.metadata(), ServedBy::Voters)?;
        let status = self.node_status();
        if status.role != Role::Leader {
            return Err(EtcdError::NotLeader.into());
        }
        let to = MemberId(request.get_ref().target_id);
        let handed_over = self.door.serving().node.transfer_leader(to).await;
        match handed_over {
            Ok(_) => Ok(Response::new(MoveLeaderResponse::default())),
            Err(RequestError::Refused(_)) => Err(EtcdError::BadLeaderTransferee.into()),
            Err(_) => Err(EtcdError::Timeout.into()),
        }
    }

    async fn downgrade(&self, request: Request<DowngradeRequest>) -> Answer<DowngradeResponse> {
        let header = self.door.header();
        Ok(Response::new(maintenance::downgrade(
            request.get_ref(),
            header,
        )?))
    }
}
