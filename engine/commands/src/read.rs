//! `dengine get` and `range`.

use std::ffi::OsString;
use std::io::{self, Write as _};

use clap::Args;
use dengine_client::{Client, KeyRange, KeyValue, RangeQuery};
use serde_json::{Value, json};

use crate::arguments::{Freshness, Keys, typed};
use crate::end::{EXIT_OK, EXIT_UNMET, complain, print, shown};
use crate::show::{self, Output};
use crate::{Asking, Cluster};

/// What `dengine get` takes.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// The key.
    key: OsString,

    #[command(flatten)]
    moment: Moment,

    /// Write the value exactly as it is, without a line break behind it.
    #[arg(long, conflicts_with_all = ["details", "output"])]
    raw: bool,

    /// Show the key's history too: version, the revisions that created and last changed it, TTL.
    #[arg(long)]
    details: bool,
}

/// What `dengine range` takes.
#[derive(Debug, Args)]
pub struct RangeArgs {
    #[command(flatten)]
    keys: Keys,

    #[command(flatten)]
    moment: Moment,

    /// Maximum number of keys.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,

    /// Show only the keys.
    #[arg(long)]
    keys_only: bool,

    /// Show only how many keys there are.
    #[arg(long, conflicts_with_all = ["keys_only", "limit", "details"])]
    count: bool,

    /// Show each key's history too: version, the revisions that created and last changed it, TTL.
    #[arg(long, conflicts_with = "keys_only")]
    details: bool,
}

/// How fresh a read is, and of when.
#[derive(Debug, Args)]
struct Moment {
    /// How fresh the answer must be.
    #[arg(long, value_enum, default_value_t)]
    consistency: Freshness,

    /// Read what there was after this revision; 0: the newest.
    #[arg(long, default_value_t = 0)]
    revision: u64,
}

pub(crate) async fn get(
    args: GetArgs,
    asking: &Asking,
    cluster: &impl Cluster,
) -> anyhow::Result<u8> {
    let client = asking.open(cluster).await?;
    let key = typed(args.key);
    let Moment {
        consistency,
        revision,
    } = args.moment;
    let got = client
        .get_at(key.clone(), revision, consistency.into())
        .await?;
    let Some(kv) = got.kv else {
        complain(&format!("there is no key {}", show::text(&key)));
        return Ok(EXIT_UNMET);
    };
    match asking.output {
        Output::Json => print(&show::pair(&kv).to_string())?,
        Output::Text if args.details => print(&show::pairs(&[kv], true))?,
        Output::Text => {
            let mut out = io::stdout();
            shown(out.write_all(&kv.value))?;
            if !args.raw {
                shown(out.write_all(b"\n"))?;
            }
            shown(out.flush())?;
        }
    }
    Ok(EXIT_OK)
}

pub(crate) async fn range(
    args: RangeArgs,
    asking: &Asking,
    cluster: &impl Cluster,
) -> anyhow::Result<u8> {
    let range = args.keys.named()?.unwrap_or_else(KeyRange::all);
    let query = RangeQuery::new(range)
        .consistency(args.moment.consistency.into())
        .revision(args.moment.revision);
    let output = asking.output;
    let client = asking.open(cluster).await?;
    if args.count {
        return count(&client, query, output).await;
    }
    let query = match args.keys_only {
        true => query.keys_only(),
        false => query,
    };
    let mut left = args.limit.map_or(usize::MAX, |limit| limit as usize);
    // The server's own bound is smaller than a large limit, so that is kept here.
    let mut pages = client.pages(query.limit(args.limit.unwrap_or(0)));
    let mut is_first = true;
    while left > 0
        && let Some(mut page) = pages.next().await?
    {
        page.truncate(left);
        left -= page.len();
        let line = |kv: &KeyValue| match output {
            Output::Json if args.keys_only => Value::Object(show::key_only(kv)).to_string(),
            Output::Json => show::pair(kv).to_string(),
            Output::Text => show::text(&kv.key),
        };
        if output == Output::Json || args.keys_only {
            page.iter().map(line).try_for_each(|it| print(&it))?;
        } else if page.is_empty() {
            complain("there is no such key");
        } else {
            let table = show::pairs(&page, args.details);
            let rows = table.split_once('\n').map_or("", |(_, rows)| rows);
            print(if is_first { &table } else { rows })?;
        }
        is_first = false;
    }
    Ok(EXIT_OK)
}

async fn count(client: &Client, query: RangeQuery, output: Output) -> anyhow::Result<u8> {
    let result = client.range(query.count_only()).await?;
    let count = result.count.unwrap_or_default();
    match output {
        Output::Json => print(&json!({ "count": count }).to_string())?,
        Output::Text => print(&count.to_string())?,
    }
    Ok(EXIT_OK)
}
