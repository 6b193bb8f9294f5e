//! Runs other programs and turns what they say into errors a person can act on.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail};

/// Where system programs live that a plain `PATH` often leaves out.
const MORE_FOLDERS: [&str; 5] = [
    "/usr/local/sbin",
    "/usr/sbin",
    "/sbin",
    "/usr/local/go/bin",
    "/usr/lib/cni",
];
/// How much of a failed program's words an error repeats.
const TAIL_LINES: usize = 30;

/// Finds a program in `PATH` and in the folders of system programs.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(MORE_FOLDERS.map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// A command for a program found by [`find`]; what is not found keeps its name and fails when it is
/// run.
#[must_use]
pub fn command(program: &str) -> Command {
    let mut command = Command::new(find(program).unwrap_or_else(|| program.into()));
    command.env("PATH", path());
    command
}

/// `PATH` with the folders of system programs behind it.
#[must_use]
pub fn path() -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(MORE_FOLDERS.map(PathBuf::from));
    std::env::join_paths(folders).unwrap_or(path)
}

/// Runs to the end and returns what was written to standard output.
///
/// # Errors
/// When the program cannot start or ends badly; the error repeats its last lines.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", shown(command)))?;
    finished(command, &output)
}

/// Like [`run`], with `input` on standard input.
///
/// # Errors
/// As [`run`].
pub fn run_with_input(command: &mut Command, input: &str) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", shown(command)))?;
    let mut stdin = child.stdin.take().expect("stdin was piped above");
    stdin
        .write_all(input.as_bytes())
        .with_context(|| format!("writing to {}", shown(command)))?;
    drop(stdin);
    let output = child.wait_with_output()?;
    finished(command, &output)
}

/// Like [`run`], handing each line of standard error to `seen` while the program runs.
///
/// # Errors
/// As [`run`].
pub fn run_watched(command: &mut Command, mut seen: impl FnMut(&str)) -> Result<()> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", shown(command)))?;
    let stderr = child.stderr.take().expect("stderr was piped above");
    let mut said = String::new();
    for line in BufReader::new(stderr).lines() {
        let line = line?;
        seen(&line);
        said.push_str(&line);
        said.push('\n');
    }
    let status = child.wait()?;
    finished(
        command,
        &Output {
            status,
            stdout: Vec::new(),
            stderr: said.into_bytes(),
        },
    )
    .map(drop)
}

/// The last lines of a text, for an error message.
#[must_use]
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// The last lines of a file; empty when there is none.
#[must_use]
pub fn tail_of_file(file: &Path, lines: usize) -> String {
    fs_err::read(file)
        .map(|bytes| tail(&String::from_utf8_lossy(&bytes), lines))
        .unwrap_or_default()
}

fn finished(command: &Command, output: &Output) -> Result<String> {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    bail!(
        "{} failed ({}):\n{}",
        shown(command),
        output.status,
        tail(&format!("{stdout}{stderr}"), TAIL_LINES)
    )
}

fn shown(command: &Command) -> String {
    let name = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default();
    std::iter::once(name)
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}
