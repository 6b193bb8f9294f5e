//! What a user may set, with its bounds. Checked once, before anything connects.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

use crate::error::{Error, Result};

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
    /// TCP connections that calls are spread over; connection `i` leads to endpoint `i` modulo their
    /// number. More help many concurrent callers. An endpoint that would get none is held ready for
    /// fail-over with one. Default 1.
    pub connections: usize,
    /// Longest time to establish one connection. Too short and a busy member looks dead. Default 2 s.
    pub connect_timeout: Duration,
    /// Longest time that one call takes, its retries and pauses included. Shorter than an election
    /// and every change of leader becomes visible as errors. Default 5 s.
    pub request_timeout: Duration,
    /// When and how often a call that changed nothing is sent again.
    pub retry: RetryPolicy,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            connections: 1,
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(5),
            retry: RetryPolicy::default(),
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
        self.retry.validate()
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

/// Pauses between attempts: each twice as long as the one before, plus as much again at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts after the first. 0 turns retries off.
    pub retries_max: usize,
    /// The first pause. Zero would be a hot loop and is refused.
    pub delay_min: Duration,
    /// No pause grows beyond this, its random part aside.
    pub delay_max: Duration,
}

impl RetryPolicy {
    /// Every failure is returned as it is.
    pub const NONE: Self = RetryPolicy {
        retries_max: 0,
        ..Self::STANDARD
    };

    /// Rides out an election: up to about 10 s of pauses, cut by the request's timeout.
    pub const STANDARD: Self = RetryPolicy {
        retries_max: 20,
        delay_min: Duration::from_millis(20),
        delay_max: Duration::from_millis(500),
    };

    pub(crate) fn delays(&self) -> ExponentialBackoff {
        ExponentialBuilder::new()
            .with_min_delay(self.delay_min)
            .with_max_delay(self.delay_max)
            .with_max_times(self.retries_max)
            .with_factor(2.0)
            .with_jitter()
            .build()
    }

    fn validate(&self) -> Result<()> {
        if self.retries_max > 0 && self.delay_min < Duration::from_millis(1) {
            return invalid(format!(
                "retry.delay_min must be 1 ms or more, not {:?}",
                self.delay_min
            ));
        }
        if self.delay_max < self.delay_min {
            return invalid("retry.delay_max must not be below retry.delay_min".to_owned());
        }
        Ok(())
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::STANDARD
    }
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

    #[test]
    fn pauses_grow_are_jittered_and_end() {
        let delays: Vec<_> = RetryPolicy::STANDARD.delays().collect();
        assert_eq!(delays.len(), 20);
        for (n, delay) in delays.iter().enumerate() {
            let base = (20 << n.min(5)).min(500);
            assert!(delay.as_millis() >= base.min(500), "{n}: {delay:?}");
            assert!(delay.as_millis() <= 2 * 640, "{n}: {delay:?}");
        }
    }
}
