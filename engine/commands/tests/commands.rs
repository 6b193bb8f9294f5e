//! Command lines, and what they come to at a member that is scripted.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use clap::{Args, CommandFactory, Parser};
use dengine_client::{Client, ClientOptions};
use dengine_commands::{Cluster, EXIT_OK, KeyCommand, told};
use dengine_fake_kv::{Peer, ScriptStep};
use tokio::net::TcpListener;
use tonic::Code;

#[derive(Debug, Parser)]
struct Program {
    #[command(subcommand)]
    command: KeyCommand<Name, ()>,
}

#[derive(Debug, Args)]
struct Name {
    /// Of the cluster.
    cluster: String,
}

#[test]
fn what_finds_the_cluster_stands_before_the_key() {
    Program::command().debug_assert();
    for args in [
        &["put", "demo", "color", "blue"][..],
        &["get", "demo", "color"],
        &["del", "demo", "a", "c"],
        &["range", "demo", "--prefix", "a/"],
        &["watch", "demo", "--timeout", "1s"],
        &["txn", "demo", "--then", "del a"],
        &["compact", "demo", "7"],
    ] {
        let program = Program::try_parse_from([&["program"], args].concat()).unwrap();
        let (_, name, ()) = program.command.split();
        assert_eq!(name.cluster, "demo", "{args:?}");
    }
    let put = Program::try_parse_from(["program", "put", "demo", "color", "blue"]).unwrap();
    let (request, ..) = put.command.split();
    assert!(format!("{request:?}").contains(r#"key: "color", value: Some("blue")"#));
}

/// A cluster of one member, where it listens.
struct OneMember(String);

impl Cluster for OneMember {
    async fn connect(&self, options: ClientOptions) -> anyhow::Result<Client> {
        Ok(Client::connect_with([self.0.clone()], options).await?)
    }

    fn nobody_serves(&self) -> String {
        "no member serves".to_owned()
    }
}

async fn run(address: &str, args: &[&str]) -> anyhow::Result<u8> {
    let (command, args) = args.split_first().unwrap();
    let program = Program::try_parse_from([&["program", command, "demo"], args].concat())?;
    let (request, ..) = program.command.split();
    request.run(&OneMember(address.to_owned())).await
}

/// What is complained of.
async fn complaint(address: &str, args: &[&str]) -> String {
    told(&run(address, args).await.unwrap_err())
}

const WRITES: [&[&str]; 4] = [
    &["put", "a", "1", "--timeout", "300ms"],
    &["put", "a", "1", "--if-absent", "--timeout", "300ms"],
    &["del", "a", "--timeout", "300ms"],
    &["compact", "7", "--timeout", "300ms"],
];

#[tokio::test]
async fn a_write_whose_read_is_not_answered_says_that_nothing_was_changed() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    for args in WRITES
        .into_iter()
        .chain([&["txn", "--then", "del a", "--timeout", "300ms"][..]])
    {
        let told = complaint(&address, args).await;
        assert!(
            told.starts_with("nothing was changed, because the read"),
            "{args:?}: {told}"
        );
        assert!(
            told.contains("timed out: no answer within "),
            "{args:?}: {told}"
        );
    }
}

#[tokio::test]
async fn a_failed_write_says_what_became_of_it() {
    for args in WRITES {
        let peer = Peer::scripted([ScriptStep::Hang]).await;
        let told = complaint(&peer.address, args).await;
        let unknown = "the write may or may not have taken effect: outcome unknown: no answer";
        assert!(told.starts_with(unknown), "{args:?}: {told}");
        let peer = Peer::scripted([ScriptStep::Fail(Code::FailedPrecondition)]).await;
        let told = complaint(&peer.address, args).await;
        assert!(
            told.starts_with("nothing was changed: refused"),
            "{args:?}: {told}"
        );
    }
}

/// As by a script that runs again.
#[tokio::test]
async fn what_is_compacted_already_is_done() {
    let peer = Peer::scripted([ScriptStep::Fail(Code::OutOfRange)]).await;
    assert_eq!(
        run(&peer.address, &["compact", "1"]).await.unwrap(),
        EXIT_OK
    );
    let peer = Peer::scripted([ScriptStep::Fail(Code::OutOfRange)]).await;
    let future = complaint(&peer.address, &["compact", "2"]).await;
    assert!(
        future.starts_with("nothing was changed: revision not available"),
        "{future}"
    );
}
