//! What the environment sets: how many cuts, which, and the seed.

use dengine_power_loss::{Counts, Cut, CutAt, Moment};
use dengine_testkit::settings;

/// Cuts at writes and other changes, by default.
const SAMPLES: u64 = 100;

pub(crate) struct Settings {
    pub(crate) seed: u64,
    samples: u64,
    only: Option<CutAt>,
}

impl Settings {
    /// # Panics
    /// One of them is invalid.
    pub(crate) fn read() -> Self {
        let number = |text: String| text.parse().expect("SEED and SAMPLES are numbers");
        Self {
            seed: settings::text("DENGINE_POWER_LOSS_SEED").map_or_else(rand::random, number),
            samples: settings::text("DENGINE_POWER_LOSS_SAMPLES").map_or(SAMPLES, number),
            only: settings::text("DENGINE_POWER_LOSS_CUT").map(|text| cut_at(&text)),
        }
    }

    /// Before and after each sync, and some of all other changes.
    pub(crate) fn cuts(&self, counts: Counts) -> Vec<Cut> {
        if let Some(at) = self.only {
            return both(at).to_vec();
        }
        let syncs = (1..=counts.syncs()).map(CutAt::Sync);
        let samples = self.samples.min(counts.changes());
        // Spread over all of them, the last ones too: one in each of as many equal parts.
        let changes = (0..samples).map(|sample| {
            let begin = sample * counts.changes() / samples;
            let end = (sample + 1) * counts.changes() / samples;
            CutAt::Change(begin + 1 + self.seed % (end - begin))
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What came after the first hundreds of changes was never cut.
    #[test]
    fn cuts_are_spread_over_all_changes() {
        let changes = |changes, seed| {
            let settings = Settings {
                seed,
                samples: 100,
                only: None,
            };
            let counts = Counts {
                writes: changes,
                ..Counts::default()
            };
            let cuts = settings.cuts(counts).into_iter().map(|cut| match cut.at {
                CutAt::Change(number) => number,
                CutAt::Sync(_) => panic!("there is none"),
            });
            cuts.collect::<Vec<_>>()
        };
        assert_eq!(changes(50, 7), (1..=50).collect::<Vec<_>>());
        for (all, part) in [(165, 2), (482, 5)] {
            for seed in 0..10 {
                let cuts = changes(all, seed);
                assert_eq!(cuts.len(), 100);
                assert!(cuts.is_sorted_by(|a, b| a < b) && cuts[0] >= 1);
                assert!((all - part + 1..=all).contains(&cuts[99]), "{cuts:?}");
            }
        }
    }
}
