//! Clients that list every key beside those that write: page by page at one revision, over and
//! over until the writers are done.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dengine_bench_model::results::{Listing, Shape};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::keys;
use crate::target::{Lane, PAGE_KEYS, Way as _};

/// Lists under way; dropping them ends them.
pub(super) struct Lists {
    clients: JoinSet<anyhow::Result<Vec<Duration>>>,
    ended: watch::Sender<bool>,
    keys: u64,
}

impl Lists {
    /// Begins, with a client for each lane.
    pub(super) fn start(lanes: impl Iterator<Item = Lane>, folder: &[u8], shape: &Shape) -> Self {
        let (ended, _) = watch::channel(false);
        let keys = keys::space(shape);
        let size = shape.key_size as usize;
        let from = keys::numbered(folder, size, 0);
        let mut to = keys::numbered(folder, size, keys - 1);
        to.push(0);
        let mut clients = JoinSet::new();
        for lane in lanes {
            let range = (from.clone(), to.clone());
            clients.spawn(list(lane, range, keys, ended.subscribe()));
        }
        Self {
            clients,
            ended,
            keys,
        }
    }

    /// What was listed until now. A client that has not come to an end yet first does so once.
    ///
    /// # Errors
    /// If a page was not answered, or a list did not hold every key.
    pub(super) async fn end(mut self) -> anyhow::Result<Option<Listing>> {
        self.ended.send_replace(true);
        let mut took = Vec::new();
        while let Some(client) = self.clients.join_next().await {
            took.extend(client.context("a client that lists ended abnormally")??);
        }
        let longest = took.iter().max();
        Ok(longest.map(|longest| Listing {
            keys: self.keys,
            lists: took.len() as u64,
            seconds_avg: took.iter().sum::<Duration>().as_secs_f64() / took.len() as f64,
            seconds_max: longest.as_secs_f64(),
        }))
    }
}

/// How long each list took.
async fn list(
    mut lane: Lane,
    (from, to): (Vec<u8>, Vec<u8>),
    keys: u64,
    mut ended: watch::Receiver<bool>,
) -> anyhow::Result<Vec<Duration>> {
    let mut took = Vec::new();
    while took.is_empty() || !*ended.borrow() {
        let began = Instant::now();
        let listed = lane.list(from.clone(), to.clone(), PAGE_KEYS);
        let found = if took.is_empty() {
            listed.await
        } else {
            tokio::select! {
                found = listed => found,
                _ = ended.wait_for(|ended| *ended) => break,
            }
        };
        let found = found.map_err(|error| anyhow::anyhow!("listing all keys: {error}"))?;
        ensure!(found == keys, "a list held {found} of {keys} keys");
        took.push(began.elapsed());
    }
    Ok(took)
}
