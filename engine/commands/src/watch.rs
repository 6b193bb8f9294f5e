//! `dengine watch`.

use clap::Args;
use dengine_client::{Event, EventKind, KeyRange, WatchQuery, WatchUpdate};
use serde_json::json;

use crate::{
    Asking, Cluster,
    arguments::Keys,
    end::{EXIT_OK, complain, print},
    show::{self, Output},
};

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

    /// Leave out deletions.
    #[arg(long, conflicts_with = "only_deletes")]
    only_puts: bool,

    /// Leave out what sets a key.
    #[arg(long)]
    only_deletes: bool,

    /// End after so many changes.
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
    while left > 0 {
        let events = match watch.next().await {
            Ok(WatchUpdate::Events { events, .. }) => events,
            Ok(WatchUpdate::Progress { .. }) => continue,
            Err(error) if error.retryable() => {
                complain(&format!("{error}; trying again"));
                continue;
            }
            Err(error) => return Err(error.into()),
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
