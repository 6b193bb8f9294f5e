//! The deterministic simulator: a whole cluster and its clients in one thread, where one seed
//! decides everything.
//!
//! What runs here is what ships: consensus, the ordering of a replica, the log, and the state
//! machine are those of `dengine-raft`, and `dengine-checker` judges. The simulator adds the world
//! around them, and its faults. It holds no consensus, log or apply code of its own.
//! `docs/simulator.md` says what it does and how to run it.
//!
//! # Code map
//! [`world`] runs the phases; [`plan`] is what a seed decides beforehand, [`settings`] what each
//! member is started with, and [`focus`] what every other seed is about, [`full_disk`] what a few
//! are, and [`in_place`] whether callers take turns of members; [`faults`] what then goes
//! wrong, and [`targeted_fault`], [`delayed_votes`], [`deposed`] and
//! [`displaced`] what does so at the worst moment; [`roll`] replaces an older program; [`loss`] is
//! what a `memory-first` cluster may lose, [`restored`] what some of its members may know of that,
//! and [`forgiven`] what still counts of what clients were told. [`member`] is a machine with its
//! process; [`network`], [`clock`], [`store`] and [`folders`] are what it stands on (its disk is
//! [`MemoryDisk`](dengine_log::memory::MemoryDisk)). [`client`]s, [`holder`]s of leases and the
//! [`operator`] use it.
//! [`invariants`] watch, one file each; `search` asks them to find planted bugs, in the seeds that
//! `stories` names. [`surroundings`] holds what all share: [`queue`], [`random`], [`trace`].
//!
//! # Determinism
//! No clock, no thread, no hash map whose order shows, no randomness but [`random`]. Every line of
//! the trace goes into a hash, and a test runs a seed twice.

mod client;
mod clock;
mod delayed_votes;
mod deposed;
mod displaced;
mod faults;
mod focus;
mod folders;
mod forgiven;
mod full_disk;
mod guard;
mod holder;
mod in_place;
mod invariants;
mod load_wave;
mod loss;
mod member;
mod network;
mod operator;
mod plan;
mod queue;
mod random;
mod restored;
mod roll;
#[cfg(feature = "planted-bugs")]
mod search;
mod settings;
mod shadow;
mod store;
#[cfg(feature = "planted-bugs")]
mod stories;
mod surroundings;
mod targeted_fault;
#[cfg(test)]
mod tests;
mod ticket;
mod trace;
mod watcher;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use dengine_checker::History;

#[cfg(feature = "planted-bugs")]
pub use search::{Search, Sought};
pub use trace::Keep;

/// What came of one seed.
#[derive(Clone, Debug)]
pub struct Report {
    pub seed: u64,
    /// How much time passed in the simulation.
    pub simulated: Duration,
    /// How often things happened.
    pub counts: BTreeMap<&'static str, u64>,
    /// Of the whole trace: equal for equal seeds.
    pub trace_hash: u64,
    /// The lines of the trace that were kept.
    pub lines: Vec<String>,
    /// What clients asked and were told, if everything was kept.
    pub history: Option<History>,
    /// Sets of keys for which the search for an order gave up.
    pub undecided: usize,
    /// What was broken, if anything was.
    pub violation: Option<Violation>,
}

/// A broken invariant.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Its name.
    pub invariant: &'static str,
    /// How it was broken.
    pub what: String,
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, keep: Keep) -> Report {
    world::World::new(seed, keep).run(seed)
}
