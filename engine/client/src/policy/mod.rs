//! What a client of DEngine decides, apart from how it sends: what is sent again and where, which
//! stamp a write of a session carries, which revision a session read must have seen, and where a
//! watch goes on.
//!
//! What may live here: code whose outcome depends on its arguments alone, so that the client and
//! the simulator run the same. What may not: clocks, randomness, sockets, async, any dependency,
//! and whatever else is in this crate. `make lint` compiles this module alone, which is all there
//! is without the feature `transport`.
//!
//! Time is a [`Duration`](std::time::Duration) since any origin that the caller keeps to;
//! randomness is a number that the caller draws.

mod atomic_time;
mod health;
mod lanes;
mod position;
mod retry;
mod session;
mod watch;

pub use atomic_time::AtomicTime;
pub use health::COOL_DOWN;
pub use lanes::{Lanes, RENEW_AFTER};
pub use position::Position;
pub use retry::{Attempts, Code, End, Failure, Failures, Next, Operation, RetryPolicy, Target};
pub use session::{Lease, Pace, Sequencer, Stamp, WINDOW};
pub use watch::{Broken, WatchCursor};
