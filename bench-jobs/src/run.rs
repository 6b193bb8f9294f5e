//! One call of the program from its checked command line to its delivered result.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use dengine_bench_model::results::Report;

use crate::cli::{self, Cli, Command, ResultOptions};
use crate::cut::Cut;
use crate::outcome::Verdict;
use crate::pods::{self, Team};
use crate::session::Session;
use crate::{compare, files, page, profiles, summary};

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitStatus(u8);

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        ExitCode::from(status.0)
    }
}

/// Carries a command line out: measures, compares or shows.
pub async fn run(cli: Cli) -> ExitStatus {
    if let Err(error) = cli.validate() {
        error.exit();
    }
    let done = match &cli.command {
        Command::Put | Command::Range(_) | Command::Swap => measure(&cli).await,
        Command::Run(run) if run.what.list => {
            say(&mut io::stdout(), profiles::list());
            Ok(0)
        }
        Command::Run(_) => measure(&cli).await,
        Command::Compare(compare) => compare::run(compare).map(|compared| {
            say(&mut io::stdout(), &compared.text);
            if compared.regressed { 4 } else { 0 }
        }),
        Command::Report(report) => page::write(report).map(|()| 0),
        Command::Completions(of) => {
            let script = cli::completions(of.shell);
            let written = io::stdout().write_all(&script);
            written.map(|()| 0).map_err(anyhow::Error::from)
        }
    };
    ExitStatus(done.unwrap_or_else(|error| {
        say(&mut io::stderr(), format_args!("error: {error:#}\n"));
        1
    }))
}

async fn measure(cli: &Cli) -> anyhow::Result<u8> {
    let options = &cli.options;
    if options.pods.follows() {
        return pods::follow(cli).await.map(|()| 0);
    }
    let (cut, clock) = Cut::once_started(options.timeout).context("signal handlers")?;
    let team = match options.pods.pods {
        1 => None,
        _ => Some(Team::gather(cli, &cut).await),
    };
    clock.start();
    let mut session = Session::new(cli, cut, team)?;
    let mut report = session.measure_all().await;
    let verdict = Verdict::of_all(&report);
    // Who waits for the result may load the cluster next. But of a run that is cut short there may
    // not be time for both, and a later one takes away what it leaves.
    let cut = session.was_cut() || session.has_lost_a_pod();
    report.left_over = if cut {
        session.not_yet_tidied()
    } else {
        tidy_up(&mut session).await
    };
    let mut delivered = deliver(cli, &report).await;
    if cut && report.left_over.is_some() {
        report.left_over = tidy_up(&mut session).await;
        delivered = delivered.and(correct(cli, &report).await);
    }
    if let Err(error) = &delivered {
        say(&mut io::stderr(), format_args!("error: {error:#}\n"));
        return Ok(verdict.exit_status().max(1));
    }
    Ok(verdict.exit_status())
}

async fn tidy_up(session: &mut Session<'_>) -> Option<String> {
    let left = session.tidy_up().await?;
    let words = format_args!("warning: {left}; a later run deletes them\n");
    say(&mut io::stderr(), words);
    Some(left)
}

/// Delivers what became known after the result was delivered.
async fn correct(cli: &Cli, report: &Report) -> anyhow::Result<()> {
    let to = &cli.options.result;
    let written = match to
        .files
        .json
        .as_deref()
        .filter(|path| *path != Path::new("-"))
    {
        Some(path) => files::write_json(path, report),
        None => Ok(()),
    };
    written.and(post(to, report).await)
}

#[cfg(feature = "kubernetes")]
async fn post(to: &ResultOptions, report: &Report) -> anyhow::Result<()> {
    match (&to.post.report_to, &to.post.run_id) {
        (Some(object), Some(run_id)) => crate::post::post(object, run_id, report).await,
        _ => Ok(()),
    }
}

/// Without Kubernetes no flag asks for it.
#[cfg(not(feature = "kubernetes"))]
async fn post(_: &ResultOptions, _: &Report) -> anyhow::Result<()> {
    Ok(())
}

async fn deliver(cli: &Cli, report: &Report) -> anyhow::Result<()> {
    let to = &cli.options.result;
    let summary = match (&cli.command, &report.results[..]) {
        (Command::Put | Command::Range(_) | Command::Swap, [result]) => summary::render(result),
        _ => summary::table(report),
    };
    if to.files.fill_the_output() {
        say(&mut io::stderr(), &summary);
    } else {
        say(&mut io::stdout(), &summary);
    }
    let written = files::write(&to.files, report);
    let posted = post(to, report).await;
    written.and(posted)
}

/// Prints; a reader that is gone is no reason to fail a run.
fn say(to: &mut impl Write, text: impl Display) {
    let _ = write!(to, "{text}");
    let _ = to.flush();
}
