//! `dengine watch`.

use std::time::Duration;

use clap::Args;
use dengine_client::{Event, EventKind, KeyRange, Watch, WatchQuery, WatchUpdate};
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::arguments::Keys;
use crate::end::{EXIT_OK, complain, print};
use crate::show::{self, Output};
use crate::{Asking, Cluster};

/// What `dengine watch` takes.
#[derive(Debug, Args)]
pub struct WatchArgs {
    #[command(flatten)]
    keys: Keys,

    /// Begin with the changes of this revision, which may lie in the past.
    #[arg(long, value_name = "REVISION")]
    from_revision: Option<u64>,

    /// Show with each change what the key was before.
    #[arg(long)]
    previous: bool,

    /// Omit deletes.
    #[arg(long, conflicts_with = "only_deletes")]
    only_puts: bool,

    /// Omit puts.
    #[arg(long)]
    only_deletes: bool,

    /// Exit after this many changes.
    #[arg(long, value_name = "CHANGES")]
    count: Option<u64>,
}

impl WatchArgs {
    fn query(self) -> anyhow::Result<WatchQuery> {
        let mut query = WatchQuery::new(self.keys.named()?.unwrap_or_else(KeyRange::all));
        if let Some(revision) = self.from_revision {
            query = query.from_revision(revision);
        }
        if self.previous {
            query = query.previous();
        }
        if self.only_puts {
            query = query.only_puts();
        }
        if self.only_deletes {
            query = query.only_deletes();
        }
        Ok(query)
    }
}

/// So long no member serves a watch before that is said. Another one mostly takes over before.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// Between two looks at whether one does.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Goes on until it is ended, or until what follows is compacted. Members may come and go.
pub(crate) async fn watch(
    args: WatchArgs,
    asking: &Asking,
    cluster: &impl Cluster,
) -> anyhow::Result<u8> {
    let output = asking.output;
    let mut left = args.count.unwrap_or(u64::MAX);
    let client = asking.open(cluster).await?;
    let mut watch = client.watch(args.query()?).await?;
    let mut sight = Sight::Served;
    while left > 0 {
        let Some(events) = next(&mut watch, &mut sight).await? else {
            continue;
        };
        for event in events {
            if left == 0 {
                break;
            }
            left -= 1;
            print(&match output {
                Output::Text => text(&event),
                Output::Json => json(&event),
            })?;
        }
    }
    Ok(EXIT_OK)
}

/// What comes next, if anything came before the next look; says whether members serve.
async fn next(watch: &mut Watch, sight: &mut Sight) -> anyhow::Result<Option<Vec<Event>>> {
    let next = timeout(LOOK_EVERY, watch.next()).await;
    if let Some(words) = sight.look(watch.is_served(), Instant::now()) {
        complain(&match words {
            Words::Lost => "no member serves the watch any more; looking for one".to_owned(),
            Words::Back => format!(
                "a member serves the watch again; it goes on from revision {}",
                watch.next_revision()
            ),
        });
    }
    match next {
        Err(_) | Ok(Ok(WatchUpdate::Progress { .. })) => Ok(None),
        Ok(Ok(WatchUpdate::Events { events, .. })) => Ok(Some(events)),
        Ok(Err(error)) if error.retryable() => {
            complain(&format!("{error}; trying again"));
            Ok(None)
        }
        Ok(Err(error)) => Err(error.into()),
    }
}

/// Whether members were seen to serve a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    Served,
    /// Not since then; nothing was said of it.
    Missed(Instant),
    /// That was said.
    Lost,
}

/// What is to be said of it.
#[derive(Debug, PartialEq, Eq)]
enum Words {
    Lost,
    Back,
}

impl Sight {
    /// What has changed, if it is worth a word.
    fn look(&mut self, served: bool, now: Instant) -> Option<Words> {
        let (next, words) = match *self {
            Self::Lost if served => (Self::Served, Some(Words::Back)),
            _ if served => (Self::Served, None),
            Self::Served => (Self::Missed(now), None),
            Self::Missed(since) if now - since >= LOST_AFTER => (Self::Lost, Some(Words::Lost)),
            same => (same, None),
        };
        *self = next;
        words
    }
}

fn text(event: &Event) -> String {
    let key = show::text(&event.kv.key);
    let revision = event.kv.mod_revision;
    let before = event.previous.as_ref();
    let before = before.map_or_else(String::new, |it| {
        format!(" (was {})", show::short(&it.value))
    });
    match event.kind {
        EventKind::Put => {
            let value = show::short(&event.kv.value);
            format!("{revision} put {key} {value}{before}")
        }
        EventKind::Delete => format!("{revision} del {key}{before}"),
    }
}

fn json(event: &Event) -> String {
    let mut line = match event.kind {
        EventKind::Put => show::pair(&event.kv),
        EventKind::Delete => {
            let mut gone = serde_json::Map::new();
            show::put_bytes(&mut gone, "key", &event.kv.key);
            gone.insert("modRevision".to_owned(), json!(event.kv.mod_revision));
            gone.into()
        }
    };
    line["event"] = json!(match event.kind {
        EventKind::Put => "put",
        EventKind::Delete => "delete",
    });
    if let Some(previous) = &event.previous {
        line["previous"] = show::pair(previous);
    }
    line.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_are_lost_and_found_are_told_of_once() {
        let (mut sight, begun) = (Sight::Served, Instant::now());
        let mut look = |served, after_ms| {
            let now = begun + Duration::from_millis(after_ms);
            sight.look(served, now)
        };
        assert_eq!(look(true, 0), None);
        assert_eq!(look(false, 100), None, "another one may take over");
        assert_eq!(look(true, 300), None, "it did");
        assert_eq!(look(false, 400), None);
        assert_eq!(look(false, 1_300), None);
        assert_eq!(look(false, 1_400), Some(Words::Lost));
        assert_eq!(look(false, 9_000), None);
        assert_eq!(look(true, 9_100), Some(Words::Back));
        assert_eq!(look(true, 9_200), None);
    }
}
