//! Arguments that several subcommands take.

use std::{ffi::OsString, os::unix::ffi::OsStringExt as _, time::Duration};

use anyhow::Context as _;
use bytes::Bytes;
use clap::{Args, ValueEnum};
use dengine_client::{Client, ClientOptions, Consistency, KeyRange};

use super::show::Output;

/// Where the cluster is, and how its answers are shown.
#[derive(Debug, Args)]
pub(super) struct Connection {
    /// Client addresses of members, comma-separated. One that can be reached is enough.
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        default_value = "127.0.0.1:4100",
        env = "DENGINE_ENDPOINTS"
    )]
    endpoints: Vec<String>,

    /// Longest time for one call, retries included; as in 500ms, 5s or 1m.
    #[arg(long, default_value = "5s", value_parser = humantime::parse_duration)]
    timeout: Duration,

    /// How the answer is shown.
    #[arg(long, short, value_enum, default_value_t)]
    pub(super) output: Output,
}

impl Connection {
    pub(super) async fn open(&self) -> anyhow::Result<Client> {
        let options = ClientOptions {
            request_timeout: self.timeout,
            ..ClientOptions::default()
        };
        Client::connect_with(self.endpoints.clone(), options)
            .await
            .with_context(|| {
                let named = self.endpoints.join(",");
                format!("no member answers at {named} (--endpoints names client addresses)")
            })
    }
}

/// How fresh a read is.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum Freshness {
    /// Sees every write that was acknowledged before.
    #[default]
    #[value(alias = "l")]
    Linearizable,
    /// As fresh, by the leader's lease: trusts that the members' clocks run about equally fast.
    Lease,
    /// What the member that is asked has, however old.
    #[value(aliases = ["e", "serializable", "s"])]
    Eventual,
}

impl From<Freshness> for Consistency {
    fn from(freshness: Freshness) -> Self {
        match freshness {
            Freshness::Linearizable => Consistency::Linearizable,
            Freshness::Lease => Consistency::Lease,
            Freshness::Eventual => Consistency::Eventual,
        }
    }
}

/// Some keys.
#[derive(Debug, Args)]
pub(super) struct Keys {
    /// The key; with END, the first key of a range.
    #[arg(value_name = "KEY")]
    start: Option<OsString>,

    /// Where the range ends: the first key that is not in it.
    #[arg(value_name = "END")]
    end: Option<OsString>,

    /// All keys that begin with this.
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["start", "from", "all"])]
    prefix: Option<OsString>,

    /// This key and all behind it.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["start", "all"])]
    from: Option<OsString>,

    /// All keys there are.
    #[arg(long, conflicts_with = "start")]
    all: bool,
}

impl Keys {
    /// Those that were named; `None` if none were.
    pub(super) fn named(self) -> Option<KeyRange> {
        let bytes = OsString::into_vec;
        match self {
            Self { all: true, .. } => Some(KeyRange::all()),
            Self {
                prefix: Some(prefix),
                ..
            } => Some(KeyRange::prefix(bytes(prefix))),
            Self {
                from: Some(from), ..
            } => Some(KeyRange::from(bytes(from))),
            Self {
                start: Some(start),
                end: Some(end),
                ..
            } => Some(KeyRange::between(bytes(start), bytes(end))),
            Self {
                start: Some(start), ..
            } => Some(KeyRange::key(bytes(start))),
            _ => None,
        }
    }
}

/// A key or value as it was typed.
pub(super) fn typed(argument: OsString) -> Bytes {
    argument.into_vec().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        keys: Keys,
    }

    fn named(args: &[&str]) -> Option<KeyRange> {
        let args = [&["only"], args].concat();
        Only::try_parse_from(args).unwrap().keys.named()
    }

    #[test]
    fn keys_are_named_in_five_ways() {
        assert_eq!(named(&[]), None);
        assert_eq!(named(&["--all"]), Some(KeyRange::all()));
        assert_eq!(named(&["a"]), Some(KeyRange::key("a")));
        assert_eq!(named(&["a", "c"]), Some(KeyRange::between("a", "c")));
        assert_eq!(named(&["--prefix", "a/"]), Some(KeyRange::prefix("a/")));
        assert_eq!(named(&["--from", "a"]), Some(KeyRange::from("a")));
    }

    #[test]
    fn nobody_names_them_twice() {
        for args in [
            &["--all", "a"][..],
            &["--prefix", "a", "b"],
            &["--from", "a", "--prefix", "b"],
        ] {
            let args = [&["only"], args].concat();
            Only::try_parse_from(args).unwrap_err();
        }
    }
}
