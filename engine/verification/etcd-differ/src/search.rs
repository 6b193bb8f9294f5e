//! Many sequences, each on systems that are equal at its beginning, until time or calls are used up
//! or a difference is found.
//!
//! Programs are started again for each sequence. A cluster has one sequence of revisions, so what
//! one sequence leaves behind would be part of the next, and a difference could be replayed only
//! with all that went before. A start takes about as long as some hundred calls.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::stream::{FuturesUnordered, StreamExt as _};
use tempfile::TempDir;
use tonic::Code;

use crate::generate::{Calls, Mood, sequence};
use crate::level::level;
use crate::operation::Operation;
use crate::pb;
use crate::plant::{Plant, Planted};
use crate::run::{Difference, Tally, run};
use crate::shrink::shrink;
use crate::source::{Running, Source, Starting};
use crate::system::{Client, System as _};

/// The two sides, and how they are made ready.
#[derive(Clone, Debug)]
pub struct Sides {
    pub left: Source,
    pub right: Source,
    pub starting: Starting,
    /// Keys of systems that serve already may be deleted.
    pub erase: bool,
    /// The mistake in the right side's answers.
    pub plant: Option<Plant>,
}

/// When a search ends without a difference, and what it draws.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Of the first sequence; each further one has the next.
    pub seed: u64,
    /// `None`: the moods take turns.
    pub mood: Option<Mood>,
    /// Calls of a sequence.
    pub length: usize,
    pub operations: Option<u64>,
    pub time: Option<Duration>,
    /// Sequences under way at a time, each on systems of its own. Most of one's time is spent
    /// waiting: for systems to start, and for events that may still come.
    pub jobs: usize,
    pub calls: Calls,
}

/// A difference, and the sequence that shows it.
#[derive(Clone, Debug)]
pub struct Found {
    pub seed: u64,
    pub mood: Mood,
    pub operations: Vec<Operation>,
    pub difference: Difference,
    /// Whether the sequence differed again when it was repeated. If not, it is what was first run.
    pub again: bool,
}

/// A sequence that was run.
struct Ran {
    seed: u64,
    mood: Mood,
    operations: Vec<Operation>,
    alike: Tally,
    difference: Option<Difference>,
}

impl Bounds {
    /// Whether there may be another sequence after so many calls, those under way included.
    fn allow(&self, calls: u64, begun: Instant) -> bool {
        let calls = self.operations.is_none_or(|most| calls < most);
        calls && self.time.is_none_or(|most| begun.elapsed() < most)
    }

    fn mood(&self, seed: u64) -> Mood {
        let turn = if seed.is_multiple_of(2) {
            Mood::Valid
        } else {
            Mood::Hostile
        };
        self.mood.unwrap_or(turn)
    }
}

impl Sides {
    /// Runs one sequence; what was done alike is added to `tally`. The number chooses which member
    /// of each side is asked.
    ///
    /// # Errors
    /// A system does not start, or can't be made ready.
    pub async fn run(
        &self,
        operations: &[Operation],
        number: u64,
        tally: &mut Tally,
    ) -> Result<Option<Difference>> {
        let folder = TempDir::new()?;
        let below = |name: &str| folder.path().join(name);
        let (left, right) = (below("left"), below("right"));
        let [left, right] = self.start(&left, &right).await?;
        let member = |addresses: &[String]| {
            let place = number % addresses.len() as u64;
            addresses[place as usize].clone()
        };
        let mut one = Client::connect(&member(&left.addresses)).await?;
        let mut other = Client::connect(&member(&right.addresses)).await?;
        if !left.fresh || !right.fresh {
            level(&mut one, &mut other, self.erase).await?;
        }
        let mut other = Planted {
            system: other,
            plant: self.plant,
        };
        Ok(run(&mut one, &mut other, operations, tally).await)
    }

    async fn start(&self, left: &Path, right: &Path) -> Result<[Running; 2]> {
        let left = self.left.start(left, &self.starting);
        let right = self.right.start(right, &self.starting);
        let (left, right) = tokio::try_join!(left, right)?;
        Ok([left, right])
    }

    /// Runs sequences until the bounds are reached, or to the first difference, which is made
    /// short. That takes minutes: `on_difference` is shown it as it was found.
    ///
    /// # Errors
    /// As [`run`](Self::run), and if several sequences are to be run at a time on systems that
    /// serve already.
    pub async fn search(
        &self,
        bounds: &Bounds,
        tally: &mut Tally,
        on_difference: impl FnOnce(&Found),
    ) -> Result<Option<Found>> {
        ensure!(
            bounds.jobs <= 1 || self.are_started_here(),
            "several sequences at a time would meet in systems that are named by address"
        );
        let begun = Instant::now();
        let calls = Calls {
            range_stream: self.left_has_range_stream().await?,
            ..bounds.calls
        };
        let mut seeds = bounds.seed..;
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < bounds.jobs.max(1)
                && bounds.allow(
                    tally.total() + (under_way.len() * bounds.length) as u64,
                    begun,
                )
            {
                let seed = seeds.next().expect("an open range");
                under_way.push(self.draw_and_run(seed, bounds, calls));
            }
            let Some(ran) = under_way.next().await else {
                return Ok(None);
            };
            let ran = ran?;
            tally.merge(&ran.alike);
            if let Some(difference) = ran.difference {
                drop(under_way);
                let found = Found {
                    seed: ran.seed,
                    mood: ran.mood,
                    operations: ran.operations,
                    difference,
                    again: false,
                };
                on_difference(&found);
                return Ok(Some(self.shorten(found).await?));
            }
        }
    }

    async fn draw_and_run(&self, seed: u64, bounds: &Bounds, calls: Calls) -> Result<Ran> {
        let mood = bounds.mood(seed);
        let operations = sequence(seed, mood, bounds.length, calls);
        let mut alike = Tally::default();
        let difference = self.run(&operations, seed, &mut alike).await?;
        Ok(Ran {
            seed,
            mood,
            operations,
            alike,
            difference,
        })
    }

    fn are_started_here(&self) -> bool {
        let is_named = |side: &Source| matches!(side, Source::Endpoints(_));
        !is_named(&self.left) && !is_named(&self.right)
    }

    /// etcd has it since 3.7.
    async fn left_has_range_stream(&self) -> Result<bool> {
        let folder = TempDir::new()?;
        let left = self.left.start(folder.path(), &self.starting).await?;
        let mut client = Client::connect(&left.addresses[0]).await?;
        let asked = Operation::RangeStream(pb::RangeRequest {
            key: "\0".into(),
            ..Default::default()
        });
        Ok(client.call(&asked).await.code() != Code::Unimplemented)
    }

    /// The fewest calls that still differ.
    async fn shorten(&self, mut found: Found) -> Result<Found> {
        let seed = found.seed;
        let mut seen = None;
        let mut first = found.operations.clone();
        first.truncate(found.difference.at + 1);
        let mut differs = async |operations: &[Operation]| {
            let difference = self.run(operations, seed, &mut Tally::default()).await?;
            let differs = difference.is_some();
            seen = difference.or(seen.take());
            anyhow::Ok(differs)
        };
        if !differs(&first).await? {
            return Ok(found);
        }
        let short = shrink(first, differs).await?;
        found.again = true;
        found.difference = seen.expect("the first run of it differed");
        // What was seen last is of the last sequence that differed, which is the shortest.
        found.operations = short;
        Ok(found)
    }
}
