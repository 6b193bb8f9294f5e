//! What threads hand over through locks, queues and wakers.

mod answers;
mod cache;
mod channel;
mod link;
mod log;
mod member;
mod revisions;
mod watches;
mod writes;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};

/// Orders are drawn from this, so that a test finds the same each time. `SHUTTLE_RANDOM_SEED` draws
/// others.
const SEED: u64 = 12;

fn run(scheduler: impl Scheduler + 'static, model: fn()) {
    Runner::new(scheduler, Config::new()).run(model);
}

/// Tries so many orders in which each turn is drawn by itself.
fn any_turns(orders: usize, model: fn()) {
    run(RandomScheduler::new_from_seed(SEED, orders), model);
}

/// Tries so many orders in which threads are interrupted three times at most (probabilistic
/// concurrency testing): some have very many turns in a row, which the others hardly ever give.
fn long_turns(orders: usize, model: fn()) {
    run(PctScheduler::new_from_seed(SEED, 3, orders), model);
}
