//! State and care of one member, from plain numbers.

use dengine_kv::{LogicalHash, RevisionHash};
use dengine_types::{Index, MemberId, Revision, Term};

use crate::errors::EtcdError;
use crate::etcdserverpb::alarm_request::AlarmAction;
use crate::etcdserverpb::downgrade_request::DowngradeAction;
use crate::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DowngradeInfo, DowngradeRequest,
    DowngradeResponse, HashKvResponse, StatusResponse,
};
use crate::header::{Header, signed};

/// The version of etcd's API that is served. kube-apiserver asks for progress of watches, on which
/// its consistent lists rest, from 3.4.31 on, but not from 3.5.0 up to 3.5.12.
pub const API_VERSION: &str = "3.6.0";

/// The same, as etcd has it for a whole cluster.
const CLUSTER_VERSION: &str = "3.6";

/// What is known of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberStatus {
    /// On disk.
    pub size_bytes: u64,
    /// Of these, what is not waiting to be compacted.
    pub in_use_bytes: u64,
    /// What it may take.
    pub quota_bytes: u64,
    /// The leader, if it knows one.
    pub leader: Option<MemberId>,
    /// The last committed entry that it knows of.
    pub committed: Index,
    /// The last entry that it has applied.
    pub applied: Index,
    /// The present term.
    pub term: Term,
    /// It has no vote.
    pub is_learner: bool,
    /// The members whose disks are nearly full.
    pub low_on_space: Vec<MemberId>,
}

/// The status of a member.
#[must_use]
pub fn status(header: Header, status: &MemberStatus) -> StatusResponse {
    let without_leader = status.leader.is_none();
    let no_leader = without_leader.then(|| EtcdError::NoLeader.to_string());
    // As etcd prints them.
    let alarms = status.low_on_space.iter();
    let alarms = alarms.map(|id| format!("memberID:{id} alarm:NOSPACE "));
    StatusResponse {
        header: header.wire(),
        version: API_VERSION.into(),
        db_size: signed(status.size_bytes),
        leader: status.leader.map_or(0, |it| it.0),
        raft_index: status.committed.0,
        raft_term: status.term.0,
        raft_applied_index: status.applied.0,
        errors: no_leader.into_iter().chain(alarms).collect(),
        db_size_in_use: signed(status.in_use_bytes),
        is_learner: status.is_learner,
        storage_version: API_VERSION.into(),
        db_size_quota: signed(status.quota_bytes),
        downgrade_info: Some(DowngradeInfo::default()),
    }
}

/// The alarms there are: members whose disks are nearly full.
///
/// # Errors
/// They are to be changed: they follow from the disks.
pub fn alarms(
    request: &AlarmRequest,
    header: Header,
    low_on_space: &[MemberId],
) -> Result<AlarmResponse, EtcdError> {
    if request.action != i32::from(AlarmAction::Get) {
        return Err(EtcdError::NotServed(
            "alarms that are raised or cleared by hand: they follow from the disks",
        ));
    }
    let asked = [AlarmType::None, AlarmType::Nospace].map(i32::from);
    let no_space = low_on_space.iter().map(|id| AlarmMember {
        member_id: id.0,
        alarm: AlarmType::Nospace.into(),
    });
    Ok(AlarmResponse {
        header: header.wire(),
        alarms: no_space
            .filter(|_| asked.contains(&request.alarm))
            .collect(),
    })
}

/// The hash by which members are compared: equal between members of one cluster, never equal to
/// etcd's.
#[must_use]
pub fn hash_kv(header: Header, hash: &LogicalHash) -> HashKvResponse {
    HashKvResponse {
        header: header.at(hash.revision),
        hash: folded(hash.hash),
        compact_revision: signed(hash.compact_revision.0),
        hash_revision: signed(hash.revision.0),
    }
}

/// The same of the pairs of one revision.
#[must_use]
pub fn hash_kv_at(header: Header, hash: &RevisionHash) -> HashKvResponse {
    HashKvResponse {
        header: header.at(hash.newest),
        hash: folded(hash.hash),
        compact_revision: signed(hash.compact_revision.0),
        hash_revision: signed(hash.revision.0),
    }
}

/// Of which revision to hash the pairs; `None`: everything, as it is now.
#[must_use]
pub fn hash_revision(revision: i64) -> Option<Revision> {
    let revision = u64::try_from(revision).ok()?;
    (revision != 0).then_some(Revision(revision))
}

/// All bits of a hash in half of them.
fn folded(hash: u64) -> u32 {
    let halves = (hash ^ (hash >> 32)) & u64::from(u32::MAX);
    u32::try_from(halves).unwrap_or(u32::MAX)
}

/// No version of the cluster can be lowered.
///
/// # Errors
/// Always, unless there is nothing to be done.
pub fn downgrade(
    request: &DowngradeRequest,
    header: Header,
) -> Result<DowngradeResponse, EtcdError> {
    match DowngradeAction::try_from(request.action) {
        Ok(DowngradeAction::Validate | DowngradeAction::Enable) => {
            Err(match is_version(&request.version) {
                true => EtcdError::InvalidDowngradeTargetVersion,
                false => EtcdError::WrongDowngradeVersionFormat,
            })
        }
        // etcd answers so too when there is none.
        Ok(DowngradeAction::Cancel) => Ok(DowngradeResponse {
            header: header.wire(),
            version: CLUSTER_VERSION.into(),
        }),
        Err(_) => Err(EtcdError::NotServed("this kind of downgrade")),
    }
}

/// `3.5` or `3.5.1`.
fn is_version(text: &str) -> bool {
    let numbers: Vec<_> = text.split('.').map(str::parse::<u64>).collect();
    (2..=3).contains(&numbers.len()) && numbers.iter().all(Result::is_ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_names_what_is_wrong() {
        let healthy = MemberStatus {
            size_bytes: 10,
            in_use_bytes: 8,
            leader: Some(MemberId(2)),
            ..MemberStatus::default()
        };
        let response = status(Header::default(), &healthy);
        assert_eq!(response.version, "3.6.0");
        assert_eq!((response.db_size, response.db_size_in_use), (10, 8));
        assert_eq!(response.leader, 2);
        assert!(response.errors.is_empty());
        let ill = MemberStatus {
            leader: None,
            low_on_space: vec![MemberId(3)],
            ..healthy
        };
        let response = status(Header::default(), &ill);
        assert_eq!(response.leader, 0);
        let expect = ["etcdserver: no leader", "memberID:3 alarm:NOSPACE "];
        assert_eq!(response.errors, expect);
    }

    #[test]
    fn alarms_are_read_and_follow_from_the_disks() {
        let ask = |action: AlarmAction, alarm: AlarmType| -> Result<Vec<u64>, EtcdError> {
            let request = AlarmRequest {
                action: action.into(),
                member_id: 0,
                alarm: alarm.into(),
            };
            let found = alarms(&request, Header::default(), &[MemberId(3)])?;
            Ok(found.alarms.iter().map(|it| it.member_id).collect())
        };
        let get = AlarmAction::Get;
        assert_eq!(ask(get, AlarmType::None), Ok(vec![3]));
        assert_eq!(ask(get, AlarmType::Nospace), Ok(vec![3]));
        assert_eq!(ask(get, AlarmType::Corrupt), Ok(vec![]));
        let cleared = ask(AlarmAction::Deactivate, AlarmType::Nospace);
        assert!(matches!(cleared, Err(EtcdError::NotServed(_))));
    }

    #[test]
    fn all_bits_of_a_hash_count() {
        let hash = |hash| {
            let hash = LogicalHash {
                applied_index: Index(1),
                revision: Revision(9),
                compact_revision: Revision(4),
                hash,
            };
            hash_kv(Header::default(), &hash)
        };
        assert_eq!(hash(0x0000_0001_0000_0002).hash, 3);
        let response = hash(1);
        assert_eq!(response.header.unwrap().revision, 9);
        assert_eq!((response.compact_revision, response.hash_revision), (4, 9));
        let response = hash_kv_at(
            Header::default(),
            &RevisionHash {
                revision: Revision(7),
                newest: Revision(9),
                compact_revision: Revision(4),
                hash: 0x0000_0001_0000_0002,
            },
        );
        assert_eq!((response.header.unwrap().revision, response.hash), (9, 3));
        assert_eq!((response.compact_revision, response.hash_revision), (4, 7));
        assert_eq!(hash_revision(-1), None);
        assert_eq!(hash_revision(0), None);
        assert_eq!(hash_revision(3), Some(Revision(3)));
    }

    #[test]
    fn nothing_is_downgraded() {
        let ask = |action: i32, version: &str| {
            let request = DowngradeRequest {
                action,
                version: version.into(),
            };
            downgrade(&request, Header::default()).map(|it| it.version)
        };
        let invalid = Err(EtcdError::InvalidDowngradeTargetVersion);
        let wrong = Err(EtcdError::WrongDowngradeVersionFormat);
        assert_eq!(ask(0, "3.5"), invalid);
        assert_eq!(ask(1, "3.5.1"), invalid);
        assert_eq!(ask(0, "3"), wrong);
        assert_eq!(ask(1, "x.y"), wrong);
        assert_eq!(ask(2, ""), Ok("3.6".into()));
        assert!(matches!(ask(3, ""), Err(EtcdError::NotServed(_))));
    }
}
