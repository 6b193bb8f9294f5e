//! One `dengine serve` process in its namespace, on a disk of its own that can be full.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use dengine_client::AdminClient;
use dengine_client::proto::StatusResponse;
use dengine_testkit::{Listen, Process, built_program, serve};

use crate::network::Network;

const CLIENT: u16 = 4100;
const PEER: u16 = 4101;
const MONITOR: u16 = 4102;
const ADMIN: u16 = 4103;
/// Elections take well under a second, and a machine that builds something beside does not look
/// dead.
const TICK_MS: &str = "50";
/// Room for the log, what RocksDB keeps, and what a run writes.
const DISK: &str = "size=1g";

/// A member, whether it runs or not. When dropped it is killed, by its process id, and its disk is
/// gone.
pub(crate) struct Member {
    pub(crate) place: usize,
    pub(crate) log: PathBuf,
    network: Network,
    disk: PathBuf,
    process: Option<Process>,
}

impl Member {
    /// Describes a member in one place, with an empty disk.
    pub(crate) fn new(network: &Network, home: &Path, place: usize) -> Self {
        let disk = home.join(format!("disk{place}"));
        fs_err::create_dir_all(&disk).unwrap();
        // Within the mounts of this process alone: it goes with it.
        let mount = ["-t", "tmpfs", "-o", DISK, "torture"];
        let mounted = Command::new("mount").args(mount).arg(&disk).status();
        assert!(mounted.unwrap().success(), "cannot mount a small disk");
        Self {
            place,
            log: home.join(format!("m{place}.log")),
            network: network.clone(),
            disk,
            process: None,
        }
    }

    /// `host:port` for clients.
    pub(crate) fn address(&self) -> String {
        Network::socket(self.place, CLIENT).to_string()
    }

    pub(crate) fn start(&mut self) {
        assert!(self.process.is_none(), "member {} runs already", self.place);
        let socket = |port| Network::socket(self.place, port);
        let listen = Listen {
            client: socket(CLIENT),
            peer: socket(PEER),
            admin: Some(socket(ADMIN)),
            monitor: socket(MONITOR),
            etcd: None,
        };
        let program = built_program("make torture");
        let mut command = self.network.command(self.place, &program);
        let name = format!("m{}", self.place);
        serve(&mut command, &name, &listen, &self.disk.join("data"));
        command
            .args(["--tick-ms", TICK_MS, "--log-segment-bytes", "8388608"])
            .args(["--log-flush-bytes", "1048576"]);
        self.process = Some(Process::start(&mut command, &self.log));
    }

    /// Whether its process is there; one that ended by itself is gone.
    pub(crate) fn runs(&mut self) -> bool {
        if self.process.as_mut().is_some_and(|it| it.ended().is_some()) {
            self.process = None;
        }
        self.process.is_some()
    }

    /// SIGKILL; nothing if it does not run.
    pub(crate) fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// SIGSTOP: it keeps its sockets and its idea of the time.
    pub(crate) fn pause(&mut self) {
        if let Some(process) = &mut self.process {
            process.pause();
        }
    }

    pub(crate) fn resume(&mut self) {
        if let Some(process) = &mut self.process {
            process.resume();
        }
    }

    /// Takes all free space of its disk, but a little.
    pub(crate) fn fill_disk(&self) {
        let file = File::create(self.filler()).unwrap();
        let free = rustix::fs::statvfs(&self.disk).unwrap();
        let free = free.f_bavail * free.f_frsize;
        let _ = rustix::fs::fallocate(
            &file,
            rustix::fs::FallocateFlags::empty(),
            0,
            free.saturating_sub(16 * 1024).max(1),
        );
    }

    /// Gives the space back.
    pub(crate) fn empty_disk(&self) {
        let _ = fs_err::remove_file(self.filler());
    }

    fn filler(&self) -> PathBuf {
        self.disk.join("filler")
    }

    /// Kills it and empties its folder: it comes back as a stranger.
    pub(crate) fn wipe(&mut self) {
        self.kill();
        fs_err::remove_dir_all(self.disk.join("data")).unwrap();
    }

    /// Its `Admin` service, if it answers.
    pub(crate) async fn admin(&self) -> Option<AdminClient> {
        AdminClient::connect(&self.address()).await.ok()
    }

    /// What it says of itself, if it answers.
    pub(crate) async fn status(&self) -> Option<StatusResponse> {
        self.admin().await?.status().await.ok()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
        let unmounted = Command::new("umount").arg(&self.disk).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("torture: {} stays mounted", self.disk.display());
        }
    }
}
