//! What threads hand over through locks, queues and wakers.

mod log;
mod member;
mod writes;

/// Random orders of a model with a few threads.
const ORDERS: usize = 2_000;
