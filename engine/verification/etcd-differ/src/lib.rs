//! Runs the same calls of the etcd API on two systems, and compares every field of every answer,
//! every code and text of a refusal, and every event of a watch: [`Sides::search`].
//!
//! [`sequence`] makes calls from a seed, [`Sides::run`] sends them to both sides, one at a time, so
//! that their order is the same. What may differ has a name: [`MASKS`] is what depends on the
//! machine or the moment, [`EXPLAINED`] where DEngine answers as etcd does not, and is meant to.
//!
//! What may not live here: anything of DEngine but the messages of the API. Both sides are reached
//! by gRPC alone, and judged by what they say.

mod contests;
mod explained;
mod generate;
mod level;
mod masks;
mod operation;
mod pieces;
mod plant;
mod reply;
mod run;
mod search;
mod shift;
mod shrink;
mod source;
mod stream;
mod system;
#[cfg(test)]
mod tests;

pub use explained::{EXPLAINED, Explained};
pub use generate::{Calls, Mood, sequence};
pub use masks::{MASKS, Mask};
pub use operation::{Operation, from_text, to_text};
pub use plant::Plant;
pub use run::{Difference, Tally};
pub use search::{Bounds, Found, Sides};
pub use source::{Source, Starting};

/// The messages of the API.
mod pb {
    pub(crate) use dengine_etcd::etcdserverpb::*;
    pub(crate) use dengine_etcd::mvccpb::*;
    pub(crate) use dengine_etcd::v3electionpb::*;
    pub(crate) use dengine_etcd::v3lockpb::*;
}
