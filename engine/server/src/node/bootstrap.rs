//! The log of a member that begins a cluster, or joins one.

use dengine_data_dir::{DataDir, Identity};
use dengine_kv::Member;
pub(super) use dengine_raft::replica::FIRST_MEMBER;
use dengine_raft::replica::first_batch;
use dengine_types::{ClusterId, Revision};

use crate::config::Config;
use crate::error::StartError;

pub(super) fn first_member(config: &Config, folder_id: &str) -> Member {
    Member {
        id: FIRST_MEMBER,
        name: config.name.clone(),
        peer_address: config.advertise_peer.clone(),
        client_address: config.advertise_client.clone(),
        folder_id: folder_id.to_owned(),
        voter: true,
    }
}

/// Writes a log that holds the bootstrap entry, already committed, and nothing else. The data
/// directory has no identity yet, so a crash before it gets one leaves an empty member.
pub(super) fn write_first_entry(
    folder: &DataDir,
    config: &Config,
    cluster_id: ClusterId,
    member: &Member,
    first_revision: Revision,
) -> Result<(), StartError> {
    folder.discard_leftovers()?;
    let identity = Identity {
        cluster_id,
        member_id: FIRST_MEMBER,
    };
    let mut log = super::open::make_log(&folder.log_path(), config, identity)?;
    let failed = |source| StartError::Log {
        path: folder.log_path(),
        source: Box::new(source),
    };
    log.append(&first_batch(cluster_id, member.clone(), first_revision))
        .map_err(failed)?;
    log.sync().map_err(failed)
}

/// Makes the empty log of a member that joins. It must exist before the data directory has an
/// identity: a member with an identity and no log has lost its votes, and is refused.
pub(super) fn make_empty_log(
    folder: &DataDir,
    config: &Config,
    identity: Identity,
) -> Result<(), StartError> {
    folder.discard_leftovers()?;
    super::open::make_log(&folder.log_path(), config, identity)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Handle, Runtime};

    use super::super::testing;
    use super::*;

    /// Where it was a heavy client, the member made and sent snapshots on threads that are nicer
    /// than all others, for as long as it ran.
    #[test]
    fn a_member_begins_on_the_threads_that_it_was_started_on_whoever_asks_for_it() {
        let [usual, of_heavy] = [(); 2].map(|()| Runtime::new().unwrap());
        let dir = tempfile::tempdir().unwrap();
        let node = usual.block_on(testing::waiting(dir.path()));
        let folder_id = node.status().folder_id;
        let identity = Identity {
            cluster_id: ClusterId(7),
            member_id: FIRST_MEMBER,
        };
        let (tell, told) = std::sync::mpsc::channel();
        let prepare = move |_: &DataDir, _: &Config| {
            tell.send(Handle::current().id()).unwrap();
            Err(StartError::StateInUse)
        };
        let begun = node.become_member(identity, &folder_id, prepare);
        of_heavy.block_on(begun).unwrap_err();
        assert_eq!(told.recv().unwrap(), usual.handle().id());
        usual.block_on(node.shutdown()).unwrap();
    }
}
