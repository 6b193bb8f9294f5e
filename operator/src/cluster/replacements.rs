//! When a member whose server does not run is replaced: at once, and then after growing pauses.
//! Pure.

use std::time::Duration;

use dengine_crds::cluster::Replacement;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::model::Replaced;

/// Pauses after the first, the second and the third replacement; the last one after any later one.
const PAUSES: [Duration; 4] = [
    Duration::from_secs(10 * 60),
    Duration::from_secs(60 * 60),
    Duration::from_secs(6 * 60 * 60),
    Duration::from_secs(24 * 60 * 60),
];
/// A member that lasted this long is not related to the replacement before it.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What the planner needs to know of a recorded replacement.
pub(super) fn seen(recorded: &Replacement, now: &Time) -> Option<Replaced> {
    let last = recorded.at.0;
    let pause = recorded.times.saturating_sub(1) as usize;
    let pause = PAUSES.get(pause).unwrap_or(&PAUSES[PAUSES.len() - 1]);
    let next = later(last, *pause)?;
    Some(Replaced {
        member_id: recorded.member_id.parse().ok()?,
        times: recorded.times,
        may_again: now.0 >= next,
        next: next.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        kept_volume: recorded.kept_volume.clone(),
        not_kept: recorded.not_kept.clone(),
    })
}

/// The record of another replacement. The kept volume of the earlier member is carried over if the
/// member in between never voted. If it did, its own volume is kept, and the earlier volume is
/// found by its label.
pub(super) fn another(
    before: Option<&Replacement>,
    name: &str,
    member_id: u64,
    voted: bool,
    now: &Time,
) -> Replacement {
    let counts = |last: &&Replacement| {
        later(last.at.0, FORGOTTEN_AFTER).is_some_and(|forgotten| now.0 < forgotten)
    };
    let times = before.filter(counts).map_or(0, |last| last.times);
    Replacement {
        name: name.to_owned(),
        member_id: member_id.to_string(),
        times: times.saturating_add(1),
        at: now.clone(),
        kept_volume: before
            .filter(|_| !voted)
            .and_then(|last| last.kept_volume.clone()),
        not_kept: None,
    }
}

fn later(than: Timestamp, by: Duration) -> Option<Timestamp> {
    than.checked_add(SignedDuration::try_from(by).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn pauses_grow_and_are_reset_after_a_long_break() {
        const MINUTE: i64 = 60;
        let mut last = another(None, "demo-1", 7, true, &at(0));
        let mut now = 0;
        for pause in [
            10 * MINUTE,
            60 * MINUTE,
            360 * MINUTE,
            1_440 * MINUTE,
            1_440 * MINUTE,
        ] {
            let early = seen(&last, &at(now + pause - 1)).unwrap();
            assert!(!early.may_again, "{last:?} {early:?}");
            now += pause;
            assert!(seen(&last, &at(now)).unwrap().may_again, "{last:?}");
            last = another(Some(&last), "demo-1", 8, true, &at(now));
        }
        assert_eq!(last.times, 6);
        let rested = another(
            Some(&last),
            "demo-1",
            9,
            true,
            &at(now + 7 * 1_440 * MINUTE),
        );
        assert_eq!(rested.times, 1);
    }

    #[test]
    fn the_next_replacement_has_a_readable_time() {
        let last = another(None, "demo-1", 7, true, &at(0));
        let seen = seen(&last, &at(1)).unwrap();
        assert_eq!(
            (seen.member_id, seen.next.as_str()),
            (7, "1970-01-01T00:10:00Z")
        );
    }
    #[test]
    fn the_volume_of_a_voter_is_kept_beside_an_earlier_one() {
        let mut first = another(None, "demo-1", 7, true, &at(0));
        first.kept_volume = Some("pv-7".to_owned());
        let kept = |voted| another(Some(&first), "demo-1", 8, voted, &at(1)).kept_volume;
        assert_eq!(kept(false).as_deref(), Some("pv-7"), "its own is not");
        assert_eq!(kept(true), None, "its own is yet to be");
    }
}
