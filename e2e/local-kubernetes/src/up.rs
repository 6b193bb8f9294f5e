//! Brings the local cluster up. Every step looks first: what is there and healthy stays as it is.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::images::{Archive, Image};
use crate::layout::{HOST_ADDRESS, HOST_LINK, Layout, NODE_ADDRESS, NODE_LINK, WHOLE_RANGE};
use crate::process::Process;
use crate::programs::{self, Programs};
use crate::progress::ProgressStep;
use crate::settings::{Settings, Store};
use crate::{cache, components, down, pki, shell, store};

/// What the machine must have, and the Debian package that has it.
const REQUIRED: [(&str, &str); 10] = [
    ("go", "a Go toolchain, https://go.dev/dl"),
    ("containerd", "containerd"),
    ("runc", "runc"),
    // By its path: iproute2 has another program of that name.
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("iptables", "iptables"),
    ("buildah", "buildah"),
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("ctr", "containerd"),
    ("strip", "binutils"),
];
const NAMESPACE_PATIENCE: Duration = Duration::from_secs(10);
const API_PATIENCE: Duration = Duration::from_secs(120);
const NODE_PATIENCE: Duration = Duration::from_secs(120);

/// The running local cluster.
#[derive(Debug, Clone)]
pub struct Local {
    layout: Layout,
    settings: Settings,
    programs: Programs,
}

/// The record of the process that is the node.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NodeRecord {
    /// `unshare`, which made the namespaces.
    pub outer: Process,
    /// PID 1 of the namespaces; absent while they are being made.
    pub inner: Option<Process>,
}

impl NodeRecord {
    /// The record of the node that was started last, if any.
    ///
    /// # Errors
    /// When it is there and unreadable.
    pub fn load(layout: &Layout) -> Result<Option<Self>> {
        let file = layout.join("node.json");
        if !file.is_file() {
            return Ok(None);
        }
        let text = fs_err::read_to_string(&file)?;
        Ok(Some(serde_json::from_str(&text).with_context(|| {
            format!("{} is damaged", file.display())
        })?))
    }

    /// Whether the node runs.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn is_alive(&self) -> Result<bool> {
        self.inner.as_ref().map_or(Ok(false), Process::is_alive)
    }

    fn save(&self, layout: &Layout) -> Result<()> {
        let unfinished = layout.join("node.json.new");
        fs_err::write(&unfinished, serde_json::to_string_pretty(self)?)?;
        fs_err::rename(unfinished, layout.join("node.json"))?;
        Ok(())
    }
}

/// Holds the right to change the local cluster until dropped.
///
/// # Errors
/// When the lock file cannot be made.
pub fn lock() -> Result<std::fs::File> {
    fs_err::create_dir_all(cache::root()?)?;
    let (file, _) =
        fs_err::File::create(cache::root()?.join("local-kubernetes.lock"))?.into_parts();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(file)
}

/// Makes sure that the local cluster runs. `own_program` is a program whose commands `node` and
/// `provisioner`, each with `--state FOLDER`, are [`crate::node::run`] and
/// [`crate::provisioner::run`]. Without `wanted`, whatever runs will do.
///
/// # Errors
/// When something the machine needs is missing, the cluster does not become healthy, or one with
/// other settings runs.
pub fn up(own_program: &Path, wanted: Option<&Settings>) -> Result<Local> {
    check_machine()?;
    let _lock = lock()?;
    let layout = Layout::of_this_user()?;
    let running = NodeRecord::load(&layout)?.map_or(Ok(false), |node| node.is_alive())?;
    let settings = Settings::agreed(&layout, running, wanted)?;
    let local = Local {
        layout: layout.clone(),
        programs: programs::ensure(settings.kubernetes)?,
        settings,
    };
    let mut step = ProgressStep::start(format!("Local Kubernetes {}", local.settings));
    if !running {
        step.note("clearing what an earlier one left");
        down::clear(&layout)?;
        step.note("starting the node");
        start_node(&layout, own_program, &local.settings)?;
    }
    local.await_api(&mut step)?;
    step.note("loading the system's images");
    local.load_system_images()?;
    local.apply(include_str!("../manifests/storage.yaml"))?;
    local.apply(include_str!("../manifests/coredns.yaml"))?;
    local.await_node(&mut step)?;
    step.done(if running { "was up" } else { "up" });
    Ok(local)
}

/// Says what is missing, and how to get it, before anything is started.
fn check_machine() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!(
            "a local Kubernetes needs root (namespaces, mounts, network); run as root, \
             or use the cluster of your current context: E2E_USE_CURRENT_CONTEXT=1"
        );
    }
    let missing: Vec<String> = REQUIRED
        .iter()
        .filter(|(program, _)| shell::find(program).is_none())
        .map(|(program, package)| format!("  {program} (package {package})"))
        .collect();
    if !missing.is_empty() {
        bail!(
            "the local Kubernetes needs programs that are not installed:\n{}\n`make setup` \
             installs them",
            missing.join("\n")
        );
    }
    Ok(())
}

fn start_node(layout: &Layout, own_program: &Path, settings: &Settings) -> Result<()> {
    components::write_configuration(layout)?;
    settings.save(layout)?;
    if let Store::Dengine(program) = &settings.store {
        fs_err::copy(program, layout.dengine_program())?;
    }
    pki::ensure(layout)?;
    let copy = layout.own_program();
    fs_err::copy(own_program, &copy)?;
    let (log, _) = fs_err::File::create(layout.log("node"))?.into_parts();
    let child =
        Command::new(shell::find("setsid").context("setsid is missing (package util-linux)")?)
            .args([
                "unshare",
                "--fork",
                "--kill-child",
                "--pid",
                "--mount",
                "--mount-proc",
                "--net",
            ])
            .arg(&copy)
            .args(["node", "--state"])
            .arg(layout.root())
            .env("PATH", shell::path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting the node")?;
    let outer = Process::of(i32::try_from(child.id())?)?;
    NodeRecord {
        outer: outer.clone(),
        inner: None,
    }
    .save(layout)?;
    let inner = outer.await_child(NAMESPACE_PATIENCE).with_context(|| {
        format!(
            "the node did not start:\n{}",
            shell::tail_of_file(&layout.log("node"), 20)
        )
    })?;
    NodeRecord {
        outer,
        inner: Some(inner.clone()),
    }
    .save(layout)?;
    link_to(&inner)
}

/// Connects the machine to the node's network namespace. The link goes when the namespace does.
fn link_to(node: &Process) -> Result<()> {
    let ip = |arguments: &[&str]| shell::run(shell::command("ip").args(arguments));
    let deadline = Instant::now() + NAMESPACE_PATIENCE;
    while ip(&["link", "show", HOST_LINK]).is_ok() {
        if Instant::now() > deadline {
            bail!(
                "the interface {HOST_LINK} exists already: another local cluster runs on this \
                 machine"
            );
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let pid = node.pid().to_string();
    ip(&[
        "link", "add", HOST_LINK, "type", "veth", "peer", "name", NODE_LINK, "netns", &pid,
    ])?;
    ip(&[
        "address",
        "add",
        &format!("{HOST_ADDRESS}/24"),
        "dev",
        HOST_LINK,
    ])?;
    ip(&["link", "set", HOST_LINK, "up"])?;
    ip(&[
        "route",
        "replace",
        WHOLE_RANGE,
        "via",
        NODE_ADDRESS,
        "dev",
        HOST_LINK,
    ])?;
    Ok(())
}

impl Local {
    /// Credentials of a cluster administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout.kubeconfig()
    }

    /// The process of one of the node's programs, by its name, which is that of its log.
    ///
    /// # Errors
    /// When it does not run: once it has ended, it is started again after a second.
    pub fn process(&self, program: &str) -> Result<Process> {
        let node = NodeRecord::load(&self.layout)?.and_then(|node| node.inner);
        let node = node.context("the local Kubernetes is not up")?;
        let own_pid = fs_err::read_to_string(self.layout.pid(program))?.parse()?;
        node.child_with_own_pid(own_pid)?
            .with_context(|| format!("{program} does not run"))
    }

    /// The names of the programs that the API server keeps its objects in.
    #[must_use]
    pub fn store_members(&self) -> Vec<&'static str> {
        store::members(&self.settings.store)
    }

    /// The programs it was built with.
    #[must_use]
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Gives the node an image under its tag and its pinned tag, unless it has it.
    ///
    /// # Errors
    /// When containerd refuses it.
    pub fn load(&self, image: &Archive) -> Result<()> {
        let folder = self.layout.join("images");
        fs_err::create_dir_all(&folder)?;
        let stamp = folder.join(image.file.file_stem().unwrap_or_default());
        if fs_err::read_to_string(&stamp).is_ok_and(|digest| digest == image.digest) {
            return Ok(());
        }
        self.ctr(&["import", &image.file.display().to_string()])?;
        self.tag(&image.tag, &image.pinned_tag())?;
        fs_err::write(stamp, &image.digest)?;
        Ok(())
    }

    /// Gives the node an image of one of the programs that were built for it; returns the image's
    /// name.
    ///
    /// # Errors
    /// When the image cannot be built or containerd refuses it.
    pub fn load_program(&self, program: &str) -> Result<String> {
        let folder = cache::root()?.join("images");
        let user = "65532:65532";
        let image = Image::of_program(&self.programs.path(program), user).ensure(&folder)?;
        self.load(&image)?;
        Ok(image.pinned_tag())
    }

    /// Gives an image that the node has another name.
    ///
    /// # Errors
    /// When containerd refuses it.
    pub fn tag(&self, image: &str, name: &str) -> Result<()> {
        self.ctr(&["tag", "--force", image, name])
    }

    fn ctr(&self, arguments: &[&str]) -> Result<()> {
        let mut ctr = shell::command("ctr");
        ctr.arg("--address").arg(self.layout.containerd_socket());
        ctr.args(["--namespace", "k8s.io", "images"])
            .args(arguments);
        shell::run(&mut ctr)
            .map(drop)
            .with_context(|| format!("giving containerd an image: {}", arguments.join(" ")))
    }

    fn kubectl(&self) -> Command {
        let mut kubectl = Command::new(self.programs.path("kubectl"));
        kubectl.arg("--kubeconfig").arg(self.kubeconfig());
        kubectl
    }

    fn apply(&self, manifest: &str) -> Result<()> {
        let mut kubectl = self.kubectl();
        kubectl.args([
            "apply",
            "--server-side",
            "--force-conflicts",
            "--field-manager=local-kubernetes",
            "--filename=-",
        ]);
        shell::run_with_input(&mut kubectl, manifest).map(drop)
    }

    fn load_system_images(&self) -> Result<()> {
        let folder = cache::root()?.join("images");
        let images = [("pause", "65535:65535"), ("coredns", "0:0")];
        for (program, user) in images {
            self.load(&Image::of_program(&self.programs.path(program), user).ensure(&folder)?)?;
        }
        Ok(())
    }

    fn await_api(&self, step: &mut ProgressStep) -> Result<()> {
        step.note("waiting for the API server");
        let mut logs = store::names(&self.settings.store);
        logs.extend(["kube-apiserver", "containerd"]);
        self.until(API_PATIENCE, "the API server and containerd", &logs, || {
            shell::run(self.kubectl().args(["get", "--raw=/readyz"]))?;
            let mut ctr = shell::command("ctr");
            shell::run(
                ctr.arg("--address")
                    .arg(self.layout.containerd_socket())
                    .arg("version"),
            )
            .map(drop)
        })
    }

    fn await_node(&self, step: &mut ProgressStep) -> Result<()> {
        step.note("waiting for the node");
        let logs = ["kubelet", "kube-controller-manager", "containerd"];
        self.until(NODE_PATIENCE, "the node", &logs, || {
            let wait = [
                "wait",
                "--for=condition=Ready",
                "node/node1",
                "--timeout=1s",
            ];
            shell::run(self.kubectl().args(wait)).map(drop)
        })?;
        step.note("waiting for cluster DNS");
        self.until(
            NODE_PATIENCE,
            "cluster DNS",
            &["kubelet", "kube-scheduler", "kube-controller-manager"],
            || {
                let rollout = [
                    "--namespace=kube-system",
                    "rollout",
                    "status",
                    "deployment/coredns",
                    "--timeout=2s",
                ];
                shell::run(self.kubectl().args(rollout)).map(drop)
            },
        )
    }

    /// Tries until it works; fails early when the node is dead, and with the logs that explain it.
    fn until(
        &self,
        patience: Duration,
        what: &str,
        logs: &[&str],
        check: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let Err(error) = check() else { return Ok(()) };
            let alive =
                NodeRecord::load(&self.layout)?.map_or(Ok(false), |node| node.is_alive())?;
            if !alive || Instant::now() > deadline {
                let tails = std::iter::once(&"node").chain(logs).map(|name| {
                    let log = self.layout.log(name);
                    format!("--- {}\n{}", log.display(), shell::tail_of_file(&log, 15))
                });
                let tails = tails.collect::<Vec<_>>().join("\n");
                return Err(error.context(format!("{what} did not become ready\n{tails}")));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}
