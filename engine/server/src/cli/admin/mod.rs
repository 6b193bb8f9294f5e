//! `dengine admin`: what people do to a running cluster, and what they want to know of it.
//!
//! - [`ask`]: reaching members. [`status`], [`members`], [`sessions`], [`tools`]: the subcommands.

mod ask;
mod members;
mod sessions;
mod status;
mod tools;

use std::time::Duration;

use clap::{Args, Subcommand};

use self::ask::Cluster;

/// What `dengine admin` takes.
#[derive(Debug, Args)]
pub(super) struct AdminArgs {
    /// Admin addresses of members of the cluster, comma-separated, or their client addresses. One
    /// that answers is enough: it names the others.
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        default_value = "127.0.0.1:4103",
        env = crate::cli::ENDPOINTS_VARIABLE,
        global = true
    )]
    endpoints: Vec<String>,

    /// Longest time for the whole command, as in 500ms, 30s or 2m.
    #[arg(
        long,
        default_value = "30s",
        value_parser = dengine_commands::time_limit,
        global = true,
    )]
    timeout: Duration,

    /// Answer as JSON, for programs.
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: AdminCommand,
}

#[derive(Debug, Subcommand)]
enum AdminCommand {
    /// Show the state of every member: role, term, indexes, revision, sizes, lag.
    ///
    /// Works without a leader too: it then shows the members that were named with --endpoints.
    /// LAST, COMMIT and APPLIED are the member's own raw indexes of the log; LAG counts the entries
    /// that the leader holds and the member has not acknowledged. READS is the newest version of
    /// commands that the member's program reads; the first line says in which the leader writes
    /// them, which is one that all members read.
    Status,
    /// List the members, and add, promote, remove or replace one.
    #[command(subcommand)]
    Members(members::MembersCommand),
    /// List the open sessions of clients, or end some.
    #[command(subcommand)]
    Sessions(sessions::SessionsCommand),
    /// Hand leadership to a voter, by its id (see `members list`), and wait until it leads.
    Transfer {
        /// Id of the member that is to lead.
        member: u64,
    },
    /// Flush the state of every member to its disk now, so that older log can be deleted.
    ///
    /// Members do this by themselves. It is no backup: nothing is copied.
    // Its name of before said it were one.
    #[command(alias = "snapshot")]
    Flush,
    /// Hash what every member holds: members at the same applied index must have the same hash.
    ///
    /// Reads all data of every member. Exits 1 if two of them differ.
    Hash,
    /// Check the health of the cluster; exits 0 if it has a leader and every voter is healthy,
    /// otherwise 1.
    Health,
}

/// Does it.
pub(super) fn run(args: AdminArgs) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let cluster = Cluster::new(args.endpoints, args.timeout);
    let json = args.json;
    runtime.block_on(async {
        match args.command {
            AdminCommand::Status => status::status(&cluster, json).await,
            AdminCommand::Health => status::health(&cluster, json).await,
            AdminCommand::Members(command) => members::run(&cluster, command, json).await,
            AdminCommand::Sessions(command) => sessions::run(&cluster, command, json).await,
            AdminCommand::Transfer { member } => tools::transfer(&cluster, member, json).await,
            AdminCommand::Flush => tools::flush(&cluster, json).await,
            AdminCommand::Hash => tools::hash(&cluster, json).await,
        }
    })
}
