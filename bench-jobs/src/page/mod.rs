//! One HTML page about results: self-contained, so that it can be mailed, kept and opened without a
//! network.
//!
//! Here is what the page says and where its lines run; how it looks is in `templates/`.

mod chart;
mod view;

use anyhow::Context;
use askama::Template as _;

use crate::cli::ReportArgs;
use crate::compare::{self, Named};

/// Writes the page that the command line asks for.
///
/// # Errors
/// If a result cannot be read, or the page not written.
pub fn write(args: &ReportArgs) -> anyhow::Result<()> {
    let html = render(&args.title, &compare::read_all(&args.results)?)?;
    std::fs::write(&args.output, html).with_context(|| format!("writing {}", args.output.display()))
}

/// The page.
///
/// # Errors
/// Never on results that were read from files; the template engine could fail.
pub fn render(title: &str, reports: &[Named]) -> anyhow::Result<String> {
    view::Page::of(title, reports)
        .render()
        .context("filling in the page's template")
}

#[cfg(test)]
mod tests {
    use dengine_bench_model::profiles;
    use dengine_bench_model::results::Protocol;

    use super::*;
    use crate::outcome::tests as sample;

    fn named(label: &str) -> Named {
        Named {
            label: label.to_owned(),
            report: sample::report(),
        }
    }

    #[test]
    fn the_page_needs_no_network() {
        let html = render("A title", &[named("DEngine"), named("etcd 3.6")]).unwrap();
        for outside in ["src=", "href=", "@import", "url(", "<script"] {
            assert!(!html.contains(outside), "{outside}");
        }
        assert!(html.starts_with("<!doctype html>"), "{}", &html[..40]);
        assert!(html.contains("A title") && html.contains("etcd 3.6"));
    }

    #[test]
    fn what_people_wrote_is_text_and_not_markup() {
        let html = render("<b>bold</b>", &[named("<i>x</i>")]).unwrap();
        assert!(!html.contains("<b>bold") && !html.contains("<i>x"));
    }

    #[test]
    fn a_goal_is_about_being_beside_etcd() {
        let single_write = profiles::profile("standard").unwrap().workloads[0];
        let of = |label: &str, protocol| {
            let mut named = named(label);
            let result = &mut named.report.results[0];
            (result.name, result.protocol) = (single_write.name.to_owned(), protocol);
            named
        };
        let ours = || of("DEngine", Protocol::Dengine);
        let beside_etcd = [ours(), of("etcd", Protocol::Etcd)];
        assert!(render("t", &beside_etcd).unwrap().contains("goal 4×"));
        let beside_floor = [ours(), of("floor", Protocol::Floor)];
        assert!(!render("t", &beside_floor).unwrap().contains("goal 4×"));
    }

    #[test]
    fn every_workload_has_its_numbers_and_its_curve() {
        let html = render("t", &[named("a")]).unwrap();
        assert!(html.contains("range-l"));
        assert_eq!(html.matches("<polyline").count(), 1);
        assert!(html.contains("500"), "the throughput");
        for heading in ["avg", "min", "p50", "p90", "p99", "p99.9", "max"] {
            assert!(html.contains(&format!("<th>{heading}</th>")), "{heading}");
        }
    }
}
