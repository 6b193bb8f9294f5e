//! Recognises a process that was started earlier: a pid alone may by now be somebody else's.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

/// How long a killed process may take to vanish.
const DEATH_PATIENCE: Duration = Duration::from_secs(30);

/// A process, told apart from any later one of the same pid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Process {
    pid: i32,
    /// Field 22 of `/proc/PID/stat`: clock ticks between boot and start.
    started_ticks: u64,
    boot_id: String,
}

impl Process {
    /// The process that has this pid now.
    ///
    /// # Errors
    /// When there is none.
    pub fn of(pid: i32) -> Result<Self> {
        let stat = Stat::of(pid)?.with_context(|| format!("process {pid} is gone"))?;
        Ok(Self {
            pid,
            started_ticks: stat.started_ticks,
            boot_id: boot_id()?,
        })
    }

    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether the machine was booted since: then nothing of what this process held is left.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn is_of_this_boot(&self) -> Result<bool> {
        Ok(self.boot_id == boot_id()?)
    }

    /// Whether it still runs (a zombie does not).
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn is_alive(&self) -> Result<bool> {
        let same = Stat::of(self.pid)?
            .is_some_and(|stat| stat.started_ticks == self.started_ticks && !stat.dead);
        Ok(same && self.is_of_this_boot()?)
    }

    /// The only child, as soon as there is one.
    ///
    /// # Errors
    /// When none appears.
    pub fn await_child(&self, patience: Duration) -> Result<Self> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(pid) = children_of(self.pid)?.first() {
                return Self::of(*pid);
            }
            if Instant::now() > deadline || !self.is_alive()? {
                bail!("process {} ended or has no child", self.pid);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The child that has this pid in the child's own PID namespace; `None` if there is none.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn child_with_own_pid(&self, own_pid: i32) -> Result<Option<Self>> {
        for pid in children_of(self.pid)? {
            // A child that ended meanwhile is none.
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            if status.is_ok_and(|status| own_pid_in(&status) == Some(own_pid)) {
                return Self::of(pid).map(Some);
            }
        }
        Ok(None)
    }

    /// User and system time so far, that of ended threads included.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu(&self) -> Result<Duration> {
        let stat = Stat::of(self.pid)?.filter(|stat| stat.started_ticks == self.started_ticks);
        let stat = stat.with_context(|| format!("process {} is gone", self.pid))?;
        let per_second = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_secs_f64(
            stat.cpu_ticks as f64 / per_second as f64,
        ))
    }

    /// Asks it to end, with `SIGTERM`. No-op when it is not there any more.
    ///
    /// # Errors
    /// When it is somebody else's.
    pub fn terminate(&self) -> Result<()> {
        if self.is_alive()? {
            self.send(Signal::TERM)?;
        }
        Ok(())
    }

    /// Kills it and waits until it is gone. No-op when it is not there any more.
    ///
    /// # Errors
    /// When it does not die.
    pub fn kill(&self) -> Result<()> {
        let deadline = Instant::now() + DEATH_PATIENCE;
        while self.is_alive()? {
            self.send(Signal::KILL)?;
            if Instant::now() > deadline {
                bail!("process {} does not die", self.pid);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn send(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.pid).context("a pid is never 0")?;
        match rustix::process::kill_process(pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("ending process {}", self.pid)),
        }
    }
}

/// What is needed of `/proc/PID/stat`.
struct Stat {
    parent: i32,
    /// Fields 14 and 15.
    cpu_ticks: u64,
    started_ticks: u64,
    dead: bool,
}

impl Stat {
    fn of(pid: i32) -> Result<Option<Self>> {
        let text = match fs_err::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(text) => text,
            // ESRCH: it ended between open and read.
            Err(error)
                if error.kind() == std::io::ErrorKind::NotFound
                    || error.raw_os_error() == Some(3) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        Self::parse(&text)
            .map(Some)
            .with_context(|| format!("/proc/{pid}/stat reads {text:?}"))
    }

    /// `pid (name) state ppid …`, where the name may hold spaces and parentheses.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(") ")?.1.split_whitespace().collect();
        let ticks = |place: usize| -> Option<u64> { fields.get(place)?.parse().ok() };
        Some(Self {
            dead: matches!(*fields.first()?, "Z" | "X"),
            parent: fields.get(1)?.parse().ok()?,
            cpu_ticks: ticks(11)? + ticks(12)?,
            started_ticks: ticks(19)?,
        })
    }
}

fn boot_id() -> Result<String> {
    Ok(fs_err::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

fn children_of(parent: i32) -> Result<Vec<i32>> {
    let mut children = Vec::new();
    for entry in fs_err::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if Stat::of(pid)?.is_some_and(|stat| stat.parent == parent) {
            children.push(pid);
        }
    }
    Ok(children)
}

/// The last pid of `NSpid` in `/proc/PID/status`: that of the innermost namespace.
fn own_pid_in(status: &str) -> Option<i32> {
    let pids = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    pids.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let text = "7 (a) b) S 42 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 99 1";
        let stat = Stat::parse(text).unwrap();
        assert_eq!(
            (stat.parent, stat.started_ticks, stat.dead),
            (42, 12345, false)
        );
        assert_eq!(stat.cpu_ticks, 5 + 6);
    }

    #[test]
    fn the_innermost_pid_is_a_programs_own() {
        let status = "Name:\tdengine\nNSpid:\t4711\t12\nNSpgid:\t4711\t12\n";
        assert_eq!(own_pid_in(status), Some(12));
        assert_eq!(own_pid_in("Name:\tdengine\n"), None);
    }

    #[test]
    fn the_time_that_a_process_took_is_known_until_it_ends() {
        let own = Process::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        let before = own.cpu().unwrap();
        while own.cpu().unwrap() == before {
            std::hint::spin_loop();
        }
        let impostor = Process {
            started_ticks: own.started_ticks + 1,
            ..own
        };
        assert!(impostor.cpu().is_err());
    }

    #[test]
    fn this_process_is_alive_and_an_impostor_is_not() {
        let own = Process::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own.is_alive().unwrap());
        assert!(
            !Process {
                started_ticks: own.started_ticks + 1,
                ..own.clone()
            }
            .is_alive()
            .unwrap()
        );
        assert!(
            !Process {
                boot_id: "another boot".into(),
                ..own
            }
            .is_alive()
            .unwrap()
        );
    }

    #[test]
    fn a_child_is_found_and_killed() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let process = Process::of(pid).unwrap();
        let parent = Process::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert_eq!(
            parent.child_with_own_pid(pid).unwrap().as_ref(),
            Some(&process)
        );
        process.kill().unwrap();
        assert!(!process.is_alive().unwrap());
        child.wait().unwrap();
    }
}
