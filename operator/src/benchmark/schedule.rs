//! Runs by the clock: which run a schedule asks for at a moment. Pure.

use croner::Cron;
use croner::parser::CronParser;
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{Timestamp, Zoned};

/// Runs that were due while nobody looked are made up for only if the newest was due this recently.
const LATE_SECONDS_MAX: i64 = 600;

/// A text that is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "spec.schedule is {0:?}; it must be a cron expression of five fields, such as 0 3 * * *: {1}"
)]
pub struct NoSchedule(String, String);

/// What a schedule asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Id of the run that was due last, if it still is to be made; it names its moment.
    pub run_id: Option<String>,
    /// When the next one is.
    pub next: Option<Timestamp>,
}

/// What is due at `now` for a benchmark that exists since `since`.
///
/// # Errors
/// If the text is no cron expression.
pub fn due(text: &str, since: Timestamp, now: Timestamp) -> Result<Due, NoSchedule> {
    let failed = |error: croner::errors::CronError| NoSchedule(text.to_owned(), error.to_string());
    let cron: Cron = CronParser::new().parse(text).map_err(failed)?;
    let at = |moment: Timestamp| moment.to_zoned(TimeZone::UTC);
    let next: Option<Zoned> = cron.find_next_occurrence(&at(now), false).ok();
    let last: Option<Zoned> = cron.find_previous_occurrence(&at(now), true).ok();
    let last = last
        .map(|last| last.timestamp())
        .filter(|last| *last > since && now.as_second() - last.as_second() <= LATE_SECONDS_MAX);
    Ok(Due {
        run_id: last.map(|last| last.strftime("%Y%m%dT%H%MZ").to_string()),
        next: next.map(|next| next.timestamp()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    const LONG_AGO: &str = "2020-01-01T00:00:00Z";

    fn run_at(now: &str, since: &str) -> Option<String> {
        due("0 3 * * *", at(since), at(now)).unwrap().run_id
    }

    #[test]
    fn a_run_is_due_from_its_moment_on_and_not_for_ever() {
        assert_eq!(run_at("2026-05-02T02:59:59Z", LONG_AGO), None);
        let run = Some("20260502T0300Z".to_owned());
        assert_eq!(run_at("2026-05-02T03:00:00Z", LONG_AGO), run);
        assert_eq!(run_at("2026-05-02T03:09:00Z", LONG_AGO), run, "the same id");
        assert_eq!(
            run_at("2026-05-02T04:00:00Z", LONG_AGO),
            None,
            "nobody looked"
        );
    }

    #[test]
    fn what_was_due_before_the_benchmark_was_made_is_not() {
        assert_eq!(run_at("2026-05-02T03:01:00Z", "2026-05-02T03:00:30Z"), None);
    }

    #[test]
    fn the_next_one_is_known() {
        let due = due("*/15 * * * *", at(LONG_AGO), at("2026-05-02T03:01:00Z")).unwrap();
        assert_eq!(due.next, Some(at("2026-05-02T03:15:00Z")));
    }

    #[test]
    fn other_texts_are_refused_in_words() {
        let error = due("daily at three", at(LONG_AGO), at(LONG_AGO)).unwrap_err();
        assert!(error.to_string().contains("cron expression"), "{error}");
    }
}
