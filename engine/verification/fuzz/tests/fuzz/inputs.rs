//! Where inputs come from.
//!
//! Within `cargo test`, nothing tells bolero how far an input got, and random bytes do not get far:
//! so what it draws are mutations of valid inputs. libFuzzer is told, and brings its own bytes.

use std::fmt;

use bolero::{Driver, ValueGenerator};

/// Inputs do not grow beyond this.
const INPUT_BYTES_MAX: usize = 64 << 10;
const MUTATIONS_MAX: usize = 4;

/// Bytes that print as one line.
#[derive(Clone)]
pub(crate) struct Input(pub(crate) Vec<u8>);

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.escape_ascii();
        write!(f, "b\"{bytes}\" ({} bytes)", self.0.len())
    }
}

/// Draws what a target is run on.
pub(crate) enum Inputs {
    MutationsOf(Vec<Input>),
    /// As they come.
    OfLibFuzzer,
}

impl ValueGenerator for Inputs {
    type Output = Input;

    fn generate<D: Driver>(&self, driver: &mut D) -> Option<Input> {
        match self {
            Self::MutationsOf(known) => mutated(known, driver),
            Self::OfLibFuzzer => {
                let all = |bytes: &[u8]| Some((bytes.len(), Input(bytes.to_vec())));
                driver.gen_from_bytes(|| (0, None), all)
            }
        }
    }
}

fn mutated<D: Driver>(known: &[Input], driver: &mut D) -> Option<Input> {
    let mut input = any(known, driver)?.to_vec();
    for _ in 0..(1..=MUTATIONS_MAX).generate(driver)? {
        mutate(&mut input, known, driver)?;
    }
    input.truncate(INPUT_BYTES_MAX);
    Some(Input(input))
}

fn any<'a, D: Driver>(known: &'a [Input], driver: &mut D) -> Option<&'a [u8]> {
    Some(&known[(0..known.len()).generate(driver)?].0)
}

fn mutate<D: Driver>(input: &mut Vec<u8>, known: &[Input], driver: &mut D) -> Option<()> {
    let at = (0..=input.len()).generate(driver)?;
    let span = at..(at + (0..16).generate(driver)?).min(input.len());
    match (0..11_u8).generate(driver)? {
        0 => input.truncate(at),
        1 => drop(input.drain(span)),
        2 => input.insert(at, driver.produce()?),
        3 => {
            let copied = input[span].to_vec();
            drop(input.splice(at..at, copied));
        }
        4 => {
            let other = any(known, driver)?;
            let from = (0..=other.len()).generate(driver)?;
            let upto = (from + (0..64).generate(driver)?).min(other.len());
            let end = (at + (upto - from)).min(input.len());
            drop(input.splice(at..end, other[from..upto].iter().copied()));
        }
        5 | 6 => {
            let number = number(driver)?;
            let places = input[at..].iter_mut().zip(number);
            places.for_each(|(place, byte)| *place = byte);
        }
        7 | 8 => replace_varint(input, at, driver)?,
        _ => {
            let bit = (0..8_u8).generate(driver)?;
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << bit;
            }
        }
    }
    Some(())
}

/// Puts another number in the place of a protobuf one, and lengthens some of what may be messages
/// around it.
fn replace_varint<D: Driver>(input: &mut Vec<u8>, at: usize, driver: &mut D) -> Option<()> {
    const AROUND: usize = 64;
    let Some(old) = input[at..].iter().take(10).position(|byte| *byte < 0x80) else {
        return Some(());
    };
    let end = at + old + 1;
    let new = varint(edge(driver)?);
    for place in at.saturating_sub(AROUND)..at {
        let length = usize::from(input[place]);
        // Of one byte, as protobuf has it, or the low one of two.
        let around = length < 0x80 && (end - 1..=input.len()).contains(&(place + 1 + length));
        if around && driver.produce()? {
            let longer = (length + new.len()).saturating_sub(old + 1);
            input[place] = longer.min(0x7f) as u8;
        }
    }
    drop(input.splice(at..end, new));
    Some(())
}

/// A number at which things overflow or begin, as 1 to 8 bytes of either order or as a varint.
fn number<D: Driver>(driver: &mut D) -> Option<Vec<u8>> {
    let number = edge(driver)?;
    let width = 1 << (0..4).generate(driver)?;
    Some(match (0..3_u8).generate(driver)? {
        0 => number.to_le_bytes()[..width].to_vec(),
        1 => number.to_be_bytes()[8 - width..].to_vec(),
        _ => varint(number),
    })
}

fn edge<D: Driver>(driver: &mut D) -> Option<u64> {
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
    Some(match (0..3_u8).generate(driver)? {
        0 => driver.produce::<u64>()? >> (0..64).generate(driver)?,
        _ => EDGES[(0..EDGES.len()).generate(driver)?],
    })
}

fn varint(number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(number, &mut bytes);
    bytes
}
