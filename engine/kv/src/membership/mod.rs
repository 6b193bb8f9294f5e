//! The membership of the cluster: replicated state that changes one member at a time.
//!
//! Every member applies the same changes in the same order and refuses the same ones, so a refusal
//! is an answer, not a fault. An id is never used twice: a wiped member rejoins under a new id and
//! cannot vote again under the id with which it voted before.

mod encoding;

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use dengine_planted::planted;
use dengine_types::{ClusterId, MemberId, NUMBER_MAX, Revision};

pub use encoding::{CHANGE_VERSION, MembershipDecodeError};

/// The maximum number of members, learners included.
pub const MEMBERS_MAX: usize = 32;
/// The highest id that a member may have. The one after it can be requested, and is refused.
const MEMBER_ID_MAX: MemberId = MemberId(u64::MAX - 1);
/// The maximum length of a member's name, addresses and folder id.
pub const TEXT_BYTES_MAX: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id, permanently bound to its data directory.
    pub id: MemberId,
    /// Chosen by its operator. Unique among the members.
    pub name: String,
    /// `host:port` for other members. Unique among the members.
    pub peer_address: String,
    /// `host:port` for clients.
    pub client_address: String,
    /// Identifies the data directory with which it was added. Unique among the members.
    pub folder_id: String,
    /// A voter, or else a learner.
    pub voter: bool,
}

/// A change from one membership to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipChange {
    /// Bootstraps the cluster, with this member as its only voter.
    Bootstrap {
        cluster_id: ClusterId,
        /// The first member; `voter` is ignored.
        member: Member,
        /// The revision of the empty store, 1 at least. A cluster that takes the place of another
        /// begins above its revisions, so that clients never see one twice; what is below it is
        /// answered as compacted.
        first_revision: Revision,
    },
    /// Adds a member that receives the log but does not vote; `voter` is ignored.
    AddLearner(Member),
    /// Makes a learner a voter.
    Promote(MemberId),
    /// Removes a member.
    Remove(MemberId),
}

/// The members after some entry of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// 0 until the cluster is bootstrapped.
    pub cluster_id: ClusterId,
    pub members: BTreeMap<MemberId, Member>,
    /// The highest id ever used.
    pub last_member_id: MemberId,
}

/// Why a change was refused; the membership is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipRefusal {
    #[error(transparent)]
    Malformed(#[from] MembershipDecodeError),
    #[error("the cluster is not bootstrapped")]
    NotBootstrapped,
    /// A cluster is bootstrapped only once.
    #[error("the cluster is already bootstrapped, as {0}")]
    AlreadyBootstrapped(ClusterId),
    #[error("a store cannot begin at revision {0}: it must be from 1 to {NUMBER_MAX}")]
    FirstRevision(Revision),
    /// A field of the new member is not allowed.
    #[error("the member's {0}")]
    Invalid(&'static str),
    /// Ids only increase.
    #[error("member id {id} is not above {last}, the highest that was ever used")]
    IdUsed {
        id: MemberId,
        /// The highest id ever used.
        last: MemberId,
    },
    /// A unique field of the new member belongs to another one.
    #[error("member {owner} already has this {what}")]
    Taken {
        /// Name, folder id or peer address.
        what: &'static str,
        owner: MemberId,
    },
    #[error("a cluster has at most {MEMBERS_MAX} members")]
    TooMany,
    #[error("there is no member {0}")]
    Unknown(MemberId),
    #[error("member {0} is a voter already")]
    AlreadyVoter(MemberId),
    /// A cluster without voters could never change again.
    #[error("member {0} is the last voter")]
    LastVoter(MemberId),
}

impl Membership {
    /// The id that the next new member gets. Once ids have run out, it is one that is refused.
    #[must_use]
    pub fn next_member_id(&self) -> MemberId {
        let last = match planted!(MemberIdReused) {
            true => self.members.keys().last().copied().unwrap_or_default(),
            false => self.last_member_id,
        };
        MemberId(last.0 + 1)
    }

    /// Whether this id was a member once, and is not one any more. A higher id than all may be of a
    /// member that is not known yet.
    #[must_use]
    pub fn has_removed(&self, id: MemberId) -> bool {
        id <= self.last_member_id && !self.members.contains_key(&id)
    }

    /// The voters, in the order of their ids.
    pub fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.values().filter(|member| member.voter)
    }

    /// The learners, in the order of their ids.
    pub fn learners(&self) -> impl Iterator<Item = &Member> {
        self.members.values().filter(|member| !member.voter)
    }

    /// Applies a change.
    ///
    /// # Errors
    ///
    /// If the change breaks a rule; the membership is then unchanged.
    pub fn apply(&mut self, change: MembershipChange) -> Result<(), MembershipRefusal> {
        match change {
            MembershipChange::Bootstrap {
                cluster_id,
                member,
                first_revision,
            } => self.bootstrap(cluster_id, member, first_revision),
            _ if self.cluster_id == ClusterId(0) => Err(MembershipRefusal::NotBootstrapped),
            MembershipChange::AddLearner(member) => self.add(member, false),
            MembershipChange::Promote(id) => self.promote(id),
            MembershipChange::Remove(id) => self.remove(id),
        }
    }

    fn bootstrap(
        &mut self,
        cluster_id: ClusterId,
        member: Member,
        first_revision: Revision,
    ) -> Result<(), MembershipRefusal> {
        if self.cluster_id != ClusterId(0) {
            return Err(MembershipRefusal::AlreadyBootstrapped(self.cluster_id));
        }
        if cluster_id == ClusterId(0) {
            return Err(MembershipRefusal::Invalid("cluster id must not be 0"));
        }
        check_first_revision(first_revision)?;
        self.add(member, true)?;
        self.cluster_id = cluster_id;
        Ok(())
    }

    fn add(&mut self, member: Member, voter: bool) -> Result<(), MembershipRefusal> {
        check(&member)?;
        // Checked before the id, so that a repeated addition is answered with the id of the
        // existing member.
        self.check_unique(&member)?;
        if member.id <= self.last_member_id && !planted!(MemberIdReused) {
            return Err(MembershipRefusal::IdUsed {
                id: member.id,
                last: self.last_member_id,
            });
        }
        if self.members.len() >= MEMBERS_MAX {
            return Err(MembershipRefusal::TooMany);
        }
        self.last_member_id = member.id;
        self.members.insert(member.id, Member { voter, ..member });
        Ok(())
    }

    fn check_unique(&self, new: &Member) -> Result<(), MembershipRefusal> {
        for old in self.members.values() {
            let taken = |what| MembershipRefusal::Taken {
                what,
                owner: old.id,
            };
            if old.folder_id == new.folder_id {
                return Err(taken("folder id"));
            }
            if old.name == new.name {
                return Err(taken("name"));
            }
            if old.peer_address == new.peer_address {
                return Err(taken("peer address"));
            }
        }
        Ok(())
    }

    fn promote(&mut self, id: MemberId) -> Result<(), MembershipRefusal> {
        let member = self
            .members
            .get_mut(&id)
            .ok_or(MembershipRefusal::Unknown(id))?;
        if member.voter {
            return Err(MembershipRefusal::AlreadyVoter(id));
        }
        member.voter = true;
        Ok(())
    }

    fn remove(&mut self, id: MemberId) -> Result<(), MembershipRefusal> {
        if !self.members.contains_key(&id) {
            return Err(MembershipRefusal::Unknown(id));
        }
        if self.voters().all(|voter| voter.id == id) {
            return Err(MembershipRefusal::LastVoter(id));
        }
        self.members.remove(&id);
        Ok(())
    }
}

/// A store may begin at any revision that a log can have.
///
/// # Errors
/// [`MembershipRefusal::FirstRevision`].
pub fn check_first_revision(first: Revision) -> Result<(), MembershipRefusal> {
    match (1..=NUMBER_MAX).contains(&first.0) {
        true => Ok(()),
        false => Err(MembershipRefusal::FirstRevision(first)),
    }
}

fn check(member: &Member) -> Result<(), MembershipRefusal> {
    let invalid = |reason| Err(MembershipRefusal::Invalid(reason));
    if member.id == MemberId(0) {
        return invalid("id must not be 0");
    }
    if member.id > MEMBER_ID_MAX {
        return invalid("id must not be the last number there is");
    }
    let texts = [
        &member.name,
        &member.peer_address,
        &member.client_address,
        &member.folder_id,
    ];
    if texts.iter().any(|text| text.is_empty()) {
        return invalid("name, addresses and folder id must not be empty");
    }
    if texts.iter().any(|text| text.len() > TEXT_BYTES_MAX) {
        return invalid("name, addresses and folder id must not exceed 512 bytes");
    }
    Ok(())
}

impl Member {
    /// Whether the member may join a cluster. This is stricter than what the log may contain from
    /// earlier versions: new names are shown in tables and logs, and new addresses are dialled.
    pub fn check_texts(&self) -> Result<(), MembershipRefusal> {
        let invalid = |reason| Err(MembershipRefusal::Invalid(reason));
        check(self)?;
        let shown = |text: &str| !text.chars().any(char::is_control);
        if !shown(&self.name) || !shown(&self.folder_id) {
            return invalid("name and folder id must hold no control characters");
        }
        if !is_address(&self.peer_address) || !is_address(&self.client_address) {
            return invalid(
                "addresses must be host:port, with a port from 1 to 65535 and IPv6 in brackets",
            );
        }
        Ok(())
    }
}

/// Whether `address` can be dialled: `host:port`.
fn is_address(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else {
        return false;
    };
    let digits = port.bytes().all(|it| it.is_ascii_digit());
    let port = digits.then(|| port.parse::<u16>().ok()).flatten();
    let host = match host.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
        // A zone names an interface of the machine that dials.
        Some(Some(ip)) => ip
            .split('%')
            .next()
            .is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok()),
        Some(None) => false,
        None => {
            let plain = |it: u8| it.is_ascii_alphanumeric() || b"-._".contains(&it);
            !host.is_empty() && host.bytes().all(plain)
        }
    };
    host && port.is_some_and(|port| port > 0)
}
