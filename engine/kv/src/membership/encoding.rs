//! Membership and its changes as protobuf messages, in the log and in the store.

use bytes::{BufMut, Bytes, BytesMut};
use dengine_types::{ClusterId, MemberId, Revision};
use prost::Message as _;

use super::{MEMBER_ID_MAX, Member, Membership, MembershipChange};
use crate::StoreError;

/// The highest version of changes that this program reads. As with [commands](crate::command),
/// every new field or kind needs a new version; a change is written in the oldest that has all of
/// it. Version 2: a cluster may begin at another revision than 1.
pub const CHANGE_VERSION: u8 = 2;
/// The version of all others.
const CHANGE_VERSION_OLDEST: u8 = 1;

/// Why bytes are not a membership, or not a change of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record does not hold a membership: {0}")]
pub struct MembershipDecodeError(String);

impl MembershipChange {
    /// Encodes the data of a log entry.
    #[must_use]
    pub fn encode(self) -> Bytes {
        let version = match &self {
            Self::Bootstrap { first_revision, .. } if *first_revision != Revision(1) => {
                CHANGE_VERSION
            }
            _ => CHANGE_VERSION_OLDEST,
        };
        let record = ChangeRecord {
            kind: Some(self.into()),
        };
        let mut data = BytesMut::with_capacity(1 + record.encoded_len());
        data.put_u8(version);
        record
            .encode(&mut data)
            .expect("a growing buffer takes every message");
        data.freeze()
    }

    /// Decodes the data of a log entry.
    ///
    /// # Errors
    ///
    /// The outer one if a newer program wrote it, the inner one if it is not a change at all.
    pub fn decode(data: &[u8]) -> Result<Result<Self, MembershipDecodeError>, StoreError> {
        match data.split_first() {
            None | Some((0, _)) => Ok(Err(malformed("no version"))),
            // Every version from the first on.
            Some((CHANGE_VERSION_OLDEST..=CHANGE_VERSION, record)) => {
                Ok(Self::decode_record(record))
            }
            Some((&found, _)) => Err(StoreError::NewerFormat {
                what: "a membership change in the log",
                found: u32::from(found),
                supported: u32::from(CHANGE_VERSION),
            }),
        }
    }

    fn decode_record(record: &[u8]) -> Result<Self, MembershipDecodeError> {
        let record = ChangeRecord::decode(record).map_err(malformed)?;
        match record.kind.ok_or_else(|| malformed("no kind"))? {
            ChangeKind::Bootstrap(it) => Ok(Self::Bootstrap {
                cluster_id: ClusterId(it.cluster_id),
                member: it.member.ok_or_else(|| malformed("no member"))?.into(),
                first_revision: Revision(it.first_revision.unwrap_or(1)),
            }),
            ChangeKind::AddLearner(member) => Ok(Self::AddLearner(member.into())),
            ChangeKind::Promote(id) => Ok(Self::Promote(MemberId(id))),
            ChangeKind::Remove(id) => Ok(Self::Remove(MemberId(id))),
        }
    }
}

impl From<MembershipChange> for ChangeKind {
    fn from(change: MembershipChange) -> Self {
        match change {
            MembershipChange::Bootstrap {
                cluster_id,
                member,
                first_revision: Revision(first),
            } => Self::Bootstrap(BootstrapRecord {
                cluster_id: cluster_id.0,
                member: Some(member.into()),
                first_revision: (first != 1).then_some(first),
            }),
            MembershipChange::AddLearner(member) => Self::AddLearner(member.into()),
            MembershipChange::Promote(id) => Self::Promote(id.0),
            MembershipChange::Remove(id) => Self::Remove(id.0),
        }
    }
}

impl Membership {
    /// Encodes the record in the store.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        MembershipRecord {
            cluster_id: self.cluster_id.0,
            members: self.members.values().cloned().map(Into::into).collect(),
            last_member_id: self.last_member_id.0,
        }
        .encode_to_vec()
    }

    /// Decodes the record in the store.
    ///
    /// # Errors
    ///
    /// If it is not one, or no changes can lead to it: consensus relies on a voter, and the next
    /// change on the rules of earlier ones.
    pub fn decode(record: &[u8]) -> Result<Self, MembershipDecodeError> {
        let record = MembershipRecord::decode(record).map_err(malformed)?;
        let mut membership = Self::default();
        // They are in the order of their ids, so adding them again checks everything that adding
        // them once did.
        for member in record.members {
            let voter = member.voter;
            membership.add(member.into(), voter).map_err(malformed)?;
        }
        let highest = membership.last_member_id;
        membership.cluster_id = ClusterId(record.cluster_id);
        membership.last_member_id = MemberId(record.last_member_id);
        if !(highest..=MEMBER_ID_MAX).contains(&membership.last_member_id) {
            return Err(malformed("the highest id that was ever used is impossible"));
        }
        if membership != Self::default() {
            membership.check_begun()?;
        }
        Ok(membership)
    }

    /// Whether there is a cluster, which always has a voter.
    fn check_begun(&self) -> Result<(), MembershipDecodeError> {
        if self.cluster_id == ClusterId(0) {
            return Err(malformed("no cluster id"));
        }
        if self.voters().next().is_none() {
            return Err(malformed("no voter"));
        }
        Ok(())
    }
}

impl From<Member> for MemberRecord {
    fn from(member: Member) -> Self {
        Self {
            id: member.id.0,
            name: member.name,
            peer_address: member.peer_address,
            client_address: member.client_address,
            folder_id: member.folder_id,
            voter: member.voter,
        }
    }
}

impl From<MemberRecord> for Member {
    fn from(record: MemberRecord) -> Self {
        Self {
            id: MemberId(record.id),
            name: record.name,
            peer_address: record.peer_address,
            client_address: record.client_address,
            folder_id: record.folder_id,
            voter: record.voter,
        }
    }
}

fn malformed(reason: impl std::fmt::Display) -> MembershipDecodeError {
    MembershipDecodeError(format!("{reason}"))
}

#[derive(Clone, PartialEq, prost::Message)]
struct MembershipRecord {
    #[prost(uint64, tag = "1")]
    cluster_id: u64,
    #[prost(message, repeated, tag = "2")]
    members: Vec<MemberRecord>,
    #[prost(uint64, tag = "3")]
    last_member_id: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MemberRecord {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    peer_address: String,
    #[prost(string, tag = "4")]
    client_address: String,
    #[prost(string, tag = "5")]
    folder_id: String,
    #[prost(bool, tag = "6")]
    voter: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ChangeRecord {
    #[prost(oneof = "ChangeKind", tags = "1, 2, 3, 4")]
    kind: Option<ChangeKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum ChangeKind {
    #[prost(message, tag = "1")]
    Bootstrap(BootstrapRecord),
    #[prost(message, tag = "2")]
    AddLearner(MemberRecord),
    #[prost(uint64, tag = "3")]
    Promote(u64),
    #[prost(uint64, tag = "4")]
    Remove(u64),
}

#[derive(Clone, PartialEq, prost::Message)]
struct BootstrapRecord {
    #[prost(uint64, tag = "1")]
    cluster_id: u64,
    #[prost(message, optional, tag = "2")]
    member: Option<MemberRecord>,
    /// None: 1.
    #[prost(uint64, optional, tag = "3")]
    first_revision: Option<u64>,
}
