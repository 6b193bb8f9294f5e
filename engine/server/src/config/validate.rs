//! Validates a whole configuration at once: every problem is reported, each with what to do.

use std::net::SocketAddr;
use std::path::PathBuf;

use dengine_log::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_UNIT};
use dengine_protocol::BATCH_OPERATIONS_MAX;
use dengine_protocol::checks::RequestLimits;
use tonic::codegen::http::Uri;
use tonic::codegen::http::uri::{PathAndQuery, Scheme};

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

/// Longest name; it is in every log line and in Kubernetes labels.
const NAME_LEN_MAX: usize = 63;
/// RocksDB and the log take more, but a key is copied on every comparison.
const KEY_BYTES_MAX: usize = 1024 * 1024;
/// A value is sent in one message and one log batch, and with its key in one answer, of which
/// clients take 64 MiB.
const VALUE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The largest write that any configuration accepts.
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
/// Far above the memory of any machine, so that only a typing error exceeds it.
const PENDING_BYTES_MAX: usize = 1 << 40;
/// Far above any disk, likewise.
const MIN_FREE_BYTES_MAX: u64 = 1 << 50;
/// With a smaller cache or table of writes, the disk is always busy with it.
const STATE_BYTES_MIN: u64 = 1 << 20;
/// RocksDB reserves a seventh of it as address space, for the index of a cache of this size.
const BLOCK_CACHE_BYTES_MAX: u64 = 1 << 38;
/// Far above any memory, so that only a typing error exceeds it.
const KEY_CACHE_BYTES_MAX: u64 = 1 << 38;
/// RocksDB allocates a twentieth of a table of writes at once, for its filter.
const WRITE_BUFFER_BYTES_MAX: u64 = 1 << 30;

/// Most of what is counted one by one: watch streams, connections, requests.
const COUNT_MAX: usize = 1 << 20;
/// A watch takes less memory than a stream, a connection or a request.
const WATCHES_MAX: usize = 1 << 24;

/// Requires a setting to be in a range; names it as a file does.
macro_rules! within {
    ($problems:ident, $section:ident.$field:ident, $allowed:expr) => {
        within!($problems, $section.$field = $section.$field, $allowed)
    };
    ($problems:ident, $section:ident.$field:ident = $value:expr, $allowed:expr) => {{
        let (value, allowed) = ($value, $allowed);
        $problems.require(allowed.contains(&value), || {
            format!(
                "{}.{} is {value}: it must be {} to {}",
                stringify!($section),
                stringify!($field),
                allowed.start(),
                allowed.end()
            )
        });
    }};
}

impl Config {
    /// Sets what follows from other settings, and validates the whole.
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
        self.check_limits(&mut problems);
        self.check_log(&mut problems);
        self.check_state(&mut problems);
        self.check_disk(&mut problems);
        self.check_tracing(&mut problems);
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
            "data_dir is missing: name the directory for this member's data (--data-dir)".to_owned()
        });
    }

    fn check_addresses(&self, problems: &mut Problems) {
        let etcd = self.etcd_address();
        problems.require(self.listen_etcd.is_empty() || etcd.is_some(), || {
            format!(
                "listen_etcd is {:?}: it must be IP:PORT, such as 127.0.0.1:2379, or empty",
                self.listen_etcd
            )
        });
        let mut listens = vec![
            ("listen_client", self.listen_client),
            ("listen_peer", self.listen_peer),
            ("listen_admin", self.listen_admin),
            ("listen_monitor", self.listen_monitor),
        ];
        listens.extend(etcd.map(|address| ("listen_etcd", address)));
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
        let (election, heartbeat) = (self.election_ticks, self.heartbeat_ticks);
        problems.require((1..=60_000).contains(&self.tick_ms), || {
            format!(
                "tick_ms is {}: it must be 1 to 60000 (100 is usual)",
                self.tick_ms
            )
        });
        problems.require(heartbeat >= 1, || {
            "heartbeat_ticks is 0: a leader that sends no heartbeats is deposed".to_owned()
        });
        problems.require((1..=1000).contains(&election), || {
            format!("election_ticks is {election}: it must be 1 to 1000 (10 is usual)")
        });
        problems.require(election >= heartbeat.saturating_mul(3), || {
            format!(
                "election_ticks ({election}) must be at least three times heartbeat_ticks \
                 ({heartbeat}), or one lost heartbeat costs an election"
            )
        });
    }

    fn check_limits(&self, problems: &mut Problems) {
        check_requests(&self.limits, problems);
        check_watches(&self.limits, problems);
        check_queues(&self.limits, problems);
        check_room_for_requests(&self.limits, problems);
        check_times(&self.limits, problems);
    }

    fn check_log(&self, problems: &mut Problems) {
        let log = &self.log;
        let least = (2 * self.limits.max_batch_bytes.min(BATCH_BYTES_MAX)) as u64;
        let segment = log.segment_bytes;
        let fits = (least..=u64::from(SEGMENT_BYTES_MAX)).contains(&segment);
        problems.require(fits && segment.is_multiple_of(SEGMENT_BYTES_UNIT.into()), || {
            format!(
                "log.segment_bytes is {segment}: it must be a multiple of {SEGMENT_BYTES_UNIT}, \
                 at least twice limits.max_batch_bytes ({least}) and at most {SEGMENT_BYTES_MAX}"
            )
        });
        problems.require((1..=60_000).contains(&log.sync_interval_ms), || {
            format!(
                "log.sync_interval_ms is {}: it must be 1 to 60000 (100 is usual)",
                log.sync_interval_ms
            )
        });
        problems.require(log.flush_bytes >= 1024 * 1024, || {
            format!(
                "log.flush_bytes is {}: below 1 MiB the disk does little else",
                log.flush_bytes
            )
        });
        problems.require(log.keep_bytes_for_followers >= log.keep_bytes, || {
            format!(
                "log.keep_bytes_for_followers ({}) must be at least log.keep_bytes ({})",
                log.keep_bytes_for_followers, log.keep_bytes
            )
        });
    }

    fn check_state(&self, problems: &mut Problems) {
        let state = &self.state;
        within!(
            problems,
            state.block_cache_bytes,
            STATE_BYTES_MIN..=BLOCK_CACHE_BYTES_MAX
        );
        if let Some(bytes) = state.key_cache_bytes.bytes() {
            within!(
                problems,
                state.key_cache_bytes = bytes,
                0..=KEY_CACHE_BYTES_MAX
            );
        }
        within!(
            problems,
            state.write_buffer_bytes,
            STATE_BYTES_MIN..=WRITE_BUFFER_BYTES_MAX
        );
    }

    fn check_disk(&self, problems: &mut Problems) {
        problems.require(self.min_free_bytes <= MIN_FREE_BYTES_MAX, || {
            format!(
                "min_free_bytes is {}: it must be at most {MIN_FREE_BYTES_MAX}",
                self.min_free_bytes
            )
        });
        problems.require(self.snapshot.bytes_per_second >= 1024 * 1024, || {
            format!(
                "snapshot.bytes_per_second is {}: below 1 MiB a snapshot takes longer than its \
                 receiver waits",
                self.snapshot.bytes_per_second
            )
        });
    }

    fn check_tracing(&self, problems: &mut Problems) {
        let tracing = &self.tracing;
        let endpoint = tracing.endpoint.as_str();
        problems.require(endpoint.is_empty() || is_collector(endpoint), || {
            format!(
                "tracing.endpoint is {endpoint:?}: it must be http://HOST:PORT, where a collector \
                 takes OTLP over gRPC (4317 is usual), or empty"
            )
        });
        problems.require((0.0..=1.0).contains(&tracing.sample_ratio), || {
            format!(
                "tracing.sample_ratio is {}: it must be 0 to 1 (0.001 is one write of a thousand)",
                tracing.sample_ratio
            )
        });
    }
}

/// Whether a collector may be there: what connects takes no path, and knows no TLS.
fn is_collector(endpoint: &str) -> bool {
    let Ok(uri) = endpoint.parse::<Uri>() else {
        return false;
    };
    uri.scheme() == Some(&Scheme::HTTP)
        && matches!(
            uri.path_and_query().map(PathAndQuery::as_str),
            None | Some("/")
        )
        && uri.host().is_some_and(|host| !host.is_empty())
        && uri.port_u16().is_some_and(|port| port != 0)
}

fn check_requests(limits: &Limits, problems: &mut Problems) {
    within!(problems, limits.max_key_bytes, 1..=KEY_BYTES_MAX);
    within!(problems, limits.max_value_bytes, 1..=VALUE_BYTES_MAX);
    within!(problems, limits.max_range_bytes, 4096..=VALUE_BYTES_MAX);
    within!(
        problems,
        limits.max_batch_operations,
        1..=BATCH_OPERATIONS_MAX
    );
    within!(
        problems,
        limits.max_batch_request_bytes,
        1024..=VALUE_BYTES_MAX
    );
}

fn check_watches(limits: &Limits, problems: &mut Problems) {
    within!(problems, limits.max_watch_streams, 1..=COUNT_MAX);
    within!(
        problems,
        limits.max_watch_streams_per_connection,
        1..=COUNT_MAX
    );
    within!(problems, limits.max_watches, 1..=WATCHES_MAX);
    within!(problems, limits.max_watches_per_connection, 1..=WATCHES_MAX);
}

fn check_queues(limits: &Limits, problems: &mut Problems) {
    within!(problems, limits.max_connections, 1..=COUNT_MAX);
    within!(problems, limits.max_concurrent_requests, 1..=COUNT_MAX);
    within!(problems, limits.max_pending_proposals, 1..=COUNT_MAX);
    within!(problems, limits.max_pending_reads, 1..=COUNT_MAX);
}

/// Batches, queues and answers must hold a largest write or answer. Sizes that are not allowed are
/// problems of their own, and say nothing about what must hold them.
fn check_room_for_requests(limits: &Limits, problems: &mut Problems) {
    if limits.max_key_bytes > KEY_BYTES_MAX
        || limits.max_value_bytes > VALUE_BYTES_MAX
        || limits.max_batch_request_bytes > VALUE_BYTES_MAX
        || limits.max_batch_operations > BATCH_OPERATIONS_MAX
    {
        return;
    }
    let (write, answer) = (limits.max_write_bytes(), limits.largest_answer_bytes());
    within!(problems, limits.max_batch_bytes, write..=BATCH_BYTES_MAX);
    within!(
        problems,
        limits.max_pending_proposal_bytes,
        write..=PENDING_BYTES_MAX
    );
    within!(
        problems,
        limits.max_answer_bytes,
        answer..=PENDING_BYTES_MAX
    );
}

fn check_times(limits: &Limits, problems: &mut Problems) {
    within!(problems, limits.request_timeout_ms, 1..=600_000);
    within!(problems, limits.stream_stall_timeout_ms, 100..=3_600_000);
    within!(problems, limits.watch_progress_interval_ms, 100..=3_600_000);
    problems.require(limits.shutdown_timeout_ms <= 600_000, || {
        format!(
            "limits.shutdown_timeout_ms is {}: it must be at most 600000",
            limits.shutdown_timeout_ms
        )
    });
}

fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() != 0
        && a.port() == b.port()
        && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
}

fn check_advertised(kind: &str, address: &str, listen: SocketAddr, problems: &mut Problems) {
    if address.is_empty() {
        return problems.add(format!(
            "advertise_{kind} is missing: listening on {listen} (every address), this member can't \
             know which one others reach it at (--advertise-{kind} HOST:PORT)"
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
    use super::super::CacheSize;
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
        check(|c| c.state.key_cache_bytes = CacheSize::Bytes(0), &[]);
        check(
            |c| c.state.key_cache_bytes = CacheSize::Bytes(KEY_CACHE_BYTES_MAX + 1),
            &["state.key_cache_bytes"],
        );
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
        let admin_address = |change: fn(&mut Config)| {
            let mut config = valid();
            change(&mut config);
            config.validated().unwrap().admin_address()
        };
        assert_eq!(admin_address(|_| {}).as_deref(), Some("127.0.0.1:4103"));
        let everywhere = admin_address(|c| {
            c.listen_client = "[::]:4100".parse().unwrap();
            c.listen_admin = "[::]:4103".parse().unwrap();
            c.advertise_client = "[fd00::1]:4100".into();
        });
        assert_eq!(everywhere.as_deref(), Some("[fd00::1]:4103"));
        let here_only = admin_address(|c| {
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
    fn clients_of_etcd_have_a_port_of_their_own_or_none() {
        check(|c| c.listen_etcd = "127.0.0.1:2379".into(), &[]);
        for address in ["2379", "localhost:2379", "127.0.0.1"] {
            check(|c| c.listen_etcd = address.into(), &["listen_etcd"]);
        }
        check(
            |c| c.listen_etcd = "127.0.0.1:4100".into(),
            &["listen_etcd and listen_client"],
        );
        check(|c| c.listen_etcd = "127.0.0.1:0".into(), &["port 0"]);
        assert_eq!(valid().validated().unwrap().etcd_address(), None);
    }

    #[test]
    fn what_the_log_and_the_disk_can_not_do_is_said_before_anything_is_made() {
        check(|c| c.log.segment_bytes += 1, &["multiple of 4096"]);
        check(|c| c.log.segment_bytes = 8 << 30, &["at most 1073741824"]);
        check(|c| c.min_free_bytes = u64::MAX, &["min_free_bytes"]);
        check(|c| c.log_level = "loud=very".into(), &["log_level"]);
    }

    #[test]
    fn a_collector_has_a_host_and_a_port_and_a_ratio_is_a_part_of_one() {
        for endpoint in ["", "http://collector:4317", "http://[::1]:4317/"] {
            check(|c| c.tracing.endpoint = endpoint.into(), &[]);
        }
        for endpoint in [
            "collector:4317",
            "http://collector",
            "http://:4317",
            "http://collector:0",
            "http://collector:4317/v1/traces",
            "https://collector:4317",
            "a collector",
        ] {
            check(
                |c| c.tracing.endpoint = endpoint.into(),
                &["http://HOST:PORT"],
            );
        }
        for ratio in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            check(|c| c.tracing.sample_ratio = ratio, &["0 to 1"]);
        }
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
