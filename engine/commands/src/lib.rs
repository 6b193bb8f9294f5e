//! The commands `put`, `get`, `del`, `range`, `watch`, `txn` and `compact`: what a person does with
//! keys.
//!
//! For any program that can reach a cluster: [`KeyCommand`] is the part of its command line,
//! [`Cluster`] is how it reaches the cluster, and [`Request::run`] does what was asked for. What
//! may live here: arguments, how answers look, exit codes. What may not: where a cluster is, and
//! the engine, for some of those programs do without RocksDB.
//!
//! - [`arguments`]: what the commands have in common. [`show`]: how keys and answers look.
//! - [`read`], [`mod@write`], [`watch`], [`txn`]: the commands. [`end`]: how a program ends.

mod arguments;
mod end;
mod read;
mod show;
pub mod table;
mod txn;
mod watch;
mod write;

use clap::{Args, Subcommand};
use dengine_client::{Client, ClientOptions};

pub use self::arguments::{Asking, time_limit};
pub use self::end::{
    EXIT_FAILED, EXIT_OK, EXIT_UNMET, EXIT_USAGE, UsageError, code_of, complain, is_closed_pipe,
    print, told,
};
pub use self::read::{GetArgs, RangeArgs};
pub use self::txn::TxnArgs;
pub use self::watch::WatchArgs;
pub use self::write::{CompactArgs, DeleteArgs, PutArgs};

/// What can be done with keys. `B` and `A` are what a program takes before and after the arguments
/// of each command to find the cluster; `()` is nothing.
#[derive(Debug, Subcommand)]
pub enum KeyCommand<B: Args, A: Args> {
    /// Set a key.
    Put(Placed<B, PutArgs, A>),
    /// Show the value of a key; exits 5 if there is no such key.
    Get(Placed<B, GetArgs, A>),
    /// Delete a key, or a range of keys at once.
    Del(Placed<B, DeleteArgs, A>),
    /// Show keys in ascending order: one, a range, or all there are.
    ///
    /// All of it is as of one revision, however large it is; if that is compacted meanwhile, this
    /// ends with an error. As text, values are cut at 60 bytes: `get` and `--output json` have all
    /// of them.
    Range(Placed<B, RangeArgs, A>),
    /// Show changes of keys as they happen, in their order, through changes of leader too.
    Watch(Placed<B, WatchArgs, A>),
    /// Run a transaction: comparisons, and then one of two lists of operations, atomically.
    ///
    /// Without --if, --then and --else it is read from standard input, a line each: `if exists a`,
    /// `then put b 1`, `else get b`. Words are quoted as in a shell, within their line. Exits 0
    /// whether the comparisons hold or not: the answer says which.
    #[command(name = "txn")]
    Transaction(Placed<B, TxnArgs, A>),
    /// Compact history: no revision below the given one can be read or watched any more.
    Compact(Placed<B, CompactArgs, A>),
}

/// The arguments of a command, with those that say where the cluster is.
#[derive(Debug, Args)]
pub struct Placed<B: Args, C: Args, A: Args> {
    #[command(flatten)]
    before: B,
    #[command(flatten)]
    command: C,
    #[command(flatten)]
    after: A,
    #[command(flatten)]
    asking: Asking,
}

/// What is to be done, wherever that is.
#[derive(Debug)]
pub struct Request {
    command: Command,
    asking: Asking,
}

#[derive(Debug)]
enum Command {
    Put(PutArgs),
    Get(GetArgs),
    Delete(DeleteArgs),
    Range(RangeArgs),
    Watch(WatchArgs),
    Transaction(TxnArgs),
    Compact(CompactArgs),
}

/// How a program reaches the cluster that it was told of.
pub trait Cluster {
    /// Connects. Called once, and only if nothing is wrong with what was typed.
    ///
    /// # Errors
    /// If no member can be reached, with what to do about it.
    fn connect(&self, options: ClientOptions) -> impl Future<Output = anyhow::Result<Client>>;

    /// What is told before an error which says that nobody served, or that it was no member which
    /// answered: where it was asked, and what to look at.
    fn nobody_serves(&self) -> String;
}

impl<B: Args, A: Args> KeyCommand<B, A> {
    /// What is to be done, and where.
    pub fn split(self) -> (Request, B, A) {
        match self {
            Self::Put(it) => it.split(Command::Put),
            Self::Get(it) => it.split(Command::Get),
            Self::Del(it) => it.split(Command::Delete),
            Self::Range(it) => it.split(Command::Range),
            Self::Watch(it) => it.split(Command::Watch),
            Self::Transaction(it) => it.split(Command::Transaction),
            Self::Compact(it) => it.split(Command::Compact),
        }
    }
}

impl<B: Args, C: Args, A: Args> Placed<B, C, A> {
    fn split(self, command: impl FnOnce(C) -> Command) -> (Request, B, A) {
        let request = Request {
            command: command(self.command),
            asking: self.asking,
        };
        (request, self.before, self.after)
    }
}

impl Request {
    /// Does it, and returns the exit code.
    ///
    /// # Errors
    /// What [`told`] tells, and [`code_of`] has a code for.
    pub async fn run(self, cluster: &impl Cluster) -> anyhow::Result<u8> {
        let Self { command, asking } = self;
        let done = match command {
            Command::Put(args) => write::put(args, &asking, cluster).await,
            Command::Get(args) => read::get(args, &asking, cluster).await,
            Command::Delete(args) => write::delete(args, &asking, cluster).await,
            Command::Range(args) => read::range(args, &asking, cluster).await,
            Command::Watch(args) => watch::watch(args, &asking, cluster).await,
            Command::Transaction(args) => txn::txn(args, &asking, cluster).await,
            Command::Compact(args) => write::compact(args, &asking, cluster).await,
        };
        done.map_err(|error| end::explained(error, cluster))
    }
}
