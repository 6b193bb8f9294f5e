//! The settings of a member, where they come from, and their validation.
//!
//! A setting is declared once, in this file, with its documentation and default; its flag and its
//! environment variable follow from its name. Precedence: default < TOML file < environment <
//! flag. [`Config::validated`] checks the result and reports every problem at once. What may not
//! live here: reading the clock, the network or the data directory.

mod cache_size;
mod load;
mod settings;
mod validate;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use dengine_protocol::checks::RequestLimits;
use dengine_protocol::ports;
use serde::{Deserialize, Serialize};

use settings::settings;

pub use cache_size::CacheSize;
pub use load::load;
pub use validate::ConfigError;
pub(crate) use validate::WRITE_BYTES_MAX;

/// When a write counts as acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Once it is on the disks (`fdatasync`) of a majority of voters.
    #[default]
    Fsync,
    /// Once a majority of voters has written it, and before it is on their disks: it survives
    /// killed processes, but not a power loss of a majority's machines. Disks follow within
    /// `log.sync_interval_ms` and `log.sync_bytes`.
    MemoryFirst,
}

impl Durability {
    /// The name used in configuration, status and benchmark results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::MemoryFirst => "memory-first",
        }
    }
}

/// How the program's own log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line, for machines.
    Json,
}

/// What clients of etcd may do about the members of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum EtcdMembership {
    /// List them. Whatever administers the cluster changes them, by `Admin`.
    #[default]
    Read,
    /// Promote and remove them, and hand over leadership, too.
    Change,
}

settings! {
    /// One member's settings.
    ///
    /// `Config::default()` lacks what no default can know: [`name`](Config::name) and
    /// [`data_dir`](Config::data_dir).
    Config, ConfigOverrides, "" {
        /// Name of this member, unique in its cluster; the pod's name on Kubernetes. Required.
        ///
        /// Letters, digits, `.`, `_` and `-`. It is only a label: the member is identified by the
        /// id that the cluster gave its data directory.
        name: String = String::new();

        /// Directory that holds this member's identity, log and state. Required.
        ///
        /// Used by one process at a time. An empty or missing directory is a new member that waits
        /// to be bootstrapped or joined; if its content is deleted, the member's identity is lost
        /// for good.
        data_dir: PathBuf = PathBuf::new();

        /// Address that serves clients: Kv, Watch, health and reflection over gRPC.
        ///
        /// Anyone who can reach it can read and write every key.
        listen_client: SocketAddr = loopback(ports::CLIENT);

        /// Address that serves the other members.
        listen_peer: SocketAddr = loopback(ports::PEER);

        /// Address that serves `Admin`, to people and to the operator.
        ///
        /// Anyone who can reach it can remove members and transfer leadership. Other members
        /// forward to the leader what only the leader can do, so they must reach it too; on a
        /// loopback address only this machine does.
        listen_admin: SocketAddr = loopback(ports::ADMIN);

        /// Address that serves health and metrics in plain text; it shows no keys and no values.
        listen_monitor: SocketAddr = loopback(ports::MONITOR);

        /// Address that serves clients of etcd: its v3 API over gRPC, on the same keys as
        /// `listen_client`. Empty: they are not served.
        ///
        /// Anyone who can reach it can read and write every key, and with `etcd_membership` more.
        /// etcd keeps all of history by default, and this member does not: with
        /// `retention.revisions` and `retention.seconds` 0 it does.
        listen_etcd: String = String::new();

        /// What clients of etcd may do about the members of the cluster.
        etcd_membership: EtcdMembership = EtcdMembership::Read;

        /// `host:port` at which clients, and members that forward to this one, reach it.
        ///
        /// Empty: the listen address. If it is wrong, leader hints send clients to an address where
        /// no member listens.
        advertise_client: String = String::new();

        /// `host:port` at which the other members reach this one.
        ///
        /// Empty: the listen address. If it is wrong, this member receives nothing from its
        /// cluster.
        advertise_peer: String = String::new();

        /// When a write counts as acknowledged. The same on every member.
        durability: Durability = Durability::Fsync;

        /// Length of a Raft tick, in milliseconds. The same on every member, except while a change
        /// is rolled out.
        ///
        /// Too short, and a busy machine looks like a failed one, which costs elections; too long,
        /// and a failed leader is noticed late.
        tick_ms: u64 = 100;

        /// Ticks without a message from the leader after which a member starts an election
        /// (randomized up to twice that). The same on every member, except while a change is rolled
        /// out.
        ///
        /// The cluster takes no writes for about this long when its leader fails. Must leave room
        /// for several heartbeats and the slowest round trip between members.
        election_ticks: usize = 10;

        /// Ticks between a leader's heartbeats. The same on every member.
        heartbeat_ticks: usize = 1;

        /// Format of the log lines on standard error.
        log_format: LogFormat = LogFormat::Text;

        /// Lowest level that is logged: error, warn, info, debug or trace; or directives such as
        /// `info,dengine::transport=debug`.
        log_level: String = "info".to_owned();

        /// Bytes that are kept free on the disk of the data directory; 0 keeps none, and then a
        /// full disk refuses even deletes.
        ///
        /// With less free, the member refuses writes that need space, with RESOURCE_EXHAUSTED, and
        /// transfers leadership. It must suffice for work in progress: a log segment, and the
        /// compaction of the state's files.
        min_free_bytes: u64 = 128 * 1024 * 1024;

        /// Milliseconds from which on a leader's disk may count as slow; 0: it never does.
        ///
        /// A leader hands over, twice a minute in the whole cluster at most, if for seconds its
        /// appends take at least so long to be on its disk, and three times as long as those who
        /// would be a quorum without it take to acknowledge them. Every write waits for the
        /// leader's disk, and for no follower's while enough others are fast.
        slow_disk_ms: u64 = 5;
    } sections {
        /// Limits on what one member accepts and holds.
        limits: Limits, LimitsOverrides;

        /// The write-ahead log.
        log: LogConfig, LogOverrides;

        /// The state machine's store on disk.
        state: StateConfig, StateOverrides;

        /// Snapshots, which are sent to members that need entries the log no longer has.
        snapshot: SnapshotConfig, SnapshotOverrides;

        /// How much history is kept. The same on every member. Of two settings, the one that keeps
        /// more counts; 0 means not set, and with none set, history is kept until a client compacts
        /// it.
        retention: RetentionConfig, RetentionOverrides;

        /// Traces of single writes, for OpenTelemetry.
        tracing: TracingConfig, TracingOverrides;
    }
}

settings! {
    /// Limits on what one member accepts and holds. A request beyond them is refused and changes
    /// nothing.
    Limits, LimitsOverrides, "" {
        /// Largest key, in bytes. Larger ones are refused with INVALID_ARGUMENT.
        max_key_bytes: usize = 32 * 1024;

        /// Largest value, in bytes. Larger ones are refused with INVALID_ARGUMENT.
        ///
        /// A large value delays every write behind it for as long as it takes to replicate, and is
        /// in memory several times meanwhile, on every member: give each 32 times as much.
        max_value_bytes: usize = 1536 * 1024;

        /// Most bytes of keys and values in one range response; `more` says that there are others.
        ///
        /// gRPC clients refuse responses over 4 MiB by default; stay well below what yours take.
        max_range_bytes: usize = 2 * 1024 * 1024;

        /// Most entries in each list of a batch: comparisons, and operations of either kind. Larger
        /// lists are refused with INVALID_ARGUMENT.
        max_batch_operations: usize = 128;

        /// Largest batch, in bytes of the whole request. Larger ones are refused with
        /// INVALID_ARGUMENT.
        max_batch_request_bytes: usize = 1536 * 1024;

        /// Most watch streams; more are refused with RESOURCE_EXHAUSTED.
        ///
        /// Memory for clients that do not read is limited for all of them together, see
        /// `max_answer_bytes`.
        max_watch_streams: usize = 1024;

        /// Most watch streams over one connection, so that no client takes those of all; more are
        /// refused with RESOURCE_EXHAUSTED.
        max_watch_streams_per_connection: usize = 256;

        /// Most watches, of all streams together; more are refused. One of keys that are longer
        /// than 4 KiB counts as several.
        max_watches: usize = 16 * 1024;

        /// Most watches over one connection, so that no client takes those of all; more are
        /// refused.
        max_watches_per_connection: usize = 4 * 1024;

        /// Longest that a client may read nothing of a stream that has something to read, in
        /// milliseconds.
        ///
        /// After that its watches are ended, each with the revision to resume from; its calls of
        /// `Kv.Pipeline` are abandoned, and a connection with other unread answers is closed. A
        /// slow link has longer: a second for each 16 KiB, while it takes something. Requests must
        /// arrive as fast.
        stream_stall_timeout_ms: u64 = 10_000;

        /// Time without events after which a watch that asked for progress gets a progress
        /// notification, in milliseconds.
        watch_progress_interval_ms: u64 = 10_000;

        /// Most client connections; more are closed at once. Clients of one address have at most
        /// half of them.
        ///
        /// Each is an open file, and takes memory. The number is also limited to three eighths of
        /// the files that the process may open (`ulimit -n`, which a member raises as far as it
        /// may), and to one for each 512 KiB of the memory that the process may have.
        max_connections: usize = 4096;

        /// Most client requests in progress at once; more are refused with RESOURCE_EXHAUSTED.
        ///
        /// One address has at most three quarters of what others leave.
        max_concurrent_requests: usize = 16 * 1024;

        /// Most bytes of answers that wait to be sent, of all clients together; answers of a few
        /// KiB do not count.
        ///
        /// Limits the memory taken by clients that request much and read slowly, and is at most a
        /// sixteenth of what the process may have (its control group's limit, or the machine's).
        /// Beyond it reads are refused with RESOURCE_EXHAUSTED, and writes are answered without the
        /// pairs that they were to return (`trimmed`).
        ///
        /// Watch events that clients have not read may take half as much besides. Beyond that,
        /// watches wait for each other, and those that are not read at all are ended, each with the
        /// revision to resume from.
        max_answer_bytes: usize = 128 * 1024 * 1024;

        /// Requests that take this long are logged, in milliseconds, without their keys and values;
        /// 0: none are.
        slow_request_ms: u64 = 1_000;

        /// Most writes that wait to be acknowledged; more are refused with RESOURCE_EXHAUSTED.
        ///
        /// Each waits for all that were there before it. One address has at most half of what
        /// others leave; further calls of a stream wait for their turn.
        max_pending_proposals: usize = 4 * 1024;

        /// Most bytes of writes that wait to be acknowledged; more are refused with
        /// RESOURCE_EXHAUSTED.
        ///
        /// Limits the memory that a burst of writes takes, and is at most an eighth of what the
        /// process may have. One address has at most three quarters of what others leave. Must hold
        /// at least one largest write.
        max_pending_proposal_bytes: usize = 128 * 1024 * 1024;

        /// Most linearizable reads that wait for a quorum; more are refused with
        /// RESOURCE_EXHAUSTED.
        max_pending_reads: usize = 16 * 1024;

        /// Most bytes of one write to the log. A message to a follower carries as much, but at most
        /// 1 MiB, or a single write.
        ///
        /// Larger batches mean fewer syncs but longer ones. Must hold at least one largest write.
        max_batch_bytes: usize = 4 * 1024 * 1024;

        /// Longest that a request waits, in milliseconds.
        ///
        /// A read then ends with UNAVAILABLE, or with DEADLINE_EXCEEDED if its range was too large
        /// to be read in time; a write with DEADLINE_EXCEEDED if it may still take effect. Below
        /// the election timeout, requests fail during every change of leader.
        request_timeout_ms: u64 = 5_000;

        /// Longest that a stopping member waits for requests in progress, in milliseconds.
        shutdown_timeout_ms: u64 = 5_000;
    } sections {}
}

settings! {
    /// The write-ahead log.
    LogConfig, LogOverrides, "log_" {
        /// Size of one log segment, in bytes; preallocated, and the unit in which old log is
        /// deleted.
        ///
        /// Must hold at least two full batches. The data directory needs free space for two
        /// segments more than the log that it holds.
        segment_bytes: u64 = 64 * 1024 * 1024;

        /// Bytes of applied log after which the state machine is flushed to disk, and old log is
        /// deleted.
        ///
        /// Limits how much log is replayed when a member starts; smaller means more disk writes.
        flush_bytes: u64 = 128 * 1024 * 1024;

        /// Bytes of the newest log that are kept although the state machine is on disk.
        ///
        /// A member that was away gets entries as long as it lacks no more than this, and a
        /// snapshot of the whole state otherwise.
        keep_bytes: u64 = 64 * 1024 * 1024;

        /// Bytes of the newest log that are kept while a member that responds needs older entries;
        /// at least `log.keep_bytes`.
        ///
        /// Limits the log when a member is slower than the writes.
        keep_bytes_for_followers: u64 = 512 * 1024 * 1024;

        /// With `memory-first`: longest that a write is not on disk yet, in milliseconds.
        sync_interval_ms: u64 = 100;

        /// With `memory-first`: most bytes of writes that are not on disk yet.
        sync_bytes: u64 = 16 * 1024 * 1024;
    } sections {}
}

settings! {
    /// The state machine's store on disk, which is RocksDB.
    StateConfig, StateOverrides, "state_" {
        /// Memory for blocks of the state's files, their indexes and filters, in bytes.
        ///
        /// Reads of other blocks go to the page cache, or to the disk. Expect all of it to be used.
        block_cache_bytes: u64 = 64 * 1024 * 1024;

        /// Memory for the newest state of keys changed or read lately, in bytes; 0 for none.
        ///
        /// A write of such a key, and a read of it if its value has at most 512 bytes, looks into
        /// no file; nor does a write of a new key while there is room for all. A state of at most
        /// 32 MiB is read into it when the member starts. It grows with the keys, about 150 bytes
        /// for each besides key and value; with many, expect all of it to be used. `auto` is a
        /// fifth of what the process may have, its control group's limit or the machine's memory,
        /// and at least 48 MiB.
        key_cache_bytes: CacheSize = CacheSize::AUTO;

        /// Size of a table of writes in memory, in bytes; up to three exist.
        ///
        /// A full one becomes a file. Smaller ones make many files to compact, and larger ones take
        /// longer to write.
        write_buffer_bytes: u64 = 16 * 1024 * 1024;
    } sections {}
}

settings! {
    /// Snapshots that one member sends to another.
    SnapshotConfig, SnapshotOverrides, "snapshot_" {
        /// Most bytes of a snapshot that are sent in a second.
        ///
        /// Leaves the network and the receiver's disk to the writes; if it is too little, the
        /// receiver never catches up.
        bytes_per_second: u64 = 128 * 1024 * 1024;

        /// Largest snapshot that is received, in bytes. A larger one is refused, as is one that
        /// would leave no space on the disk.
        max_bytes: u64 = 1024 * 1024 * 1024 * 1024;
    } sections {}
}

settings! {
    /// How much history is kept for reads of the past and for watches.
    RetentionConfig, RetentionOverrides, "retention_" {
        /// Number of newest revisions that are kept; 0 for no such bound.
        ///
        /// Of this and --retention-seconds the one that keeps more counts, as far as
        /// --retention-bytes allows; with 0 for both, history is kept until a client compacts it.
        revisions: u64 = 100_000;

        /// Seconds for which history is kept; 0 for no such bound.
        ///
        /// A watch that was disconnected for less resumes where it was, unless more was written
        /// meanwhile than --retention-bytes allows. Of this and --retention-revisions the one that
        /// keeps more counts, its default included: for a bound in time alone, set that to 0.
        seconds: u64 = 300;

        /// Bound on the kept history in bytes that were written; 0 for a quarter of the volume that
        /// holds the data directory.
        ///
        /// So the size of the state has a bound, however fast it is written: these bytes, and what
        /// was live when they began. A put counts as its value, twice its key and some 30 bytes: at
        /// 10,000 a second with values of 256 bytes a quarter of 1 GiB lasts for 78 seconds.
        bytes: u64 = 0;
    } sections {}
}

settings! {
    /// Traces of single writes, for OpenTelemetry: one shows how long each stage took. Only the
    /// server traces, not a program that embeds a member.
    TracingConfig, TracingOverrides, "tracing_" {
        /// Where spans are sent, as OTLP over gRPC without TLS, such as `http://collector:4317`;
        /// empty: nowhere, and nothing is traced.
        ///
        /// A collector that is slow or away costs spans, and nothing else.
        endpoint: String = String::new();

        /// Part of the writes that are traced, 0 to 1.
        ///
        /// A call that says by its `traceparent` whether it is sampled is traced if it is, whatever
        /// this says. A traced write costs some ten spans.
        sample_ratio: f64 = 0.001;
    } sections {}
}

impl Config {
    /// One Raft tick.
    #[must_use]
    pub const fn tick(&self) -> Duration {
        Duration::from_millis(self.tick_ms)
    }

    /// Time between two heartbeats of a leader.
    #[must_use]
    pub const fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.tick_ms.saturating_mul(self.heartbeat_ticks as u64))
    }

    /// Shortest time without a leader after which a member starts an election.
    #[must_use]
    pub const fn election_timeout(&self) -> Duration {
        Duration::from_millis(self.tick_ms.saturating_mul(self.election_ticks as u64))
    }

    /// Where clients of etcd are served; `None`: nowhere, or the setting is no address.
    #[must_use]
    pub fn etcd_address(&self) -> Option<SocketAddr> {
        self.listen_etcd.parse().ok()
    }

    /// What the disk of a leader that hands over takes at least; `None` if no leader does for its
    /// disk.
    #[must_use]
    pub const fn slow_disk(&self) -> Option<Duration> {
        match self.slow_disk_ms {
            0 => None,
            slow => Some(Duration::from_millis(slow)),
        }
    }

    /// `host:port` at which others reach [`listen_admin`](Self::listen_admin): the host at which
    /// clients reach this member, if it listens there. `None` if only this machine reaches it while
    /// clients come from others.
    #[must_use]
    pub fn admin_address(&self) -> Option<String> {
        let listen = self.listen_admin;
        if listen.ip().is_unspecified() {
            let (host, _) = self.advertise_client.rsplit_once(':')?;
            return Some(format!("{host}:{}", listen.port()));
        }
        let within_reach = !listen.ip().is_loopback() || self.listen_client.ip().is_loopback();
        within_reach.then(|| listen.to_string())
    }
}

impl Limits {
    /// Longest that a request waits.
    #[must_use]
    pub const fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.request_timeout_ms)
    }

    /// Time after which a request counts as slow; `None` if none does.
    #[must_use]
    pub const fn slow_request(&self) -> Option<Duration> {
        match self.slow_request_ms {
            0 => None,
            slow => Some(Duration::from_millis(slow)),
        }
    }

    /// Longest that a client may read nothing of a stream.
    #[must_use]
    pub const fn stream_stall_timeout(&self) -> Duration {
        Duration::from_millis(self.stream_stall_timeout_ms)
    }

    /// Time without events after which a watch gets a progress notification.
    #[must_use]
    pub const fn watch_progress_interval(&self) -> Duration {
        Duration::from_millis(self.watch_progress_interval_ms)
    }

    /// Longest that a stopping member waits for requests in progress.
    #[must_use]
    pub const fn shutdown_timeout(&self) -> Duration {
        Duration::from_millis(self.shutdown_timeout_ms)
    }

    /// The limits that a single request is checked against.
    #[must_use]
    pub const fn of_requests(&self) -> RequestLimits {
        RequestLimits {
            max_key_bytes: self.max_key_bytes,
            max_value_bytes: self.max_value_bytes,
            max_range_bytes: self.max_range_bytes,
            max_batch_operations: self.max_batch_operations,
            max_batch_request_bytes: self.max_batch_request_bytes,
        }
    }

    /// Largest answer to one request, about: a full page, or one pair.
    #[must_use]
    pub const fn largest_answer_bytes(&self) -> usize {
        let pair = self.max_key_bytes + self.max_value_bytes;
        if pair > self.max_range_bytes {
            pair
        } else {
            self.max_range_bytes
        }
    }

    /// Largest encoded write that these limits accept.
    #[must_use]
    pub const fn max_write_bytes(&self) -> usize {
        self.of_requests().max_write_bytes()
    }
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), port)
}
