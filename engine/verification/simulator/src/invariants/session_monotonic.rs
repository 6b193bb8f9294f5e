//! A session reads its own writes, and never goes back in history, whichever member answers.

use dengine_checker::Rule;

use super::{End, Invariant};

pub(super) struct SessionMonotonic;

impl Invariant for SessionMonotonic {
    fn name(&self) -> &'static str {
        "session monotonic"
    }

    fn end(&mut self, end: &End<'_>) -> Result<(), String> {
        end.judge(&[Rule::Session])
    }
}
