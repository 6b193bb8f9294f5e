//! `dengine put`, `del` and `compact`.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::{ArgGroup, Args};
use dengine_client::{Client, Error, Expected, KeyValue, PutOptions};
use serde_json::{Value, json};

use crate::arguments::{self, Keys, typed, written};
use crate::end::{EXIT_OK, EXIT_UNMET, UsageError, after_write, complain, print};
use crate::show::{self, Output};
use crate::{Asking, Cluster};

/// What `dengine put` takes.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("condition"))]
pub struct PutArgs {
    /// The key.
    key: OsString,

    /// The value; without it (and --file) it is read from standard input, whole and as it is.
    #[arg(allow_negative_numbers = true)]
    value: Option<OsString>,

    /// Read the value from this file.
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    file: Option<PathBuf>,

    /// Time to live, such as 90s, 10m or 1h. The key does not expire earlier.
    #[arg(long, value_parser = arguments::ttl)]
    ttl: Option<Duration>,

    /// Show what the key was before.
    #[arg(long)]
    previous: bool,

    /// Only if the key does not exist; else exits 5.
    #[arg(long, group = "condition")]
    if_absent: bool,

    /// Only if the key has this value; else exits 5.
    #[arg(
        long,
        value_name = "VALUE",
        allow_hyphen_values = true,
        group = "condition"
    )]
    if_value: Option<OsString>,

    /// Only if this revision last changed the key; else exits 5.
    #[arg(long, value_name = "REVISION", group = "condition")]
    if_revision: Option<u64>,
}

/// What `dengine del` takes.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    keys: Keys,

    /// Show what the keys were before.
    #[arg(long)]
    previous: bool,
}

/// What `dengine compact` takes.
#[derive(Debug, Args)]
pub struct CompactArgs {
    /// The first revision that can still be read and watched afterwards. If history begins there or
    /// above already, nothing is left to do.
    revision: u64,
}

impl PutArgs {
    fn expected(&self) -> Option<Expected> {
        if self.if_absent {
            return Some(Expected::Absent);
        }
        let value = self.if_value.clone().map(|it| Expected::Value(typed(it)));
        value.or(self.if_revision.map(Expected::ModRevision))
    }

    fn value(&self) -> anyhow::Result<Bytes> {
        if let Some(file) = &self.file {
            let read = arguments::read_all(fs_err::File::open(file)?);
            let read = read.with_context(|| format!("{} can't be read", file.display()));
            return Ok(read?.into());
        }
        if let Some(value) = &self.value {
            return Ok(typed(value.clone()));
        }
        let read = arguments::read_all(io::stdin());
        Ok(read
            .context("the value can't be read from standard input")?
            .into())
    }
}

pub(crate) async fn put(
    args: PutArgs,
    asking: &Asking,
    cluster: &impl Cluster,
) -> anyhow::Result<u8> {
    let (key, value) = (typed(args.key.clone()), args.value()?);
    let client = asking.open_to_write(cluster).await?;
    let done = match args.expected() {
        Some(expected) => swap(&client, key, value, expected, &args).await?,
        None => {
            let options = PutOptions {
                previous: args.previous,
                ttl: args.ttl,
            };
            let put = written(client.put_with(key, value, options).await)?;
            Put {
                revision: put.header.revision,
                held: None,
                previous: args.previous.then_some(put.previous),
            }
        }
    };
    let shown = done.show(asking.output);
    if done.held == Some(false) {
        shown?;
        return Ok(EXIT_UNMET);
    }
    after_write(shown, done.revision)?;
    Ok(EXIT_OK)
}

/// What a put came to.
struct Put {
    revision: u64,
    /// Whether its condition did, if it had one.
    held: Option<bool>,
    /// The pair before it, or that there was none, if that is to be shown.
    previous: Option<Option<KeyValue>>,
}

impl Put {
    fn show(&self, output: Output) -> anyhow::Result<()> {
        if output == Output::Json {
            return print(&self.json().to_string());
        }
        if self.held == Some(false) {
            return Ok(());
        }
        if let Some(Some(previous)) = &self.previous {
            print(&show::pairs(std::slice::from_ref(previous), true))?;
        }
        print(&format!("revision {}", self.revision))
    }

    fn json(&self) -> Value {
        let mut answer = json!({ "revision": self.revision });
        if let Some(held) = self.held {
            answer["succeeded"] = json!(held);
        }
        if let Some(previous) = &self.previous {
            answer["previous"] = previous.as_ref().map_or(Value::Null, show::pair);
        }
        answer
    }
}

async fn swap(
    client: &Client,
    key: Bytes,
    value: Bytes,
    expected: Expected,
    args: &PutArgs,
) -> anyhow::Result<Put> {
    let swap = client.compare_and_swap_with(key.clone(), expected, value, args.ttl);
    let swap = written(swap.await)?;
    if !swap.succeeded {
        let key = show::text(&key);
        complain(&match &swap.previous {
            None => format!("nothing was changed: there is no key {key}"),
            Some(kv) => format!(
                "nothing was changed: {key} is {} since revision {}",
                show::short(&kv.value),
                kv.mod_revision
            ),
        });
    }
    Ok(Put {
        revision: swap.header.revision,
        held: Some(swap.succeeded),
        previous: (args.previous || !swap.succeeded).then_some(swap.previous),
    })
}

pub(crate) async fn delete(
    args: DeleteArgs,
    asking: &Asking,
    cluster: &impl Cluster,
) -> anyhow::Result<u8> {
    if args.keys.are_all_by_mistake() {
        bail!(UsageError(
            "--prefix is empty, which is every key: if that is meant, use --all".to_owned()
        ));
    }
    let Some(range) = args.keys.named()? else {
        bail!(UsageError(
            "which keys? Name a KEY, --prefix, --from or --all".to_owned()
        ));
    };
    let client = asking.open_to_write(cluster).await?;
    let deleted = match args.previous {
        true => client.delete_range_returning_previous(range).await,
        false => client.delete_range(range).await,
    };
    let deleted = written(deleted)?;
    let (keys, revision) = (deleted.deleted, deleted.header.revision);
    if asking.output == Output::Json {
        let mut answer = json!({ "revision": revision, "deleted": keys });
        if args.previous {
            answer["previous"] = deleted.previous.iter().map(show::pair).collect();
        }
        after_write(print(&answer.to_string()), revision)?;
        return Ok(EXIT_OK);
    }
    if !deleted.previous.is_empty() {
        after_write(print(&show::pairs(&deleted.previous, true)), revision)?;
    }
    let keys = match keys {
        1 => "1 key".to_owned(),
        keys => format!("{keys} keys"),
    };
    let shown = print(&format!("{keys} deleted, revision {revision}"));
    after_write(shown, revision)?;
    Ok(EXIT_OK)
}

pub(crate) async fn compact(
    args: CompactArgs,
    asking: &Asking,
    cluster: &impl Cluster,
) -> anyhow::Result<u8> {
    let client = asking.open_to_write(cluster).await?;
    let revision = args.revision;
    match client.compact(revision).await {
        Err(error @ Error::RevisionUnavailable { .. }) => {
            // Compacted already, unless it lies in the future.
            if arguments::newest_revision(&client).await? < revision {
                return written(Err(error));
            }
            print(&match asking.output {
                Output::Json => json!({ "firstRevisionAtLeast": revision }).to_string(),
                Output::Text => {
                    format!("nothing to do: history already begins at revision {revision} or above")
                }
            })?;
        }
        compacted => {
            let now = written(compacted)?.header.revision;
            let shown = print(&match asking.output {
                Output::Json => json!({ "firstRevision": revision }).to_string(),
                Output::Text => {
                    format!("nothing can be read or watched below revision {revision} any more")
                }
            });
            after_write(shown, now)?;
        }
    }
    Ok(EXIT_OK)
}
