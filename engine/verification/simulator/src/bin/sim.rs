//! Runs the deterministic simulator: `make sim`. See docs/simulator.md.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use dengine_simulator::{Keep, Report};

/// Runs whole clusters in simulated time, and looks for broken promises.
#[derive(Parser)]
struct Arguments {
    /// Replays this seed, and prints everything that happens.
    #[arg(long)]
    seed: Option<u64>,
    /// Writes down what the clients of this seed asked and were told, one JSON object a line: the
    /// example `check_history` judges it again.
    #[arg(long, requires = "seed")]
    history: Option<std::path::PathBuf>,
    /// Runs fresh seeds for so many seconds.
    #[arg(long, default_value_t = 60)]
    budget: u64,
    /// Runs so many seeds, however long it takes.
    #[arg(long, conflicts_with = "budget")]
    seeds: Option<u64>,
    /// The first of the seeds; drawn from the clock if it is not given. Planted bugs are looked for
    /// from each of several.
    #[arg(long, value_delimiter = ',')]
    from: Vec<u64>,
    /// How many threads run seeds.
    #[arg(long, default_value_t = 1)]
    threads: u64,
    /// Switches a planted bug on, or one after the other with `all`, and says how many seeds it
    /// takes to find it.
    #[cfg(feature = "planted-bugs")]
    #[arg(long)]
    planted: Option<String>,
    /// Gives up on a planted bug after so many seeds.
    #[cfg(feature = "planted-bugs")]
    #[arg(long, default_value_t = 1000)]
    max_seeds: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    #[cfg(feature = "planted-bugs")]
    if let Some(name) = &arguments.planted {
        return planted::run(name, &arguments);
    }
    match arguments.seed {
        Some(seed) => replay(seed, &arguments),
        None => explore(&arguments),
    }
}

fn replay(seed: u64, arguments: &Arguments) -> ExitCode {
    let report = dengine_simulator::run(seed, Keep::Everything);
    if let (Some(path), Some(history)) = (&arguments.history, &report.history) {
        let written = std::fs::File::create(path)
            .and_then(|file| history.write_json_lines(std::io::BufWriter::new(file)));
        if let Err(error) = written {
            eprintln!("the history was not written to {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    for line in &report.lines {
        println!("{line}");
    }
    println!("trace {:016x}", report.trace_hash);
    verdict(&report)
}

/// Says what is wrong, if anything is, and how to see it again.
fn verdict(report: &Report) -> ExitCode {
    let Some(violation) = &report.violation else {
        return ExitCode::SUCCESS;
    };
    println!(
        "seed {}: broken: {}: {}",
        report.seed, violation.invariant, violation.what
    );
    println!("replay it: make sim SEED={}", report.seed);
    ExitCode::FAILURE
}

/// What all seeds together came to.
#[derive(Default)]
struct Total {
    seeds: u64,
    simulated: Duration,
    counts: BTreeMap<&'static str, u64>,
    /// Seeds for which the search for an order gave up on some keys.
    undecided: Vec<u64>,
    broken: Vec<Report>,
}

impl Total {
    fn add(&mut self, report: Report) {
        self.seeds += 1;
        self.simulated += report.simulated;
        for (what, count) in &report.counts {
            *self.counts.entry(what).or_default() += count;
        }
        if report.undecided > 0 {
            self.undecided.push(report.seed);
        }
        if report.violation.is_some() {
            self.broken.push(report);
        }
    }

    fn merge(mut self, other: Self) -> Self {
        self.seeds += other.seeds;
        self.simulated += other.simulated;
        for (what, count) in other.counts {
            *self.counts.entry(what).or_default() += count;
        }
        self.undecided.extend(other.undecided);
        self.broken.extend(other.broken);
        self
    }

    fn print(&self, took: Duration) {
        let hours = self.simulated.as_secs_f64() / 3600.0;
        println!("{:>12} seeds in {:.0} s", self.seeds, took.as_secs_f64());
        println!("{hours:>12.2} simulated hours");
        println!("{:>12} {:>12}", "total", "per hour");
        for (what, count) in &self.counts {
            println!("{count:>12} {:>12.1}  {what}", *count as f64 / hours);
        }
        println!(
            "{:>12} seeds not decided: {:?}",
            self.undecided.len(),
            self.undecided
        );
        println!("{:>12} violations", self.broken.len());
    }
}

fn explore(arguments: &Arguments) -> ExitCode {
    let begin = Instant::now();
    let first = arguments.from.first().copied();
    let first = first.unwrap_or_else(fresh_seed);
    println!("seeds from {first} on");
    let threads = arguments.threads.max(1);
    let total = std::thread::scope(|scope| {
        let work = |lane| move || run_lane(arguments, begin, first + lane, threads);
        let lanes: Vec<_> = (0..threads).map(|lane| scope.spawn(work(lane))).collect();
        let totals = lanes
            .into_iter()
            .map(|lane| lane.join().expect("a lane does not panic"));
        totals.fold(Total::default(), Total::merge)
    });
    total.print(begin.elapsed());
    let failed = total.broken.iter().map(verdict).count();
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Every so manieth seed, as long as there is time.
fn run_lane(arguments: &Arguments, begin: Instant, first: u64, step: u64) -> Total {
    let budget = Duration::from_secs(arguments.budget);
    let mut total = Total::default();
    for turn in 0.. {
        let over = match arguments.seeds {
            Some(seeds) => turn * step >= seeds,
            None => begin.elapsed() >= budget,
        };
        if over {
            break;
        }
        total.add(dengine_simulator::run(
            first.wrapping_add(turn * step),
            Keep::Hash,
        ));
    }
    total
}

fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // Short enough to be typed.
    now.map_or(1, |now| now.as_nanos() as u64 % 1_000_000_000)
}

#[cfg(feature = "planted-bugs")]
mod planted {
    use dengine_planted::{Bug, plant};
    use dengine_simulator::{Search, Sought};

    use super::{Arguments, ExitCode};

    /// Looks for planted bugs, and prints the rows of the table in docs/simulator.md.
    pub(super) fn run(name: &str, arguments: &Arguments) -> ExitCode {
        let bugs = match (name, Bug::named(name)) {
            ("all", _) => Bug::ALL.to_vec(),
            (_, Some(bug)) => vec![bug],
            (_, None) => {
                eprintln!("there is no planted bug {name}; there are");
                for bug in Bug::ALL {
                    eprintln!("  {}", bug.name());
                }
                return ExitCode::FAILURE;
            }
        };
        if let Some(seed) = arguments.seed {
            plant(Some(bugs[0]));
            return super::replay(seed, arguments);
        }
        let ranges = match arguments.from.as_slice() {
            [] => vec![1],
            from => from.to_vec(),
        };
        let search = Search {
            bugs,
            ranges,
            within: arguments.max_seeds,
            threads: usize::try_from(arguments.threads).unwrap_or(usize::MAX),
        };
        print_head(&search.ranges);
        let all = search.run(|sought| print_row(sought, search.within));
        let never = match name {
            "all" => search.never_first(&all),
            _ => Vec::new(),
        };
        for invariant in &never {
            eprintln!("no planted bug was first reported by {invariant:?}");
        }
        match all.iter().all(Sought::is_found) && never.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }
    }

    fn print_head(ranges: &[u64]) {
        let from = ranges
            .iter()
            .map(|first| format!(" from {} |", with_commas(*first)));
        println!("| planted bug |{} found as |", from.collect::<String>());
        println!("|---|{}---|", "---|".repeat(ranges.len()));
    }

    fn print_row(sought: &Sought, within: u64) {
        let cell = |seeds: &Option<u64>| match seeds {
            Some(seeds) => format!(" {seeds} |"),
            None => format!(" more than {within} |"),
        };
        let cells: String = sought.seeds.iter().map(cell).collect();
        let (name, found_as) = (sought.bug.name(), sought.found_as.join(", "));
        println!("| {name} |{cells} {found_as} |");
    }

    fn with_commas(number: u64) -> String {
        let digits = number.to_string();
        let groups = digits.as_bytes().rchunks(3).rev();
        let groups = groups.map(|group| String::from_utf8_lossy(group).into_owned());
        groups.collect::<Vec<_>>().join(",")
    }
}
