//! What a user may set, with its bounds. Checked once, before anything connects.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::policy::RetryPolicy;

/// More connections than this are refused: each costs the server memory.
const CONNECTIONS_MAX: usize = 10_000;

/// How a [`Client`](crate::Client) connects, waits and retries.
///
/// ```
/// use std::time::Duration;
/// use dengine_client::{ClientOptions, RetryPolicy};
///
/// let options = ClientOptions {
///     connections: 10,
///     request_timeout: Duration::from_secs(2),
///     retry: RetryPolicy::NONE,
///     ..ClientOptions::default()
/// };
/// assert_eq!(options.connections, 10);
/// ```
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// TCP connections that calls are spread over; connection `i` leads to endpoint `i` modulo
    /// their number. More help many concurrent callers. An endpoint that would get none is held
    /// ready for fail-over with one. A leader that is none of the endpoints, as behind a Kubernetes
    /// Service, gets as many besides as each endpoint has, if it can be reached. Default 1.
    pub connections: usize,
    /// Longest time to establish one connection. Too short and a busy member looks dead. Default 2
    /// s.
    pub connect_timeout: Duration,
    /// Longest time that one call takes, its retries and pauses included. Shorter than an election
    /// and every change of leader becomes visible as errors. Default 5 s.
    pub request_timeout: Duration,
    /// When and how often a call that may be repeated is sent again.
    pub retry: RetryPolicy,
    /// How calls travel.
    pub wire: Wire,
    /// Linearizable reads stay on the caller's own connection, whichever member it leads to. The
    /// leader answers one with about two thirds of the work (half of it, with unary calls), so they
    /// go there by default, as writes and lease reads do. Spread, they cost more in all, but what
    /// they cost is shared by the machines of all members: for when that of the leader is busy with
    /// nothing else. Default: not.
    pub spread_reads: bool,
    /// Where members are reached from here, by the addresses that they name each other by: for a
    /// client beside forwarded ports, where those names lead nowhere, or to another cluster. What
    /// is not among them is not connected to. Default: none, and members are where they say.
    pub reached_at: Option<BTreeMap<String, String>>,
}

/// How calls travel over a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Wire {
    /// All calls of a connection share one stream, and those made at the same time share frames.
    /// Much the cheaper one, for both sides.
    #[default]
    Pipelined,
    /// Each call is a request of its own, as any gRPC client makes it; for what stands in between
    /// and knows requests only. What that answers in a member's place leaves a write unknown.
    Unary,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            connections: 1,
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(5),
            retry: RetryPolicy::default(),
            wire: Wire::default(),
            spread_reads: false,
            reached_at: None,
        }
    }
}

impl ClientOptions {
    pub(crate) fn validate(&self) -> Result<()> {
        if self.connections == 0 || self.connections > CONNECTIONS_MAX {
            return invalid(format!(
                "connections must be 1 to {CONNECTIONS_MAX}, not {}",
                self.connections
            ));
        }
        check_timeout("connect_timeout", self.connect_timeout)?;
        check_timeout("request_timeout", self.request_timeout)?;
        check_retry(&self.retry)
    }
}

pub(crate) fn check_timeout(name: &str, timeout: Duration) -> Result<()> {
    if timeout.is_zero() || timeout > Duration::from_secs(3600) {
        return invalid(format!(
            "{name} must be above 0 and at most 1 h, not {timeout:?}"
        ));
    }
    Ok(())
}

fn invalid<T>(message: String) -> Result<T> {
    Err(Error::InvalidOptions { message })
}

fn check_retry(retry: &RetryPolicy) -> Result<()> {
    if retry.retries_max > 0 && retry.delay_min < Duration::from_millis(1) {
        return invalid(format!(
            "retry.delay_min must be 1 ms or more, not {:?}",
            retry.delay_min
        ));
    }
    check_timeout("retry.attempt_timeout", retry.attempt_timeout)?;
    if retry.delay_max < retry.delay_min {
        return invalid("retry.delay_max must not be below retry.delay_min".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        ClientOptions::default().validate().unwrap();
    }

    #[test]
    fn bad_options_are_named() {
        let zero = ClientOptions {
            connections: 0,
            ..ClientOptions::default()
        };
        assert!(
            zero.validate()
                .unwrap_err()
                .to_string()
                .contains("connections")
        );
        let hot = RetryPolicy {
            delay_min: Duration::ZERO,
            ..RetryPolicy::STANDARD
        };
        let hot = ClientOptions {
            retry: hot,
            ..ClientOptions::default()
        };
        assert!(
            hot.validate()
                .unwrap_err()
                .to_string()
                .contains("delay_min")
        );
    }
}
