//! Control groups, of version 1 or 2, whichever the machine has: a bound on memory, or on processor
//! time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const ROOT: &str = "/sys/fs/cgroup";
/// In which processor time is shared out, in microseconds.
const PERIOD_US: u64 = 100_000;

/// What a group may use at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) memory_bytes: u64,
    /// Processors' worth of time; and with such a bound, behind everybody who has none: it stands
    /// for another machine, whose processors are no loss to this one.
    pub(crate) processors: Option<u64>,
}

/// One group. When dropped, its processes have ended, and it is removed.
#[derive(Debug)]
pub(crate) struct Cgroup {
    /// One, or one for each controller.
    folders: Vec<PathBuf>,
    /// That of the controller of memory.
    memory: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Cgroup {
    /// Makes one.
    pub(crate) fn new(name: &str, bounds: Bounds) -> Self {
        let name = format!("dengine-hostile-{}-{name}", std::process::id());
        let root = Path::new(ROOT);
        let two = root.join("cgroup.controllers").exists();
        let group = if two {
            let _ = fs_err::write(root.join("cgroup.subtree_control"), "+memory +cpu");
            let folder = root.join(&name);
            Self {
                memory: folder.clone(),
                folders: vec![folder],
                version: Version::Two,
            }
        } else {
            let memory = root.join("memory").join(&name);
            Self {
                folders: vec![memory.clone(), root.join("cpu").join(&name)],
                memory,
                version: Version::One,
            }
        };
        for folder in &group.folders {
            fs_err::create_dir(folder)
                .unwrap_or_else(|error| panic!("{error}: control groups are made as root"));
        }
        group.bound(bounds);
        group
    }

    fn bound(&self, bounds: Bounds) {
        let Bounds {
            memory_bytes,
            processors,
        } = bounds;
        let quota = processors.map(|it| it * PERIOD_US);
        match self.version {
            Version::One => {
                set(&self.memory, "memory.limit_in_bytes", &memory_bytes);
                if let (Some(quota), Some(cpu)) = (quota, self.folders.last()) {
                    set(cpu, "cpu.cfs_period_us", &PERIOD_US);
                    set(cpu, "cpu.cfs_quota_us", &quota);
                    set(cpu, "cpu.shares", &64);
                }
            }
            Version::Two => {
                set(&self.memory, "memory.max", &memory_bytes);
                let _ = fs_err::write(self.memory.join("memory.swap.max"), "0");
                if let Some(quota) = quota {
                    set(&self.memory, "cpu.max", &format!("{quota} {PERIOD_US}"));
                    set(&self.memory, "cpu.weight", &6);
                }
            }
        }
    }

    /// What runs `program` in the group, from its first instruction on.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        let mut script = String::from("set -e; ");
        for folder in &self.folders {
            script += &format!("echo $$ > {}/cgroup.procs; ", folder.display());
        }
        script += "exec \"$0\" \"$@\"";
        command.arg("-c").arg(script).arg(program);
        command
    }

    /// Processes that were ended because there was no memory left for them.
    pub(crate) fn killed_for_memory(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        counter(&self.memory.join(file), "oom_kill").expect("kernels since 4.13 count it")
    }

    /// A look at its memory.
    pub(crate) fn memory(&self) -> Memory {
        Memory {
            stat: self.memory.join("memory.stat"),
            name: match self.version {
                Version::One => "total_rss",
                Version::Two => "anon",
            },
        }
    }
}

/// How much memory a group has; as long as there is the group.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    stat: PathBuf,
    name: &'static str,
}

impl Memory {
    /// Bytes in use that no reading of files could bring back; 0 once the group is gone.
    pub(crate) fn anonymous_bytes(&self) -> u64 {
        counter(&self.stat, self.name).unwrap_or(0)
    }
}

fn counter(file: &Path, name: &str) -> Option<u64> {
    let text = fs_err::read_to_string(file).ok()?;
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    text.lines().find_map(value)
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(5);
        for folder in &self.folders {
            let begun = Instant::now();
            // A process that was killed stays in its group until the kernel is done with it.
            while let Err(error) = std::fs::remove_dir(folder) {
                if begun.elapsed() > PATIENCE {
                    eprintln!("hostile: {} stays: {error}", folder.display());
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn set(folder: &Path, file: &str, value: &impl ToString) {
    fs_err::write(folder.join(file), value.to_string()).unwrap();
}
