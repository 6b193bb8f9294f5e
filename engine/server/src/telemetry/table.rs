//! Tables of metrics: name, type and description of each in one row.

use metrics::{Unit, with_recorder};

/// How a metric is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    pub(crate) kind: Kind,
    pub(crate) name: &'static str,
    /// What `/metrics` says of it.
    pub(crate) help: &'static str,
}

impl Metric {
    fn unit(&self) -> Option<Unit> {
        match self.name.strip_suffix("_total").unwrap_or(self.name) {
            name if name.ends_with("_milliseconds") => Some(Unit::Milliseconds),
            name if name.ends_with("_seconds") => Some(Unit::Seconds),
            name if name.ends_with("_bytes") => Some(Unit::Bytes),
            _ => None,
        }
    }

    /// Gives the process's recorder the description.
    pub(super) fn describe(&self) {
        let (name, unit, help) = (self.name.into(), self.unit(), self.help.trim().into());
        with_recorder(|recorder| match self.kind {
            Kind::Counter => recorder.describe_counter(name, unit, help),
            Kind::Gauge => recorder.describe_gauge(name, unit, help),
            Kind::Histogram => recorder.describe_histogram(name, unit, help),
        });
    }
}

/// Declares metrics: a constant with the name of each, and a `TABLE` of all of them.
///
/// The first line of a row's documentation is also what `/metrics` says of it. Its unit follows
/// from how its name ends, before a counter's `_total`.
macro_rules! metrics_table {
    ($(
        #[doc = $help:literal]
        $(#[doc = $doc:literal])*
        $kind:ident $constant:ident = $name:literal;
    )*) => {
        $(
            #[doc = $help]
            $(#[doc = $doc])*
            pub const $constant: &str = $name;
        )*

        /// The metrics above, with their types and descriptions.
        pub(crate) const TABLE: &[$crate::telemetry::table::Metric] = &[$(
            $crate::telemetry::table::Metric {
                kind: $crate::telemetry::table::Kind::$kind,
                name: $constant,
                help: $help,
            },
        )*];
    };
}

pub(crate) use metrics_table;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{node, telemetry};

    #[test]
    fn names_are_unique_and_end_as_their_type_demands() {
        let tables = [node::metrics::TABLE, telemetry::metrics::TABLE];
        let mut names = BTreeSet::new();
        for Metric { kind, name, help } in tables.concat() {
            assert!(names.insert(name), "{name} is there twice");
            assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert!(!help.trim().is_empty(), "{name} has no description");
        }
    }

    #[test]
    fn a_unit_stands_at_the_end_of_a_name_or_before_total() {
        for (name, unit) in [
            ("log_sync_seconds", Some(Unit::Seconds)),
            ("flush_written_bytes_total", Some(Unit::Bytes)),
            ("stalled_milliseconds_total", Some(Unit::Milliseconds)),
            ("applied_entries_total", None),
        ] {
            let metric = Metric {
                kind: Kind::Gauge,
                name,
                help: "",
            };
            assert_eq!(metric.unit(), unit, "{name}");
        }
    }
}
