//! Every write, linearizable read and lease read took effect at one moment between its call and its
//! answer; what any read shows at a revision is what the writes up to that revision made of it.

use dengine_checker::Rule;

use super::{End, Invariant};

pub(super) struct Linearizable;

impl Invariant for Linearizable {
    fn name(&self) -> &'static str {
        "linearizable"
    }

    fn end(&mut self, end: &End<'_>) -> Result<(), String> {
        end.judge(&[
            Rule::Malformed,
            Rule::RealTime,
            Rule::NeverWritten,
            Rule::WrongAtRevision,
            Rule::SeenDifferently,
            Rule::Compare,
            Rule::Linearizable,
        ])
    }
}
