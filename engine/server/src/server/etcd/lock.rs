//! etcd's `Lock` service.

use bytes::Bytes;
use dengine_etcd::contest::{ContestError, by_way_of_a_client};
use dengine_etcd::etcdserverpb::DeleteRangeRequest;
use dengine_etcd::v3lockpb::lock_server::Lock;
use dengine_etcd::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use tonic::{Request, Response, Status};

use super::contests::{Call, Contests, contest};
use super::door::ServedBy;
use crate::server::serving::Caller;

/// Serves locks.
pub(super) struct LockService {
    contests: Contests,
}

/// What a call of the service returns.
type Answer<T> = Result<Response<T>, Status>;

impl LockService {
    pub(super) fn new(contests: Contests) -> Self {
        Self { contests }
    }
}

#[tonic::async_trait]
impl Lock for LockService {
    async fn lock(&self, request: Request<LockRequest>) -> Answer<LockResponse> {
        let contests = &self.contests;
        contests.door.admit(request.metadata(), ServedBy::Voters)?;
        let call = Call::of(&request);
        let LockRequest { name, lease } = request.into_inner();
        let contest = contest(&name)?;
        // A part of the message keeps all of it.
        drop(name);
        let room = contests.room(&contest, &call)?;
        let lease = contests.lease(lease, &call.caller).await?;
        let entrant = (lease, Bytes::new());
        let claim = contests.enter("EtcdLock", &contest, entrant, (&call.caller, room));
        let (mut claim, _) = claim.await?;
        let lost = ContestError::SessionExpired;
        let waited = contests.wait(&contest, &mut claim, &call, lost).await?;
        let entered = claim.keep();
        Ok(Response::new(LockResponse {
            header: waited.or(entered.header),
            key: entered.contender.key,
        }))
    }

    async fn unlock(&self, request: Request<UnlockRequest>) -> Answer<UnlockResponse> {
        let door = &self.contests.door;
        door.admit(request.metadata(), ServedBy::Voters)?;
        let caller = Caller::of(&request);
        let delete = DeleteRangeRequest {
            key: request.into_inner().key,
            ..DeleteRangeRequest::default()
        };
        let deleted = door.change("EtcdUnlock", &delete, &caller).await;
        let (deleted, _) = deleted.map_err(|it| by_way_of_a_client(&it))?;
        Ok(Response::new(UnlockResponse {
            header: deleted.header,
        }))
    }
}
