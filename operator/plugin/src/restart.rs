//! `kubectl dengine restart`: sets the annotation by which the operator restarts members, and waits
//! until they all did.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use clap::Args;
use dengine_crds::names::annotations;
use dengine_crds::reasons::cluster as reasons;
use dengine_crds::{DEngineCluster, conditions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::access::Access;
use crate::say;
use crate::words::{UNSEEN_MAX, Words, condition, holds, unseen};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Name of the cluster.
    name: String,
    /// Do not wait until every member has restarted.
    #[arg(long)]
    no_wait: bool,
}

pub(crate) async fn run(access: &Access, options: &Options) -> anyhow::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let patch = json!({"metadata": {"annotations": {annotations::RESTART: now.to_string()}}});
    let name = options.name.as_str();
    access
        .api::<DEngineCluster>()
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    say(format_args!(
        "{name}: restarting one member at a time, the leader last"
    ));
    if options.no_wait {
        return Ok(());
    }
    let (started, mut restart, mut told) = (Instant::now(), Restart::Unseen, Words::default());
    let end = access
        .until(name, |cluster: &DEngineCluster| {
            let words = told.news(worth_saying(cluster));
            words
                .iter()
                .for_each(|words| say(format_args!("  {words}")));
            restart.look(cluster, started.elapsed())
        })
        .await?;
    match end {
        End::Done => say(format_args!("{name}: every member has restarted")),
        End::GivenUp(why) => bail!("{name}: {why}"),
    }
    Ok(())
}

/// What the operator does or waits for, and what one says that leaves the cluster alone.
fn worth_saying(cluster: &DEngineCluster) -> Vec<&Condition> {
    let said = said(cluster);
    // That all is well is said of what was before, too.
    let progressing = condition(said, conditions::PROGRESSING);
    let progressing = progressing.filter(|condition| condition.reason != reasons::AS_SPECIFIED);
    let others = holds(said, conditions::OPERATED_BY_ANOTHER);
    progressing.into_iter().chain(others).collect()
}

fn said(cluster: &DEngineCluster) -> &[Condition] {
    let status = cluster.status.as_ref();
    status.map_or(&[], |status| &status.conditions)
}

/// How far the members' restart has come. The annotation is no part of the spec and so of no
/// generation: first the operator has to see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restart {
    Unseen,
    Seen,
}

/// How the waiting ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Done,
    /// Nothing will happen, for this reason.
    GivenUp(String),
}

impl Restart {
    /// What follows from a look at the cluster, so long after it was told to restart; nothing while
    /// it is to be waited for.
    fn look(&mut self, cluster: &DEngineCluster, waited: Duration) -> Option<End> {
        let said = said(cluster);
        if cluster.spec.paused {
            let why = "the cluster is paused; its members restart once spec.paused is false";
            return Some(End::GivenUp(why.to_owned()));
        }
        // Whoever leaves the cluster alone says nothing of its members.
        let updated = condition(said, conditions::MEMBERS_UPDATED);
        match updated.map(|updated| updated.status == "True") {
            Some(true) if *self == Self::Seen => return Some(End::Done),
            Some(false) => *self = Self::Seen,
            Some(true) | None => {}
        }
        if *self == Self::Unseen && waited >= UNSEEN_MAX {
            let why = unseen(holds(said, conditions::OPERATED_BY_ANOTHER));
            let then = "the members restart as soon as an operator manages the cluster again";
            return Some(End::GivenUp(format!("{why} {then}")));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use dengine_crds::DEngineClusterStatus;

    use super::*;
    use crate::words::tests::said as stands;

    const SOON: Duration = Duration::from_secs(1);

    fn cluster(paused: bool, said: Vec<Condition>) -> DEngineCluster {
        let mut cluster: DEngineCluster = serde_json::from_value(json!({
            "apiVersion": "dengine.io/v1alpha1", "kind": "DEngineCluster",
            "metadata": {"name": "demo"}, "spec": {"paused": paused},
        }))
        .unwrap();
        cluster.status = Some(DEngineClusterStatus {
            conditions: said,
            ..DEngineClusterStatus::default()
        });
        cluster
    }

    fn updated(status: &str) -> Condition {
        stands(conditions::MEMBERS_UPDATED, status, "")
    }

    fn why(end: Option<End>) -> String {
        match end {
            Some(End::GivenUp(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_is_over_once_the_operator_saw_it_and_all_members_have_restarted() {
        let mut restart = Restart::Unseen;
        let before = cluster(false, vec![updated("True")]);
        assert_eq!(restart.look(&before, SOON), None, "it is not seen yet");
        let meanwhile = cluster(false, vec![updated("False")]);
        assert_eq!(restart.look(&meanwhile, SOON), None);
        let long = 10 * UNSEEN_MAX;
        assert_eq!(restart.look(&meanwhile, long), None, "it takes its time");
        assert_eq!(restart.look(&before, long), Some(End::Done));
    }

    #[test]
    fn nobody_waits_for_a_cluster_that_is_paused() {
        for mut restart in [Restart::Unseen, Restart::Seen] {
            let paused = cluster(true, vec![updated("False")]);
            let why = why(restart.look(&paused, SOON));
            assert!(why.contains("spec.paused"), "{why}");
        }
    }

    #[test]
    fn nobody_waits_for_ever_for_a_cluster_that_nobody_operates() {
        let another = stands(
            conditions::OPERATED_BY_ANOTHER,
            "True",
            "operator a/first manages this cluster",
        );
        for (said, expected) in [
            (vec![], "is an operator running"),
            (vec![updated("True")], "is an operator running"),
            (vec![another.clone()], "operator a/first manages"),
            (vec![updated("True"), another], "operator a/first manages"),
        ] {
            let mut restart = Restart::Unseen;
            let left = cluster(false, said);
            assert_eq!(restart.look(&left, SOON), None, "it may be seen yet");
            let why = why(restart.look(&left, UNSEEN_MAX));
            assert!(why.contains(expected), "{why}");
        }
    }

    #[test]
    fn what_is_blocked_is_said_whatever_the_status_of_its_condition() {
        let mut blocked = stands(conditions::PROGRESSING, "False", "could cost the quorum");
        let said = |condition: &Condition| {
            let cluster = cluster(false, vec![condition.clone()]);
            Words::default().news(worth_saying(&cluster))
        };
        assert_eq!(said(&blocked), ["could cost the quorum"]);
        blocked.reason = reasons::AS_SPECIFIED.to_owned();
        assert!(said(&blocked).is_empty(), "of what was before");
    }
}
