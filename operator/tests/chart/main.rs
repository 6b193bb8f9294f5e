//! The chart against its context: metrics that exist, a runbook for each alert, a reason for each
//! permission, a description for each value. And Helm's output, and the pages about the same.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod monitoring;
mod network_policy;
mod rbac;
mod rendered;
mod runbooks;
mod values;

use std::path::{Path, PathBuf};

fn read(path: &str) -> String {
    let file = workspace().join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn workspace() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.parent().unwrap().to_owned()
}
