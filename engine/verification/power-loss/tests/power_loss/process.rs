//! The server as a process.

use crate::script::LARGE_BYTES;
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The ports of one member at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    client: u16,
    peer: u16,
    admin: u16,
    monitor: u16,
}

impl Ports {
    pub(crate) fn free() -> Self {
        Self {
            client: free_port(),
            peer: free_port(),
            admin: free_port(),
            monitor: free_port(),
        }
    }

    /// Where clients find the member.
    pub(crate) fn address(self) -> String {
        local(self.client)
    }
}

/// One process. Killed, by its process id, when dropped.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    /// Starts `dengine serve` on a folder; what it says is added to `log`.
    pub(crate) fn start(name: &str, ports: Ports, folder: &Path, log: &Path) -> Self {
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(program());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DENGINE_")) {
            command.env_remove(name);
        }
        let child = command
            .args(["serve", "--name", name])
            .args(["--listen-client", &local(ports.client)])
            .args(["--listen-peer", &local(ports.peer)])
            .args(["--listen-admin", &local(ports.admin)])
            .args(["--listen-monitor", &local(ports.monitor)])
            .arg("--data-dir")
            .arg(folder)
            .args(smallest())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self(child)
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }
}

impl Drop for Process {
    /// SIGKILL: it gets no chance to put anything in order.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Everything as small as it may be, so that a short script meets all of it; and a sole voter that leads at once.
fn smallest() -> Vec<String> {
    const KEY_BYTES: usize = 64;
    const BATCH_BYTES: usize = 2 * (LARGE_BYTES + KEY_BYTES) + 1024;
    let settings = [
        ("tick-ms", 10),
        ("election-ticks", 3),
        ("max-key-bytes", KEY_BYTES),
        ("max-value-bytes", LARGE_BYTES),
        ("max-batch-operations", 8),
        ("max-batch-request-bytes", LARGE_BYTES),
        ("max-batch-bytes", BATCH_BYTES),
        (
            "log-segment-bytes",
            (2 * BATCH_BYTES).next_multiple_of(4096),
        ),
        ("log-flush-bytes", 1024 * 1024),
        ("log-keep-bytes", 4096),
        ("log-keep-bytes-for-followers", 4096),
    ];
    let flags = settings.map(|(name, value)| [format!("--{name}"), value.to_string()]);
    flags.concat()
}

/// The program under test: beside this one, where cargo puts both.
fn program() -> PathBuf {
    if let Some(named) = std::env::var_os("DENGINE_BIN") {
        return named.into();
    }
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap().join("dengine");
    assert!(
        built.exists(),
        "{} is missing: `make power-loss` builds it, or DENGINE_BIN names another one",
        built.display()
    );
    built
}

fn local(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// A port that nobody listens on, below those that the system gives to outgoing connections.
fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 20_000;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    // Test programs that run at the same time begin far from each other.
    let begin = std::process::id().wrapping_mul(101);
    loop {
        let offset = begin.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(FIRST + offset).expect("below 30,000");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
