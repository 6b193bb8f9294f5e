//! One member, over all the times that its process is started and killed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use dengine_client::{AdminClient, Client, ClientOptions, RetryPolicy};
use dengine_protocol::v1::StatusResponse;
use dengine_testkit::{Listen, Process, built_program, free_port, serve, without_settings};

use super::{PATIENCE, eventually};

/// Raft's tick in these tests: elections take a few hundred milliseconds, and a machine that builds
/// something beside does not look dead.
const TICK_MS: &str = "100";
/// The program under test.
fn program() -> PathBuf {
    built_program("make test")
}

/// One member. Killed, by its process id, when dropped.
pub(crate) struct Member {
    pub(crate) name: String,
    /// What its processes write to standard error, one start after the other.
    pub(crate) log: PathBuf,
    pub(crate) data_dir: PathBuf,
    pub(crate) client_port: u16,
    pub(crate) peer_port: u16,
    pub(crate) admin_port: u16,
    pub(crate) monitor_port: u16,
    /// For clients of etcd, if it serves them.
    pub(crate) etcd_port: Option<u16>,
    /// The program that runs, if it is not the one under test.
    older: Option<PathBuf>,
    /// Clients reach it by every address of this machine.
    everywhere: bool,
    extra: Vec<OsString>,
    environment: Vec<(String, OsString)>,
    files_max: Option<u32>,
    process: Option<Process>,
}

impl Member {
    /// Describes a member whose folders lie in `home`; [`start`](Self::start) starts it.
    pub(crate) fn new(home: &Path, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            log: home.join(format!("{name}.log")),
            data_dir: home.join(name),
            client_port: free_port(),
            peer_port: free_port(),
            admin_port: free_port(),
            monitor_port: free_port(),
            etcd_port: None,
            older: None,
            everywhere: false,
            extra: Vec::new(),
            environment: Vec::new(),
            files_max: None,
            process: None,
        }
    }

    /// Adds command-line arguments to every start from now on.
    pub(crate) fn args<I: Into<OsString>>(mut self, args: impl IntoIterator<Item = I>) -> Self {
        self.extra.extend(args.into_iter().map(Into::into));
        self
    }

    /// The same, for a member that has its place already.
    pub(crate) fn add_args<I: Into<OsString>>(&mut self, args: impl IntoIterator<Item = I>) {
        self.extra.extend(args.into_iter().map(Into::into));
    }

    /// Clients reach it by every address of this machine, unlike people.
    pub(crate) fn serve_clients_everywhere(&mut self) {
        self.everywhere = true;
    }

    /// Serves clients of etcd as well.
    pub(crate) fn serve_etcd(&mut self) {
        self.etcd_port = Some(free_port());
    }

    /// From its next start on it is this program, which an older release built.
    pub(crate) fn downgrade(&mut self, program: &Path) {
        self.older = Some(program.to_owned());
    }

    /// From its next start on it is the program under test.
    pub(crate) fn upgrade(&mut self) {
        self.older = None;
    }

    /// Lets every process from now on have so many files and connections open.
    pub(crate) fn limit_files(&mut self, most: u32) {
        self.files_max = Some(most);
    }

    /// The most memory that its present process ever had resident.
    pub(crate) fn resident_bytes_most(&self) -> u64 {
        self.process
            .as_ref()
            .expect("only a running member has memory")
            .resident_bytes_most()
    }

    /// How the system schedules the threads of its present process.
    pub(crate) fn scheduling_policies(&self) -> BTreeSet<u32> {
        self.process
            .as_ref()
            .expect("only a running member has threads")
            .scheduling_policies()
    }

    /// Sets a variable in the environment of every start from now on.
    pub(crate) fn env(&mut self, name: &str, value: impl Into<OsString>) {
        self.environment.push((name.to_owned(), value.into()));
    }

    /// Whether no process of it was started, or it was ended.
    pub(crate) fn is_down(&self) -> bool {
        self.process.is_none()
    }

    /// `host:port` for clients.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    /// Starts a process on the member's folder.
    pub(crate) fn start(&mut self) {
        assert!(self.process.is_none(), "{} runs already", self.name);
        self.process = Some(Process::start(&mut self.command(), &self.log));
    }

    fn command(&self) -> Command {
        let program = self.older.clone().unwrap_or_else(program);
        let mut command = match self.files_max {
            None => Command::new(program),
            Some(most) => with_few_files(&program, most),
        };
        serve(&mut command, &self.name, &self.listen(), &self.data_dir);
        command
            .args(["--tick-ms", TICK_MS])
            .args(["--advertise-client", &self.address()])
            .args(["--log-segment-bytes", "8388608"])
            .args(&self.extra)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn listen(&self) -> Listen {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let client_ip = match self.everywhere {
            true => Ipv4Addr::UNSPECIFIED,
            false => Ipv4Addr::LOCALHOST,
        };
        Listen {
            client: (client_ip, self.client_port).into(),
            peer: local(self.peer_port),
            // The first releases served `Admin` on the clients' port.
            admin: self.older.is_none().then(|| local(self.admin_port)),
            monitor: local(self.monitor_port),
            etcd: self.etcd_port.map(local),
        }
    }

    /// Starts a process that must end by itself, and returns what it said.
    pub(crate) fn run_to_end(&self) -> Output {
        let mut child = self
            .command()
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if wait_for_exit(&mut child).is_none() {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!(
                "{} did not end: {}",
                self.name,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        child.wait_with_output().unwrap()
    }

    /// SIGKILL: the process gets no chance to put anything in order.
    pub(crate) fn kill(&mut self) {
        let process = self.process.take();
        process.expect("only a running member is killed").kill();
    }

    /// SIGTERM, and waits for the end.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        let process = self.process.take();
        let mut process = process.expect("only a running member is stopped");
        process.terminate();
        process
            .ended_within(PATIENCE)
            .expect("a member ends within seconds of SIGTERM")
    }

    /// Waits until the process ends by itself.
    pub(crate) fn wait_for_end(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("only a running member ends");
        process
            .ended_within(PATIENCE)
            .unwrap_or_else(|| panic!("{} did not end by itself", self.name))
    }

    /// Kills it and empties its folder.
    pub(crate) fn wipe(&mut self) {
        if self.process.is_some() {
            self.kill();
        }
        fs_err::remove_dir_all(&self.data_dir).unwrap();
    }

    /// Has it log to a pipe that nobody reads, as long as the other end is held.
    pub(crate) fn log_to_nobody(&self) -> File {
        let made = Command::new("mkfifo").arg(&self.log).status();
        assert!(made.expect("there is mkfifo").success());
        let both_ends = fs_err::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&self.log);
        both_ends.expect("it was just made").into()
    }

    /// Everything it has logged. While it runs, the last lines may still be missing: see
    /// [`Self::says`].
    pub(crate) fn logged(&self) -> String {
        fs_err::read_to_string(&self.log).unwrap_or_default()
    }

    /// Everything it has logged, as soon as `text` is in it: a thread of its own writes the lines,
    /// which may be a moment after the call that they are about was answered.
    pub(crate) async fn says(&self, text: &str) -> String {
        eventually(&format!("{} logs {text:?}", self.name), || async {
            Some(self.logged()).filter(|logged| logged.contains(text))
        })
        .await
    }

    /// Its `Admin` service, as soon as it answers.
    pub(crate) async fn admin(&self) -> AdminClient {
        let address = self.address();
        eventually(&format!("{} answers", self.name), || async {
            let admin = AdminClient::connect(&address).await.ok()?;
            admin.status().await.ok().map(|_| admin)
        })
        .await
    }

    /// What it says of itself, as soon as it answers.
    pub(crate) async fn status(&self) -> StatusResponse {
        self.admin().await.status().await.unwrap()
    }

    /// A client of this member alone that returns every failure at once.
    pub(crate) async fn client(&self) -> Client {
        let options = ClientOptions {
            retry: RetryPolicy::NONE,
            // It is this member that is asked.
            spread_reads: true,
            ..ClientOptions::default()
        };
        let address = self.address();
        eventually(&format!("{} accepts clients", self.name), || async {
            Client::connect_with([address.clone()], options.clone())
                .await
                .ok()
        })
        .await
    }

    /// Waits until it says that it is ready.
    pub(crate) async fn ready(&self) {
        let address = self.address();
        eventually(&format!("{} is ready", self.name), || async {
            let admin = AdminClient::connect(&address).await.ok()?;
            admin.status().await.ok()?.ready.then_some(())
        })
        .await;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It ends first, and says no more.
        self.process = None;
        #[expect(
            clippy::print_stderr,
            reason = "the test harness shows it with the failed test"
        )]
        if std::thread::panicking() {
            let logged = self.logged();
            let lines: Vec<_> = logged.lines().collect();
            let last = &lines[lines.len().saturating_sub(30)..];
            eprintln!("--- last lines of {}:\n{}", self.name, last.join("\n"));
        }
    }
}

fn wait_for_exit(child: &mut Child) -> Option<ExitStatus> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

/// The program under test, without the caller's own settings.
pub(crate) fn dengine() -> Command {
    let mut command = Command::new(program());
    without_settings(&mut command);
    command
}

/// The shell becomes the member, so that its process id is the member's.
fn with_few_files(program: &Path, most: u32) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -n {most} && exec \"$0\" \"$@\"")]);
    shell.arg(program);
    shell
}
