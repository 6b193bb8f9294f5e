//! `dengine admin members`: who belongs to the cluster.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Subcommand;
use dengine_client::Error;
use dengine_protocol::v1::{AddLearnerRequest, JoinRequest, Lifecycle, Member, MembersResponse};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::ask::Cluster;
use crate::cli::table::table;
use crate::cli::{EXIT_OK, say};

/// Pause before a learner that was not caught up is promoted again.
const CATCH_UP_PAUSE: Duration = Duration::from_millis(300);

#[derive(Debug, Subcommand)]
pub(super) enum MembersCommand {
    /// List the members, with the leader's view of each.
    List,
    /// Add a running `dengine serve` with an empty data directory as a learner: it gets all data
    /// and does not vote.
    ///
    /// With --promote, also waits until it has caught up and makes it a voter.
    AddLearner {
        /// `host:port` of the newcomer's admin port, or of its client port.
        #[arg(long, value_name = "HOST:PORT")]
        endpoint: String,
        /// Make it a voter once it has caught up.
        #[arg(long)]
        promote: bool,
    },
    /// Make a learner that has caught up a voter.
    Promote {
        /// Its id.
        member: u64,
    },
    /// Remove a member permanently: its data directory cannot rejoin, and its id is not used again.
    ///
    /// The leader itself can't be removed: hand leadership over first (`transfer`).
    Remove {
        /// Its id.
        member: u64,
    },
    /// Replace a member, dead or alive, by a running `dengine serve` with an empty data directory.
    ///
    /// Adds the newcomer, waits until it has caught up, makes it a voter, and then removes the old
    /// one. Safe to run again if it was interrupted.
    Replace {
        /// Id of the member to remove.
        member: u64,
        /// `host:port` of the newcomer's admin port, or of its client port.
        #[arg(long, value_name = "HOST:PORT")]
        endpoint: String,
    },
}

/// Does it.
pub(super) async fn run(
    cluster: &Cluster,
    command: MembersCommand,
    as_json: bool,
) -> anyhow::Result<u8> {
    match command {
        MembersCommand::List => {}
        MembersCommand::AddLearner { endpoint, promote } => {
            let id = add(cluster, &endpoint).await?;
            if promote {
                promote_when_ready(cluster, id).await?;
            }
        }
        MembersCommand::Promote { member } => {
            let what = format!("promoting member {member}");
            cluster
                .ask(&what, |client| async move { client.promote(member).await })
                .await?;
        }
        MembersCommand::Remove { member } => remove(cluster, member).await?,
        MembersCommand::Replace { member, endpoint } => {
            let known = cluster.members().await?;
            check_replaceable(&known, member)?;
            let id = add(cluster, &endpoint).await?;
            promote_when_ready(cluster, id).await.with_context(|| {
                format!(
                    "member {id}, the newcomer, may not vote yet, and member {member} is still \
                     there: run this again, or remove the newcomer (`dengine admin members remove \
                     {id}`)"
                )
            })?;
            remove(cluster, member).await?;
        }
    }
    let members = cluster.members().await?;
    if as_json {
        say(&format!("{:#}", as_value(&members)));
    } else {
        say(&as_table(&members));
    }
    Ok(EXIT_OK)
}

/// The leader can't be removed in the end, so nothing is begun.
fn check_replaceable(known: &MembersResponse, member: u64) -> anyhow::Result<()> {
    if known.leader_id == member {
        bail!(
            "member {member} leads: hand leadership over first (`dengine admin transfer ID`), then \
             run this again"
        );
    }
    Ok(())
}

/// Adds and joins the newcomer; it may be added already.
async fn add(cluster: &Cluster, endpoint: &str) -> anyhow::Result<u64> {
    let newcomer = cluster.newcomer(endpoint).await?;
    let status = newcomer
        .status()
        .await
        .with_context(|| format!("{endpoint} does not say who it is"))?;
    let request = AddLearnerRequest {
        name: status.name.clone(),
        peer_address: status.peer_address.clone(),
        client_address: status.client_address.clone(),
        folder_id: status.folder_id.clone(),
    };
    let known = cluster.members().await?;
    let listed = members(&known).any(|it| it.folder_id == status.folder_id);
    if status.lifecycle() == Lifecycle::Running && !listed {
        bail!(
            "{endpoint} is member {} of cluster {} already, or was removed from this one: start it \
             with an empty --data-dir",
            status.member_id,
            status.cluster_id
        );
    }
    let added = cluster
        .ask(&format!("adding {endpoint}"), |client| {
            let request = request.clone();
            async move { client.add_learner(request).await }
        })
        .await?;
    let member = added
        .member
        .context("the leader did not say whom it added")?;
    if status.lifecycle() != Lifecycle::Running {
        let join = JoinRequest {
            cluster_id: added.cluster_id,
            member_id: member.id,
            folder_id: status.folder_id,
        };
        newcomer.join(join).await.with_context(|| {
            format!(
                "{endpoint} is member {} now, but did not join; run this again",
                member.id
            )
        })?;
    }
    Ok(member.id)
}

/// Promotes a learner as soon as it has caught up.
async fn promote_when_ready(cluster: &Cluster, id: u64) -> anyhow::Result<()> {
    let what = format!("promoting member {id}");
    loop {
        let promoted = cluster
            .ask(&what, |client| async move { client.promote(id).await })
            .await;
        let Err(error) = promoted else {
            return Ok(());
        };
        let refused = matches!(error.downcast_ref(), Some(Error::Refused { .. }));
        if !refused || cluster.time_left() < 2 * CATCH_UP_PAUSE {
            return Err(error);
        }
        sleep(CATCH_UP_PAUSE).await;
    }
}

async fn remove(cluster: &Cluster, member: u64) -> anyhow::Result<()> {
    let what = format!("removing member {member}");
    cluster
        .ask(&what, |client| async move { client.remove(member).await })
        .await
        .map(|_| ())
}

fn members(response: &MembersResponse) -> impl Iterator<Item = &Member> {
    response.members.iter().filter_map(|it| it.member.as_ref())
}

fn as_table(response: &MembersResponse) -> String {
    let rows = response.members.iter().map(|it| {
        let member = it.member.clone().unwrap_or_default();
        [
            member.id.to_string(),
            member.name,
            part(it.leader, member.voter).to_owned(),
            if it.reachable { "yes" } else { "no" }.to_owned(),
            it.lag_entries.to_string(),
            member.client_address,
            member.peer_address,
            member.folder_id,
        ]
    });
    let header = [
        "ID",
        "NAME",
        "PART",
        "REACHABLE",
        "LAG",
        "CLIENT ADDRESS",
        "PEER ADDRESS",
        "FOLDER ID",
    ];
    table(header, rows.collect())
}

fn part(leader: bool, voter: bool) -> &'static str {
    match (leader, voter) {
        (true, _) => "leader",
        (false, true) => "voter",
        (false, false) => "learner",
    }
}

fn as_value(response: &MembersResponse) -> Value {
    let members: Vec<_> = response
        .members
        .iter()
        .map(|it| {
            let member = it.member.clone().unwrap_or_default();
            json!({
                "id": member.id, "name": member.name, "voter": member.voter, "leader": it.leader,
                "reachable": it.reachable, "lagEntries": it.lag_entries,
                "clientAddress": member.client_address, "peerAddress": member.peer_address,
                "folderId": member.folder_id,
            })
        })
        .collect();
    json!({
        // As a string: the id has 64 bits, and many readers of JSON keep 53.
        "clusterId": response.cluster_id.to_string(),
        "term": response.term,
        "leaderId": response.leader_id,
        "members": members,
    })
}
