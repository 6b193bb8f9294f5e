//! Arguments that several subcommands take.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use dengine_client::{Client, ClientOptions, Consistency, Error, KeyRange};

use crate::show::Output;
use crate::{Cluster, UsageError};

/// More is read of no file and of no standard input: no member takes as much.
const INPUT_BYTES_MAX: u64 = 64 << 20;

/// How long an answer is waited for, and how it is shown.
#[derive(Debug, Args)]
pub struct Asking {
    /// Longest time for one call, retries included; as in 500ms, 5s or 1m, and at most 1h. A write
    /// shares it with the read that comes before it, to find a leader that answers.
    #[arg(long, default_value = "5s", value_parser = time_limit)]
    timeout: Duration,

    /// How the answer is shown.
    #[arg(long, short, value_enum, default_value_t)]
    pub(crate) output: Output,
}

impl Asking {
    pub(crate) async fn open(&self, cluster: &impl Cluster) -> anyhow::Result<Client> {
        let options = ClientOptions {
            request_timeout: self.timeout,
            ..ClientOptions::default()
        };
        cluster.connect(options).await
    }

    /// The same for a write, which is sent to one member only: a read, which is sent to the next
    /// one after a while, finds out who answers and who leads. The write has what that leaves of
    /// the time.
    pub(crate) async fn open_to_write(&self, cluster: &impl Cluster) -> anyhow::Result<Client> {
        let client = self.open(cluster).await?;
        let until = Instant::now() + self.timeout;
        let read = newest_revision(&client).await;
        read.context("nothing was changed, because the read that comes before a write failed")?;
        let left = until.saturating_duration_since(Instant::now());
        Ok(client.with_request_timeout(left))
    }
}

/// What a write came to; if it failed, the error says what became of it.
pub(crate) fn written<T>(done: dengine_client::Result<T>) -> anyhow::Result<T> {
    done.map_err(|error| {
        let fate = match error {
            Error::InvalidOptions { .. }
            | Error::InvalidRequest { .. }
            | Error::RevisionUnavailable { .. }
            | Error::Compacted { .. }
            | Error::SessionLost { .. }
            | Error::Refused { .. }
            | Error::Overloaded { .. }
            | Error::LowOnSpace { .. }
            | Error::Unavailable { .. }
            | Error::Timeout { .. } => "nothing was changed",
            // What a later client may add is not known to be harmless.
            _ => "the write may or may not have taken effect",
        };
        anyhow::Error::from(error).context(fate)
    })
}

/// The newest revision of the cluster.
pub(crate) async fn newest_revision(client: &Client) -> anyhow::Result<u64> {
    let read = client.get(FIRST_KEY, Consistency::Linearizable).await?;
    Ok(read.header.revision)
}

/// The least key that there can be. Whether it exists does not matter.
const FIRST_KEY: &[u8] = b"\0";

/// How fresh a read is.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Freshness {
    /// Sees every write that was acknowledged before.
    #[default]
    #[value(alias = "l")]
    Linearizable,
    /// As fresh, by the leader's lease: trusts that the members' clocks run about equally fast.
    Lease,
    /// The state of the member that is asked; it may be stale.
    #[value(aliases = ["e", "serializable"])]
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
pub(crate) struct Keys {
    /// The key; with END, the first key of a range.
    #[arg(value_name = "KEY")]
    start: Option<OsString>,

    /// Where the range ends: the first key that is not in it.
    #[arg(value_name = "END")]
    end: Option<OsString>,

    /// All keys that begin with this.
    #[arg(
        long,
        value_name = "PREFIX",
        allow_hyphen_values = true,
        conflicts_with_all = ["start", "from", "all"],
    )]
    prefix: Option<OsString>,

    /// This key and all behind it.
    #[arg(
        long,
        value_name = "KEY",
        allow_hyphen_values = true,
        conflicts_with_all = ["start", "all"],
    )]
    from: Option<OsString>,

    /// All keys there are.
    #[arg(long, conflicts_with = "start")]
    all: bool,
}

impl Keys {
    /// Those that were named; `None` if none were.
    pub(crate) fn named(self) -> anyhow::Result<Option<KeyRange>> {
        let bytes = OsString::into_vec;
        Ok(match self {
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
            } => {
                if end <= start {
                    bail!(UsageError(format!(
                        "no key lies from {start:?} to before {end:?}"
                    )));
                }
                Some(KeyRange::between(bytes(start), bytes(end)))
            }
            Self {
                start: Some(start), ..
            } => Some(KeyRange::key(bytes(start))),
            _ => None,
        })
    }

    /// Whether they are all that begin with nothing, as by a variable that is not set.
    pub(crate) fn are_all_by_mistake(&self) -> bool {
        self.prefix.as_ref().is_some_and(|it| it.is_empty())
    }
}

/// All of a file or of standard input, unless that is more than could be a value.
pub(crate) fn read_all(input: impl Read) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    input.take(INPUT_BYTES_MAX + 1).read_to_end(&mut all)?;
    if all.len() as u64 > INPUT_BYTES_MAX {
        let most = INPUT_BYTES_MAX >> 20;
        return Err(io::Error::other(format!(
            "more than {most} MiB, which no member takes"
        )));
    }
    Ok(all)
}

/// How long a command may take, as it is typed.
///
/// # Errors
/// It is no time from 1 ms to 1 h.
pub fn time_limit(typed: &str) -> Result<Duration, String> {
    let bounds = Duration::from_millis(1)..=Duration::from_secs(3600);
    match humantime::parse_duration(typed) {
        Ok(limit) if bounds.contains(&limit) => Ok(limit),
        Ok(_) => Err("it must be from 1ms to 1h".to_owned()),
        Err(error) => Err(format!("{error}, as in 500ms, 5s or 1m")),
    }
}

/// A time to live.
pub(crate) fn ttl(typed: &str) -> Result<Duration, String> {
    match humantime::parse_duration(typed) {
        Ok(ttl) if ttl.is_zero() => Err("a key can't expire at once: delete it".to_owned()),
        Ok(ttl) => Ok(ttl),
        Err(error) => Err(format!("{error}, as in 90s, 10m or 1h")),
    }
}

/// A key or value as it was typed.
pub(crate) fn typed(argument: OsString) -> Bytes {
    argument.into_vec().into()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        keys: Keys,
    }

    fn named(args: &[&str]) -> Option<KeyRange> {
        let args = [&["only"], args].concat();
        Only::try_parse_from(args).unwrap().keys.named().unwrap()
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

    /// `s` means lease to `dengine-bench`, and serializable to etcd's tools.
    #[test]
    fn no_letter_asks_for_a_stale_read_that_means_another_elsewhere() {
        for word in ["s", "S"] {
            Freshness::from_str(word, false).unwrap_err();
        }
        for (word, freshness) in [
            ("l", Freshness::Linearizable),
            ("lease", Freshness::Lease),
            ("e", Freshness::Eventual),
            ("serializable", Freshness::Eventual),
        ] {
            let read = Freshness::from_str(word, false).unwrap();
            assert_eq!(Consistency::from(read), freshness.into(), "{word}");
        }
    }

    #[test]
    fn a_range_that_holds_no_key_is_refused() {
        for end in ["a", "b", ""] {
            let only = Only::try_parse_from(["only", "b", end]).unwrap();
            let error = only.keys.named().unwrap_err();
            assert!(error.downcast_ref::<UsageError>().is_some(), "{error}");
        }
    }

    #[test]
    fn endless_input_is_refused_and_not_kept() {
        let error = read_all(io::repeat(0)).unwrap_err();
        assert!(error.to_string().contains("64 MiB"), "{error}");
        assert_eq!(read_all(&b"value"[..]).unwrap(), b"value");
    }

    #[test]
    fn the_time_for_a_command_has_bounds() {
        assert_eq!(time_limit("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["0s", "2h", "5", "soon"] {
            time_limit(bad).unwrap_err();
        }
    }

    #[test]
    fn a_ttl_is_more_than_nothing() {
        assert_eq!(ttl("90s"), Ok(Duration::from_secs(90)));
        for bad in ["0s", "0", "soon", "-1s"] {
            ttl(bad).unwrap_err();
        }
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
