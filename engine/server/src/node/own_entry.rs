//! What a member says that finds itself no longer, or elsewhere, among the members that its own log
//! tells of. If it was removed and the log does not tell, the peers do (`transport/outbound.rs`):
//! they stop sending to a removed member, often before it has heard why.

use dengine_kv::Membership;
use dengine_types::MemberId;

/// Of a member that starts with this address for its peers.
pub(super) fn tell_at_start(own: MemberId, address: &str, membership: &Membership) {
    tell_if_removed(own, membership);
    tell_if_elsewhere(own, address, membership);
}

/// Says so, if these members are without this one and it was one of them before.
pub(super) fn tell_if_removed(own: MemberId, membership: &Membership) {
    if membership.has_removed(own) {
        tracing::warn!(
            member = own.0,
            "this member was removed from the cluster; stop it. To join again as a new member, \
             start it with an empty --data-dir"
        );
    }
}

/// Says so, if the others send to another address than this process has. It gets none of their
/// messages then, and so takes no part; no more is done, because a copy of a data directory cannot
/// be told from a member that was moved.
fn tell_if_elsewhere(own: MemberId, address: &str, membership: &Membership) {
    if let Some(known) = known_elsewhere(own, address, membership) {
        tracing::warn!(
            member = own.0,
            address,
            known,
            "the cluster knows this member at another address, and sends its messages there; if \
             its data directory is a copy of one that is in use, end this process, else start it \
             with the --advertise-peer that it had"
        );
    }
}

/// The address at which it is known, if that is another one.
fn known_elsewhere<'m>(own: MemberId, address: &str, members: &'m Membership) -> Option<&'m str> {
    let known = members.members.get(&own)?.peer_address.as_str();
    (known != address).then_some(known)
}

#[cfg(test)]
mod tests {
    use dengine_kv::Member;

    use super::*;

    fn member(id: MemberId) -> Member {
        Member {
            id,
            name: "m2".to_owned(),
            peer_address: "m2:1".to_owned(),
            client_address: "m2:2".to_owned(),
            folder_id: "f2".to_owned(),
            voter: true,
        }
    }

    #[test]
    fn only_who_is_known_elsewhere_is_told_so() {
        let own = MemberId(2);
        let mut membership = Membership::default();
        assert_eq!(known_elsewhere(own, "copy:1", &membership), None);
        membership.members.insert(own, member(own));
        assert_eq!(known_elsewhere(own, "m2:1", &membership), None);
        let known = known_elsewhere(own, "copy:1", &membership);
        assert_eq!(known, Some("m2:1"));
    }
}
