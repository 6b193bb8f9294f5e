//! `kubectl dengine`, found by `kubectl` in `PATH` as a person's is.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use dengine_bench_model::results::Report;
use dengine_crds::names::annotations;
use dengine_e2e::product;
use dengine_local_kubernetes::shell;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use crate::load::{Load, connect, say};
use crate::support::{World, test};

// Writers go on while this thread waits for a command.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_plugin_shows_measures_reports_and_restarts() {
    test("plugin", async |world| {
        world.make_cluster("p", 3).await?;
        shows(world)?;
        measures_and_reports(world)?;
        restarts(world).await
    })
    .await;
}

fn shows(world: &World) -> Result<()> {
    let said = dengine(world, &["status", "p"])?;
    say(format_args!("{said}"));
    ensure!(said.starts_with("p: Ready, 3/3 ready, leader p-"), "{said}");
    for member in ["p-0", "p-1", "p-2"] {
        let row = said.lines().find(|line| line.trim().starts_with(member));
        let row = row.with_context(|| format!("{member} in {said}"))?;
        ensure!(row.contains(" yes ") && row.contains(" none "), "{row}");
    }
    let unknown = dengine(world, &["status", "nobody"]);
    let words = unknown.err().map(|error| format!("{error:#}"));
    ensure!(
        words
            .as_deref()
            .is_some_and(|words| words.contains("\"nobody\" not found")),
        "{words:?}"
    );
    Ok(())
}

fn measures_and_reports(world: &World) -> Result<()> {
    let said = dengine(
        world,
        &[
            "bench",
            "p",
            "--connections=2",
            "--clients=4",
            "--total=400",
        ],
    )?;
    ensure!(said.contains("Succeeded: "), "{said}");
    let json = dengine(world, &["report", "p-put"])?;
    let report: Report = serde_json::from_str(&json)?;
    ensure!(
        report
            .results
            .iter()
            .map(|result| result.requests)
            .eq([400]),
        "{report:?}"
    );
    let folder = tempfile::tempdir()?;
    let page = folder.path().join("report.html");
    let html = format!("--html={}", page.display());
    dengine(world, &["report", "p-put", &html])?;
    let html = fs_err::read_to_string(page)?;
    ensure!(html.starts_with("<!doctype html>") && html.contains("DEngine (p)"));
    let none = dengine(world, &["report", "p-put", "--run=never"]);
    let words = none.err().map(|error| format!("{error:#}"));
    ensure!(
        words
            .as_deref()
            .is_some_and(|words| words.contains("those that are kept")),
        "{words:?}"
    );
    ensure!(dengine(world, &["status"])?.contains("p-put"));
    Ok(())
}

async fn restarts(world: &World) -> Result<()> {
    let load = Load::start(&connect(world, "p").await?).await?;
    let before = world.uids::<Pod>("p").await?;
    let said = dengine(world, &["restart", "p"])?;
    ensure!(said.contains("every member has restarted"), "{said}");
    let after = world.uids::<Pod>("p").await?;
    ensure!(
        after
            .iter()
            .all(|(name, uid)| before.get(name) != Some(uid)),
        "before {before:?}, now {after:?}"
    );
    let cluster = world.await_settled("p", 3).await?;
    ensure!(cluster.annotations().contains_key(annotations::RESTART));
    load.check(world, "p").await.map(drop)
}

/// `kubectl dengine …` in the test's namespace.
pub(crate) fn dengine(world: &World, arguments: &[&str]) -> Result<String> {
    shell::run(&mut dengine_command(world, arguments)?)
}

/// The same, to be run.
pub(crate) fn dengine_command(world: &World, arguments: &[&str]) -> Result<Command> {
    let program = product::program("kubectl-dengine")?;
    let folder = program.parent().context("a program lies in a folder")?;
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":");
    path.push(folder);
    let mut kubectl = world.cluster().kubectl();
    kubectl.env("PATH", path).arg("dengine").args(arguments);
    kubectl.args(["--namespace", &world.namespace]);
    Ok(kubectl)
}
