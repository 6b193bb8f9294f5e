//! A process that ends with its test.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const LOOK_EVERY: Duration = Duration::from_millis(10);

/// One process. Killed, by its process id, when dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts it; what it writes is added to `log`.
    ///
    /// # Panics
    /// The log can't be opened, or the program can't be run.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let log = File::options().create(true).append(true).open(log).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// How it ended, if it does in time.
    pub fn ended_within(&mut self, patience: Duration) -> Option<ExitStatus> {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        None
    }

    /// SIGKILL: it gets no chance to put anything in order.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// SIGTERM: it is asked to end.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// SIGSTOP: it keeps its sockets and its idea of the time.
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT: it goes on after a pause.
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Nothing if it has ended: its process id may be another's then.
    fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            kill_process(Pid::from_child(&self.0), signal).unwrap();
        }
    }

    /// The most memory that it ever had resident.
    ///
    /// # Panics
    /// It has ended.
    pub fn resident_bytes_most(&self) -> u64 {
        let status = fs_err::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .expect("only a running process has memory");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kib * 1024
    }

    /// How the system schedules its threads (`policy` in proc_pid_stat(5)): each number that is
    /// that of one of them.
    ///
    /// # Panics
    /// It has ended.
    pub fn scheduling_policies(&self) -> BTreeSet<u32> {
        let threads = fs_err::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        // One that ends meanwhile has none.
        let lines =
            threads.filter_map(|it| fs_err::read_to_string(it.ok()?.path().join("stat")).ok());
        let policy = |line: String| {
            // The name, in brackets, may hold anything; what follows begins with the third field.
            let (_, fields) = line.rsplit_once(") ").unwrap();
            fields.split(' ').nth(41 - 3).unwrap().parse().unwrap()
        };
        lines.map(policy).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn run(script: &str) -> (Process, TempDir) {
        let home = TempDir::new().unwrap();
        let mut shell = Command::new("sh");
        let process = Process::start(shell.args(["-c", script]), &home.path().join("log"));
        (process, home)
    }

    const LONG: &str = "exec sleep 600";
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_process_ends_with_its_owner() {
        let (process, _home) = run(LONG);
        let folder = format!("/proc/{}", process.0.id());
        assert!(Path::new(&folder).exists() && process.resident_bytes_most() > 0);
        drop(process);
        assert!(!Path::new(&folder).exists());
    }

    #[test]
    fn a_process_that_is_asked_to_end_does_so_once_it_is_not_paused() {
        let (mut process, _home) = run(LONG);
        process.pause();
        let status = format!("/proc/{}/status", process.0.id());
        let begun = Instant::now();
        while !fs_err::read_to_string(&status)
            .unwrap()
            .contains("T (stopped)")
        {
            assert!(begun.elapsed() < PATIENCE, "it is not paused");
            std::thread::sleep(LOOK_EVERY);
        }
        process.terminate();
        assert_eq!(process.ended(), None);
        process.resume();
        let ended = process.ended_within(PATIENCE).expect("it ends");
        assert_eq!(ended.code(), None);
        // It is gone, and nobody else is asked in its place.
        process.terminate();
    }

    #[test]
    fn each_start_adds_to_the_log() {
        let (mut process, home) = run("echo one >&2; exit 3");
        let ended = process.ended_within(PATIENCE).expect("it ends");
        assert_eq!(ended.code(), Some(3));
        let log = home.path().join("log");
        let mut again = Process::start(Command::new("sh").args(["-c", "echo two >&2"]), &log);
        again.ended_within(PATIENCE).expect("it ends");
        assert_eq!(fs_err::read_to_string(log).unwrap(), "one\ntwo\n");
    }
}
