//! Network namespaces: one for each member, and a hub with a bridge that this test moves into.
//!
//! They are named after the process that made them. That process removes them at its end; what it
//! could not remove, because it was killed, the next run removes.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

const PREFIX: &str = "dengine-torture-";
/// Names the namespaces to the process inside the hub.
const INSIDE: &str = "DENGINE_TORTURE_INSIDE";
const PLACES: usize = super::MEMBERS_MAX;

/// The places where members live.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    id: String,
}

/// The network, if this process is already in the hub.
pub(crate) fn inside() -> Option<Network> {
    let id = std::env::var(INSIDE).ok()?;
    Some(Network { id })
}

/// Makes the namespaces, runs this very test again within the hub, and removes them.
pub(crate) fn run_inside(test: &str) {
    remove_leftovers();
    let network = Network {
        id: std::process::id().to_string(),
    };
    let made = Made(network);
    made.0.make();
    let this = std::env::current_exe().unwrap();
    let status = Command::new("ip")
        .args(["netns", "exec", &made.0.hub()])
        .arg(this)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, &made.0.id)
        .status()
        .unwrap();
    assert!(
        status.success(),
        "the run within the namespaces failed, see above"
    );
}

/// Removes the network when it goes.
struct Made(Network);

impl Drop for Made {
    fn drop(&mut self) {
        remove(&self.0.id);
    }
}

impl Network {
    fn hub(&self) -> String {
        format!("{PREFIX}{}-hub", self.id)
    }

    fn place(&self, place: usize) -> String {
        format!("{PREFIX}{}-{place}", self.id)
    }

    /// The address of whoever lives in a place.
    pub(crate) fn address(place: usize) -> Ipv4Addr {
        Ipv4Addr::new(
            10,
            77,
            0,
            10 + u8::try_from(place).expect("there are few places"),
        )
    }

    /// The same with a port.
    pub(crate) fn socket(place: usize, port: u16) -> SocketAddr {
        (Self::address(place), port).into()
    }

    fn make(&self) {
        let hub = self.hub();
        must(&["netns", "add", &hub]);
        must(&["-n", &hub, "link", "set", "lo", "up"]);
        must(&["-n", &hub, "link", "add", "hub", "type", "bridge"]);
        must(&["-n", &hub, "addr", "add", "10.77.0.1/24", "dev", "hub"]);
        must(&["-n", &hub, "link", "set", "hub", "up"]);
        for place in 0..PLACES {
            let (name, port) = (self.place(place), format!("p{place}"));
            let address = format!("{}/24", Self::address(place));
            must(&["netns", "add", &name]);
            must(&[
                "-n", &hub, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns",
                &name,
            ]);
            must(&["-n", &hub, "link", "set", &port, "master", "hub", "up"]);
            must(&["-n", &name, "link", "set", "lo", "up"]);
            must(&["-n", &name, "addr", "add", &address, "dev", "eth0"]);
            must(&["-n", &name, "link", "set", "eth0", "up"]);
        }
    }

    /// A command that runs in a place. Its process id is that of the program.
    pub(crate) fn command(&self, place: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.place(place)])
            .arg(program);
        command
    }

    /// From now on nothing from one place reaches the other; what goes back does.
    pub(crate) fn cut(&self, from: usize, to: usize) {
        let source = Self::address(from).to_string();
        let chain = ["-A", "INPUT", "-s", &source, "-j", "DROP"];
        self.iptables(to, &chain);
    }

    /// Ends every cut.
    pub(crate) fn heal(&self) {
        for place in 0..PLACES {
            self.iptables(place, &["-F", "INPUT"]);
        }
    }

    fn iptables(&self, place: usize, arguments: &[&str]) {
        let mut command = self.command(place, Path::new("iptables"));
        let status = command.arg("-w").args(arguments).status().unwrap();
        assert!(status.success(), "iptables {arguments:?}");
    }
}

fn must(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output();
    let output = output.expect("iproute2 is installed: make setup");
    assert!(
        output.status.success(),
        "ip {}: {} (namespaces need root)",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Removes what dead runs left.
fn remove_leftovers() {
    let mut dead: Vec<String> = namespaces()
        .iter()
        .filter_map(|name| Some(name.strip_prefix(PREFIX)?.split('-').next()?.to_owned()))
        .filter(|id| !Path::new("/proc").join(id).exists())
        .collect();
    dead.sort_unstable();
    dead.dedup();
    dead.iter().for_each(|id| remove(id));
}

/// Ends what runs in the namespaces of a run, and removes them.
fn remove(id: &str) {
    let ours = format!("{PREFIX}{id}-");
    for name in namespaces().iter().filter(|name| name.starts_with(&ours)) {
        for pid in list(&["netns", "pids", name]) {
            if let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let _ = Command::new("ip").args(["netns", "del", name]).status();
    }
}

fn namespaces() -> Vec<String> {
    list(&["netns", "list"])
}

/// The first word of each line.
fn list(arguments: &[&str]) -> Vec<String> {
    let output = Command::new("ip").args(arguments).output();
    let output = output.expect("iproute2 is installed: make setup");
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = lines
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    words.map(str::to_owned).collect()
}
