//! The values of flags, and what is said of those that are none.

use std::time::Duration;

use clap::ValueEnum;
use dengine_bench_model::profiles::{BASIC, profile, workload_named};
use dengine_bench_model::results::{Protocol, ReadConsistency};

/// Longest `--key-prefix`.
const KEY_PREFIX_BYTES_MAX: usize = 128;

/// `--protocol`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolArg {
    /// DEngine's own protocol
    Dengine,
    /// etcd's v3 protocol
    Etcd,
    /// Lower bound of a lone write's latency: processes of `dengine-bench-bounds floor`
    Floor,
    /// Upper bound of unary reads: servers of `dengine-bench-bounds echo`
    Echo,
}

impl From<ProtocolArg> for Protocol {
    fn from(arg: ProtocolArg) -> Self {
        match arg {
            ProtocolArg::Dengine => Protocol::Dengine,
            ProtocolArg::Etcd => Protocol::Etcd,
            ProtocolArg::Floor => Protocol::Floor,
            ProtocolArg::Echo => Protocol::Echo,
        }
    }
}

/// `--wire`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireArg {
    /// All calls of a connection share one stream, and those made at the same time share frames
    Pipelined,
    /// Each call is a request of its own
    Unary,
    /// Each call is a request of its own in etcd's API, by the client that loads etcd
    Etcd,
}

/// `--warm-up`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmUp {
    /// So many requests.
    Requests(u64),
    /// Requests for so long.
    Time(Duration),
}

pub(super) fn parse_consistency(text: &str) -> Result<ReadConsistency, String> {
    match text {
        // The letters are d-engine's, and of its command lines and our resources: not to be shown.
        "l" | "linearizable" => Ok(ReadConsistency::Linearizable),
        "s" | "lease" => Ok(ReadConsistency::Lease),
        "e" | "eventual" | "serializable" => Ok(ReadConsistency::Eventual),
        _ => Err("expected linearizable, lease or eventual (etcd's word: serializable)".to_owned()),
    }
}

pub(super) fn parse_key_prefix(text: &str) -> Result<String, String> {
    if text.len() > KEY_PREFIX_BYTES_MAX {
        return Err(format!("expected at most {KEY_PREFIX_BYTES_MAX} bytes"));
    }
    Ok(text.to_owned())
}

pub(super) fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.1..=10_000_000.0).contains(&rate) => Ok(rate),
        _ => Err("expected requests per second, from 0.1 to 10000000".to_owned()),
    }
}

pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
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

pub(super) fn parse_warm_up(text: &str) -> Result<WarmUp, String> {
    if let Ok(requests) = text.parse() {
        return Ok(WarmUp::Requests(requests));
    }
    parse_duration(text).map(WarmUp::Time).map_err(|_| {
        "expected a number of requests, such as 500, or a time with its unit, such as 5s".to_owned()
    })
}

/// One of `basic`, or another profile's.
pub(super) fn parse_workload(text: &str) -> Result<String, String> {
    if workload_named(text).is_some() {
        return Ok(text.to_owned());
    }
    let of = text.split_once('/').map_or(BASIC, |(of, _)| of);
    let Some(profile) = profile(of) else {
        return Err(dengine_bench_model::profiles::unknown(of));
    };
    let names: Vec<_> = profile.workloads.iter().map(|it| it.name).collect();
    Err(format!(
        "profile {of} has {}; those of another profile are PROFILE/NAME, such as standard/write",
        names.join(", ")
    ))
}
