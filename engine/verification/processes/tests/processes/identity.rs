//! A folder is one member forever. What was wiped, copied or swapped takes part in nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dengine_client::Error;
use dengine_client::proto::{AddLearnerRequest, BootstrapRequest, JoinRequest, Lifecycle};
use dengine_data_dir::Record;

use crate::harness::{Cluster, Member, becomes, scratch};

fn refused<T: std::fmt::Debug>(result: Result<T, Error>, part: &str) {
    match result {
        Err(Error::Refused { message, .. }) => {
            assert!(message.contains(part), "{part:?} is missing in {message:?}");
        }
        other => panic!("not refused: {other:?}"),
    }
}

/// Every file below a folder, with its content.
fn content(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for item in fs_err::read_dir(folder).unwrap() {
        let path = item.unwrap().path();
        if path.is_dir() {
            found.extend(content(&path));
        } else {
            found.insert(path.clone(), fs_err::read(&path).unwrap());
        }
    }
    found
}

#[tokio::test]
async fn a_wiped_member_never_takes_part_under_its_old_id() {
    let mut cluster = Cluster::form(3).await;
    let wiped = cluster.follower().await;
    let old = cluster.members[wiped].status().await;
    cluster.members[wiped].wipe();
    cluster.members[wiped].start();
    let new = cluster.members[wiped].status().await;
    assert_eq!((new.lifecycle(), new.cluster_id), (Lifecycle::Waiting, 0));
    assert_ne!(new.folder_id, old.folder_id);

    // With one more down, its vote would be the one that is missing.
    let mut other = cluster.leader().await;
    if other == wiped {
        other = (wiped + 1) % 3;
    }
    let last = 3 - wiped - other;
    cluster.members[other].kill();
    let survivor = cluster.members[last].admin().await;
    let ready = || {
        let survivor = survivor.clone();
        async move { survivor.status().await.unwrap().ready }
    };
    becomes("the survivor's readiness", false, ready).await;

    // Not even when somebody tells it that it is its old self.
    let admin = cluster.members[wiped].admin().await;
    let join = JoinRequest {
        cluster_id: old.cluster_id,
        member_id: old.member_id,
        folder_id: new.folder_id.clone(),
    };
    let _ = admin.join(join).await;
    let client = cluster.members[last].client().await;
    for _ in 0..5 {
        assert!(
            client.put("k", "v").await.is_err(),
            "acknowledged without a quorum"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!ready().await);
    }
    // The member that was only down brings the quorum back.
    cluster.members[other].start();
    becomes("the survivor's readiness", true, ready).await;
    client.put("k", "v").await.unwrap();
}

#[tokio::test]
async fn a_wiped_member_forms_no_second_cluster_and_comes_back_as_a_new_one() {
    let mut cluster = Cluster::form(3).await;
    let wiped = cluster.follower().await;
    let old = cluster.members[wiped].status().await;
    let others: Vec<_> = (0..3).filter(|place| *place != wiped).collect();
    for place in &others {
        cluster.members[*place].kill();
    }
    cluster.members[wiped].wipe();
    cluster.members[wiped].start();
    // The only one up, for many election timeouts: it waits.
    cluster.members[wiped].admin().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let alone = cluster.members[wiped].status().await;
    assert_eq!(
        (alone.lifecycle(), alone.cluster_id),
        (Lifecycle::Waiting, 0)
    );
    for place in &others {
        cluster.members[*place].start();
    }
    cluster.leader().await;

    // Its old entry is in the way, and the program says what to do.
    let output = cluster.init();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("remove that member first"),
        "{said}"
    );
    let admin = cluster.members[others[0]].admin().await;
    admin.remove(old.member_id).await.unwrap();
    let output = cluster.init();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let new = cluster.members[wiped].status().await;
    assert_eq!(new.cluster_id, old.cluster_id);
    assert!(new.member_id > old.member_id, "ids are never used again");
    assert_eq!(admin.members().await.unwrap().members.len(), 3);
}

/// Whoever followed the advice removed a member that served.
#[tokio::test]
async fn who_mistyped_a_name_is_not_told_to_remove_the_member_that_has_it() {
    let cluster = Cluster::form(2).await;
    let mut second = Member::new(cluster.home.path(), "second");
    second.name.clone_from(&cluster.members[1].name);
    second.start();
    second.admin().await;
    // Whether the one who has the name is among the endpoints or not.
    let first = cluster.members[0].address();
    for known in [first.clone(), cluster.endpoints().join(",")] {
        let endpoints = format!("{known},{}", second.address());
        let output = crate::harness::dengine()
            .args(["init", "--endpoints", &endpoints])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let owner = cluster.members[1].address();
        for part in ["--name", &owner, "answers at"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(!said.contains("remove that member first"), "{said}");
        assert!(!output.status.success());
    }
    assert_eq!(second.status().await.lifecycle(), Lifecycle::Waiting);
}

#[tokio::test]
async fn bootstrap_and_join_are_idempotent_and_refuse_everything_else() {
    let cluster = Cluster::start(2, |_| {});
    let first = cluster.members[0].admin().await;
    let folder_id = first.status().await.unwrap().folder_id;
    refused(first.bootstrap(7, "another folder").await, "another folder");
    let member = first.bootstrap(7, folder_id.clone()).await.unwrap().member;
    assert_eq!(
        first.bootstrap(7, folder_id.clone()).await.unwrap().member,
        member
    );
    refused(first.bootstrap(8, folder_id.clone()).await, "cluster 7");
    let join = JoinRequest {
        cluster_id: 8,
        member_id: 2,
        folder_id,
    };
    refused(first.join(join).await, "cluster 7");

    cluster.members[0].ready().await;
    let second = cluster.members[1].admin().await;
    let status = second.status().await.unwrap();
    let add = AddLearnerRequest {
        name: status.name.clone(),
        peer_address: status.peer_address.clone(),
        client_address: status.client_address.clone(),
        folder_id: status.folder_id.clone(),
    };
    let added = first
        .add_learner(add.clone())
        .await
        .unwrap()
        .member
        .unwrap();
    let again = first
        .add_learner(add.clone())
        .await
        .unwrap()
        .member
        .unwrap();
    assert_eq!(added, again);
    let other_folder = AddLearnerRequest {
        folder_id: "x".into(),
        ..add
    };
    refused(first.add_learner(other_folder).await, "name");
    let join = JoinRequest {
        cluster_id: 7,
        member_id: added.id,
        folder_id: status.folder_id,
    };
    second.join(join.clone()).await.unwrap();
    second.join(join.clone()).await.unwrap();
    refused(
        second
            .join(JoinRequest {
                member_id: added.id + 1,
                ..join
            })
            .await,
        "member 2",
    );
}

/// Whoever is told that it began above another cluster's revisions relies on it.
#[tokio::test]
async fn the_first_revision_of_a_cluster_that_exists_is_not_changed() {
    let cluster = Cluster::start(1, |_| {});
    let first = cluster.members[0].admin().await;
    let folder_id = first.status().await.unwrap().folder_id;
    let begun = first.bootstrap(7, folder_id.clone()).await.unwrap();
    let bootstrap_at = |first_revision| {
        first.bootstrap_with(BootstrapRequest {
            cluster_id: 7,
            folder_id: folder_id.clone(),
            first_revision,
        })
    };
    assert_eq!(bootstrap_at(0).await.unwrap(), begun);
    refused(bootstrap_at(1_000_000_000).await, "began at revision 1,");
    let output = cluster.init_with(&["--first-revision", "1000000000"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("leave --first-revision out"),
        "{said}"
    );
}

#[tokio::test]
async fn members_of_different_clusters_are_not_brought_together() {
    let one = Cluster::form(1).await;
    let two = Cluster::form(1).await;
    let endpoints = format!("{},{}", one.members[0].address(), two.members[0].address());
    let output = crate::harness::dengine()
        .args(["init", "--endpoints", &endpoints])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("different clusters"),
        "{said}"
    );

    // Nor by hand: the folder knows whose it is.
    let (ours, theirs) = (one.members[0].status().await, two.members[0].status().await);
    let admin = two.members[0].admin().await;
    let join = JoinRequest {
        cluster_id: ours.cluster_id,
        member_id: 2,
        folder_id: theirs.folder_id,
    };
    refused(admin.join(join).await, &theirs.cluster_id.to_string());
    assert_eq!(two.members[0].status().await.cluster_id, theirs.cluster_id);
}

#[tokio::test]
async fn a_folder_in_use_is_refused() {
    let cluster = Cluster::form(1).await;
    let mut second = Member::new(cluster.home.path(), "second");
    second.data_dir.clone_from(&cluster.members[0].data_dir);
    let output = second.run_to_end();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4));
    assert!(said.contains("in use by another process"), "{said}");
    cluster.client().await.put("k", "v").await.unwrap();
}

/// It takes no part, for what others send goes to the member itself, and said no word.
#[tokio::test]
async fn a_copy_of_a_folder_says_that_the_others_send_elsewhere() {
    let mut cluster = Cluster::form(3).await;
    let copied = cluster.follower().await;
    cluster.members[copied].terminate();
    let mut copy = Member::new(cluster.home.path(), "copy");
    for (path, bytes) in content(&cluster.members[copied].data_dir) {
        let below = path
            .strip_prefix(&cluster.members[copied].data_dir)
            .unwrap();
        let to = copy.data_dir.join(below);
        fs_err::create_dir_all(to.parent().unwrap()).unwrap();
        fs_err::write(to, bytes).unwrap();
    }
    cluster.members[copied].start();
    cluster.members[copied].ready().await;
    copy.start();
    copy.admin().await;
    let member = format!("127.0.0.1:{}", cluster.members[copied].peer_port);
    let said = "sends its messages";
    let logged = copy.says(said).await;
    let line = logged.lines().find(|it| it.contains(said)).unwrap();
    assert!(line.contains(&member), "{line}");
    assert!(!cluster.members[copied].logged().contains(said));
    // The member is none the worse for it.
    cluster.client().await.put("k", "v").await.unwrap();
    assert!(!copy.status().await.ready);
}

#[tokio::test]
async fn a_folder_of_a_newer_format_is_refused_and_unchanged() {
    let mut cluster = Cluster::form(1).await;
    cluster.client().await.put("k", "v").await.unwrap();
    cluster.members[0].terminate();
    let record = cluster.members[0].data_dir.join("folder.toml");
    let text = fs_err::read_to_string(&record).unwrap();
    let newer = Record {
        format: 99,
        ..Record::decode(text.as_bytes()).unwrap()
    };
    fs_err::write(&record, newer.encode()).unwrap();
    let before = content(&cluster.members[0].data_dir);
    let output = cluster.members[0].run_to_end();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4));
    assert!(
        said.contains("format 99") && said.contains("newer"),
        "{said}"
    );
    assert!(
        content(&cluster.members[0].data_dir) == before,
        "the folder was changed"
    );

    fs_err::write(&record, text).unwrap();
    cluster.members[0].start();
    cluster.members[0].ready().await;
}

#[tokio::test]
async fn a_folder_with_a_flipped_bit_in_its_record_is_to_be_replaced() {
    let mut cluster = Cluster::form(1).await;
    cluster.members[0].terminate();
    let record = cluster.members[0].data_dir.join("folder.toml");
    let text = fs_err::read_to_string(&record).unwrap();
    // It still parses, as that of another member; and it is no longer text.
    let other_id = text.replace("member_id = \"1\"", "member_id = \"3\"");
    let no_text = [&[text.as_bytes()[0] | 0x80], &text.as_bytes()[1..]].concat();
    assert_ne!(other_id, text);
    for bent in [other_id.into_bytes(), no_text] {
        fs_err::write(&record, &bent).unwrap();
        let output = cluster.members[0].run_to_end();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains("folder.toml is damaged"), "{said}");
        assert_eq!(fs_err::read(&record).unwrap(), bent);
    }
}

#[test]
fn a_folder_of_something_else_is_refused_and_unchanged() {
    let home = scratch();
    let member = Member::new(home.path(), "a");
    fs_err::create_dir(&member.data_dir).unwrap();
    fs_err::write(member.data_dir.join("photos.zip"), "mine").unwrap();
    let output = member.run_to_end();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4));
    assert!(said.contains("photos.zip"), "{said}");
    assert_eq!(content(&member.data_dir).len(), 1);
}

/// It led with the data of the other cluster, and every acknowledged write of its own was gone.
#[tokio::test]
async fn a_member_with_the_state_of_another_cluster_is_refused() {
    let (mut own, mut other) = (Cluster::form(1).await, Cluster::form(1).await);
    let (own, other) = (&mut own.members[0], &mut other.members[0]);
    own.terminate();
    other.terminate();
    let state = own.data_dir.join("state");
    fs_err::rename(&state, own.data_dir.join("away")).unwrap();
    fs_err::rename(other.data_dir.join("state"), &state).unwrap();
    let refused = own.run_to_end();
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("exchanged or copied"), "{complaint}");
    fs_err::rename(&state, other.data_dir.join("state")).unwrap();
    fs_err::rename(own.data_dir.join("away"), &state).unwrap();
    for member in [own, other] {
        member.start();
        member.ready().await;
    }
}

/// The kubelet starts a container again before an operator has looked at how it ended.
#[tokio::test]
async fn a_member_without_its_log_is_refused_at_every_start() {
    let mut cluster = Cluster::form(3).await;
    let robbed = cluster.follower().await;
    let member = &mut cluster.members[robbed];
    member.kill();
    for lost in ["log", "state"] {
        fs_err::remove_dir_all(member.data_dir.join(lost)).unwrap();
    }
    let before = content(&member.data_dir);
    for start in 1..=3 {
        let refused = member.run_to_end();
        let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(3), "start {start}: {complaint}");
        assert!(complaint.contains("there is no log in"), "{complaint}");
        assert_eq!(content(&member.data_dir), before, "start {start}");
    }
}
