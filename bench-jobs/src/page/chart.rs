//! Where the lines of a latency chart run. Both axes are logarithmic: across, how many requests
//! were slower (each step is one more nine); up, how long they took.

use dengine_bench_model::results::Quantile;

pub(super) const WIDTH: f64 = 400.0;
pub(super) const HEIGHT: f64 = 240.0;
/// Where the lines may run; around it is room for the ticks.
pub(super) const LEFT: f64 = 56.0;
pub(super) const RIGHT: f64 = WIDTH - 22.0;
pub(super) const TOP: f64 = 10.0;
pub(super) const BOTTOM: f64 = HEIGHT - 28.0;

/// Percentiles with a tick.
const PERCENTILES: [(f64, &str); 6] = [
    (0.0, "0"),
    (50.0, "50"),
    (90.0, "90"),
    (99.0, "99"),
    (99.9, "99.9"),
    (99.99, "99.99"),
];
/// The fewest nines that are drawn, so that charts of short runs look like those of long ones.
const NINES_MIN: f64 = 3.0;
/// Lines across the chart, at most.
const LEVELS_MAX: usize = 7;

/// A tick: where it is along its axis, and what it says.
pub(super) struct Tick {
    pub(super) at: f64,
    pub(super) text: String,
}

/// The axes that all lines of one chart share.
pub(super) struct Axes {
    nines: f64,
    lowest: f64,
    highest: f64,
}

impl Axes {
    /// Axes that hold all of the curves.
    pub(super) fn around<'a>(curves: impl Iterator<Item = &'a [Quantile]> + Clone) -> Self {
        let points = curves.flat_map(drawn).collect::<Vec<_>>();
        let latencies = || points.iter().map(|(_, us)| *us);
        let lowest = latencies().fold(f64::INFINITY, f64::min);
        let highest = latencies().fold(1.0, f64::max);
        Axes {
            nines: points
                .iter()
                .map(|(nines, _)| *nines)
                .fold(NINES_MIN, f64::max),
            lowest: if lowest.is_finite() {
                lowest / 1.25
            } else {
                0.8
            },
            highest: highest * 1.25,
        }
    }

    fn x(&self, nines: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * nines / self.nines
    }

    fn y(&self, us: f64) -> f64 {
        let share = (us / self.lowest).ln() / (self.highest / self.lowest).ln();
        BOTTOM - (BOTTOM - TOP) * share
    }

    /// The points of a curve, as SVG writes them.
    pub(super) fn points(&self, curve: &[Quantile]) -> String {
        let point = |(nines, us)| format!("{:.1},{:.1}", self.x(nines), self.y(us));
        drawn(curve).map(point).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn percentiles(&self) -> Vec<Tick> {
        let shown = PERCENTILES
            .iter()
            .map(|(percentile, text)| (nines(*percentile), text));
        shown
            .filter(|(nines, _)| *nines <= self.nines + 1e-9)
            .map(|(nines, text)| Tick {
                at: self.x(nines),
                text: (*text).to_owned(),
            })
            .collect()
    }

    pub(super) fn latencies(&self) -> Vec<Tick> {
        let within = |us: &f64| (self.lowest..=self.highest).contains(us);
        let steps = |digits: &'static [f64]| {
            (0..10)
                .flat_map(move |decade| digits.iter().map(move |digit| digit * 10_f64.powi(decade)))
                .filter(within)
                .collect::<Vec<_>>()
        };
        let fine = steps(&[1.0, 2.0, 5.0]);
        let shown = if fine.len() > LEVELS_MAX {
            steps(&[1.0])
        } else {
            fine
        };
        let tick = |us| Tick {
            at: self.y(us),
            text: time(us),
        };
        shown.into_iter().map(tick).collect()
    }
}

/// What a chart can show of a curve: the slowest request of all has no place on a scale of nines.
fn drawn(curve: &[Quantile]) -> impl Iterator<Item = (f64, f64)> + '_ {
    let shown = curve.iter().filter(|point| point.percentile < 100.0);
    shown.map(|point| (nines(point.percentile), point.us.max(1) as f64))
}

/// 90 % is one nine, 99 % are two.
fn nines(percentile: f64) -> f64 {
    -(1.0 - percentile / 100.0).log10()
}

/// A time in the unit that a person would use.
pub(super) fn time(us: f64) -> String {
    let (value, unit) = if us < 1e3 {
        (us, "µs")
    } else if us < 1e6 {
        (us / 1e3, "ms")
    } else {
        (us / 1e6, "s")
    };
    if value < 10.0 && value.fract() > 0.05 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(f64, u64)]) -> Vec<Quantile> {
        let quantile = |&(percentile, us)| Quantile { percentile, us };
        points.iter().map(quantile).collect()
    }

    #[test]
    fn lines_stay_within_the_chart_and_climb() {
        let curve = curve(&[
            (0.0, 40),
            (50.0, 100),
            (99.0, 5_000),
            (99.99, 90_000),
            (100.0, 9_000_000),
        ]);
        let axes = Axes::around([&curve[..]].into_iter());
        let points = axes.points(&curve);
        let points: Vec<(f64, f64)> = points
            .split(' ')
            .map(|point| point.split_once(',').unwrap())
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect();
        assert_eq!(points.len(), 4, "the slowest of all is not drawn");
        assert!(
            points.is_sorted_by(|a, b| a.0 < b.0 && a.1 > b.1),
            "{points:?}"
        );
        for (x, y) in points {
            assert!((LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y));
        }
    }

    #[test]
    fn ticks_are_few_and_readable() {
        let wide = curve(&[(0.0, 40), (99.0, 90_000)]);
        let texts = |curve: &[Quantile]| {
            let ticks = Axes::around([curve].into_iter()).latencies();
            ticks.into_iter().map(|tick| tick.text).collect::<Vec<_>>()
        };
        assert_eq!(texts(&wide), ["100 µs", "1 ms", "10 ms", "100 ms"]);
        let narrow = curve(&[(0.0, 900), (99.0, 4_000)]);
        assert_eq!(texts(&narrow), ["1 ms", "2 ms", "5 ms"]);
    }

    #[test]
    fn nothing_measured_draws_nothing() {
        let axes = Axes::around([&[][..]].into_iter());
        assert_eq!(axes.points(&[]), "");
    }
}
