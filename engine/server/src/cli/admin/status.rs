//! `dengine admin status` and `health`: where every member stands.

use dengine_protocol::v1::{MembersResponse, Role, StatusResponse};
use serde_json::{Value, json};

use super::ask::{Asked, Cluster};
use crate::cli::table::{bytes, table, unknown};
use crate::cli::{EXIT_FAILED, EXIT_OK, say};

/// What is known of the cluster and of each member.
struct View {
    members: Option<MembersResponse>,
    asked: Vec<Asked<StatusResponse>>,
}

/// Shows all of it.
pub(super) async fn status(cluster: &Cluster, as_json: bool) -> anyhow::Result<u8> {
    let view = View::of(cluster).await;
    if as_json {
        say(&format!("{:#}", view.json()));
    } else {
        view.print();
    }
    let answered = view.asked.iter().any(|it| it.answer.is_ok());
    Ok(if answered { EXIT_OK } else { EXIT_FAILED })
}

/// Shows whether all is well, and what is not.
pub(super) async fn health(cluster: &Cluster, as_json: bool) -> anyhow::Result<u8> {
    let view = View::of(cluster).await;
    let problems = view.problems();
    if as_json {
        let healthy = problems.is_empty();
        let report = json!({ "healthy": healthy, "problems": problems });
        say(&format!("{report:#}"));
    } else if problems.is_empty() {
        say(&format!("healthy: {} members", view.asked.len()));
    } else {
        problems.iter().for_each(|problem| say(problem));
    }
    Ok(if problems.is_empty() {
        EXIT_OK
    } else {
        EXIT_FAILED
    })
}

impl View {
    async fn of(cluster: &Cluster) -> Self {
        let members = cluster.members_now().await;
        let patience = cluster.member_patience();
        let ask = |client: dengine_client::AdminClient| async move { client.status().await };
        let places = cluster.places(members.as_ref());
        let asked = cluster.ask_each(places, patience, ask).await;
        Self { members, asked }
    }

    fn print(&self) {
        match &self.members {
            Some(members) => say(&format!(
                "cluster {}, term {}, leader {}, commands of version {}",
                members.cluster_id,
                members.term,
                members.leader_id,
                self.command_version()
                    .map_or_else(unknown, |it| it.to_string()),
            )),
            None => say("no leader answered; this is what the members that were named say"),
        }
        let header = [
            "ID", "NAME", "ROLE", "TERM", "FIRST", "LAST", "COMMIT", "APPLIED", "REVISION", "LOG",
            "STATE", "HEALTHY", "LAG", "VERSION", "READS", "ADDRESS",
        ];
        let rows = self.asked.iter().map(|it| self.row(it)).collect();
        say(&table(header, rows));
        self.asked
            .iter()
            .filter_map(problem)
            .for_each(|it| say(&it));
    }

    fn row(&self, asked: &Asked<StatusResponse>) -> [String; 16] {
        let lag = self.lag(asked).map_or_else(unknown, |it| it.to_string());
        let address = asked.address.clone();
        let Ok(status) = &asked.answer else {
            let member = asked.member.clone().unwrap_or_default();
            let mut row = std::array::from_fn(|_| unknown());
            row[0] = id(member.id);
            row[1] = member.name;
            row[11] = "no answer".to_owned();
            row[12] = lag;
            row[15] = address;
            return row;
        };
        [
            id(status.member_id),
            status.name.clone(),
            role(status).to_owned(),
            status.term.to_string(),
            status.first_index.to_string(),
            status.last_index.to_string(),
            status.commit_index.to_string(),
            status.applied_index.to_string(),
            status.revision.to_string(),
            bytes(status.log_bytes),
            bytes(status.state_bytes),
            if status.ready { "yes" } else { "no" }.to_owned(),
            lag,
            status.version.clone(),
            id(status.commands_read_max.into()),
            address,
        ]
    }

    /// In which version commands are written now: by the word of the one who writes them.
    fn command_version(&self) -> Option<u32> {
        let leader = self.members.as_ref()?.leader_id;
        let mut answers = self.asked.iter().filter_map(|it| it.answer.as_ref().ok());
        let leader = answers.find(|it| it.member_id == leader)?;
        (leader.command_version != 0).then_some(leader.command_version)
    }

    /// By the leader's word.
    fn lag(&self, asked: &Asked<StatusResponse>) -> Option<u64> {
        let id = asked.member.as_ref()?.id;
        let mut progress = self.members.iter().flat_map(|it| &it.members);
        progress
            .find(|it| it.member.as_ref().is_some_and(|it| it.id == id))
            .map(|it| it.lag_entries)
    }

    /// What keeps the cluster from being healthy, each with what to do.
    fn problems(&self) -> Vec<String> {
        let no_leader = "no leader: a majority of the voters must run and reach each other";
        let no_leader = self.members.is_none().then(|| no_leader.to_owned());
        let of_members = self.asked.iter().filter_map(problem);
        no_leader.into_iter().chain(of_members).collect()
    }

    fn json(&self) -> Value {
        let members = self.asked.iter().map(|asked| {
            let member = asked.member.clone().unwrap_or_default();
            match &asked.answer {
                Err(error) => json!({
                    "id": member.id, "name": member.name, "address": asked.address,
                    "healthy": false, "error": error.to_string(), "lagEntries": self.lag(asked),
                }),
                Ok(status) => json!({
                    "id": status.member_id, "name": status.name, "address": asked.address,
                    "healthy": status.ready, "role": role(status), "term": status.term,
                    "firstIndex": status.first_index, "lastIndex": status.last_index,
                    "commitIndex": status.commit_index, "appliedIndex": status.applied_index,
                    "revision": status.revision, "compactRevision": status.compact_revision,
                    "logBytes": status.log_bytes, "stateBytes": status.state_bytes,
                    "lagEntries": self.lag(asked), "watches": status.watches,
                    "durability": status.durability, "version": status.version,
                    "folderId": status.folder_id, "lowOnSpace": status.low_on_space,
                    "stalled": status.stalled, "removed": status.removed,
                    "snapshotLacksBytes": status.snapshot_lacks_bytes,
                    "commandsReadMax": known(status.commands_read_max),
                }),
            }
        });
        let members: Vec<_> = members.collect();
        json!({
            "clusterId": self.members.as_ref().map(|it| it.cluster_id.to_string()),
            "term": self.members.as_ref().map(|it| it.term),
            "leaderId": self.members.as_ref().map(|it| it.leader_id),
            "commandVersion": self.command_version(),
            "members": members,
        })
    }
}

/// What keeps a member from being healthy, and what to do.
fn problem(asked: &Asked<StatusResponse>) -> Option<String> {
    let name = asked.member.as_ref().map_or(&asked.address, |it| &it.name);
    let voter = asked.member.as_ref().is_none_or(|it| it.voter);
    let status = match &asked.answer {
        Ok(status) => status,
        Err(error) => return Some(format!("{name} does not answer: {error}")),
    };
    Some(if status.removed && asked.member.is_none() {
        format!(
            "{name} was removed from its cluster; stop it. To join again as a new member, start \
             it with an empty --data-dir"
        )
    } else if status.removed {
        format!(
            "{name} takes itself for removed, while the leader lists it: ask again, and if that \
             stays, start it again"
        )
    } else if status.stalled {
        format!("{name} writes nothing: its disk hangs or is full")
    } else if status.snapshot_lacks_bytes > 0 {
        format!(
            "{name} lacks {} MiB of space for the snapshot without which it can't catch up: give \
             it a larger volume",
            status.snapshot_lacks_bytes.div_ceil(1 << 20)
        )
    } else if !status.ready && voter {
        format!(
            "{name} is not ready: it has no contact with a leader or is catching up; its log says \
             more"
        )
    } else if status.low_on_space {
        format!(
            "{name} is low on space: while it leads, writes that need some are refused; delete \
             keys or give it a larger volume"
        )
    } else {
        return None;
    })
}

/// Members of older versions say nothing, which is 0.
fn known(number: u32) -> Option<u32> {
    (number != 0).then_some(number)
}

fn id(id: u64) -> String {
    if id == 0 { unknown() } else { id.to_string() }
}

/// The member's part, in a word.
fn role(status: &StatusResponse) -> &'static str {
    match status.role() {
        _ if status.removed => "removed",
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Learner => "learner",
        Role::Unspecified => "waiting",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the others would write if they led is not in use.
    #[test]
    fn the_command_version_is_that_of_the_leader() {
        let asked = |member_id, command_version| Asked {
            address: "a:1".to_owned(),
            member: None,
            answer: Ok(StatusResponse {
                member_id,
                command_version,
                commands_read_max: 3,
                ..StatusResponse::default()
            }),
        };
        let view = |leader_id, asked| View {
            members: Some(MembersResponse {
                leader_id,
                ..MembersResponse::default()
            }),
            asked,
        };
        let view = view(2, vec![asked(1, 2), asked(2, 3), asked(3, 2)]);
        assert_eq!(view.command_version(), Some(3));
        assert_eq!(view.json()["members"][0]["commandsReadMax"], 3);
        let of_old = View {
            asked: vec![asked(2, 0)],
            ..view
        };
        assert_eq!(of_old.command_version(), None);
    }

    #[test]
    fn a_disk_that_is_full_or_hangs_is_a_problem() {
        let asked = |status| Asked {
            address: "a:1".to_owned(),
            member: None,
            answer: Ok(status),
        };
        let fine = StatusResponse {
            ready: true,
            ..StatusResponse::default()
        };
        let low = StatusResponse {
            low_on_space: true,
            ..fine.clone()
        };
        let stalled = StatusResponse {
            stalled: true,
            ..StatusResponse::default()
        };
        let lacks = StatusResponse {
            snapshot_lacks_bytes: (1 << 20) + 1,
            ..StatusResponse::default()
        };
        let removed = StatusResponse {
            removed: true,
            ..StatusResponse::default()
        };
        for (status, words) in [
            (removed, "was removed"),
            (low, "low on space"),
            (stalled, "its disk hangs"),
            (lacks, "lacks 2 MiB of space for the snapshot"),
        ] {
            let view = View {
                members: Some(MembersResponse::default()),
                asked: vec![asked(fine.clone()), asked(status)],
            };
            let problems = view.problems();
            assert!(
                matches!(&problems[..], [problem] if problem.contains(words)),
                "{problems:?}"
            );
        }
    }
}
