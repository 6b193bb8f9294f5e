//! Instruction counts of the hot paths, compared with committed ones: `make bench-baseline`; with
//! `UPDATE=1` they are rewritten. Times differ from run to run and machine to machine; how many
//! instructions an operation takes does not, so a slow-down is noticed however busy the machine is.
//!
//! Each path runs twice under valgrind's cachegrind, for some operations and for twice as many: the
//! difference is what the operations took, without everything around them. Counts are of the
//! system's allocator; the server has another one.

mod cluster;

use std::error::Error;
use std::fmt::Write as _;
use std::hint::black_box;
use std::io::Write as _;
use std::process::Command as Program;

use bytes::Bytes;
use dengine_kv::store::MemoryStore;
use dengine_kv::{Command, CommandVersion, Request, StateMachine};
use dengine_log::Batch;
use dengine_types::{Entry, EntryKind, Index, MemberId, Term};

use self::cluster::{Cluster, open_log};

/// The committed counts.
const BASELINE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/benches/instructions/committed.txt"
);
/// How many percent more instructions than committed are a slow-down. Hash maps draw their seeds at
/// random, which moves counts by less than one.
const BUDGET_PERCENT: f64 = 5.0;
/// Operations of the shorter run; keeps every path above a million instructions and under a second.
const OPERATIONS: u64 = 2_048;
/// Entries that are written, or applied, at once under load.
const BATCH: u64 = 32;
const VALUE_BYTES: usize = 256;

type Path = (&'static str, fn(u64) -> Result<(), Box<dyn Error>>);

/// What is counted, each for one operation with an 8-byte key and a 256-byte value.
const PATHS: [Path; 9] = [
    ("command_encode", encode),
    ("command_decode", decode),
    ("log_append_alone", |operations| append(operations, 1)),
    ("log_append_of_32", |operations| append(operations, BATCH)),
    ("replicate_alone", |operations| replicate(operations, 1)),
    ("replicate_of_32", |operations| replicate(operations, BATCH)),
    ("apply_put_alone", |operations| apply(operations, 1)),
    ("apply_put_of_32", |operations| apply(operations, BATCH)),
    ("get_newest", get),
];

fn main() -> Result<(), Box<dyn Error>> {
    // cargo bench adds `--bench`.
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|it| it != "--bench")
        .collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["run", name, operations] => run(name, operations.parse()?),
        ["--update"] => Ok(std::fs::write(BASELINE, written(&measure()?))?),
        [] => check(&measure()?),
        _ => Err("usage: instructions [--update]".into()),
    }
}

fn run(name: &str, operations: u64) -> Result<(), Box<dyn Error>> {
    let path = PATHS.iter().find(|(path, _)| *path == name);
    path.ok_or("there is no such path")?.1(operations)
}

/// Instructions of one operation of each path.
fn measure() -> Result<Vec<(&'static str, f64)>, Box<dyn Error>> {
    let per_operation = |&(name, _): &Path| {
        let (once, twice) = (count(name, OPERATIONS)?, count(name, 2 * OPERATIONS)?);
        Ok((name, (twice - once) / OPERATIONS as f64))
    };
    PATHS.iter().map(per_operation).collect()
}

/// All instructions of this program while it runs a path.
fn count(name: &str, operations: u64) -> Result<f64, Box<dyn Error>> {
    let ran = Program::new("valgrind")
        .args([
            "--tool=cachegrind",
            "--cache-sim=no",
            "--cachegrind-out-file=/dev/null",
        ])
        .arg(std::env::current_exe()?)
        .args(["run", name, &operations.to_string()])
        .output()
        .map_err(|error| {
            format!(
                "valgrind does not run ({error}): install it, for example apt-get install valgrind"
            )
        })?;
    let said = String::from_utf8_lossy(&ran.stderr);
    let references = said.lines().find_map(|line| line.split_once("refs:"));
    match references {
        Some((_, count)) if ran.status.success() => Ok(count.trim().replace(',', "").parse()?),
        _ => Err(format!("{name} under valgrind: {}\n{said}", ran.status).into()),
    }
}

fn written(counts: &[(&str, f64)]) -> String {
    let mut text = String::from(
        "# Instructions of one operation, by benches/instructions. `make bench-baseline UPDATE=1` \
         writes this file.\n",
    );
    for (name, count) in counts {
        let _ = writeln!(text, "{name} {count:.0}");
    }
    text
}

fn check(counts: &[(&str, f64)]) -> Result<(), Box<dyn Error>> {
    let committed = std::fs::read_to_string(BASELINE)?;
    let mut slower = Vec::new();
    let mut out = std::io::stdout();
    for (name, count) in counts {
        let before = before(&committed, name)?;
        let change = 100.0 * (count - before) / before;
        writeln!(
            out,
            "{name:<20}{count:>8.0} instructions, {before:>8.0} committed, {change:>+6.1} %"
        )?;
        if change > BUDGET_PERCENT {
            slower.push(*name);
        }
    }
    if slower.is_empty() {
        return Ok(());
    }
    let slower = slower.join(", ");
    Err(format!(
        "more than {BUDGET_PERCENT} % more instructions than committed: {slower}. If that \
        is meant, commit what UPDATE=1 writes"
    )
    .into())
}

fn before(committed: &str, name: &str) -> Result<f64, Box<dyn Error>> {
    let mut lines = committed.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find_map(|(path, count)| (path == name).then_some(count));
    Ok(found
        .ok_or_else(|| format!("{name} has no committed count: make bench-baseline UPDATE=1"))?
        .parse()?)
}

fn put(number: u64, value: &Bytes) -> Request {
    Request {
        session: None,
        command: Command::put(Bytes::copy_from_slice(&number.to_be_bytes()), value.clone()),
    }
}

fn value() -> Bytes {
    Bytes::from(vec![7; VALUE_BYTES])
}

/// Entries `first` and on; their commands were encoded where requests come in.
fn entries(first: u64, count: u64, value: &Bytes) -> Vec<Entry> {
    let entry = |index| Entry {
        index: Index(index),
        term: Term(1),
        kind: EntryKind::Command,
        context: Bytes::from_static(&[1; 24]),
        data: put(index % 1_000, value).encode(CommandVersion::CURRENT),
    };
    (first..first + count).map(entry).collect()
}

fn encode(operations: u64) -> Result<(), Box<dyn Error>> {
    let value = value();
    for number in 0..operations {
        black_box(put(number, &value).encode(CommandVersion::CURRENT));
    }
    Ok(())
}

fn decode(operations: u64) -> Result<(), Box<dyn Error>> {
    let encoded = put(1, &value()).encode(CommandVersion::CURRENT);
    for _ in 0..operations {
        black_box(Request::decode(encoded.clone())??);
    }
    Ok(())
}

fn append(operations: u64, at_once: u64) -> Result<(), Box<dyn Error>> {
    let mut log = open_log(MemberId(1))?;
    let value = value();
    for batch in 0..operations / at_once {
        let batch = Batch {
            hard_state: None,
            entries: entries(batch * at_once + 1, at_once, &value),
        };
        log.append(&batch)?;
    }
    Ok(())
}

/// From a proposal until the leader may apply it: consensus and logs of all three members, and what
/// they encode and decode between them.
fn replicate(operations: u64, at_once: u64) -> Result<(), Box<dyn Error>> {
    let mut cluster = Cluster::new()?;
    let value = value();
    for _ in 0..operations / at_once {
        let commands =
            (0..at_once).map(|number| put(number, &value).encode(CommandVersion::CURRENT));
        cluster.replicate(commands.collect())?;
    }
    Ok(())
}

fn apply(operations: u64, at_once: u64) -> Result<(), Box<dyn Error>> {
    let mut machine = StateMachine::open(MemoryStore::default())?;
    let value = value();
    for batch in 0..operations / at_once {
        black_box(machine.apply(&entries(batch * at_once + 1, at_once, &value))?);
    }
    Ok(())
}

fn get(operations: u64) -> Result<(), Box<dyn Error>> {
    let mut machine = StateMachine::open(MemoryStore::default())?;
    machine.apply(&entries(1, 1_000, &value()))?;
    let reader = machine.reader();
    for number in 0..operations {
        let key = Bytes::copy_from_slice(&(number % 1_000).to_be_bytes());
        black_box(reader.get(&key, None)?);
    }
    Ok(())
}
