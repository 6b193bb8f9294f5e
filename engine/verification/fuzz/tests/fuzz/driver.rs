//! Mutates, runs, keeps what is new, and writes down what fails.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::memory::most_held;

/// Inputs do not grow beyond this.
const INPUT_BYTES_MAX: usize = 64 << 10;
/// More inputs than this are not kept.
const POOL_MAX: usize = 4096;

/// One input takes well under a millisecond, also where many share a core.
const PATIENCE: Duration = Duration::from_secs(120);

/// Something that decodes bytes.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// Says in a few words what became of the bytes; panics if that is wrong.
    pub(crate) run: fn(&[u8]) -> String,
    /// Valid inputs.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
    /// What it may hold, and how much more for each byte of input.
    pub(crate) memory: (usize, usize),
}

/// Runs the corpus, then mutations for as long as the time allows.
pub(crate) fn run(target: &Target) {
    let seed = setting("DENGINE_FUZZ_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.unwrap().as_nanos() as u64
    });
    let budget = std::env::var("DENGINE_FUZZ_DURATION");
    let budget = budget.map_or(Duration::from_secs(1), |it| duration(&it));
    let mut pool = Pool::default();
    let dog = Watchdog::watch(target.name);
    for input in corpus(target.name).into_iter().chain((target.seeds)()) {
        pool.offer(&input, &dog.run(target, &input));
    }
    pool.valid = pool.inputs.len();
    let mut dice = Dice(seed);
    let (begun, mut runs) = (Instant::now(), 0_u64);
    while begun.elapsed() < budget {
        let input = pool.mutated(&mut dice);
        let became = dog.run(target, &input);
        pool.offer(&input, &became);
        runs += 1;
    }
    let (name, outcomes) = (target.name, pool.seen.len());
    report(&format!(
        "fuzz {name}: {runs} inputs, {outcomes} different outcomes, SEED={seed}"
    ));
}

#[expect(clippy::print_stdout, reason = "how much was tried is worth knowing")]
fn report(line: &str) {
    println!("{line}");
}

/// Ends the process if one input takes for ever.
struct Watchdog {
    name: &'static str,
    /// The input under way, and since when.
    current: Mutex<Option<(Instant, Vec<u8>)>>,
}

impl Watchdog {
    fn watch(name: &'static str) -> Arc<Self> {
        let dog = Arc::new(Self {
            name,
            current: Mutex::new(None),
        });
        let watching = Arc::downgrade(&dog);
        std::thread::spawn(move || {
            while let Some(dog) = watching.upgrade() {
                dog.look();
                drop(dog);
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        dog
    }

    fn look(&self) {
        if let Some((since, input)) = &*self.current.lock().unwrap()
            && since.elapsed() > PATIENCE
        {
            let file = keep(self.name, input);
            report(&format!(
                "fuzz {}: this input never ends: {}",
                self.name,
                file.display()
            ));
            std::process::abort();
        }
    }

    fn run(&self, target: &Target, input: &[u8]) -> String {
        *self.current.lock().unwrap() = Some((Instant::now(), input.to_vec()));
        let became = try_one(target, input);
        *self.current.lock().unwrap() = None;
        became
    }
}

/// Runs one input; writes it down if it breaks something.
fn try_one(target: &Target, input: &[u8]) -> String {
    let caught = catch_unwind(AssertUnwindSafe(|| most_held(|| (target.run)(input))));
    let (fixed, each) = target.memory;
    match caught {
        Ok((became, held)) if held <= fixed + each * input.len() => became,
        Ok((became, held)) => {
            let file = keep(target.name, input);
            panic!(
                "{held} bytes held for {} of input ({became}): {}",
                input.len(),
                file.display()
            );
        }
        Err(panic) => {
            let file = keep(target.name, input);
            report(&format!(
                "fuzz {}: this input panics: {}",
                target.name,
                file.display()
            ));
            std::panic::resume_unwind(panic);
        }
    }
}

fn keep(name: &str, input: &[u8]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("fuzz")
        .join(name);
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{:08x}", crc32c::crc32c(input)));
    fs::write(&file, input).unwrap();
    file
}

/// What once broke a target, from the repository.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fuzz/corpus")
        .join(name);
    let Ok(files) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// As `90`, `90s`, `15m` or `2h`.
fn duration(text: &str) -> Duration {
    let number = text.trim_end_matches(['s', 'm', 'h']);
    let unit = match &text[number.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => panic!("DENGINE_FUZZ_DURATION={text} is no duration"),
    };
    let number: u64 = number.parse().expect("a duration begins with a number");
    Duration::from_secs(number * unit)
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Inputs worth mutating: one for each outcome, whose numbers do not count.
#[derive(Default)]
struct Pool {
    inputs: Vec<Vec<u8>>,
    /// Those that were there in the beginning, which come first; most others are broken in some way.
    valid: usize,
    seen: BTreeSet<String>,
}

impl Pool {
    fn offer(&mut self, input: &[u8], became: &str) {
        let shape: String = became.chars().filter(|it| !it.is_ascii_digit()).collect();
        if self.seen.insert(shape) && self.inputs.len() < POOL_MAX {
            self.inputs.push(input.to_vec());
        }
    }

    fn mutated(&self, dice: &mut Dice) -> Vec<u8> {
        let mut input = self.any(dice).to_vec();
        for _ in 0..=dice.below(4) {
            self.mutate(&mut input, dice);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn any(&self, dice: &mut Dice) -> &[u8] {
        let among = match dice.below(4) {
            0 => self.valid,
            _ => self.inputs.len(),
        };
        &self.inputs[dice.below(among)]
    }

    fn mutate(&self, input: &mut Vec<u8>, dice: &mut Dice) {
        let at = dice.below(input.len() + 1);
        let span = at..(at + dice.below(16)).min(input.len());
        match dice.below(11) {
            0 => input.truncate(at),
            1 => drop(input.drain(span)),
            2 => input.insert(at, dice.next() as u8),
            3 => {
                let copied = input[span].to_vec();
                let _: Vec<u8> = input.splice(at..at, copied).collect();
            }
            4 => {
                let other = self.any(dice);
                let from = dice.below(other.len() + 1);
                let upto = (from + dice.below(64)).min(other.len());
                let end = (at + (upto - from)).min(input.len());
                let _: Vec<u8> = input
                    .splice(at..end, other[from..upto].iter().copied())
                    .collect();
            }
            5 | 6 => overwrite(input, at, &dice.number()),
            7 | 8 => replace_varint(input, at, dice),
            _ => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << dice.below(8);
                }
            }
        }
    }
}

fn overwrite(input: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, from) in input[at..].iter_mut().zip(bytes) {
        *to = *from;
    }
}

/// Puts another number in the place of a protobuf one, and lengthens some of what may be messages around it.
fn replace_varint(input: &mut Vec<u8>, at: usize, dice: &mut Dice) {
    const AROUND: usize = 64;
    let rest = &input[at..];
    let Some(old) = rest.iter().take(10).position(|byte| *byte < 0x80) else {
        return;
    };
    let end = at + old + 1;
    let new = varint(dice.edge());
    for place in at.saturating_sub(AROUND)..at {
        let length = usize::from(input[place]);
        // Of one byte, as protobuf has it, or the low one of two.
        let around = length < 0x80 && (end - 1..=input.len()).contains(&(place + 1 + length));
        if around && dice.below(2) == 0 {
            let longer = (length + new.len()).saturating_sub(old + 1);
            input[place] = longer.min(0x7f) as u8;
        }
    }
    let _: Vec<u8> = input.splice(at..end, new).collect();
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A number at which things overflow or begin, as 1 to 8 bytes of either order or as protobuf has it.
    fn number(&mut self) -> Vec<u8> {
        let number = self.edge();
        let width = [1, 2, 4, 8][self.below(4)];
        match self.below(3) {
            0 => number.to_le_bytes()[..width].to_vec(),
            1 => number.to_be_bytes()[8 - width..].to_vec(),
            _ => varint(number),
        }
    }

    fn edge(&mut self) -> u64 {
        const EDGES: [u64; 9] = [
            0,
            1,
            2,
            0x7f,
            0xff,
            1 << 31,
            u32::MAX as u64,
            1 << 63,
            u64::MAX,
        ];
        match self.below(3) {
            0 => self.next() >> self.below(64),
            _ => EDGES[self.below(EDGES.len())],
        }
    }
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        bytes.push(low | if number > 0 { 0x80 } else { 0 });
        if number == 0 {
            return bytes;
        }
    }
}
