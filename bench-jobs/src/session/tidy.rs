//! Takes away what was written: the run's own keys when it has ended, and before it begins those of
//! runs that were killed. In pieces, so that no request deletes much, and for a time that grows
//! with the keys and has a bound: what is left then is told of, and left to a later run.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::time::timeout;

use crate::target::{Lane, NotDeleted};
use crate::{folder, keys};

/// Keys that one request deletes.
const PIECE_KEYS: u64 = 1_000;
/// And bytes of keys: a server has a bound for that.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// For keys of others, and for the run's own besides what their number takes.
const TIME_MIN: Duration = Duration::from_secs(60);
/// For any number of the run's own. Its folder's name, and the Job, allow for it.
pub(super) const TIME_MAX: Duration = Duration::from_secs(300);
/// Slower than servers are found to be that have nothing else to do.
const KEYS_PER_SECOND: u64 = 20_000;
/// Folders that are looked at; what else lies below the prefix was put there by others.
const FOLDERS_MAX: usize = 64;

/// How many numbers, from 0 on, were used as keys of each size.
#[derive(Clone, Debug, Default)]
pub(super) struct Written(BTreeMap<usize, u64>);

impl Written {
    pub(super) fn note(&mut self, keys: &keys::Keys) {
        let end = self.0.entry(keys.size()).or_default();
        *end = keys.end().max(*end);
    }

    /// How many keys that may be at most.
    pub(super) fn keys(&self) -> u64 {
        self.0.values().sum()
    }
}

/// Deletes what the run wrote into its folder.
///
/// # Errors
/// What is left, and why.
pub(super) async fn own(lane: &mut Lane, folder: &Bytes, written: &Written) -> Result<(), String> {
    let all = written.keys();
    let mut left = all;
    let deleting = async {
        for (&size, &end) in &written.0 {
            let mut piece = (PIECE_BYTES_MAX / (folder.len() + size) as u64).clamp(1, PIECE_KEYS);
            let mut first = 0;
            while first < end {
                let last = (first + piece).min(end) - 1;
                let key = |number| keys::numbered(folder, size, number);
                match lane.delete(key(first), after(key(last))).await {
                    Ok(()) => {
                        left -= last + 1 - first;
                        first = last + 1;
                    }
                    Err(error) => piece = smaller(last + 1 - first, error)?,
                }
            }
        }
        Ok::<(), String>(())
    };
    let done = bounded(time_for(all), deleting).await;
    done.map_err(|error| format!("{left} of {all} keys were not deleted: {error}"))
}

fn time_for(keys: u64) -> Duration {
    let grown = TIME_MIN + Duration::from_secs(keys / KEYS_PER_SECOND);
    grown.min(TIME_MAX)
}

/// Deletes the folders of runs that must be over.
pub(super) async fn left_over(lane: &mut Lane, prefix: &str) -> Result<(), String> {
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
    let end = folder::end(prefix.as_bytes());
    let deleting = async {
        let mut from = prefix.as_bytes().to_vec();
        for _ in 0..FOLDERS_MAX {
            let found = lane.keys(from.clone(), end.clone(), 1).await?;
            let Some(key) = found.first() else { break };
            let Some(name) = folder::of_key(prefix, key) else {
                from = after(key.to_vec());
                continue;
            };
            if folder::is_left_over(prefix, name, now) {
                empty(lane, name).await?;
            }
            from = folder::end(name);
        }
        Ok::<(), String>(())
    };
    bounded(TIME_MIN, deleting).await
}

async fn empty(lane: &mut Lane, name: &[u8]) -> Result<(), String> {
    let mut piece = PIECE_KEYS;
    loop {
        let most = u32::try_from(piece).unwrap_or(u32::MAX);
        let found = lane.keys(name.to_vec(), folder::end(name), most).await?;
        let (Some(first), Some(last)) = (found.first(), found.last()) else {
            return Ok(());
        };
        if let Err(error) = lane.delete(first.to_vec(), after(last.to_vec())).await {
            piece = smaller(found.len() as u64, error)?;
        }
    }
}

/// How many keys to try after so many were refused. A server also has a bound for what a deletion
/// may take away with its keys, and how large values are that a killed run wrote is not known here.
///
/// # Errors
/// Fewer would be no better.
fn smaller(refused: u64, error: NotDeleted) -> Result<u64, String> {
    match error.is_refused && refused > 1 {
        true => Ok(refused / 2),
        false => Err(error.words),
    }
}

/// The least key above this one.
fn after(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

async fn bounded(
    time: Duration,
    deleting: impl Future<Output = Result<(), String>>,
) -> Result<(), String> {
    let late = |_| Err(format!("it was not done within {time:?}"));
    timeout(time, deleting).await.unwrap_or_else(late)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_cut_down_to_a_single_key() {
        let refused = |is_refused| NotDeleted {
            words: "no".to_owned(),
            is_refused,
        };
        assert_eq!(smaller(1_000, refused(true)), Ok(500));
        assert_eq!(smaller(3, refused(true)), Ok(1));
        assert_eq!(smaller(1, refused(true)), Err("no".to_owned()));
        assert_eq!(smaller(1_000, refused(false)), Err("no".to_owned()));
    }

    #[test]
    fn the_time_grows_with_the_keys_and_has_a_bound() {
        assert_eq!(time_for(100), TIME_MIN);
        assert_eq!(time_for(2_000_000), TIME_MIN + Duration::from_secs(100));
        assert_eq!(time_for(1_000_000_000), TIME_MAX);
    }
}
