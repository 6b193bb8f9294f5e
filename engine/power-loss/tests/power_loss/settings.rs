//! What a person may choose: how many cuts, which, and the seed.

use dengine_power_loss::{Counts, Cut, CutAt, Moment};

/// Of writes and other changes, as many are cut at if nothing is said.
const SAMPLES: u64 = 100;

pub(crate) struct Settings {
    pub(crate) seed: u64,
    samples: u64,
    /// Only this one.
    only: Option<CutAt>,
}

impl Settings {
    /// # Panics
    /// If one is not what it should be.
    pub(crate) fn read() -> Self {
        let number = |text: String| text.parse().expect("SEED and SAMPLES are numbers");
        Self {
            seed: setting("DENGINE_POWER_LOSS_SEED").map_or_else(rand::random, number),
            samples: setting("DENGINE_POWER_LOSS_SAMPLES").map_or(SAMPLES, number),
            only: setting("DENGINE_POWER_LOSS_CUT").map(|text| cut_at(&text)),
        }
    }

    /// Before and after each sync, and some of all other changes.
    pub(crate) fn cuts(&self, counts: Counts) -> Vec<Cut> {
        if let Some(at) = self.only {
            return both(at).to_vec();
        }
        let syncs = (1..=counts.syncs()).map(CutAt::Sync);
        let every = (counts.changes() / self.samples.max(1)).max(1);
        let first = 1 + self.seed % every;
        let changes = (first..=counts.changes()).step_by(every as usize);
        let changes = changes.take(self.samples as usize).map(CutAt::Change);
        syncs.flat_map(both).chain(changes.map(after)).collect()
    }
}

fn both(at: CutAt) -> [Cut; 2] {
    [Moment::Before, Moment::After].map(|moment| Cut { at, moment })
}

/// Before a change is after the one before.
fn after(at: CutAt) -> Cut {
    Cut {
        at,
        moment: Moment::After,
    }
}

fn cut_at(text: &str) -> CutAt {
    let parts = text
        .split_once(' ')
        .map(|(what, number)| (what, number.parse()));
    match parts {
        Some(("sync", Ok(number))) => CutAt::Sync(number),
        Some(("change", Ok(number))) => CutAt::Change(number),
        _ => panic!("CUT={text} is neither 'sync N' nor 'change N'"),
    }
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|it| !it.is_empty())
}
