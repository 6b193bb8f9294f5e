//! The command line: flags, their defaults and bounds, and the text of `--help`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum, error::ErrorKind};
use dengine_crds::benchmark::{Protocol, ReadConsistency, Shape, Workload};

use crate::keys;

const ABOUT: &str = "Measures a DEngine or etcd cluster.

Every client has one request in flight and wants its next one in the moment the last one was \
answered; a latency runs from when its request was wanted to its answer, whatever it waited for in \
between. All clients work at once, spread evenly over the connections, and the connections evenly \
over the endpoints.

Before the measurement: a health check, for `range` the key space is filled, then a warm-up. None \
of them counts.";

const AFTER: &str = "\
Examples:
  One client, one connection: the floor of the latency
    dengine-bench put --conns 1 --clients 1 --total 10000

  Many clients against three members, result as JSON
    dengine-bench put --endpoints a:4100,b:4100,c:4100 --conns 200 --clients 1000 --total 200000 --json result.json

  Linearizable, then eventual reads of 10,000 keys
    dengine-bench range --consistency l --conns 10 --clients 100 --total 100000 --key-space 10000
    dengine-bench range --consistency e --conns 10 --clients 100 --total 100000 --key-space 10000

  The same against etcd
    dengine-bench put --protocol etcd --endpoints 127.0.0.1:2379 --conns 10 --clients 100

Exit status:
  0  every request succeeded and the leader stayed the same
  1  a request failed, the run did not finish, or its result could not be delivered
  2  the command line was wrong; nothing was sent
  3  the leader changed during the run: the numbers do not count";

/// The command line.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "dengine-bench",
    version,
    about = "Measures a DEngine or etcd cluster"
)]
#[command(long_about = ABOUT, after_long_help = AFTER, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Flags of every command; they may stand before or after it.
    #[command(flatten)]
    pub options: Options,
}

/// What a run does.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Write keys, one per request
    Put,
    /// Read keys that exist, one per request
    Range(RangeArgs),
}

/// Flags of `range` alone.
#[derive(Args, Clone, Debug)]
pub struct RangeArgs {
    /// How fresh the reads are: l (linearizable) sees every acknowledged write; e (eventual) is the
    /// state of the member asked (etcd: serializable)
    #[arg(long, value_name = "l|e", default_value = "l", value_parser = parse_consistency)]
    pub consistency: ReadConsistency,
}

/// Flags of every command.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where the members listen, host:port; repeated or separated by commas
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        default_value = "127.0.0.1:4100",
        help_heading = "Target"
    )]
    pub endpoints: Vec<String>,
    /// What the target speaks
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t = ProtocolArg::Dengine,
        help_heading = "Target"
    )]
    pub protocol: ProtocolArg,
    /// Connect to the leader only, found through the endpoints
    #[arg(long, global = true, help_heading = "Target")]
    pub target_leader: bool,

    /// TCP connections, shared evenly by the clients
    #[arg(
        long,
        global = true,
        value_name = "N",
        default_value_t = 1,
        help_heading = "Load"
    )]
    pub conns: u32,
    /// Clients, each with one request in flight; at least --conns
    #[arg(
        long,
        global = true,
        value_name = "N",
        default_value_t = 1,
        help_heading = "Load"
    )]
    pub clients: u32,
    /// Requests over all clients, exactly; at least --clients
    #[arg(
        long,
        global = true,
        value_name = "N",
        default_value_t = 10_000,
        help_heading = "Load"
    )]
    pub total: u64,
    /// Bytes of each key
    #[arg(
        long,
        global = true,
        value_name = "BYTES",
        default_value_t = 8,
        help_heading = "Load"
    )]
    pub key_size: u32,
    /// Bytes of each value, random
    #[arg(
        long,
        global = true,
        value_name = "BYTES",
        default_value_t = 256,
        help_heading = "Load"
    )]
    pub value_size: u32,
    /// Different keys; each request draws one at random (or the next, with --sequential-keys). 0: as
    /// many as requests, each used once, in random order
    #[arg(
        long,
        global = true,
        value_name = "N",
        default_value_t = 0,
        help_heading = "Load"
    )]
    pub key_space: u64,
    /// Use the keys in ascending order, not at random
    #[arg(long, global = true, help_heading = "Load")]
    pub sequential_keys: bool,
    /// Seed of keys and values: the same seed sends the same requests
    #[arg(
        long,
        global = true,
        value_name = "N",
        default_value_t = 1,
        help_heading = "Load"
    )]
    pub seed: u64,
    /// Requests before the measurement; they do not count. Default: a twentieth of --total, and one
    /// per client at least
    #[arg(long, global = true, value_name = "N", help_heading = "Load")]
    pub warm_up: Option<u64>,

    /// Longest time of the whole run, such as 90s or 10m (a plain number is seconds)
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        default_value = "10m",
        value_parser = parse_duration,
        help_heading = "Bounds"
    )]
    pub timeout: Duration,
    /// A request that takes longer has failed
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        default_value = "10s",
        value_parser = parse_duration,
        help_heading = "Bounds"
    )]
    pub request_timeout: Duration,
    /// How long to wait for the target to become ready
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        default_value = "30s",
        value_parser = parse_duration,
        help_heading = "Bounds"
    )]
    pub ready_timeout: Duration,

    /// Write the result as JSON to a file, or to the standard output with `-` (the summary then goes
    /// to the standard error)
    #[arg(long, global = true, value_name = "FILE|-", help_heading = "Result")]
    pub json: Option<PathBuf>,
    /// Post the result to the status of this DEngineBenchmark; needs --run-id
    #[arg(
        long,
        global = true,
        value_name = "NAMESPACE/NAME",
        requires = "run_id",
        value_parser = parse_report_to,
        help_heading = "Result"
    )]
    pub report_to: Option<ReportTo>,
    /// Key of the result in that status
    #[arg(
        long,
        global = true,
        value_name = "ID",
        requires = "report_to",
        help_heading = "Result"
    )]
    pub run_id: Option<String>,
    /// Node that the load comes from, for the record
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        env = "NODE_NAME",
        help_heading = "Result"
    )]
    pub node: Option<String>,
}

/// `--protocol`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolArg {
    /// DEngine's own protocol
    Dengine,
    /// etcd's v3 protocol
    Etcd,
}

impl From<ProtocolArg> for Protocol {
    fn from(arg: ProtocolArg) -> Self {
        match arg {
            ProtocolArg::Dengine => Protocol::Dengine,
            ProtocolArg::Etcd => Protocol::Etcd,
        }
    }
}

/// The object that a result is posted to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportTo {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

fn parse_report_to(text: &str) -> Result<ReportTo, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Ok(ReportTo {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }),
        _ => Err("expected NAMESPACE/NAME".to_owned()),
    }
}

fn parse_consistency(text: &str) -> Result<ReadConsistency, String> {
    match text {
        "l" => Ok(ReadConsistency::Linearizable),
        "e" => Ok(ReadConsistency::Eventual),
        "s" => Err(
            "s (lease reads) is not supported yet; use l (linearizable) or e (eventual), \
                    neither of which stands in for it"
                .to_owned(),
        ),
        _ => Err("expected l (linearizable) or e (eventual)".to_owned()),
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string())?,
    };
    let bounds = Duration::from_millis(1)..=Duration::from_secs(86_400);
    if !bounds.contains(&duration) {
        return Err("expected a time from 1ms to 24h".to_owned());
    }
    Ok(duration)
}

impl Cli {
    /// What is sent, in the words of the result.
    #[must_use]
    pub fn shape(&self) -> Shape {
        let options = &self.options;
        let (workload, consistency) = match &self.command {
            Command::Put => (Workload::Put, None),
            Command::Range(range) => (Workload::Range, Some(range.consistency)),
        };
        Shape {
            workload,
            consistency,
            connections: options.conns,
            clients: options.clients,
            total: options.total,
            key_size: options.key_size,
            value_size: options.value_size,
            key_space: options.key_space,
            sequential_keys: options.sequential_keys,
        }
    }

    /// Checks what no single flag can check for itself.
    ///
    /// # Errors
    /// Says which flags contradict each other; to be shown with the usage.
    pub fn validate(&self) -> Result<(), clap::Error> {
        let shape = self.shape();
        let options = &self.options;
        require(
            (1..=10_000).contains(&shape.connections),
            format!("--conns must be 1 to 10000, not {}", shape.connections),
        )?;
        require(
            shape.clients >= shape.connections && shape.clients <= 100_000,
            format!(
                "--clients must be --conns ({}) to 100000, not {}: a connection without a client \
                 carries nothing",
                shape.connections, shape.clients
            ),
        )?;
        require(
            shape.total >= u64::from(shape.clients) && shape.total <= 1_000_000_000,
            format!(
                "--total must be --clients ({}) to 1000000000, not {}: a client without a request \
                 measures nothing",
                shape.clients, shape.total
            ),
        )?;
        require(
            (1..=65_536).contains(&shape.key_size) && shape.value_size <= 16 << 20,
            "--key-size must be 1 to 65536 and --value-size at most 16777216 bytes".to_owned(),
        )?;
        let keys = keys::space(&shape);
        require(
            keys::fits(keys, shape.key_size),
            format!(
                "{keys} different keys do not fit into --key-size {}: keys are hexadecimal numbers",
                shape.key_size
            ),
        )?;
        require(
            options
                .endpoints
                .iter()
                .all(|endpoint| !endpoint.is_empty()),
            "--endpoints holds an empty one".to_owned(),
        )?;
        require(
            i64::try_from(options.seed).is_ok(),
            format!("--seed must be at most {}", i64::MAX),
        )
    }

    /// Requests before the measurement.
    #[must_use]
    pub fn warm_up(&self) -> u64 {
        let options = &self.options;
        options
            .warm_up
            .unwrap_or_else(|| (options.total / 20).max(u64::from(options.clients)))
    }
}

fn require(holds: bool, message: String) -> Result<(), clap::Error> {
    use clap::CommandFactory;
    if holds {
        Ok(())
    } else {
        Err(Cli::command().error(ErrorKind::ValueValidation, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        let cli = Cli::try_parse_from(line.split(' '))?;
        cli.validate()?;
        Ok(cli)
    }

    #[test]
    fn flags_stand_before_or_after_the_command() {
        let before = parse("dengine-bench --conns 2 --clients 4 --endpoints a:1,b:2 put").unwrap();
        let after =
            parse("dengine-bench put --conns 2 --clients 4 --endpoints a:1 --endpoints b:2");
        let after = after.unwrap();
        assert_eq!(before.shape(), after.shape());
        assert_eq!(before.options.endpoints, ["a:1", "b:2"]);
        assert_eq!(after.options.endpoints, ["a:1", "b:2"]);
    }

    #[test]
    fn lease_reads_are_refused_and_not_aliased() {
        let error = parse("dengine-bench range --consistency s")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("lease reads) is not supported yet"),
            "{error}"
        );
    }

    #[test]
    fn contradictions_are_named() {
        for (line, what) in [
            ("dengine-bench put --conns 2 --clients 1", "--clients"),
            ("dengine-bench put --clients 11 --total 10", "--total"),
            ("dengine-bench put --conns 0", "--conns"),
            ("dengine-bench put --total 1000 --key-size 2", "--key-size"),
            ("dengine-bench put --timeout 0", "--timeout"),
            ("dengine-bench put --run-id 1", "--report-to"),
            ("dengine-bench put --report-to a/b", "--run-id"),
            (
                "dengine-bench put --run-id 1 --report-to b",
                "NAMESPACE/NAME",
            ),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.to_string().contains(what), "{line}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn times_are_seconds_unless_they_name_a_unit() {
        assert_eq!(parse_duration("600").unwrap(), Duration::from_secs(600));
        assert_eq!(parse_duration("10m").unwrap(), Duration::from_secs(600));
        assert_eq!(parse_duration("250ms").unwrap(), Duration::from_millis(250));
    }

    #[test]
    fn the_warm_up_reaches_every_client() {
        assert_eq!(
            parse("dengine-bench put --clients 9 --total 10")
                .unwrap()
                .warm_up(),
            9
        );
        assert_eq!(
            parse("dengine-bench put --total 10000").unwrap().warm_up(),
            500
        );
        assert_eq!(parse("dengine-bench put --warm-up 0").unwrap().warm_up(), 0);
    }

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
