//! What a load costs: CPU time of this process, and CPU time and memory of server processes on the
//! same machine, as the kernel accounts for them in `/proc`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use dengine_bench_model::results::{IdleServers, Settling};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep};

/// How often memory is looked at during a load.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Servers are idle when all of them together spent less CPU time than [`IDLE_CPU`] in this time.
const IDLE_FOR: Duration = Duration::from_secs(1);
/// A tenth of a processor: more than heartbeats and timers take, and less than one thread that
/// merges. CPU time is counted in steps of 10 ms for each process.
const IDLE_CPU: Duration = Duration::from_millis(100);

/// The server processes that were named.
#[derive(Clone, Debug)]
pub struct Servers {
    pids: Vec<u32>,
}

/// What a load cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// CPU time of this process.
    pub client_cpu: Duration,
    /// That of the servers, if any were named.
    pub servers: Option<ServersSpent>,
}

/// What a load cost the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServersSpent {
    /// How many there are.
    pub processes: u32,
    /// CPU time of all of them, to about 10 ms each.
    pub cpu: Duration,
    /// Most resident memory, without that of mapped files, that one of them was seen with.
    pub resident_bytes_max: u64,
}

impl Servers {
    /// Looks at each process once.
    ///
    /// # Errors
    /// If one is not there.
    pub fn new(pids: &[u32]) -> anyhow::Result<Self> {
        let servers = Servers {
            pids: pids.to_vec(),
        };
        servers.resident_bytes_max()?;
        Ok(servers)
    }

    /// Memory of servers that have nothing to do; `None` if none were named, or one has ended.
    #[must_use]
    pub fn idle(&self) -> Option<IdleServers> {
        let processes = self.pids.len() as u32;
        let resident_bytes_max = self.resident_bytes_max().ok()?;
        (processes > 0).then_some(IdleServers {
            processes,
            resident_bytes_max,
        })
    }

    /// Waits until the servers are idle, for `limit` at most; `None` if none were named, or one has
    /// ended.
    ///
    /// CPU time says the same of every system: what a store still has to merge, each one counts in
    /// its own way or not at all.
    pub async fn settle(&self, limit: Duration) -> Option<Settling> {
        if self.pids.is_empty() {
            return None;
        }
        let began = Instant::now();
        let mut idle = false;
        while !idle && began.elapsed() + IDLE_FOR <= limit {
            let before = self.cpu().ok()?;
            sleep(IDLE_FOR).await;
            idle = self.cpu().ok()?.saturating_sub(before) < IDLE_CPU;
        }
        Some(Settling {
            total_seconds: began.elapsed().as_secs_f64(),
            idle,
        })
    }

    /// From now on, what this process and the servers spend is counted.
    #[must_use]
    pub fn start(&self) -> Spending {
        let highest = Arc::new(AtomicU64::new(0));
        let (servers, seen) = (self.clone(), Arc::clone(&highest));
        let watching = (!self.pids.is_empty()).then(|| tokio::spawn(servers.watch_memory(seen)));
        Spending {
            servers: self.clone(),
            server_cpu: self.cpu(),
            client_cpu: own_cpu(),
            highest,
            watching,
        }
    }

    async fn watch_memory(self, highest: Arc<AtomicU64>) {
        let mut ticks = interval(LOOK_EVERY);
        loop {
            ticks.tick().await;
            if let Ok(resident) = self.resident_bytes_max() {
                highest.fetch_max(resident, Ordering::Relaxed);
            }
        }
    }

    fn cpu(&self) -> anyhow::Result<Duration> {
        self.pids.iter().map(|&pid| cpu(pid)).sum()
    }

    fn resident_bytes_max(&self) -> anyhow::Result<u64> {
        let each = self.pids.iter().map(|&pid| resident_bytes(pid));
        Ok(each
            .collect::<anyhow::Result<Vec<_>>>()?
            .into_iter()
            .max()
            .unwrap_or(0))
    }
}

/// A load under way.
pub struct Spending {
    servers: Servers,
    server_cpu: anyhow::Result<Duration>,
    client_cpu: Duration,
    highest: Arc<AtomicU64>,
    watching: Option<JoinHandle<()>>,
}

impl Spending {
    /// What was spent since [`Servers::start`].
    ///
    /// # Errors
    /// If a server process ended meanwhile.
    pub fn end(mut self) -> anyhow::Result<Spent> {
        let client_cpu = own_cpu().saturating_sub(self.client_cpu);
        let before = std::mem::replace(&mut self.server_cpu, Ok(Duration::ZERO))?;
        let after = self.servers.cpu()?;
        let highest = self.highest.load(Ordering::Relaxed);
        let servers = match self.servers.pids.len() {
            0 => None,
            processes => Some(ServersSpent {
                processes: processes as u32,
                cpu: after.saturating_sub(before),
                resident_bytes_max: highest.max(self.servers.resident_bytes_max()?),
            }),
        };
        Ok(Spent {
            client_cpu,
            servers,
        })
    }
}

impl Drop for Spending {
    fn drop(&mut self) {
        if let Some(watching) = &self.watching {
            watching.abort();
        }
    }
}

fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// User and system time of a process, its ended threads included.
fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let text = read(pid, "stat")?;
    let ticks = cpu_ticks(&text).with_context(|| format!("/proc/{pid}/stat reads {text:?}"))?;
    Ok(Duration::from_secs_f64(
        ticks as f64 / clock_ticks_per_second() as f64,
    ))
}

/// `pid (name) state …`: fields 14 and 15, where the name may hold spaces and parentheses.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn resident_bytes(pid: u32) -> anyhow::Result<u64> {
    let text = read(pid, "statm")?;
    match own_pages(&text) {
        Some(pages) => Ok(pages * page_size() as u64),
        None => bail!("/proc/{pid}/statm reads {text:?}"),
    }
}

/// `size resident shared …`: resident pages without those of mapped files. A store that maps its
/// files, as etcd's does, would otherwise be charged with what the kernel caches of them, and one
/// that reads them would not.
fn own_pages(statm: &str) -> Option<u64> {
    let mut fields = statm.split_whitespace().skip(1);
    let resident: u64 = fields.next()?.parse().ok()?;
    let shared: u64 = fields.next()?.parse().ok()?;
    Some(resident.saturating_sub(shared))
}

fn read(pid: u32, file: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(format!("/proc/{pid}/{file}"))
        .with_context(|| format!("--server-pid {pid}: is the process there, on this machine?"))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 42 7 7 0 -1 4194560 1 2 3 4 50 6 7 8 20 0 1 0 12345 99 1";
        assert_eq!(cpu_ticks(stat), Some(56));
    }

    #[test]
    fn memory_leaves_mapped_files_out() {
        assert_eq!(own_pages("9000 700 450 80 0 300 0\n"), Some(250));
        assert_eq!(own_pages("9000 700"), None);
    }

    #[tokio::test]
    async fn work_of_this_process_is_seen_both_ways() {
        let servers = Servers::new(&[std::process::id()]).unwrap();
        assert!(servers.idle().unwrap().resident_bytes_max > 100_000);
        let spending = servers.start();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(300) {
            std::hint::spin_loop();
        }
        let spent = spending.end().unwrap();
        let of_servers = spent.servers.unwrap();
        for cpu in [spent.client_cpu, of_servers.cpu] {
            // On a busy machine it gets only a share of the time.
            assert!(cpu > Duration::from_millis(20), "{cpu:?}");
        }
        assert_eq!(of_servers.processes, 1);
    }

    #[tokio::test]
    async fn servers_have_settled_when_they_do_nothing() {
        let mut waits_for_input = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let servers = Servers::new(&[waits_for_input.id()]).unwrap();
        let settled = servers.settle(Duration::from_secs(60)).await.unwrap();
        assert!(settled.idle && settled.total_seconds < 50.0, "{settled:?}");
        drop(waits_for_input.stdin.take());
        waits_for_input.wait().unwrap();
        assert_eq!(servers.settle(Duration::from_secs(60)).await, None);
    }

    #[tokio::test]
    async fn busy_servers_are_not_waited_for_without_end() {
        let mut counts = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let servers = Servers::new(&[counts.id()]).unwrap();
        let settled = servers.settle(Duration::from_millis(1_500)).await.unwrap();
        counts.kill().unwrap();
        counts.wait().unwrap();
        assert!(!settled.idle, "{settled:?}");
        assert_eq!(
            Servers::new(&[]).unwrap().settle(Duration::MAX).await,
            None,
            "nothing is known of servers that were not named"
        );
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        let error = format!("{:#}", Servers::new(&[u32::MAX]).unwrap_err());
        assert!(error.starts_with("--server-pid 4294967295"), "{error}");
    }
}
