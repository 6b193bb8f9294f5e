//! Compares two systems that speak the etcd API: `etcd-differ --left etcd=etcd --right
//! dengine=dengine`. Ends with 0 if no difference was found, with 1 if one was, with 2 if something
//! else failed.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use dengine_etcd_differ::{
    Bounds, Calls, EXPLAINED, Found, MASKS, Mood, Plant, Sides, Source, Starting, Tally, from_text,
    to_text,
};

/// Runs random calls of the etcd API on two systems, and reports the first difference.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    sides: SideArguments,
    /// The first seed; each sequence has the next [default: drawn from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Ends after so many calls
    #[arg(long, value_name = "N")]
    operations: Option<u64>,
    /// Ends after so many seconds [default: 60, without --operations]
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Calls of one sequence, which begins with fresh data
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    length: usize,
    /// Sequences at a time, each on systems of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// How sequences behave [default: valid for even seeds, hostile for odd ones]
    #[arg(long, value_enum)]
    mood: Option<Mood>,
    /// Calls that are left out otherwise
    #[arg(long, value_enum, value_delimiter = ',')]
    with: Vec<With>,
    /// Runs the sequence of this file instead
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Folder for the sequence that shows a difference
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    output: PathBuf,
    /// Says what is not compared, and why
    #[arg(long)]
    list_masks: bool,
    /// Says where DEngine is meant to answer as etcd does not, and why
    #[arg(long)]
    list_explained: bool,
}

/// What is said without comparing anything.
const LISTS: [&str; 2] = ["list_masks", "list_explained"];

#[derive(clap::Args)]
struct SideArguments {
    /// etcd=PROGRAM, dengine=PROGRAM, or the addresses of one cluster, separated by commas
    #[arg(long, value_name = "SYSTEM", required_unless_present_any = LISTS)]
    left: Option<Source>,
    /// What it is compared with
    #[arg(long, value_name = "SYSTEM", required_unless_present_any = LISTS)]
    right: Option<Source>,
    /// Members of a cluster of DEngine that is started here
    #[arg(long, value_name = "N", default_value_t = 1)]
    members: usize,
    /// Further flags of `dengine serve`, such as --serve-arg=--durability=memory-first
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    serve_arg: Vec<String>,
    /// Deletes what systems hold that are named by address
    #[arg(long)]
    erase: bool,
    /// Spoils the right side's answers, to see that it is found
    #[arg(long, value_enum)]
    plant: Option<Plant>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum With {
    Leases,
    Alarms,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list_masks || arguments.list_explained {
        list(&arguments);
        return ExitCode::SUCCESS;
    }
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}

fn list(arguments: &Arguments) {
    if arguments.list_masks {
        for mask in MASKS {
            println!("{}: {}; {}", mask.name, mask.what, mask.why);
        }
    }
    if arguments.list_explained {
        for explained in EXPLAINED {
            println!("{}: {}; {}", explained.name, explained.what, explained.why);
        }
    }
}

/// Whether both sides were alike.
#[tokio::main]
async fn run(arguments: &Arguments) -> Result<bool> {
    let sides = arguments.sides.sides()?;
    let mut tally = Tally::default();
    if let Some(file) = &arguments.replay {
        let operations = from_text(&fs_err::read_to_string(file)?)?;
        let difference = sides.run(&operations, 0, &mut tally).await?;
        print(&tally);
        let Some(difference) = difference else {
            println!("{} calls, and no difference", operations.len());
            return Ok(true);
        };
        println!("call {} of {}:", difference.at + 1, operations.len());
        print!("{}", to_text(&operations[difference.at..=difference.at]));
        print!("{}", difference.what);
        return Ok(false);
    }
    let bounds = arguments.bounds()?;
    println!("seed {}", bounds.seed);
    let found = sides.search(&bounds, &mut tally, announce).await?;
    print(&tally);
    match found {
        Some(found) => report(&found, arguments).map(|()| false),
        None => {
            println!("no difference");
            Ok(true)
        }
    }
}

impl SideArguments {
    fn sides(&self) -> Result<Sides> {
        let side = |source: &Option<Source>| {
            let named = source.clone();
            named.context("--left and --right are needed")
        };
        Ok(Sides {
            left: side(&self.left)?,
            right: side(&self.right)?,
            starting: Starting {
                members: self.members,
                serve_args: self.serve_arg.clone(),
            },
            erase: self.erase,
            plant: self.plant,
        })
    }
}

impl Arguments {
    fn bounds(&self) -> Result<Bounds> {
        let seconds = match self.operations {
            Some(_) => self.seconds,
            None => self.seconds.or(Some(60)),
        };
        let clock = || {
            let now = std::time::SystemTime::now();
            let since = now.duration_since(std::time::UNIX_EPOCH)?;
            anyhow::Ok(since.as_secs())
        };
        Ok(Bounds {
            seed: self.seed.map_or_else(clock, Ok)?,
            mood: self.mood,
            length: self.length,
            operations: self.operations,
            time: seconds.map(Duration::from_secs),
            jobs: self.jobs,
            calls: Calls {
                leases: self.with.contains(&With::Leases),
                alarms: self.with.contains(&With::Alarms),
                ..Calls::default()
            },
        })
    }
}

/// How often each call was answered alike, and how.
fn print(tally: &Tally) {
    for ((name, answer), count) in &tally.calls {
        println!("{count:>8}  {name}: {answer}");
    }
    for (name, count) in &tally.explained {
        println!("{count:>8}  explained: {name}");
    }
    println!("{:>8}  calls, {} events", tally.total(), tally.events);
}

/// Says what was found before it is made short.
fn announce(found: &Found) {
    let (seed, mood) = (found.seed, found.mood);
    let call = found.difference.at + 1;
    println!("seed {seed} ({mood:?}): a difference after {call} calls, < left, > right");
    print!("{}", found.difference.what);
    println!("making the sequence short, which takes some minutes");
}

fn report(found: &Found, arguments: &Arguments) -> Result<()> {
    let Found {
        seed,
        mood,
        operations,
        difference,
        again,
    } = found;
    println!("seed {seed} ({mood:?}): < left, > right");
    print!("{}", difference.what);
    let text = to_text(operations);
    if *again {
        println!("these {} calls show it:\n{text}", operations.len());
    } else {
        println!("it did not show again when the sequence was repeated");
    }
    fs_err::create_dir_all(&arguments.output)?;
    let file = arguments.output.join(format!("etcd-differ-{seed}.txt"));
    fs_err::write(&file, text)?;
    println!("replay it: {}", replay(&file));
    Ok(())
}

/// This program's command line, without what chose the sequence.
fn replay(file: &Path) -> String {
    const CHOSE: [&str; 8] = [
        "--seed",
        "--operations",
        "--seconds",
        "--length",
        "--jobs",
        "--mood",
        "--with",
        "--output",
    ];
    let mut words = std::env::args();
    let mut kept: Vec<String> = words.next().into_iter().collect();
    while let Some(word) = words.next() {
        let name = word.split('=').next().unwrap_or_default();
        if !CHOSE.contains(&name) {
            kept.push(word);
        } else if !word.contains('=') {
            words.next();
        }
    }
    format!("{} --replay {}", kept.join(" "), file.display())
}
