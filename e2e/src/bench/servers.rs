//! The members of one system as processes of this machine. They end when this is dropped, and also
//! when this process is killed: the kernel is told to end them with their parent.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use dengine_local_kubernetes::process::Process;
use dengine_local_kubernetes::progress::ProgressStep;
use dengine_local_kubernetes::shell;
use dengine_testkit::{Listen, free_port};

use super::START_PATIENCE;

/// Lines of each member's log that a failure shows.
const TAIL_LINES: usize = 10;
/// etcd refuses writes beyond 2 GiB of data by default; the profile `growth` has more.
const ETCD_QUOTA_BYTES: &str = "8589934592";

/// How long members may take to end by themselves.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// Members that run.
pub(super) struct Servers {
    data: PathBuf,
    members: Vec<Member>,
}

/// DEngine's server, and how it is started.
pub(super) struct Dengine<'a> {
    pub(super) program: &'a Path,
    pub(super) durability: &'a str,
    /// Whether it is loaded where it serves clients of etcd.
    pub(super) over_etcds_api: bool,
    /// Further settings.
    pub(super) more: &'a [String],
}

struct Member {
    address: String,
    log: PathBuf,
    process: Child,
}

impl Servers {
    /// DEngine with its default settings, but for what was asked for. So members keep history for
    /// five minutes at least, and etcd all of it: in a shorter run neither takes any away.
    pub(super) async fn dengine(server: &Dengine<'_>, data: &Path, members: usize) -> Result<Self> {
        let mut step = ProgressStep::start(format!("DEngine: {members} members"));
        let mut servers = Self::in_folder(data)?;
        let mut own_ports = Vec::with_capacity(members);
        for number in 1..=members {
            let listen = match server.over_etcds_api {
                true => Listen::free_with_etcd(),
                false => Listen::free(),
            };
            let name = format!("dengine-{number}");
            let folder = data.join(number.to_string());
            let mut serve = held(server.program);
            dengine_testkit::serve(&mut serve, &name, &listen, &folder);
            serve
                .args(["--durability", server.durability])
                .args(["--log-level", "warn"])
                .args(server.more);
            own_ports.push(listen.client.to_string());
            let loaded = listen.etcd.unwrap_or(listen.client);
            servers.start(serve, loaded.to_string(), number)?;
        }
        step.note("forming the cluster");
        let mut init = tokio::process::Command::new(server.program);
        init.args(["init", "--endpoints", &own_ports.join(",")])
            .args(["--timeout", &format!("{}s", START_PATIENCE.as_secs())])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let formed = init.output().await.context("running dengine init")?;
        if !formed.status.success() {
            let said = String::from_utf8_lossy(&formed.stderr).into_owned();
            bail!(
                "the members did not form a cluster: {said}\n{}",
                servers.last_lines()
            );
        }
        step.done(servers.endpoints());
        Ok(servers)
    }

    /// etcd with its default settings, which sync every write.
    pub(super) async fn etcd(program: &Path, data: &Path, members: usize) -> Result<Self> {
        let step = ProgressStep::start(format!("etcd: {members} members"));
        let mut servers = Self::in_folder(data)?;
        let addresses: Vec<[String; 2]> = (0..members).map(|_| free_addresses()).collect();
        let peers = addresses.iter().enumerate();
        let cluster: Vec<String> = peers
            .map(|(place, [_, peer])| format!("etcd-{}=http://{peer}", place + 1))
            .collect();
        for (place, [client, peer]) in addresses.iter().enumerate() {
            let number = place + 1;
            let [client_url, peer_url] = [client, peer].map(|address| format!("http://{address}"));
            let mut serve = held(program);
            serve
                .args(["--name", &format!("etcd-{number}"), "--log-level", "warn"])
                .args([
                    "--listen-client-urls",
                    &client_url,
                    "--advertise-client-urls",
                    &client_url,
                ])
                .args([
                    "--listen-peer-urls",
                    &peer_url,
                    "--initial-advertise-peer-urls",
                    &peer_url,
                ])
                .args([
                    "--initial-cluster",
                    &cluster.join(","),
                    "--initial-cluster-state",
                    "new",
                ])
                .args(["--quota-backend-bytes", ETCD_QUOTA_BYTES, "--data-dir"])
                .arg(data.join(number.to_string()));
            servers.start(serve, client.clone(), number)?;
        }
        // The tool waits until every member is ready.
        step.done(servers.endpoints());
        Ok(servers)
    }

    /// The floor of a lone write: the first process, and its followers.
    pub(super) fn floor(program: &Path, data: &Path, members: usize) -> Result<Self> {
        let step = ProgressStep::start(format!("Floor: {members} processes"));
        let mut servers = Self::in_folder(data)?;
        let addresses = free_addresses::<3>();
        let addresses = &addresses[..members];
        for (place, address) in addresses.iter().enumerate() {
            let number = place + 1;
            let mut serve = held(program);
            serve
                .args(["floor", "--listen", address, "--data-dir"])
                .arg(data.join(number.to_string()));
            let followers = addresses.iter().skip(1).filter(|_| place == 0);
            for follower in followers {
                serve.args(["--follower", follower]);
            }
            servers.start(serve, address.clone(), number)?;
        }
        // The tool waits until the first one has reached the others.
        step.done(servers.endpoints());
        Ok(servers)
    }

    /// Servers that answer reads at once.
    pub(super) fn echo(program: &Path, data: &Path, members: usize, value: u32) -> Result<Self> {
        let step = ProgressStep::start(format!("Echo: {members} servers"));
        let mut servers = Self::in_folder(data)?;
        let addresses = free_addresses::<3>();
        for (place, address) in addresses.iter().take(members).enumerate() {
            let mut serve = held(program);
            serve
                .args(["echo", "--listen", address])
                .args(["--value-size", &value.to_string()]);
            servers.start(serve, address.clone(), place + 1)?;
        }
        step.done(servers.endpoints());
        Ok(servers)
    }

    fn in_folder(data: &Path) -> Result<Self> {
        fs_err::create_dir_all(data)?;
        Ok(Self {
            data: data.to_owned(),
            members: Vec::new(),
        })
    }

    fn start(&mut self, mut serve: Command, address: String, number: usize) -> Result<()> {
        let log = self.data.join(format!("{number}.log"));
        let written = fs_err::File::create(&log)?.into_parts().0;
        let process = serve
            .stdin(Stdio::null())
            .stdout(written.try_clone()?)
            .stderr(written)
            .spawn()
            .with_context(|| format!("starting {:?}", serve.get_program()))?;
        self.members.push(Member {
            address,
            log,
            process,
        });
        Ok(())
    }

    /// Where clients reach them, separated by commas.
    pub(super) fn endpoints(&self) -> String {
        let addresses = self.members.iter().map(|member| member.address.as_str());
        addresses.collect::<Vec<_>>().join(",")
    }

    /// Their process ids, separated by commas.
    pub(super) fn pids(&self) -> String {
        let pids = self
            .members
            .iter()
            .map(|member| member.process.id().to_string());
        pids.collect::<Vec<_>>().join(",")
    }

    /// Ends them and removes their data; what they said last.
    pub(super) fn stop(mut self) -> Result<String> {
        let said = self.last_lines();
        self.let_end()?;
        self.end();
        fs_err::remove_dir_all(&self.data)?;
        Ok(said)
    }

    fn last_lines(&self) -> String {
        let logs = self.members.iter().map(|member| &member.log);
        let lines = logs.map(|log| shell::tail_of_file(log, TAIL_LINES));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Has them end by themselves, if they do so soon: what counts in them how often their code
    /// runs ([`crate::product`]) says so then.
    fn let_end(&self) -> Result<()> {
        let deadline = Instant::now() + END_PATIENCE;
        let members = self.members.iter();
        let members = members.map(|member| Process::of(i32::try_from(member.process.id())?));
        // One that has ended is awaited by its owner, and so is there.
        let members = members.collect::<Result<Vec<_>>>()?;
        members.iter().try_for_each(Process::terminate)?;
        for member in members {
            while member.is_alive()? && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// At once: nobody needs the data.
    fn end(&mut self) {
        for member in &mut self.members {
            let _ = member.process.kill();
        }
        for member in &mut self.members {
            let _ = member.process.wait();
        }
        self.members.clear();
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        if self.members.is_empty() {
            return;
        }
        self.end();
        let _ = fs_err::remove_dir_all(&self.data);
    }
}

/// A program that does not outlive this one, in a process group of its own: Ctrl-C is for this
/// process alone, which then ends its members. None of the caller's settings reach it.
pub(crate) fn held(program: &Path) -> Command {
    use std::os::unix::process::CommandExt as _;
    let mut command = shell::command("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("DENGINE_") || text.starts_with("ETCD_") {
            command.env_remove(&name);
        }
    }
    command.process_group(0);
    command
}

/// Loopback addresses whose ports nobody has; they differ.
fn free_addresses<const N: usize>() -> [String; N] {
    std::array::from_fn(|_| format!("127.0.0.1:{}", free_port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeping(folder: &Path) -> Servers {
        let mut servers = Servers::in_folder(&folder.join("data")).unwrap();
        let mut sleep = held(Path::new("sleep"));
        sleep.arg("600");
        servers.start(sleep, "127.0.0.1:1".to_owned(), 1).unwrap();
        servers
    }

    #[test]
    fn what_was_started_ends_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let servers = sleeping(folder.path());
        let pid = servers.pids().parse().unwrap();
        let process = Process::of(pid).unwrap();
        assert!(process.is_alive().unwrap());
        drop(servers);
        assert!(!process.is_alive().unwrap());
        assert!(!folder.path().join("data").exists());
    }

    #[test]
    fn what_is_stopped_may_end_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let last_words = folder.path().join("last-words");
        let mut servers = Servers::in_folder(&folder.path().join("data")).unwrap();
        let mut shell = held(Path::new("sh"));
        let script = "trap 'echo bye >\"$0\"; exit' TERM; : >\"$0\"; while :; do sleep 0.1; done";
        shell.args(["-c", script]).arg(&last_words);
        servers.start(shell, "127.0.0.1:1".to_owned(), 1).unwrap();
        let begun = Instant::now();
        while !last_words.exists() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not run");
            std::thread::sleep(Duration::from_millis(10));
        }
        servers.stop().unwrap();
        assert_eq!(fs_err::read_to_string(last_words).unwrap(), "bye\n");
    }

    #[test]
    fn the_process_id_is_that_of_the_program_and_not_of_a_helper() {
        let folder = tempfile::tempdir().unwrap();
        let servers = sleeping(folder.path());
        let pid = servers.pids();
        let begun = Instant::now();
        let name = || fs_err::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        while name().trim() != "sleep" {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "it is {}",
                name()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn addresses_differ() {
        let [a, b, c] = free_addresses();
        assert!(a != b && b != c && a != c);
    }
}
