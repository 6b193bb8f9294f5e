//! `dengine put`, `get`, `del`, `range`, `watch`, `txn` and `compact`: what a person does with keys.
//!
//! - [`arguments`]: what the subcommands have in common. [`show`]: how keys and answers look.
//! - [`read`], [`write`], [`watch`], [`txn`]: the subcommands.

mod arguments;
mod read;
mod show;
mod txn;
mod watch;
mod write;

use std::future::Future;

pub(super) use self::{
    read::{GetArgs, RangeArgs},
    txn::TxnArgs,
    watch::WatchArgs,
    write::{CompactArgs, DeleteArgs, PutArgs},
};

use self::arguments::Connection;

pub(super) fn put(args: PutArgs) -> anyhow::Result<u8> {
    block_on(&args.connection.clone(), write::put(args))
}

pub(super) fn get(args: GetArgs) -> anyhow::Result<u8> {
    block_on(&args.connection.clone(), read::get(args))
}

pub(super) fn delete(args: DeleteArgs) -> anyhow::Result<u8> {
    block_on(&args.connection.clone(), write::delete(args))
}

pub(super) fn range(args: RangeArgs) -> anyhow::Result<u8> {
    block_on(&args.connection.clone(), read::range(args))
}

pub(super) fn watch(args: WatchArgs) -> anyhow::Result<u8> {
    block_on(&args.connection.clone(), watch::watch(args))
}

pub(super) fn txn(args: TxnArgs) -> anyhow::Result<u8> {
    block_on(&args.connection.clone(), txn::txn(args))
}

pub(super) fn compact(args: CompactArgs) -> anyhow::Result<u8> {
    block_on(&args.connection.clone(), write::compact(args))
}

/// One thread is enough for one call at a time.
fn block_on(
    asked: &Connection,
    command: impl Future<Output = anyhow::Result<u8>>,
) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime
        .block_on(command)
        .map_err(|error| asked.explain(error))
}
