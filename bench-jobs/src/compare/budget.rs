//! Results against a baseline: what is worse than a budget allows.

use dengine_bench_model::results::Report;

use super::columns::{self, Column};
use super::{Cell, Named, cell};

/// How much worse than the baseline a number may be; 0.1 is ten percent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) throughput_and_cpu: f64,
    pub(super) p99: Option<f64>,
}

pub(super) struct Verdict {
    pub(super) text: String,
    pub(super) regressed: bool,
}

/// Holds each workload of the baseline against every report.
pub(super) fn judge(reports: &[Named], baseline: &Report, budget: &Budget) -> Verdict {
    let mut regressions = Vec::new();
    let mut held = 0;
    for named in reports {
        for before in baseline
            .results
            .iter()
            .filter(|result| result.unsupported.is_none())
        {
            let now = cell(&named.report, &before.name, &before.shape);
            let place = format!("{}, {}", named.label, before.name);
            match now {
                Cell::Measured(now) => {
                    held += 1;
                    let numbers = |column: &Column| Some(((column.of)(before)?, (column.of)(now)?));
                    for (column, allowed) in judged(budget) {
                        let worse =
                            numbers(&column).and_then(|(b, n)| worse(&column, b, n, allowed));
                        regressions.extend(worse.map(|worse| format!("{place}: {worse}")));
                    }
                }
                Cell::OtherLoad(_) => {
                    regressions.push(format!("{place}: measured with another load"));
                }
                Cell::Failed => regressions.push(format!("{place}: failed")),
                Cell::Absent | Cell::Unsupported | Cell::Substitute(_) => {
                    regressions.push(format!("{place}: not measured"));
                }
            }
        }
    }
    let mut text = String::from("\n");
    for regression in &regressions {
        text += &format!("REGRESSION: {regression}\n");
    }
    if regressions.is_empty() {
        text += &format!("Within the budget of the baseline: {held} workloads\n");
    }
    Verdict {
        text,
        regressed: !regressions.is_empty(),
    }
}

fn judged(budget: &Budget) -> Vec<(Column, f64)> {
    let mut judged = vec![
        (columns::THROUGHPUT, budget.throughput_and_cpu),
        (columns::SERVER_CPU, budget.throughput_and_cpu),
    ];
    judged.extend(budget.p99.map(|budget| (columns::P99, budget)));
    judged
}

/// How much worse a number is, if that is more than allowed: a fall in what should be high, a rise
/// in what should be low.
fn worse(column: &Column, before: f64, now: f64, allowed: f64) -> Option<String> {
    let change = (now - before) / before;
    let worse = if column.more_is_better {
        -change
    } else {
        change
    };
    (worse > allowed).then(|| {
        format!(
            "{}: {} after {} in the baseline, {:.0} % worse (budget {:.0} %)",
            column.name,
            columns::number(now),
            columns::number(before),
            worse * 100.0,
            allowed * 100.0
        )
    })
}
