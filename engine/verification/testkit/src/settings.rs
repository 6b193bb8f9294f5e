//! What the environment asks of a test program; the Makefile sets it.

use std::time::Duration;

/// What is set, and not empty.
#[must_use]
pub fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|it| !it.is_empty())
}

/// As `90s` or `1h 30m`; a number alone is seconds.
///
/// # Panics
/// If it is set to something else.
#[must_use]
pub fn duration(name: &str) -> Option<Duration> {
    text(name).map(|it| parse(&it).unwrap_or_else(|error| panic!("{name}={it}: {error}")))
}

fn parse(text: &str) -> Result<Duration, humantime::DurationError> {
    let seconds = text.parse().map(Duration::from_secs);
    seconds.or_else(|_| humantime::parse_duration(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_alone_is_seconds() {
        assert_eq!(parse("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("15m"), Ok(Duration::from_secs(900)));
        assert!(parse("a while").is_err());
    }
}
