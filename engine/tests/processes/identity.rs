//! A folder is one member for ever. What was wiped, copied or swapped takes part in nothing.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use dengine_client::{
    Error,
    proto::{AddLearnerRequest, JoinRequest},
};

use crate::harness::{Cluster, Member, scratch};

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
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("in use by another process"), "{said}");
    cluster.client().await.put("k", "v").await.unwrap();
}

#[tokio::test]
async fn a_folder_of_a_newer_format_is_refused_and_unchanged() {
    let mut cluster = Cluster::form(1).await;
    cluster.client().await.put("k", "v").await.unwrap();
    cluster.members[0].terminate();
    let record = cluster.members[0].data_dir.join("folder.toml");
    let text = fs_err::read_to_string(&record).unwrap();
    assert!(text.contains("format = 1"), "{text}");
    fs_err::write(&record, text.replace("format = 1", "format = 99")).unwrap();
    let before = content(&cluster.members[0].data_dir);
    let output = cluster.members[0].run_to_end();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
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

#[test]
fn a_folder_of_something_else_is_refused_and_unchanged() {
    let home = scratch();
    let member = Member::new(home.path(), "a");
    fs_err::create_dir(&member.data_dir).unwrap();
    fs_err::write(member.data_dir.join("photos.zip"), "mine").unwrap();
    let output = member.run_to_end();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("photos.zip"), "{said}");
    assert_eq!(content(&member.data_dir).len(), 1);
}
