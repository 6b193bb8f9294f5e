//! A history that is written is read back unchanged.

use super::store::{Fault, run};
use crate::linearizable::DEFAULT_STEPS;
use crate::{History, check};

#[test]
fn a_history_comes_back_from_json_lines_as_it_was() {
    let history = run(7, 200, Fault::None).history;
    let mut lines = Vec::new();
    history.write_json_lines(&mut lines).unwrap();
    let back = History::read_json_lines(&lines[..]).unwrap();
    assert_eq!(back, history);
    check(&back, DEFAULT_STEPS).unwrap();
}

#[test]
fn a_file_that_is_something_else_is_refused() {
    for text in ["", "{}\n{\"client\":1}\n", "nothing\n"] {
        History::read_json_lines(text.as_bytes()).unwrap_err();
    }
}
