//! Judges a history that a failed run left: `cargo run -p dengine-checker --example check_history
//! -- history.jsonl`

#![expect(clippy::print_stdout, reason = "the verdict is the point")]

use std::fs::File;
use std::io::BufReader;

use dengine_checker::linearizable::DEFAULT_STEPS;
use dengine_checker::{History, check};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let history = History::read_json_lines(BufReader::new(File::open(&path)?))?;
        match check(&history, DEFAULT_STEPS) {
            Ok(summary) => println!("{path}: no violation; {summary:?}"),
            Err(violation) => println!("{path}: {violation}"),
        }
    }
    Ok(())
}
