//! `dengine put`, `del` and `compact`.

use std::{
    ffi::OsString,
    io::{self, Read as _},
    path::PathBuf,
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use clap::{ArgGroup, Args};
use dengine_client::{Client, Expected, KeyValue, PutOptions};
use serde_json::{Value, json};

use super::{
    EXIT_FAILED,
    arguments::{Connection, Keys, typed},
    show::{self, Output},
};
use crate::cli::{EXIT_OK, complain, say};

/// What `dengine put` takes.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("condition"))]
pub(crate) struct PutArgs {
    /// The key.
    key: OsString,

    /// The value; without it (and --file) it is read from standard input, whole and as it is.
    value: Option<OsString>,

    /// Read the value from this file.
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    file: Option<PathBuf>,

    /// The key expires so long after this, and not sooner; as in 90s, 10m or 1h.
    #[arg(long, value_parser = humantime::parse_duration)]
    ttl: Option<Duration>,

    /// Show what the key was before.
    #[arg(long)]
    previous: bool,

    /// Only if the key does not exist; else exits 1.
    #[arg(long, group = "condition")]
    if_absent: bool,

    /// Only if the key has this value; else exits 1.
    #[arg(long, value_name = "VALUE", group = "condition")]
    if_value: Option<OsString>,

    /// Only if this revision last changed the key; else exits 1.
    #[arg(long, value_name = "REVISION", group = "condition")]
    if_revision: Option<u64>,

    #[command(flatten)]
    connection: Connection,
}

/// What `dengine del` takes.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    keys: Keys,

    /// Show what the keys were before.
    #[arg(long)]
    previous: bool,

    #[command(flatten)]
    connection: Connection,
}

/// What `dengine compact` takes.
#[derive(Debug, Args)]
pub(crate) struct CompactArgs {
    /// The first revision that can still be read and watched afterwards.
    revision: u64,

    #[command(flatten)]
    connection: Connection,
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
            return Ok(fs_err::read(file)?.into());
        }
        if let Some(value) = &self.value {
            return Ok(typed(value.clone()));
        }
        let mut value = Vec::new();
        io::stdin()
            .read_to_end(&mut value)
            .context("the value can't be read from standard input")?;
        Ok(value.into())
    }
}

pub(super) async fn put(args: PutArgs) -> anyhow::Result<u8> {
    let (key, value) = (typed(args.key.clone()), args.value()?);
    let client = args.connection.open().await?;
    let output = args.connection.output;
    let Some(expected) = args.expected() else {
        let options = PutOptions {
            previous: args.previous,
            ttl: args.ttl,
        };
        let put = client.put_with(key, value, options).await?;
        let previous = args.previous.then_some(put.previous).map(Vec::from_iter);
        changed(output, put.header.revision, None, previous.as_deref());
        return Ok(EXIT_OK);
    };
    swap(&client, key, value, expected, &args).await
}

async fn swap(
    client: &Client,
    key: Bytes,
    value: Bytes,
    expected: Expected,
    args: &PutArgs,
) -> anyhow::Result<u8> {
    let swap = client
        .compare_and_swap_with(key.clone(), expected, value, args.ttl)
        .await?;
    let output = args.connection.output;
    if swap.succeeded {
        let previous = args.previous.then_some(swap.previous).map(Vec::from_iter);
        changed(output, swap.header.revision, None, previous.as_deref());
        return Ok(EXIT_OK);
    }
    let key = show::text(&key);
    let is = match &swap.previous {
        None => format!("there is no key {key}"),
        Some(kv) => format!(
            "{key} is {} since revision {}",
            show::short(&kv.value),
            kv.mod_revision
        ),
    };
    match output {
        Output::Json => say(&json!({
            "succeeded": false,
            "previous": swap.previous.as_ref().map(show::pair),
        })
        .to_string()),
        Output::Text => complain(&format!("nothing was changed: {is}")),
    }
    Ok(EXIT_FAILED)
}

pub(super) async fn delete(args: DeleteArgs) -> anyhow::Result<u8> {
    let range = args
        .keys
        .named()
        .context("which keys? Name a KEY, --prefix, --from or --all")?;
    let client = args.connection.open().await?;
    let deleted = match args.previous {
        true => client.delete_range_returning_previous(range).await?,
        false => client.delete_range(range).await?,
    };
    let previous = args.previous.then_some(deleted.previous);
    changed(
        args.connection.output,
        deleted.header.revision,
        Some(deleted.deleted),
        previous.as_deref(),
    );
    Ok(EXIT_OK)
}

pub(super) async fn compact(args: CompactArgs) -> anyhow::Result<u8> {
    let client = args.connection.open().await?;
    client.compact(args.revision).await?;
    match args.connection.output {
        Output::Json => say(&json!({ "firstRevision": args.revision }).to_string()),
        Output::Text => say(&format!(
            "nothing can be read or watched below revision {} any more",
            args.revision
        )),
    }
    Ok(EXIT_OK)
}

/// Tells what a write came to.
fn changed(output: Output, revision: u64, deleted: Option<u64>, previous: Option<&[KeyValue]>) {
    match output {
        Output::Json => {
            let mut answer = json!({ "revision": revision });
            if let Some(deleted) = deleted {
                answer["deleted"] = json!(deleted);
            }
            if let Some(previous) = previous {
                let pairs: Value = previous.iter().map(show::pair).collect();
                answer["previous"] = pairs;
            }
            say(&answer.to_string());
        }
        Output::Text => {
            if let Some(previous) = previous.filter(|it| !it.is_empty()) {
                say(&show::pairs(previous, true));
            }
            say(&match deleted {
                None => format!("revision {revision}"),
                Some(1) => format!("1 key deleted, revision {revision}"),
                Some(keys) => format!("{keys} keys deleted, revision {revision}"),
            });
        }
    }
}
