//! Who belongs to the cluster.

use dengine_kv as kv;

use crate::etcdserverpb::{Member, MemberListResponse};
use crate::header::Header;

/// The list of all members. `client_urls` are those at which a member serves this API.
#[must_use]
pub fn member_list(
    header: Header,
    membership: &kv::Membership,
    client_urls: impl Fn(&kv::Member) -> Vec<String>,
) -> MemberListResponse {
    MemberListResponse {
        header: header.without_revision(),
        members: members(membership, client_urls),
    }
}

/// All members for the wire.
#[must_use]
pub fn members(
    membership: &kv::Membership,
    client_urls: impl Fn(&kv::Member) -> Vec<String>,
) -> Vec<Member> {
    let all = membership.members.values();
    all.map(|it| member(it, client_urls(it))).collect()
}

fn member(member: &kv::Member, client_urls: Vec<String>) -> Member {
    Member {
        id: member.id.0,
        name: member.name.clone(),
        peer_ur_ls: vec![format!("http://{}", member.peer_address)],
        client_ur_ls: client_urls,
        is_learner: !member.voter,
    }
}

#[cfg(test)]
mod tests {
    use dengine_types::{ClusterId, MemberId, Revision, Term};

    use super::*;

    #[test]
    fn members_are_listed_with_their_urls_and_without_a_revision() {
        let first = kv::Member {
            id: MemberId(1),
            name: "a".into(),
            peer_address: "a:4101".into(),
            client_address: "a:4100".into(),
            folder_id: "f".into(),
            voter: true,
        };
        let second = kv::Member {
            id: MemberId(2),
            voter: false,
            ..first.clone()
        };
        let membership = kv::Membership {
            members: [first, second].map(|it| (it.id, it)).into(),
            ..kv::Membership::default()
        };
        let header = Header {
            cluster_id: ClusterId(7),
            member_id: MemberId(1),
            term: Term(2),
            revision: Revision(9),
        };
        let list = member_list(header, &membership, |it| {
            vec![format!("http://{}:2379", it.name)]
        });
        assert_eq!(list.header.unwrap().revision, 0);
        let expect = Member {
            id: 1,
            name: "a".into(),
            peer_ur_ls: vec!["http://a:4101".into()],
            client_ur_ls: vec!["http://a:2379".into()],
            is_learner: false,
        };
        assert_eq!(list.members[0], expect);
        assert!(list.members[1].is_learner);
    }
}
