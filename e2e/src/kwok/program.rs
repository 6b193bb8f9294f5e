//! The program that plays the kubelets.

use std::path::PathBuf;
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, ensure};
use dengine_local_kubernetes::layout::Layout;
use dengine_local_kubernetes::up::Local;
use dengine_local_kubernetes::{programs, shell};

use crate::bench::held;

const CONFIGURATION: &str = include_str!("../../manifests/kwok.yaml");
const TAIL_LINES: usize = 20;

/// kwok, which ends with this process.
pub(super) struct Kwok {
    process: Child,
    log: PathBuf,
}

impl Kwok {
    /// Starts it. Its log is beside those of the node's programs.
    pub(super) fn start(local: &Local) -> Result<Self> {
        let program = programs::kwok()?;
        let layout = Layout::of_this_user()?;
        let configuration = layout.join("kwok.yaml");
        fs_err::write(&configuration, CONFIGURATION)?;
        let log = layout.log("kwok");
        let (output, _) = fs_err::File::create(&log)?.into_parts();
        let mut kwok = held(&program);
        kwok.arg("--config").arg(configuration);
        kwok.arg("--kubeconfig").arg(local.kubeconfig());
        // It reads a configuration of the person who runs it, too, if there is one.
        kwok.env("HOME", layout.root());
        let process = kwok
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("starting kwok")?;
        Ok(Self { process, log })
    }

    /// Whether it ran throughout.
    pub(super) fn must_run(&mut self) -> Result<()> {
        let ended = self.process.try_wait()?;
        ensure!(ended.is_none(), "kwok ended:\n{}", self.said());
        Ok(())
    }

    /// The last lines of its log.
    pub(super) fn said(&self) -> String {
        shell::tail_of_file(&self.log, TAIL_LINES)
    }
}

impl Drop for Kwok {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
