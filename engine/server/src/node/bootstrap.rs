//! The log of a member that begins a cluster, or joins one.

use std::time::Duration;

use dengine_data_dir::{DataDir, Identity};
use dengine_kv::Member;
pub(super) use dengine_raft::replica::FIRST_MEMBER;
use dengine_raft::replica::first_batch;
use dengine_types::{ClusterId, Index, Revision};
use tokio::time::timeout;

use super::Node;
use crate::config::Config;
use crate::error::{RequestError, StartError};

/// The first entry is committed when it is written, so it is applied within moments.
const FIRST_ENTRY_TIMEOUT: Duration = Duration::from_secs(5);

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

impl Node {
    /// Refuses another first revision than the one that an earlier call began the cluster at.
    pub(super) async fn check_first_revision(&self, asked: Revision) -> Result<(), RequestError> {
        let mut status = self.inner.signals.status.subscribe();
        let applied = status.wait_for(|it| it.applied_index > Index(0));
        if timeout(FIRST_ENTRY_TIMEOUT, applied).await.is_err() {
            return Err(RequestError::NotServed {
                reason: "this member has not applied its first entry yet".to_owned(),
            });
        }
        let first = self
            .reader()?
            .first_revision()
            .map_err(|error| RequestError::Storage(error.to_string()))?;
        if first == asked {
            return Ok(());
        }
        Err(RequestError::Refused(format!(
            "this member's cluster began at revision {}, which can't be changed to {}",
            first.0, asked.0
        )))
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Handle, Runtime};

    use super::super::testing;
    use super::*;

    #[tokio::test]
    async fn another_first_revision_than_the_cluster_began_at_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let node = testing::waiting(dir.path()).await;
        let folder_id = node.status().folder_id;
        let bootstrap = |first| node.bootstrap_at(ClusterId(7), &folder_id, Revision(first));
        for again in [5, 5] {
            assert_eq!(bootstrap(again).await.unwrap().id, FIRST_MEMBER);
        }
        for other in [1, 6] {
            let Err(RequestError::Refused(why)) = bootstrap(other).await else {
                panic!("not refused: {other}")
            };
            assert!(why.contains("began at revision 5"), "{why}");
        }
        node.shutdown().await.unwrap();
    }

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
