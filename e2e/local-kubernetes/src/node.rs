//! PID 1 of the local node. It runs in PID, network and mount namespaces of its own, so that
//! everything the cluster starts, mounts, bridges or filters dies with this one process: nothing is
//! left behind, not even by `kill -9`.
//!
//! It only keeps programs running. Whether the cluster is healthy is for [`crate::up`] to find out.

use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, WaitOptions, WaitStatus};

use crate::components::{self, Component, Needs};
use crate::layout::{Layout, NODE_ADDRESS, NODE_LINK};
use crate::settings::Settings;
use crate::{programs, shell};

/// What the programs write to whatever their settings say.
const HIDDEN: [&str; 4] = [
    "/run",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/log/containers",
];
/// How often the supervisor looks.
const TICK: Duration = Duration::from_millis(50);
/// A program that ended is started again after this.
const RESTART_DELAY: Duration = Duration::from_secs(1);
/// How long the link to the machine may take to appear.
const LINK_PATIENCE: Duration = Duration::from_secs(30);

/// Becomes the node. Returns only on an error: the node ends by being killed.
///
/// # Errors
/// When this process is not PID 1 of namespaces of its own, or cannot set them up.
pub fn run(layout: &Layout) -> Result<()> {
    if std::process::id() != 1 {
        bail!("`node` is what `up` runs inside new namespaces; run `up`");
    }
    hide_the_machine(layout)?;
    connect()?;
    let settings = Settings::load(layout)?;
    let programs = programs::ensure(settings.kubernetes)?;
    let components = components::all(layout, &settings, &programs, layout.own_program());
    Supervisor::new(layout.clone(), components).run()
}

/// Private folders in place of those that the programs write to whatever their settings say. What
/// must be made on the machine for that is noted, for `down` to remove.
fn hide_the_machine(layout: &Layout) -> Result<()> {
    for folder in HIDDEN.map(Path::new) {
        if !folder.is_dir() {
            fs_err::create_dir_all(folder)?;
            let mut made = fs_err::OpenOptions::new()
                .create(true)
                .append(true)
                .open(layout.made_folders())?;
            writeln!(made, "{}", folder.display())?;
        }
        shell::run(
            shell::command("mount")
                .args(["-t", "tmpfs", "tmpfs"])
                .arg(folder),
        )?;
    }
    Ok(())
}

/// Waits for the link that `up` puts into this network namespace, and gives it its address.
fn connect() -> Result<()> {
    let ip = |arguments: &[&str]| shell::run(shell::command("ip").args(arguments));
    ip(&["link", "set", "lo", "up"])?;
    let deadline = Instant::now() + LINK_PATIENCE;
    while ip(&["link", "show", NODE_LINK]).is_err() {
        if Instant::now() > deadline {
            bail!("the link to the machine did not appear");
        }
        std::thread::sleep(TICK);
    }
    ip(&[
        "address",
        "add",
        &format!("{NODE_ADDRESS}/24"),
        "dev",
        NODE_LINK,
    ])?;
    ip(&["link", "set", NODE_LINK, "up"])?;
    // Of this network namespace only.
    fs_err::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    Ok(())
}

struct Supervisor {
    layout: Layout,
    children: Vec<Child>,
}

struct Child {
    component: Component,
    state: ProgramState,
}

enum ProgramState {
    Running(Pid),
    /// Not before that moment, and not before what it needs is there.
    Waiting(Instant),
    /// It has done its work.
    Done,
}

impl Supervisor {
    fn new(layout: Layout, components: Vec<Component>) -> Self {
        let now = Instant::now();
        let children = components
            .into_iter()
            .map(|component| Child {
                component,
                state: ProgramState::Waiting(now),
            })
            .collect();
        Self { layout, children }
    }

    fn run(mut self) -> Result<()> {
        loop {
            self.reap()?;
            for child in &mut self.children {
                child.start_if_due(&self.layout)?;
            }
            std::thread::sleep(TICK);
        }
    }

    /// Collects what ended: programs of ours, and orphans, whose parent PID 1 is.
    fn reap(&mut self) -> Result<()> {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => self.ended(pid, status)?,
                Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for the node's programs"),
            }
        }
    }

    fn ended(&mut self, pid: Pid, status: WaitStatus) -> Result<()> {
        let child = self
            .children
            .iter_mut()
            .find(|child| matches!(child.state, ProgramState::Running(its) if its == pid));
        // Otherwise it is an orphan.
        child.map_or(Ok(()), |child| child.ended(status))
    }
}

impl Child {
    fn ended(&mut self, status: WaitStatus) -> Result<()> {
        let program = self.component.name;
        if let Some(done) = &self.component.done
            && status.exit_status() == Some(0)
        {
            fs_err::write(done, "")?;
            tracing::info!(program, "done");
            self.state = ProgramState::Done;
            return Ok(());
        }
        tracing::warn!(
            program,
            ?status,
            "a program of the node ended; starting it again"
        );
        self.state = ProgramState::Waiting(Instant::now() + RESTART_DELAY);
        Ok(())
    }

    fn start_if_due(&mut self, layout: &Layout) -> Result<()> {
        match self.state {
            ProgramState::Waiting(not_before)
                if Instant::now() >= not_before && self.component.needs.are_met() =>
            {
                self.state = ProgramState::Running(self.start(layout)?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn start(&self, layout: &Layout) -> Result<Pid> {
        let log = fs_err::OpenOptions::new()
            .create(true)
            .append(true)
            .open(layout.log(self.component.name))?;
        let (log, _) = log.into_parts();
        let child = Command::new(&self.component.program)
            .args(&self.component.arguments)
            .env("PATH", shell::path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", self.component.program.display()))?;
        fs_err::write(layout.pid(self.component.name), child.id().to_string())?;
        tracing::info!(program = self.component.name, "started");
        Ok(Pid::from_child(&child))
    }
}

impl Needs {
    fn are_met(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Tcp(address) => TcpStream::connect_timeout(address, TICK).is_ok(),
            Self::File(file) => file.exists(),
        }
    }
}
