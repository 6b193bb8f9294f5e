//! How long the API server waited for what it keeps its objects in, by its own account.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

const NAME: &str = "etcd_request_duration_seconds";

/// All its requests so far, by operation: `get`, `list`, `create`, `update`, `delete` and others.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Requests(BTreeMap<String, Histogram>);

/// Of all kinds of objects together.
#[derive(Debug, Default, Clone, PartialEq)]
struct Histogram {
    /// How many took at most so many seconds, in ascending order; the last bound is infinite.
    buckets: Vec<(f64, u64)>,
    sum_seconds: f64,
}

/// How long requests of one kind took.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestTimes {
    pub operation: String,
    pub count: u64,
    pub mean_ms: f64,
    /// As Prometheus' `histogram_quantile` has it: evenly spread within a bucket. The first one
    /// ends at 5 ms, so that below this the mean says more.
    pub p99_ms: f64,
}

impl Requests {
    /// Reads them from what `/metrics` answers.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut all: BTreeMap<String, Histogram> = BTreeMap::new();
        for line in text.lines() {
            let Some(rest) = line.strip_prefix(NAME) else {
                continue;
            };
            let sample = Sample::parse(rest).with_context(|| format!("{line:?} is no sample"))?;
            let histogram = all.entry(sample.operation.to_owned()).or_default();
            match (sample.part, sample.bound) {
                ("_bucket", Some(bound)) => histogram.add(bound, sample.value as u64),
                ("_sum", _) => histogram.sum_seconds += sample.value,
                _ => {}
            }
        }
        ensure!(!all.is_empty(), "the API server has no {NAME}");
        Ok(Self(all))
    }

    /// What came since then.
    pub(super) fn since(&self, earlier: &Self) -> Vec<RequestTimes> {
        let nothing = Histogram::default();
        let times = self.0.iter().filter_map(|(operation, now)| {
            let before = earlier.0.get(operation).unwrap_or(&nothing);
            now.since(before).times(operation)
        });
        times.collect()
    }
}

/// A line of the text format, after the histogram's name.
struct Sample<'a> {
    part: &'a str,
    operation: &'a str,
    bound: Option<f64>,
    value: f64,
}

impl<'a> Sample<'a> {
    fn parse(rest: &'a str) -> Option<Self> {
        let (part, rest) = rest.split_once('{')?;
        let (labels, value) = rest.rsplit_once("} ")?;
        let label = |name: &str| {
            let mut pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
            let (_, value) = pairs.find(|(label, _)| *label == name)?;
            Some(value.trim_matches('"'))
        };
        Some(Self {
            part,
            operation: label("operation")?,
            // Rust reads "+Inf" too.
            bound: label("le").and_then(|bound| bound.parse().ok()),
            value: value.parse().ok()?,
        })
    }
}

impl Histogram {
    fn add(&mut self, bound: f64, count: u64) {
        let place = self.buckets.partition_point(|(other, _)| *other < bound);
        match self.buckets.get_mut(place) {
            Some((same, total)) if *same == bound => *total += count,
            _ => self.buckets.insert(place, (bound, count)),
        }
    }

    fn since(&self, earlier: &Self) -> Self {
        let buckets = self.buckets.iter().map(|(bound, count)| {
            let same = earlier.buckets.iter().find(|(other, _)| other == bound);
            (*bound, count - same.map_or(0, |(_, before)| *before))
        });
        Self {
            buckets: buckets.collect(),
            sum_seconds: self.sum_seconds - earlier.sum_seconds,
        }
    }

    fn count(&self) -> u64 {
        self.buckets.last().map_or(0, |(_, count)| *count)
    }

    /// Of none there are no times.
    fn times(&self, operation: &str) -> Option<RequestTimes> {
        let count = self.count();
        (count > 0).then(|| RequestTimes {
            operation: operation.to_owned(),
            count,
            mean_ms: self.sum_seconds / count as f64 * 1_000.0,
            p99_ms: self.quantile(0.99) * 1_000.0,
        })
    }

    /// Of those that took longer than the last finite bound, that bound is known.
    fn quantile(&self, quantile: f64) -> f64 {
        let rank = quantile * self.count() as f64;
        let (mut low, mut below) = (0.0, 0);
        for (bound, count) in &self.buckets {
            if *count as f64 >= rank && bound.is_finite() {
                let within = (rank - below as f64) / (*count - below).max(1) as f64;
                return low + (bound - low) * within;
            }
            if bound.is_finite() {
                (low, below) = (*bound, *count);
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 requests of two kinds of objects: `first` within 5 ms, `second` within 25 ms.
    fn text(first: u64, second: u64, sum: f64) -> String {
        let mut text = format!("# TYPE {NAME} histogram\n");
        for (resource, share) in [("pods", 1), ("leases", 3)] {
            let labels = format!("group=\"\",operation=\"create\",resource=\"{resource}\"");
            for (bound, count) in [("0.005", first), ("0.025", second), ("+Inf", second)] {
                let count = count * share / 4;
                text += &format!("{NAME}_bucket{{{labels},le=\"{bound}\"}} {count}\n");
            }
            text += &format!("{NAME}_sum{{{labels}}} {}\n", sum * share as f64 / 4.0);
            text += &format!("{NAME}_count{{{labels}}} {}\n", second * share / 4);
        }
        text + "etcd_requests_total{operation=\"create\"} 7\n"
    }

    #[test]
    fn all_kinds_of_objects_count_together_from_the_first_look_on() {
        let before = Requests::parse(&text(400, 400, 1.0)).unwrap();
        let after = Requests::parse(&text(1_360, 1_400, 3.0)).unwrap();
        let [times]: [_; 1] = after.since(&before).try_into().unwrap();
        assert_eq!((times.operation.as_str(), times.count), ("create", 1_000));
        assert!((times.mean_ms - 2.0).abs() < 1e-9, "{times:?}");
        // 960 within 5 ms, so the 990th is three quarters of the way from there to 25 ms.
        assert!((times.p99_ms - 20.0).abs() < 1e-9, "{times:?}");
    }

    #[test]
    fn what_took_longer_than_the_last_bound_took_at_least_that() {
        let mut histogram = Histogram::default();
        for (bound, count) in [(f64::INFINITY, 100), (0.005, 50), (60.0, 60)] {
            histogram.add(bound, count);
        }
        assert_eq!(histogram.quantile(0.99), 60.0);
        assert_eq!(histogram.quantile(0.25), 0.0025);
    }

    #[test]
    fn an_api_server_without_the_metric_is_an_error() {
        assert!(Requests::parse("apiserver_request_total 3\n").is_err());
        assert!(Requests::parse(&format!("{NAME}_sum{{le=\"1\"}} x\n")).is_err());
    }
}
