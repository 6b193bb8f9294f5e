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
    out.push_str("Keys are 8 bytes, values 256. The workloads of `basic` can be had one by one with --workload.\n");
    out
}

fn line(workload: &NamedWorkload) -> String {
    let shape = workload.shape();
    format!(
        "{:<18}{:>14} over {:>15},{:>8} requests: {}",
        workload.name,
        counted(shape.clients, "client"),
        counted(shape.connections, "connection"),
        grouped(shape.total),
        load_in_words(&shape)
    )
}
