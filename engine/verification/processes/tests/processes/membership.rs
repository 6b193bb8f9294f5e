//! Members come and go one at a time, and never at the price of the quorum.

use dengine_client::proto::{AddLearnerRequest, JoinRequest, Member as Described, StatusResponse};
use dengine_client::{AdminClient, Consistency, Error};

use crate::harness::{Cluster, Load, Member, becomes, eventually, hand_over};

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Refused { message, .. }) => message,
        other => panic!("not refused: {other:?}"),
    }
}

/// Asks for a member that says this of itself.
pub(crate) fn addition(status: &StatusResponse) -> AddLearnerRequest {
    AddLearnerRequest {
        name: status.name.clone(),
        peer_address: status.peer_address.clone(),
        client_address: status.client_address.clone(),
        folder_id: status.folder_id.clone(),
    }
}

async fn promote_when_caught_up(admin: &AdminClient, id: u64) -> Vec<Described> {
    eventually("the learner catches up", || {
        let admin = admin.clone();
        async move {
            match admin.promote(id).await {
                Ok(response) => Some(response.members),
                Err(
                    Error::Refused { .. }
                    | Error::Unavailable { .. }
                    | Error::UnknownOutcome { .. },
                ) => None,
                Err(other) => panic!("{other}"),
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_is_added_caught_up_promoted_and_leads() {
    let mut cluster = Cluster::form(3).await;
    let client = cluster.client().await;
    let load = Load::start(&client);
    load.progress(100).await;
    let mut newcomer = Member::new(cluster.home.path(), "newcomer");
    newcomer.start();
    let status = newcomer.status().await;
    // Any member takes the call; the leader does it.
    let follower = cluster.follower().await;
    let admin = cluster.members[follower].admin().await;
    let added = admin.add_learner(addition(&status)).await.unwrap();
    let id = added.member.unwrap().id;
    assert_eq!(
        added.cluster_id,
        cluster.members[0].status().await.cluster_id
    );
    assert_eq!(
        added.members.iter().filter(|member| member.voter).count(),
        3
    );

    // It has not even joined yet, so it can't have caught up.
    let message = refused(admin.promote(id).await);
    assert!(message.contains(&id.to_string()), "{message}");
    let join = JoinRequest {
        cluster_id: added.cluster_id,
        member_id: id,
        folder_id: status.folder_id.clone(),
    };
    newcomer.admin().await.join(join).await.unwrap();
    let members = promote_when_caught_up(&admin, id).await;
    assert_eq!(members.iter().filter(|member| member.voter).count(), 4);
    assert_eq!(
        admin.promote(id).await.unwrap().members,
        members,
        "promoting is idempotent"
    );

    let term = hand_over(&admin, id).await;
    becomes("the leader", (id, true), || async {
        let status = newcomer.status().await;
        (status.leader_id, status.term >= term)
    })
    .await;
    load.progress(100).await;
    let read = newcomer
        .client()
        .await
        .get("counter", Consistency::Linearizable)
        .await
        .unwrap();
    assert!(read.kv.is_some());
    load.finish(&client).await;
    cluster.members.push(newcomer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_member_takes_no_part_and_its_id_is_gone() {
    let cluster = Cluster::form(3).await;
    let leader = cluster.leader().await;
    let removed = (leader + 1) % 3;
    let admin = cluster.members[leader].admin().await;
    let id = cluster.members[removed].status().await.member_id;
    let left = admin.remove(id).await.unwrap().members;
    assert_eq!(left.len(), 2);
    assert_eq!(
        admin.remove(id).await.unwrap().members,
        left,
        "removing is idempotent"
    );
    refused(admin.promote(id).await);
    refused(admin.remove(id + 1000).await);
    let client = cluster.members[leader].client().await;
    let term = client.put("k", "v").await.unwrap().header.term;
    becomes("the removed member's readiness", false, || async {
        cluster.members[removed].status().await.ready
    })
    .await;
    let own = cluster.members[removed].client().await;
    let read = own.get("k", Consistency::Linearizable).await.unwrap_err();
    assert!(read.to_string().contains("was removed"), "{read}");
    assert!(cluster.members[removed].status().await.removed);
    // What it has not seen it never will.
    client.put("k", "seen").await.unwrap();
    own.saw(client.position());
    let read = own.get("k", Consistency::Session).await.unwrap_err();
    assert!(read.to_string().contains("was removed"), "{read}");
    // It does not disturb those that are left.
    let after = client.put("k", "w").await.unwrap().header.term;
    assert_eq!(after, term, "an election nobody needed");
    // Its folder is used up.
    let output = cluster.init();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("has been removed"),
        "{said}"
    );
}

/// Its peers had told it, and nobody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_member_says_so_when_it_is_started_again() {
    let mut cluster = Cluster::form(3).await;
    let leader = cluster.leader().await;
    let removed = (leader + 1) % 3;
    let id = cluster.members[removed].status().await.member_id;
    let admin = cluster.members[leader].admin().await;
    cluster.members[removed].kill();
    admin.remove(id).await.unwrap();
    cluster.members[removed].start();
    let member = &cluster.members[removed];
    eventually("it says that it was removed, and what to do", || async {
        let logged = member.logged();
        let line = logged.lines().find(|line| line.contains("was removed"))?;
        line.contains("--data-dir").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_removed_whom_the_quorum_needs() {
    let mut cluster = Cluster::form(3).await;
    let leader = cluster.leader().await;
    let (needed, dead) = ((leader + 1) % 3, (leader + 2) % 3);
    let needed = cluster.members[needed].status().await.member_id;
    let gone = cluster.members[dead].status().await.member_id;
    cluster.members[dead].kill();
    let admin = cluster.members[leader].admin().await;
    eventually("the leader misses the dead member", || {
        let admin = admin.clone();
        async move {
            let members = admin.members().await.ok()?.members;
            let dead = members
                .into_iter()
                .find(|it| it.member.as_ref().unwrap().id == gone)?;
            (!dead.reachable).then_some(())
        }
    })
    .await;
    // Of the two left one is dead: no quorum.
    refused(admin.remove(needed).await);
    assert_eq!(admin.members().await.unwrap().members.len(), 3);
    // The dead one may go at any time.
    assert_eq!(admin.remove(gone).await.unwrap().members.len(), 2);
    cluster.members[leader]
        .client()
        .await
        .put("k", "v")
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_moves_where_it_is_sent_and_nowhere_else() {
    let cluster = Cluster::form(3).await;
    let client = cluster.client().await;
    for _ in 0..2 {
        let leader = cluster.leader().await;
        let target = (leader + 1) % 3;
        let id = cluster.members[target].status().await.member_id;
        let before = client.put("k", "v").await.unwrap().header.term;
        // Asked at a third member, which passes it on.
        let admin = cluster.members[(leader + 2) % 3].admin().await;
        let term = hand_over(&admin, id).await;
        assert!(term > before);
        assert_eq!(cluster.leader().await, target);
    }
    let leader = cluster.leader().await;
    let admin = cluster.members[leader].admin().await;
    refused(admin.transfer_leader(4711).await);
}
