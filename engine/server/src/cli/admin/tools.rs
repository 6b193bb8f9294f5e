//! `dengine admin transfer`, `flush` and `hash`.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use dengine_client::AdminClient;
use dengine_protocol::v1::HashResponse;
use serde_json::{Value, json};

use super::ask::{Asked, Cluster};
use crate::cli::table::{bytes, table, unknown};
use crate::cli::{EXIT_FAILED, EXIT_OK, say};

/// Hands leadership over.
pub(super) async fn transfer(cluster: &Cluster, member: u64, as_json: bool) -> anyhow::Result<u8> {
    let known = cluster.members().await?;
    let target = known
        .members
        .iter()
        .filter_map(|it| it.member.as_ref())
        .find(|it| it.id == member);
    match target {
        None => bail!("there is no member {member}; see `dengine admin members list`"),
        Some(target) if !target.voter => bail!(
            "member {member} is a learner and can't lead; promote it first (`dengine admin members \
             promote {member}`)"
        ),
        Some(_) => {}
    }
    let term = if known.leader_id == member {
        known.term
    } else {
        let what = format!("handing leadership to member {member}");
        let transferred = cluster.ask(&what, |client| async move {
            client.transfer_leader(member).await
        });
        transferred.await?.term
    };
    if as_json {
        say(&json!({ "leaderId": member, "term": term }).to_string());
    } else {
        say(&format!("member {member} leads in term {term}"));
    }
    Ok(EXIT_OK)
}

/// Flushes the state of every member to its disk: `Admin.Snapshot` on the wire.
pub(super) async fn flush(cluster: &Cluster, as_json: bool) -> anyhow::Result<u8> {
    let members = cluster.members_now().await;
    let ask = |client: AdminClient| async move { client.snapshot().await };
    // It may take as long as it takes to write the state out.
    let places = cluster.admin_places(members.as_ref()).await;
    let asked = cluster.ask_each(places, cluster.time_left(), ask).await;
    let rows = asked.iter().map(|it| match &it.answer {
        Ok(made) => [
            name(it),
            made.index.to_string(),
            bytes(made.bytes),
            "done".to_owned(),
        ],
        Err(error) => [name(it), unknown(), unknown(), error.to_string()],
    });
    let header = ["MEMBER", "INDEX", "STATE", "RESULT"];
    report(
        as_json,
        &table(header, rows.collect()),
        &asked,
        |made| json!({ "index": made.index, "bytes": made.bytes }),
    );
    outcome(&asked)
}

/// Holds the members' states against each other.
pub(super) async fn hash(cluster: &Cluster, as_json: bool) -> anyhow::Result<u8> {
    let members = cluster.members_now().await;
    let ask = |client: AdminClient| async move { client.hash().await };
    let places = cluster.admin_places(members.as_ref()).await;
    let asked = cluster.ask_each(places, cluster.time_left(), ask).await;
    let rows = asked.iter().map(|it| match &it.answer {
        Ok(hashed) => [
            name(it),
            hashed.applied_index.to_string(),
            hashed.revision.to_string(),
            hashed.compact_revision.to_string(),
            format!("{:016x}", hashed.hash),
        ],
        Err(error) => [name(it), unknown(), unknown(), unknown(), error.to_string()],
    });
    let header = ["MEMBER", "APPLIED", "REVISION", "COMPACTED", "HASH"];
    report(as_json, &table(header, rows.collect()), &asked, |hashed| {
        json!({
            "appliedIndex": hashed.applied_index, "revision": hashed.revision,
            "compactRevision": hashed.compact_revision, "hash": format!("{:016x}", hashed.hash),
        })
    });
    let answers = asked.iter().filter_map(|it| it.answer.as_ref().ok());
    if let Some(index) = first_difference(answers) {
        bail!(
            "members hold different states at index {index}: keep all data directories as \
             they are, and report it; this must never happen"
        );
    }
    outcome(&asked)
}

/// The applied index at which two members have different hashes.
fn first_difference<'a>(answers: impl Iterator<Item = &'a HashResponse>) -> Option<u64> {
    let mut hashes: BTreeMap<u64, u64> = BTreeMap::new();
    for answer in answers {
        let known = *hashes.entry(answer.applied_index).or_insert(answer.hash);
        if known != answer.hash {
            return Some(answer.applied_index);
        }
    }
    None
}

fn report<T>(as_json: bool, shown: &str, asked: &[Asked<T>], value: impl Fn(&T) -> Value) {
    if !as_json {
        return say(shown);
    }
    let members: Vec<_> = asked
        .iter()
        .map(|it| {
            let mut line = match &it.answer {
                Ok(answer) => value(answer),
                Err(error) => json!({ "error": error.to_string() }),
            };
            line["member"] = json!(name(it));
            line
        })
        .collect();
    say(&format!("{:#}", json!({ "members": members })));
}

fn outcome<T>(asked: &[Asked<T>]) -> anyhow::Result<u8> {
    let failed = asked.iter().filter(|it| it.answer.is_err()).count();
    if failed == asked.len() {
        let first = asked.first().context("no member was asked")?;
        let why = first.answer.as_ref().err().map(ToString::to_string);
        bail!("no member answered: {}", why.unwrap_or_default());
    }
    Ok(if failed == 0 { EXIT_OK } else { EXIT_FAILED })
}

fn name<T>(asked: &Asked<T>) -> String {
    match &asked.member {
        Some(member) => format!("{} ({})", member.name, member.id),
        None => asked.address.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hashes: &[(u64, u64)], expect: Option<u64>) {
        let answers: Vec<_> = hashes
            .iter()
            .map(|&(applied_index, hash)| HashResponse {
                applied_index,
                hash,
                ..HashResponse::default()
            })
            .collect();
        assert_eq!(first_difference(answers.iter()), expect);
    }

    #[test]
    fn only_hashes_of_the_same_index_are_held_against_each_other() {
        check(&[(5, 1), (5, 1), (6, 2)], None);
        check(&[(5, 1), (6, 2), (6, 3)], Some(6));
    }
}
