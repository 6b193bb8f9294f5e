//! A watch that goes on while members are killed, and what it has to see.

use std::collections::BTreeMap;
use std::pin::pin;

use anyhow::{Result, bail, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};

use super::INTERVAL;
use super::objects::{LAST, PREFIX, Version, version};

/// How many of what differs a failure shows.
const SHOWN: usize = 5;
/// History that a watch needs is gone.
const GONE: u16 = 410;

/// Every change in the order in which it was seen, up to that of [`LAST`]. A watch that ends goes
/// on from the last version that it told of, as those of Kubernetes' own programs do.
pub(super) async fn changes_until_the_last(
    api: Api<ConfigMap>,
    mut from: String,
) -> Result<Vec<(Version, String)>> {
    let mut seen = Vec::new();
    loop {
        let ended = watch(&api, &mut from, &mut seen).await;
        if is_complete(&seen) {
            return Ok(seen);
        }
        if let Err(kube::Error::Api(status)) = ended
            && status.code == GONE
        {
            bail!("a watch from version {from} on: {status:?}");
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// One watch, until it ends or has seen the last object.
async fn watch(
    api: &Api<ConfigMap>,
    from: &mut String,
    seen: &mut Vec<(Version, String)>,
) -> Result<(), kube::Error> {
    let mut events = pin!(api.watch(&WatchParams::default(), from).await?);
    while !is_complete(seen)
        && let Some(event) = events.next().await
    {
        match event? {
            WatchEvent::Added(object)
            | WatchEvent::Modified(object)
            | WatchEvent::Deleted(object) => {
                *from = object.resource_version().unwrap_or_default();
                let name = object.name_any();
                if name.starts_with(PREFIX) {
                    seen.push((version(&object).unwrap(), name));
                }
            }
            WatchEvent::Bookmark(bookmark) => *from = bookmark.metadata.resource_version,
            WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
        }
    }
    Ok(())
}

fn is_complete(seen: &[(Version, String)]) -> bool {
    seen.last().is_some_and(|(_, name)| name == LAST)
}

/// What was acknowledged has to have been seen, once and in order, and nothing else.
pub(super) fn compare(
    acknowledged: &BTreeMap<Version, String>,
    seen: &[(Version, String)],
) -> Result<()> {
    let disorder = seen.windows(2).find(|pair| pair[0].0 >= pair[1].0);
    ensure!(disorder.is_none(), "out of order, or twice: {disorder:?}");
    let seen: BTreeMap<_, _> = seen.iter().cloned().collect();
    let only_in = |left: &BTreeMap<Version, String>, right: &BTreeMap<Version, String>| {
        let differ = left
            .iter()
            .filter(|(version, name)| right.get(version) != Some(name))
            .map(|(version, name)| format!("{name} at {version}"));
        differ.collect::<Vec<_>>()
    };
    let (missed, invented) = (only_in(acknowledged, &seen), only_in(&seen, acknowledged));
    ensure!(
        missed.is_empty() && invented.is_empty(),
        "of {} changes the watch missed {}, as {:?}, and saw {} that nobody made, as {:?}",
        acknowledged.len(),
        missed.len(),
        &missed[..missed.len().min(SHOWN)],
        invented.len(),
        &invented[..invented.len().min(SHOWN)]
    );
    Ok(())
}
