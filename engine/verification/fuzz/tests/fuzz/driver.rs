//! Runs a target on its saved and valid inputs, and hands it to bolero for all others.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use bolero::{BorrowedInput, ByteSliceGenerator, DefaultEngine, TestTarget};
use dengine_testkit::settings;

use crate::inputs::{Input, Inputs};
use crate::memory::most_held;

/// One input takes well under a millisecond, also where many share a core.
const INPUT_TIME_MAX: Duration = Duration::from_secs(120);
/// For each target, if nothing else is asked for.
const DURATION: Duration = Duration::from_secs(1);

/// Something that decodes bytes.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// Panics if something is wrong.
    pub(crate) run: fn(&[u8]),
    /// Valid inputs.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
    /// How many bytes it may hold, and how many more for each byte of input.
    pub(crate) memory: (usize, usize),
}

/// What `bolero::check!()` returns.
type Check = TestTarget<ByteSliceGenerator, DefaultEngine, BorrowedInput>;

/// Tries what is known, then what bolero makes of it, for as long as the time allows.
pub(crate) fn run(name: &'static str, target: Target, test: Check) {
    let runner = Runner::new(name, target);
    let seeds = (target.seeds)().into_iter();
    let known: Vec<_> = saved(name).chain(seeds).map(Input).collect();
    known.iter().for_each(|input| runner.check(input));
    let inputs = match libfuzzer_corpus() {
        None => Inputs::MutationsOf(known),
        Some(corpus) => {
            known.iter().for_each(|input| seed(&corpus, input));
            Inputs::OfLibFuzzer
        }
    };
    test.with_test_time(settings::duration("DENGINE_FUZZ_DURATION").unwrap_or(DURATION))
        .with_generator(inputs)
        .for_each(|input| runner.check(input));
}

/// What once broke a target: what was put into the repository, and what libFuzzer found here.
fn saved(name: &str) -> impl Iterator<Item = Vec<u8>> {
    let crashes = source_folder().join("__fuzz__").join(name).join("crashes");
    let folders = [regressions(name), crashes];
    let files = folders.into_iter().filter_map(|it| fs::read_dir(it).ok());
    let mut paths: Vec<_> = files.flatten().map(|it| it.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| fs::read(path).unwrap())
}

fn regressions(name: &str) -> PathBuf {
    source_folder().join("regressions").join(name)
}

fn source_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz")
}

/// What libFuzzer mutates, if `cargo bolero test` started us: the first of its arguments.
fn libfuzzer_corpus() -> Option<PathBuf> {
    let arguments = std::env::var("BOLERO_LIBFUZZER_ARGS").ok()?;
    arguments.split(' ').next().map(PathBuf::from)
}

fn seed(corpus: &Path, input: &Input) {
    let name = format!("{:08x}", crc32c::crc32c(&input.0));
    fs::write(corpus.join(name), &input.0).unwrap();
}

struct Runner {
    name: &'static str,
    target: Target,
    watchdog: Arc<Watchdog>,
    failed: Once,
}

impl Runner {
    fn new(name: &'static str, target: Target) -> Self {
        Self {
            name,
            target,
            watchdog: Watchdog::start(name),
            failed: Once::new(),
        }
    }

    fn check(&self, input: &Input) {
        let _failure = Failure(self, input);
        let _watched = self.watchdog.watch(input);
        let ((), held) = most_held(|| (self.target.run)(&input.0));
        let (fixed, each) = self.target.memory;
        let bytes = input.0.len();
        assert!(
            held <= fixed + each * bytes,
            "{held} bytes held for {bytes} of input"
        );
    }
}

/// Saves the input if it is dropped by a panic.
struct Failure<'a>(&'a Runner, &'a Input);

impl Drop for Failure<'_> {
    fn drop(&mut self) {
        let Self(Runner { name, failed, .. }, input) = self;
        if std::thread::panicking() {
            // bolero makes an input smaller by many that fail too; the last one is what it prints.
            save_failure(name, input);
            failed.call_once(|| report_failure(name, input, "fails"));
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "a test that fails says how to try it again"
)]
fn report_failure(name: &str, input: &Input, what: &str) {
    eprintln!(
        "fuzz {name}: this input {what}: {input:?}
It is saved; if bolero makes it smaller, that is. To try it first from now on:
  install -D {} {}/WHAT-IT-IS
  cargo test --release -p dengine-fuzz --test fuzz -- --exact {name}
What bolero drew can be drawn again by the seed that it prints: make fuzz SEED=…",
        failure(name).display(),
        regressions(name).display(),
    );
}

#[expect(
    clippy::print_stderr,
    reason = "a panic here would hide the one that is reported"
)]
fn save_failure(name: &str, input: &Input) {
    let file = failure(name);
    let saved = fs::create_dir_all(failures()).and_then(|()| fs::write(&file, &input.0));
    if let Err(error) = saved {
        eprintln!("{}: {error}", file.display());
    }
}

fn failures() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz")
}

fn failure(name: &str) -> PathBuf {
    failures().join(format!("{name}.input"))
}

/// Ends the process if one input takes too long, which nothing else can stop.
struct Watchdog {
    name: &'static str,
    /// The input under way, and since when.
    current: Mutex<Option<(Instant, Input)>>,
}

/// An input is under way until this is dropped.
struct Watched<'a>(&'a Watchdog);

impl Watchdog {
    fn start(name: &'static str) -> Arc<Self> {
        let watchdog = Arc::new(Self {
            name,
            current: Mutex::new(None),
        });
        let watching = Arc::downgrade(&watchdog);
        std::thread::spawn(move || {
            while let Some(watchdog) = watching.upgrade() {
                watchdog.look();
                drop(watchdog);
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        watchdog
    }

    fn watch(&self, input: &Input) -> Watched<'_> {
        *self.current.lock().unwrap() = Some((Instant::now(), input.clone()));
        Watched(self)
    }

    fn look(&self) {
        if let Some((since, input)) = &*self.current.lock().unwrap()
            && since.elapsed() > INPUT_TIME_MAX
        {
            save_failure(self.name, input);
            report_failure(self.name, input, "does not end");
            std::process::abort();
        }
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        *self.0.current.lock().unwrap() = None;
    }
}
