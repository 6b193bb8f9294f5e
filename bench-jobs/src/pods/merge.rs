//! One result of what each pod measured. Pure.

use std::time::Duration;

use super::line::{self, Ended};
use super::named;
use crate::load::Measured;

/// When the pods began, counted from when the first told the others to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spans {
    /// Of each pod: its index, and how late at most.
    pub(super) late: Vec<(u32, Duration)>,
}

impl Spans {
    /// The last began at most so long after the first.
    pub(crate) fn began_within(&self) -> Duration {
        let all = self.late.iter().map(|(_, late)| *late);
        all.max().unwrap_or_default()
    }

    /// Who was too late, and what to do, if anybody was.
    pub(crate) fn trouble(&self, pods: u32, allowed: Duration) -> Option<String> {
        // The first begins when it has heard of all others, so its own delay is theirs, if any is.
        let too_late = self.late.iter().filter(|(_, late)| *late > allowed);
        let worst = too_late.max_by_key(|(index, late)| (*index > 0, *late));
        worst.map(|(index, late)| {
            format!(
                "{} began up to {} ms after it was told to, and {} ms are allowed: the pods have \
                 too little CPU or a slow way to each other; give them more (spec.resources), or \
                 nodes of their own (spec.scheduling), and run again",
                named(*index, pods),
                late.as_millis(),
                allowed.as_millis()
            )
        })
    }
}

/// What another pod measured.
pub(super) struct Part {
    pub index: u32,
    /// From when it was told to begin until it was heard of.
    pub heard_after: Duration,
    pub ended: Ended,
}

/// What all measured together, the first pod's own part included, which began so long after it told
/// the others to; and what the others' tool spent.
pub(super) fn merged(
    own: Measured,
    own_late: Duration,
    parts: &[Part],
    pods: u32,
) -> anyhow::Result<(Measured, Spans, Duration)> {
    let mut all = own;
    let mut spans = Spans {
        late: vec![(0, own_late)],
    };
    let mut cpu = Duration::ZERO;
    all.elapsed = all.elapsed.saturating_add(own_late);
    for part in parts {
        let ended = &part.ended;
        let latencies = line::unpacked(&ended.latency_us)?;
        all.latency_us
            .add(&latencies)
            .map_err(|error| anyhow::anyhow!("another histogram: {error}"))?;
        all.errors = all.errors.saturating_add(ended.errors);
        let error = ended.first_error.as_ref();
        let error = error.map(|error| format!("{}: {error}", named(part.index, pods)));
        all.first_error = all.first_error.or(error);
        let late = part.heard_after.saturating_add(ended.late);
        all.elapsed = all.elapsed.max(late.saturating_add(ended.elapsed));
        all.revision = all.revision.max(ended.revision);
        cpu = cpu.saturating_add(ended.cpu);
        spans.late.push((part.index, late));
    }
    Ok((all, spans, cpu))
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;
    use proptest::prelude::*;

    use super::*;
    use crate::load::histogram;

    fn of(values: &[u64]) -> Histogram<u64> {
        let mut all = histogram();
        values
            .iter()
            .for_each(|&value| all.saturating_record(value));
        all
    }

    fn measured(values: &[u64], elapsed: Duration) -> Measured {
        Measured {
            latency_us: of(values),
            errors: 0,
            first_error: None,
            began: None,
            elapsed,
            revision: 1,
        }
    }

    fn part(index: u32, values: &[u64], late: u64, elapsed: u64) -> Part {
        Part {
            index,
            heard_after: Duration::from_millis(late),
            ended: Ended {
                latency_us: line::packed(&of(values)),
                elapsed: Duration::from_millis(elapsed),
                cpu: Duration::from_millis(5),
                revision: 7,
                ..Ended::default()
            },
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn merged_latencies_are_those_of_one_histogram_of_all(
            pods in prop::collection::vec(
                prop::collection::vec(0..4_000_000_000_u64, 0..200), 1..6),
        ) {
            let (own, others) = pods.split_first().unwrap();
            let parts: Vec<Part> = others
                .iter()
                .zip(1..)
                .map(|(values, index)| part(index, values, 0, 1))
                .collect();
            let own = measured(own, Duration::from_millis(1));
            let (all, _, _) = merged(own, Duration::ZERO, &parts, 6).unwrap();
            let one = of(&pods.concat());
            prop_assert_eq!(&all.latency_us, &one);
            prop_assert_eq!(all.requests(), pods.concat().len() as u64);
            for quantile in [0.0, 0.5, 0.9, 0.99, 0.999, 1.0] {
                let (ours, theirs) = (&all.latency_us, &one);
                prop_assert_eq!(
                    ours.value_at_quantile(quantile),
                    theirs.value_at_quantile(quantile)
                );
            }
            prop_assert_eq!(all.latency_us.mean(), one.mean());
        }
    }

    #[test]
    fn the_time_is_from_the_first_order_to_the_last_answer() {
        let parts = [part(1, &[5], 3, 100), part(2, &[6], 1, 90)];
        let own = measured(&[4], Duration::from_millis(99));
        let (all, spans, cpu) = merged(own, Duration::from_millis(3), &parts, 3).unwrap();
        assert_eq!(all.elapsed, Duration::from_millis(103));
        assert_eq!(spans.began_within(), Duration::from_millis(3));
        assert_eq!((all.revision, all.latency_us.len()), (7, 3));
        assert_eq!(cpu, Duration::from_millis(10));
        assert_eq!(spans.trouble(3, Duration::from_millis(3)), None);
    }

    #[test]
    fn failures_are_added_and_the_first_names_its_pod() {
        let mut parts = [part(1, &[], 0, 1), part(2, &[5], 0, 1)];
        parts[0].ended.errors = 2;
        parts[0].ended.first_error = Some("no leader".to_owned());
        let own = measured(&[4], Duration::from_millis(1));
        let (all, _, _) = merged(own, Duration::ZERO, &parts, 3).unwrap();
        assert_eq!((all.errors, all.requests()), (2, 4));
        let error = all.first_error.unwrap();
        assert_eq!(error, "pod 1 of 3 (counted from 0): no leader");
    }

    #[test]
    fn who_began_late_is_named_with_what_to_do() {
        let parts = [part(1, &[5], 1, 100), part(2, &[6], 251, 90)];
        let own = measured(&[4], Duration::from_millis(99));
        let (_, spans, _) = merged(own, Duration::from_millis(252), &parts, 3).unwrap();
        let words = spans.trouble(3, Duration::from_millis(250)).unwrap();
        assert!(words.starts_with("pod 2 of 3 "), "{words}");
        assert!(
            words.contains("251 ms") && words.contains("run again"),
            "{words}"
        );
    }
}
