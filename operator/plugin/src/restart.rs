//! `kubectl dengine restart`: sets the annotation by which the operator restarts members, and waits until they all did.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use dengine_crds::names::annotations;
use dengine_crds::{DEngineCluster, conditions};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::access::Access;
use crate::say;

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
    // The annotation is no part of the spec and so of no generation: first the operator has to see it.
    await_words(access, name, |updated| !updated).await?;
    await_words(access, name, |updated| updated).await?;
    say(format_args!("{name}: every member has restarted"));
    Ok(())
}

/// Says what the operator does, whenever that changes, until the members are updated, or no longer are.
async fn await_words(
    access: &Access,
    name: &str,
    done: impl Fn(bool) -> bool,
) -> anyhow::Result<()> {
    let mut said = String::new();
    access
        .until(name, |cluster: &DEngineCluster| {
            let condition = |type_: &str| {
                let mut all = cluster.status.iter().flat_map(|status| &status.conditions);
                all.find(|condition| condition.type_ == type_)
            };
            let updated =
                condition(conditions::MEMBERS_UPDATED).is_some_and(|c| c.status == "True");
            let words = condition(conditions::PROGRESSING).filter(|c| c.status == "True");
            let words = words.map(|c| c.message.clone()).unwrap_or_default();
            if !words.is_empty() && words != said {
                say(format_args!("  {words}"));
                said = words;
            }
            done(updated).then_some(())
        })
        .await
}
