//! The runbooks' commands, as they stand there, for tests that run them.

use anyhow::{Context as _, Result, ensure};
use dengine_e2e::product;

use crate::load::say;
use crate::support::World;

/// A fenced block of a page.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) language: String,
    pub(crate) text: String,
}

/// The blocks below a heading of a runbook, up to the next heading, with what is in capitals there
/// filled in.
pub(crate) fn blocks(runbook: &str, heading: &str, fill_in: &[(&str, &str)]) -> Result<Vec<Block>> {
    let file = product::workspace()?.join(format!("docs/runbooks/{runbook}.md"));
    let page = fs_err::read_to_string(file)?;
    let (_, section) = page.split_once(heading).context("the heading is there")?;
    let section = section.split("\n### ").next().unwrap_or_default();
    // What is fenced is every second part.
    let fenced = section.split("```").skip(1).step_by(2);
    let blocks: Vec<Block> = fenced
        .filter_map(|part| part.split_once('\n'))
        .map(|(language, text)| Block {
            language: language.to_owned(),
            text: filled_in(text, fill_in),
        })
        .collect();
    ensure!(
        !blocks.is_empty(),
        "{runbook} has no commands below {heading}"
    );
    Ok(blocks)
}

/// Names first that hold others: `NAMESPACE` before `NAME`.
fn filled_in(text: &str, fill_in: &[(&str, &str)]) -> String {
    let mut fill_in = fill_in.to_vec();
    fill_in.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    fill_in.iter().fold(text.to_owned(), |text, (name, value)| {
        text.replace(name, value)
    })
}

impl Block {
    /// Runs each line, in the test's namespace; answers each with what it said.
    pub(crate) async fn run(
        &self,
        world: &World,
        mut after: impl AsyncFnMut(&str, &str) -> Result<()>,
    ) -> Result<()> {
        ensure!(self.language == "sh", "{self:?} is no command");
        for line in self.text.lines().filter(|line| !line.is_empty()) {
            say(format_args!("    {line}"));
            // No argument of these commands holds a space, so quotes need not be understood.
            let line = line.replace('\'', "");
            let words: Vec<&str> = line.split_whitespace().collect();
            let (program, arguments) = words.split_first().context("a command")?;
            ensure!(*program == "kubectl", "{line}");
            let said = world.kubectl(arguments)?;
            after(&line, &said).await?;
        }
        Ok(())
    }
}
