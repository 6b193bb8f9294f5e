//! The profiles as a list for people; what they hold is in `dengine_bench_model::profiles`.

use std::fmt::Write;

use dengine_bench_model::profiles::{NamedWorkload, PROFILES};

use crate::summary::{counted, grouped, load_in_words};

/// All profiles with their workloads.
#[must_use]
pub fn list() -> String {
    let mut out = String::new();
    for profile in &PROFILES {
        let _ = writeln!(out, "{}: {}", profile.name, profile.about);
        for workload in profile.workloads {
            let _ = writeln!(out, "  {}", line(workload));
        }
        out.push('\n');
    }
    out.push_str(
        "Each can be had by itself: --workload NAME, and for those outside `basic` PROFILE/NAME.\n",
    );
    out
}

fn line(workload: &NamedWorkload) -> String {
    let shape = workload.shape();
    let rate = shape.rate.map(|rate| format!(", {rate} per second"));
    let at_least = shape
        .at_least_seconds
        .map(|it| format!(" and for {it} s at least"));
    format!(
        "{:<18}{:>14} over {:>15},{:>8} requests{}{}: {}",
        workload.name,
        counted(shape.clients, "client"),
        counted(shape.connections, "connection"),
        grouped(shape.total),
        rate.unwrap_or_default(),
        at_least.unwrap_or_default(),
        load_in_words(&shape)
    )
}
