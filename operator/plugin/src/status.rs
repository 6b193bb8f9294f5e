//! `kubectl dengine status`: clusters, their members, and what is being done about them.

use clap::Args;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use dengine_crds::cluster::{Lag, MemberRole, MemberStatus};
use dengine_crds::{DEngineCluster, conditions};
use kube::ResourceExt;
use kube::api::ListParams;
use kube::core::DeserializeGuard;

use crate::access::Access;
use crate::say;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Name of a cluster; all of the namespace if not given.
    name: Option<String>,
}

pub(crate) async fn run(access: &Access, options: &Options) -> anyhow::Result<()> {
    let api = access.api::<DeserializeGuard<DEngineCluster>>();
    let clusters = match &options.name {
        Some(name) => vec![api.get(name).await?],
        None => api.list(&ListParams::default()).await?.items,
    };
    if clusters.is_empty() {
        say(format_args!("no cluster in {}", access.namespace));
    }
    for cluster in &clusters {
        say(shown(cluster));
    }
    Ok(())
}

/// One that cannot be read is one line, and keeps nobody from seeing the others.
fn shown(cluster: &DeserializeGuard<DEngineCluster>) -> String {
    match &cluster.0 {
        Ok(cluster) => render(cluster),
        Err(unreadable) => format!(
            "{}: this version of kubectl-dengine cannot read it: {}",
            cluster.name_any(),
            unreadable.error
        ),
    }
}

fn render(cluster: &DEngineCluster) -> String {
    let status = cluster.status.clone().unwrap_or_default();
    let phase = status.phase.map_or("Unknown".to_owned(), |p| p.to_string());
    let mut lines = vec![format!(
        "{}: {phase}, {} ready, leader {}, term {}, version {}",
        cluster.name_any(),
        status.ready.as_deref().unwrap_or("none"),
        status.leader.as_deref().unwrap_or("none"),
        status.term.as_deref().unwrap_or("unknown"),
        status.version.as_deref().unwrap_or("unknown"),
    )];
    lines.extend(worth_saying(cluster).map(|words| format!("  {words}")));
    let mut members = table(["MEMBER", "ID", "ROLE", "HEALTHY", "LAG", "VERSION"]);
    for member in &status.members {
        members.add_row(row(member));
    }
    lines.push(members.to_string());
    if !status.benchmarks.is_empty() {
        let mut benchmarks = table(["BENCHMARK", "RUN", "VERDICT", "OPS/S", "P99", "SHAPE"]);
        for line in status.benchmarks {
            benchmarks.add_row([
                line.name,
                line.run_id,
                line.phase.to_string(),
                line.ops_per_second
                    .map_or("-".to_owned(), |ops| ops.to_string()),
                line.p99.unwrap_or_else(|| "-".to_owned()),
                line.shape,
            ]);
        }
        lines.push(benchmarks.to_string());
    }
    lines.join("\n")
}

/// Conditions that are not as in a cluster where all is well.
fn worth_saying(cluster: &DEngineCluster) -> impl Iterator<Item = String> {
    let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    conditions
        .filter(|condition| {
            let good_if_true = matches!(
                condition.type_.as_str(),
                conditions::READY | conditions::QUORUM_AVAILABLE | conditions::MEMBERS_UPDATED
            );
            (condition.status == "True") != good_if_true
        })
        .map(|condition| {
            format!(
                "{} ({}): {}",
                condition.type_, condition.reason, condition.message
            )
        })
}

fn row(member: &MemberStatus) -> [String; 6] {
    let role = match member.role {
        MemberRole::Leader => "leader",
        MemberRole::Follower => "follower",
        MemberRole::Learner => "learner",
    };
    let lag = match member.lag {
        Lag::CaughtUp => "none",
        Lag::Behind => "behind",
        Lag::FarBehind => "far behind",
        Lag::Unknown => "unknown",
    };
    [
        member.name.clone(),
        member.id.clone(),
        role.to_owned(),
        if member.healthy { "yes" } else { "no" }.to_owned(),
        lag.to_owned(),
        member.version.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header);
    table
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_cluster_that_can_not_be_read_is_one_line() {
        let cluster = |name: &str, replicas: Value| -> DeserializeGuard<DEngineCluster> {
            let cluster = json!({
                "apiVersion": "dengine.io/v1alpha1", "kind": "DEngineCluster",
                "metadata": {"name": name}, "spec": {"replicas": replicas},
            });
            serde_json::from_value(cluster).unwrap()
        };
        let good = shown(&cluster("good", 3.into()));
        assert!(good.starts_with("good: Unknown, none ready"), "{good}");
        let newer = shown(&cluster("newer", "many".into()));
        assert!(newer.starts_with("newer: this version"), "{newer}");
        assert!(
            newer.contains("many") && newer.lines().count() == 1,
            "{newer}"
        );
    }

    #[test]
    fn a_cluster_reads_as_a_table_with_what_is_wrong_above() {
        let cluster: DEngineCluster = serde_json::from_value(json!({
            "apiVersion": "dengine.io/v1alpha1", "kind": "DEngineCluster",
            "metadata": {"name": "demo"}, "spec": {},
            "status": {
                "phase": "Degraded", "ready": "2/3", "leader": "demo-1", "term": "4",
                "version": "0.1.0",
                "replicas": 3, "readyReplicas": 2,
                "conditions": [
                    {"type": "Ready", "status": "False", "reason": "MemberUnavailable",
                     "message": "2 of 3 members serve",
                     "lastTransitionTime": "2026-01-01T00:00:00Z"},
                    {"type": "QuorumAvailable", "status": "True", "reason": "MajorityAnswers",
                     "message": "fine", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                ],
                "members": [
                    {"id": "2", "name": "demo-1", "role": "Leader", "lag": "CaughtUp",
                     "healthy": true},
                    {"id": "3", "name": "demo-2", "role": "Follower", "lag": "Unknown",
                     "healthy": false},
                ],
            },
        }))
        .unwrap();
        let text = render(&cluster);
        assert!(
            text.starts_with("demo: Degraded, 2/3 ready, leader demo-1, term 4"),
            "{text}"
        );
        assert!(
            text.contains("Ready (MemberUnavailable): 2 of 3 members serve"),
            "{text}"
        );
        assert!(!text.contains("fine"), "{text}");
        let mut rows = text.lines().filter(|line| line.contains("demo-"));
        let follower = rows.next_back().unwrap();
        let words: Vec<&str> = follower.split_whitespace().collect();
        assert_eq!(words, ["demo-2", "3", "follower", "no", "unknown", "-"]);
    }
}
