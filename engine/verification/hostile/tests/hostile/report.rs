//! The table: a line for each attack, on the terminal, in `table.md` as it grows, and a verdict at
//! the end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use crate::attackers::Attacker;
use crate::settings::Settings;
use crate::tally::{Counts, kind};
use crate::verdict::{Seen, broken};

const HEAD: &str = "| attacker | did | honest write p99 | honest read p99 | etcd write p99 | \
    etcd read p99 | failed | member's memory | attackers were told | member logged |\n\
    |---|---|---|---|---|---|---|---|---|---|\n";

/// Where it is left, with the logs of members that broke a promise.
pub(crate) fn folder() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("hostile");
    fs_err::create_dir_all(&folder).unwrap();
    folder
}

/// What came of one attack.
pub(crate) struct Row {
    name: String,
    line: String,
    broken: Vec<String>,
    logs: Vec<String>,
}

impl Row {
    pub(crate) fn new(
        name: &str,
        attackers: &[&Attacker],
        seen: &Seen,
        counts: &Counts,
        logs: Vec<String>,
    ) -> Self {
        let does = match attackers {
            [one] => one.does,
            _ => "all of them at once",
        };
        let Seen { before, during, .. } = seen;
        let told = counts.most_told(2);
        let mut line = format!("| `{name}`: {does} | {} |", thousands(counts.done));
        let _ = write!(
            line,
            " {} | {} | {} | {} | {} of {} | {} MiB | {} | {} |",
            compared(before.write_p99, during.write_p99),
            compared(before.read_p99, during.read_p99),
            compared(before.etcd_write_p99, during.etcd_write_p99),
            compared(before.etcd_read_p99, during.etcd_read_p99),
            during.errors,
            thousands(during.answered + during.errors),
            seen.memory_peak_bytes >> 20,
            listed(&told),
            logged(&logs),
        );
        Self {
            name: name.to_owned(),
            line,
            broken: broken(seen),
            logs,
        }
    }
}

/// What came of all of them.
pub(crate) struct Report {
    table: String,
    broken: Vec<(String, Vec<String>)>,
}

impl Report {
    pub(crate) fn begin(settings: &Settings) -> Self {
        eprintln!(
            "hostile: {} of {:?} against {} member(s), whose honest clients are measured for {:?} \
             before each, beside a busy neighbour",
            settings.attacks().len(),
            settings.attack,
            settings.members,
            settings.before,
        );
        Self {
            table: HEAD.to_owned(),
            broken: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, row: Row) {
        eprintln!("{}", row.line);
        self.table += &row.line;
        self.table.push('\n');
        fs_err::write(folder().join("table.md"), &self.table).unwrap();
        if row.broken.is_empty() {
            return;
        }
        for promise in &row.broken {
            eprintln!("hostile: BROKEN by {}: {promise}", row.name);
        }
        let log = folder().join(format!("{}.log", row.name));
        fs_err::write(log, row.logs.concat()).unwrap();
        self.broken.push((row.name, row.broken));
    }

    /// Fails if a promise was broken.
    pub(crate) fn finish(self) {
        eprintln!("\n{}", self.table);
        let folder = folder();
        for (name, promises) in &self.broken {
            for promise in promises {
                eprintln!("hostile: BROKEN by {name}: {promise}");
            }
        }
        let names: Vec<_> = self.broken.iter().map(|(name, _)| name).collect();
        assert!(
            names.is_empty(),
            "promises were broken by {names:?}; table.md and the members' logs are in {}",
            folder.display()
        );
    }
}

fn compared(before: Duration, during: Duration) -> String {
    let times = during.as_secs_f64() / before.as_secs_f64();
    let (before, during) = (milliseconds(before), milliseconds(during));
    format!("{during} of {before} ({times:.1}×)")
}

fn milliseconds(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1000.0;
    if ms < 10.0 {
        format!("{ms:.1} ms")
    } else {
        format!("{ms:.0} ms")
    }
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn listed(told: &[(&str, u64)]) -> String {
    let one = |(words, times): &(&str, u64)| {
        let words = words.replace('|', "/");
        format!("{}× {words}", thousands(*times))
    };
    let all: Vec<_> = told.iter().map(one).collect();
    all.join("; ")
}

/// Warnings and errors of members, the most frequent first.
fn logged(logs: &[String]) -> String {
    let mut kinds = BTreeMap::<String, u64>::new();
    for line in logs.iter().flat_map(|log| log.lines()) {
        if let Some(words) = warning(line) {
            *kinds.entry(kind(words)).or_default() += 1;
        }
    }
    let mut kinds: Vec<_> = kinds.iter().map(|(it, n)| (it.as_str(), *n)).collect();
    kinds.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    kinds.truncate(2);
    listed(&kinds)
}

/// The words of a line that is more than information: behind its time, level and module.
fn warning(line: &str) -> Option<&str> {
    let (_, words) = line
        .split_once(" WARN ")
        .or_else(|| line.split_once("ERROR "))?;
    Some(words.split_once(": ").map_or(words, |(_, words)| words))
}

mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(thousands(999), "999");
        let ms = Duration::from_millis;
        assert_eq!(compared(ms(2), ms(5)), "5.0 ms of 2.0 ms (2.5×)");
    }

    #[test]
    fn of_a_log_only_warnings_are_told_and_numbers_make_no_difference() {
        let log = "2026-01-01T00:00:00Z  INFO dengine: ready\n\
                   2026-01-01T00:00:01Z  WARN dengine::server: connections were refused \
                   refused=12\n\
                   2026-01-01T00:00:02Z  WARN dengine::server: connections were refused \
                   refused=7\n";
        let logged = logged(&[log.to_owned()]);
        assert_eq!(logged, "2× connections were refused refused=N");
    }
}
