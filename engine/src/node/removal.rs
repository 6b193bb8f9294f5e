//! What a member says that was removed, once its own log tells. If the log does not, the peers do (`transport/outbound.rs`): they stop sending to
//! who is removed, often before it has heard why.

use dengine_core::kv::Membership;
use dengine_core::types::MemberId;

/// Says so, if these members are without this one and it was one of them before.
pub(super) fn tell_if_removed(own: MemberId, membership: &Membership) {
    if is_removed(own, membership) {
        tracing::warn!(
            member = own.0,
            "this member was removed from the cluster and takes no part in it any more; end it, and to have it join again as a new member, start it with an empty --data-dir"
        );
    }
}

/// Ids only go up: one that is above all is of a member of which this log has not told yet.
fn is_removed(own: MemberId, membership: &Membership) -> bool {
    own <= membership.last_member_id && !membership.members.contains_key(&own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dengine_core::kv::Member;

    #[test]
    fn who_is_not_there_yet_was_not_removed() {
        let own = MemberId(2);
        let mut membership = Membership::default();
        assert!(!is_removed(own, &membership));
        membership.last_member_id = MemberId(1);
        assert!(!is_removed(own, &membership));
        membership.last_member_id = own;
        let member = Member {
            id: own,
            name: "m2".to_owned(),
            peer_address: "m2:1".to_owned(),
            client_address: "m2:2".to_owned(),
            folder_id: "f2".to_owned(),
            voter: true,
        };
        membership.members.insert(own, member);
        assert!(!is_removed(own, &membership));
        membership.members.remove(&own);
        assert!(is_removed(own, &membership));
    }
}
