//! Judges a whole configuration at once: every problem is reported, each with what to do about it.

use dengine_log::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_UNIT};
use dengine_protocol::BATCH_OPERATIONS_MAX;
use dengine_protocol::checks::RequestLimits;
use std::{net::SocketAddr, path::PathBuf};

use super::{Config, Limits};
use crate::telemetry;

/// Why a configuration was refused. Nothing was started and nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("the configuration file can't be read: {0}")]
    Read(#[source] std::io::Error),
    /// A setting in the file is unknown or of the wrong type.
    #[error(
        "the configuration in {} is malformed: correct this setting, or leave it out for its \
         default\n{problem}",
        file.display()
    )]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong, with the line.
        problem: String,
    },
    /// Settings that can't work, alone or together.
    #[error("the configuration is not valid:{}", listed(problems))]
    Invalid {
        /// One line per problem.
        problems: Vec<String>,
    },
}

fn listed(problems: &[String]) -> String {
    problems
        .iter()
        .map(|problem| format!("\n  - {problem}"))
        .collect()
}

/// Longest name; it ends up in every log line and in Kubernetes labels.
const NAME_LEN_MAX: usize = 63;
/// RocksDB and the log take more, but a key is copied on every comparison.
const KEY_BYTES_MAX: usize = 1024 * 1024;
/// A value travels in one message and one log batch, and with its key in one answer, of which clients take 64 MiB.
const VALUE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The largest write that any configuration lets in.
pub(crate) const WRITE_BYTES_MAX: usize = RequestLimits {
    max_key_bytes: KEY_BYTES_MAX,
    max_value_bytes: VALUE_BYTES_MAX,
    max_range_bytes: 0,
    max_batch_operations: BATCH_OPERATIONS_MAX,
    max_batch_request_bytes: VALUE_BYTES_MAX,
}
.max_write_bytes();
/// Batches are held in memory several times over (log, peers, applier).
const BATCH_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Far above any machine this runs on, so that only slips of the keyboard meet it.
const PENDING_BYTES_MAX: usize = 1 << 40;
/// The same of disks.
const MIN_FREE_BYTES_MAX: u64 = 1 << 50;
/// With less of a cache or a table of writes the disk does little else.
const STATE_BYTES_MIN: u64 = 1 << 20;
/// RocksDB reserves addresses for the index of a cache of this size, a seventh of it.
const BLOCK_CACHE_BYTES_MAX: u64 = 1 << 38;
/// It allocates a twentieth of a table of writes at once, for its filter.
const WRITE_BUFFER_BYTES_MAX: u64 = 1 << 30;

impl Config {
    /// Fills what is derived from other settings, and judges the whole.
    ///
    /// # Errors
    /// Every problem at once, each with what to do.
    pub fn validated(mut self) -> Result<Self, ConfigError> {
        if self.advertise_client.is_empty() && !self.listen_client.ip().is_unspecified() {
            self.advertise_client = self.listen_client.to_string();
        }
        if self.advertise_peer.is_empty() && !self.listen_peer.ip().is_unspecified() {
            self.advertise_peer = self.listen_peer.to_string();
        }
        let mut problems = Problems::default();
        self.check_identity(&mut problems);
        self.check_addresses(&mut problems);
        self.check_clock(&mut problems);
        self.limits.check(&mut problems);
        self.check_log(&mut problems);
        self.check_state(&mut problems);
        self.check_folder(&mut problems);
        if let Err(error) = telemetry::filter(&self.log_level) {
            problems.add(error.to_string());
        }
        match problems.0 {
            problems if problems.is_empty() => Ok(self),
            problems => Err(ConfigError::Invalid { problems }),
        }
    }

    fn check_identity(&self, problems: &mut Problems) {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        problems.require(!self.name.is_empty(), || {
            "name is missing: give this member a name that no other member has (--name)".to_owned()
        });
        problems.require(
            self.name.len() <= NAME_LEN_MAX && self.name.chars().all(allowed),
            || {
                format!(
                    "name {:?} must be at most {NAME_LEN_MAX} letters, digits, '.', '_' or '-'",
                    self.name
                )
            },
        );
        problems.require(!self.data_dir.as_os_str().is_empty(), || {
            "data_dir is missing: name the folder for this member's data (--data-dir)".to_owned()
        });
    }

    fn check_addresses(&self, problems: &mut Problems) {
        let listens = [
            ("listen_client", self.listen_client),
            ("listen_peer", self.listen_peer),
            ("listen_admin", self.listen_admin),
            ("listen_monitor", self.listen_monitor),
        ];
        for (place, (name, address)) in listens.iter().enumerate() {
            problems.require(address.port() != 0, || {
                format!("{name} has port 0: other members and clients need a port that stays")
            });
            for (other_name, other) in &listens[..place] {
                problems.require(!collide(*address, *other), || {
                    format!("{name} and {other_name} are both {address}: give each its own port")
                });
            }
        }
        check_advertised(
            "client",
            &self.advertise_client,
            self.listen_client,
            problems,
        );
        check_advertised("peer", &self.advertise_peer, self.listen_peer, problems);
    }

    fn check_clock(&self, problems: &mut Problems) {
        problems.require((1..=60_000).contains(&self.tick_ms), || {
            format!(
                "tick_ms is {}: it must be 1 to 60000 (100 is usual)",
                self.tick_ms
            )
        });
        problems.require(self.heartbeat_ticks >= 1, || {
            "heartbeat_ticks is 0: a leader that sends no heartbeats is deposed".to_owned()
        });
        problems.require((1..=1000).contains(&self.election_ticks), || {
            format!(
                "election_ticks is {}: it must be 1 to 1000 (10 is usual)",
                self.election_ticks
            )
        });
        problems.require(self.election_ticks >= self.heartbeat_ticks.saturating_mul(3), || {
            format!(
                "election_ticks ({}) must be at least three times heartbeat_ticks ({}), or one lost heartbeat costs an election",
                self.election_ticks, self.heartbeat_ticks
            )
        });
    }

    fn check_log(&self, problems: &mut Problems) {
        let least = (2 * self.limits.max_batch_bytes.min(BATCH_BYTES_MAX)) as u64;
        let segment = self.log.segment_bytes;
        let fits = (least..=u64::from(SEGMENT_BYTES_MAX)).contains(&segment);
        problems.require(fits && segment.is_multiple_of(SEGMENT_BYTES_UNIT.into()), || {
            format!(
                "log.segment_bytes is {segment}: it must be a multiple of {SEGMENT_BYTES_UNIT}, at least twice limits.max_batch_bytes ({least}) and at most {SEGMENT_BYTES_MAX}"
            )
        });
        problems.require((1..=60_000).contains(&self.log.sync_interval_ms), || {
            format!(
                "log.sync_interval_ms is {}: it must be 1 to 60000 (100 is usual)",
                self.log.sync_interval_ms
            )
        });
        problems.require(self.log.flush_bytes >= 1024 * 1024, || {
            format!(
                "log.flush_bytes is {}: below 1 MiB the disk does little else",
                self.log.flush_bytes
            )
        });
        problems.require(
            self.log.keep_bytes_for_followers >= self.log.keep_bytes,
            || {
                format!(
                    "log.keep_bytes_for_followers ({}) must be at least log.keep_bytes ({})",
                    self.log.keep_bytes_for_followers, self.log.keep_bytes
                )
            },
        );
    }

    fn check_state(&self, problems: &mut Problems) {
        let (cache, buffer) = (self.state.block_cache_bytes, self.state.write_buffer_bytes);
        for (name, value, most) in [
            ("block_cache_bytes", cache, BLOCK_CACHE_BYTES_MAX),
            ("write_buffer_bytes", buffer, WRITE_BUFFER_BYTES_MAX),
        ] {
            problems.require((STATE_BYTES_MIN..=most).contains(&value), || {
                format!("state.{name} is {value}: it must be {STATE_BYTES_MIN} to {most}")
            });
        }
    }

    fn check_folder(&self, problems: &mut Problems) {
        problems.require(self.min_free_bytes <= MIN_FREE_BYTES_MAX, || {
            format!(
                "min_free_bytes is {}: it must be at most {MIN_FREE_BYTES_MAX}",
                self.min_free_bytes
            )
        });
        problems.require(self.snapshot.bytes_per_second >= 1024 * 1024, || {
            format!(
                "snapshot.bytes_per_second is {}: below 1 MiB a snapshot takes longer than its receiver waits",
                self.snapshot.bytes_per_second
            )
        });
    }
}

impl Limits {
    fn check(&self, problems: &mut Problems) {
        let mut between = |name: &str, value: usize, least: usize, most: usize| {
            problems.require((least..=most).contains(&value), || {
                format!("limits.{name} is {value}: it must be {least} to {most}")
            });
        };
        between("max_key_bytes", self.max_key_bytes, 1, KEY_BYTES_MAX);
        between("max_value_bytes", self.max_value_bytes, 1, VALUE_BYTES_MAX);
        between(
            "max_batch_operations",
            self.max_batch_operations,
            1,
            BATCH_OPERATIONS_MAX,
        );
        between(
            "max_batch_request_bytes",
            self.max_batch_request_bytes,
            1024,
            VALUE_BYTES_MAX,
        );
        between("max_watch_streams", self.max_watch_streams, 1, 1 << 20);
        between(
            "max_watch_streams_per_connection",
            self.max_watch_streams_per_connection,
            1,
            1 << 20,
        );
        between("max_watches", self.max_watches, 1, 1 << 24);
        between(
            "max_watches_per_connection",
            self.max_watches_per_connection,
            1,
            1 << 24,
        );
        between("max_connections", self.max_connections, 1, 1 << 20);
        // Only sizes that are allowed say anything about what must hold them.
        if self.max_key_bytes <= KEY_BYTES_MAX
            && self.max_value_bytes <= VALUE_BYTES_MAX
            && self.max_batch_request_bytes <= VALUE_BYTES_MAX
            && self.max_batch_operations <= BATCH_OPERATIONS_MAX
        {
            let write = self.max_write_bytes();
            between(
                "max_batch_bytes",
                self.max_batch_bytes,
                write,
                BATCH_BYTES_MAX,
            );
            let pending = self.max_pending_proposal_bytes;
            between(
                "max_pending_proposal_bytes",
                pending,
                write,
                PENDING_BYTES_MAX,
            );
            let largest = self.largest_answer_bytes();
            let answers = self.max_answer_bytes;
            between("max_answer_bytes", answers, largest, PENDING_BYTES_MAX);
        }
        between(
            "max_range_bytes",
            self.max_range_bytes,
            4096,
            VALUE_BYTES_MAX,
        );
        between(
            "max_concurrent_requests",
            self.max_concurrent_requests,
            1,
            1 << 20,
        );
        between(
            "max_pending_proposals",
            self.max_pending_proposals,
            1,
            1 << 20,
        );
        between("max_pending_reads", self.max_pending_reads, 1, 1 << 20);
        problems.require((1..=600_000).contains(&self.request_timeout_ms), || {
            format!(
                "limits.request_timeout_ms is {}: it must be 1 to 600000",
                self.request_timeout_ms
            )
        });
        for (name, value) in [
            ("stream_stall_timeout_ms", self.stream_stall_timeout_ms),
            (
                "watch_progress_interval_ms",
                self.watch_progress_interval_ms,
            ),
        ] {
            problems.require((100..=3_600_000).contains(&value), || {
                format!("limits.{name} is {value}: it must be 100 to 3600000")
            });
        }
        problems.require(self.shutdown_timeout_ms <= 600_000, || {
            format!(
                "limits.shutdown_timeout_ms is {}: it must be at most 600000",
                self.shutdown_timeout_ms
            )
        });
    }
}

fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() != 0
        && a.port() == b.port()
        && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
}

fn check_advertised(kind: &str, address: &str, listen: SocketAddr, problems: &mut Problems) {
    if address.is_empty() {
        return problems.add(format!(
            "advertise_{kind} is missing: listening on {listen} (every address), this member can't know which one others reach it at (--advertise-{kind} HOST:PORT)"
        ));
    }
    let usable = address.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty()
            && !host.contains(|it: char| it.is_whitespace() || it.is_control())
            && !host.contains('/')
            && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    problems.require(usable, || {
        format!("advertise_{kind} is {address:?}: it must be HOST:PORT")
    });
    let unspecified = address
        .parse::<SocketAddr>()
        .is_ok_and(|address| address.ip().is_unspecified());
    problems.require(!unspecified, || {
        format!(
            "advertise_{kind} is {address}: nobody can connect to that address, name this machine"
        )
    });
}

#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn add(&mut self, problem: String) {
        self.0.push(problem);
    }

    fn require(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.add(problem());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> Config {
        Config {
            name: "a".into(),
            data_dir: "/tmp/a".into(),
            ..Config::default()
        }
    }

    fn check(change: impl FnOnce(&mut Config), expect: &[&str]) {
        let mut config = valid();
        change(&mut config);
        match config.validated() {
            Ok(_) => assert!(expect.is_empty(), "accepted, expected {expect:?}"),
            Err(ConfigError::Invalid { problems }) => {
                assert_eq!(problems.len(), expect.len(), "{problems:#?}");
                for (problem, part) in problems.iter().zip(expect) {
                    assert!(problem.contains(part), "{problem:?} lacks {part:?}");
                }
            }
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn defaults_with_a_name_and_a_folder_are_valid_and_advertise_what_they_listen_on() {
        check(|_| {}, &[]);
        let config = valid().validated().unwrap();
        assert_eq!(config.advertise_client, "127.0.0.1:4100");
        assert_eq!(config.advertise_peer, "127.0.0.1:4101");
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        check(
            |c| *c = Config::default(),
            &["name is missing", "data_dir is missing"],
        );
        check(
            |c| {
                c.tick_ms = 0;
                c.heartbeat_ticks = 5;
                c.limits.max_key_bytes = 0;
            },
            &["tick_ms", "three times", "max_key_bytes"],
        );
    }

    #[test]
    fn the_state_has_some_memory_and_no_more_than_can_be_reserved() {
        for value in [0, STATE_BYTES_MIN - 1, u64::MAX] {
            check(
                |c| {
                    c.state.block_cache_bytes = value;
                    c.state.write_buffer_bytes = value;
                },
                &["state.block_cache_bytes", "state.write_buffer_bytes"],
            );
        }
        check(|c| c.state.write_buffer_bytes = WRITE_BUFFER_BYTES_MAX, &[]);
    }

    #[test]
    fn addresses_must_be_reachable_and_apart() {
        check(
            |c| c.listen_peer = c.listen_client,
            &["listen_peer and listen_client"],
        );
        check(
            |c| c.listen_client = "0.0.0.0:4100".parse().unwrap(),
            &["advertise_client"],
        );
        check(|c| c.advertise_peer = "nohost".into(), &["HOST:PORT"]);
        check(
            |c| c.advertise_peer = "0.0.0.0:1".into(),
            &["nobody can connect"],
        );
        check(|c| c.advertise_peer = "http://a:1".into(), &["HOST:PORT"]);
        check(|c| c.name = "a b".into(), &["letters"]);
    }

    #[test]
    fn the_admin_port_is_told_to_those_who_can_reach_it() {
        let told = |change: fn(&mut Config)| {
            let mut config = valid();
            change(&mut config);
            config.validated().unwrap().admin_address()
        };
        assert_eq!(told(|_| {}).as_deref(), Some("127.0.0.1:4103"));
        let everywhere = told(|c| {
            c.listen_client = "[::]:4100".parse().unwrap();
            c.listen_admin = "[::]:4103".parse().unwrap();
            c.advertise_client = "[fd00::1]:4100".into();
        });
        assert_eq!(everywhere.as_deref(), Some("[fd00::1]:4103"));
        let here_only = told(|c| {
            c.listen_client = "0.0.0.0:4100".parse().unwrap();
            c.advertise_client = "a.example:4100".into();
        });
        assert_eq!(here_only, None);
        check(
            |c| c.listen_admin = c.listen_client,
            &["listen_admin and listen_client"],
        );
    }

    #[test]
    fn what_the_log_and_the_disk_can_not_do_is_said_before_anything_is_made() {
        check(|c| c.log.segment_bytes += 1, &["multiple of 4096"]);
        check(|c| c.log.segment_bytes = 8 << 30, &["at most 1073741824"]);
        check(|c| c.min_free_bytes = u64::MAX, &["min_free_bytes"]);
        check(|c| c.log_level = "loud=very".into(), &["log_level"]);
    }

    #[test]
    fn what_must_hold_something_is_large_enough_for_it() {
        check(|c| c.limits.max_value_bytes = 8 << 20, &["max_batch_bytes"]);
        check(
            |c| c.limits.max_answer_bytes = 1 << 20,
            &["max_answer_bytes"],
        );
        check(
            |c| c.limits.max_range_bytes = 64 << 20,
            &["max_range_bytes"],
        );
        check(|c| c.log.segment_bytes = 1 << 20, &["segment_bytes"]);
        check(
            |c| c.limits.max_batch_bytes = usize::MAX,
            &["max_batch_bytes", "segment_bytes"],
        );
        check(
            |c| c.limits.max_value_bytes = usize::MAX,
            &["max_value_bytes"],
        );
    }
}
