//! Rust client of DEngine.
//!
//! [`Client`] reads, writes and watches keys over any number of endpoints and connections;
//! [`AdminClient`] asks one member to change or describe its cluster. What may live here:
//! connections, deadlines and typed results. What may not: anything a server decides; and what the
//! client decides, retries above all, lives in [`policy`], which the simulator runs too.
//!
//! ```no_run
//! use dengine_client::{Client, Consistency, Expected};
//!
//! # async fn example() -> dengine_client::Result<()> {
//! let client = Client::connect(["127.0.0.1:4100", "127.0.0.1:4110"]).await?;
//! let put = client.put("color", "blue").await?;
//!
//! let got = client.get("color", Consistency::Linearizable).await?;
//! assert_eq!(got.kv.expect("it was just written").value, "blue");
//!
//! let unchanged = Expected::ModRevision(put.header.revision);
//! let swap = client.compare_and_swap("color", unchanged, "green").await?;
//! assert!(swap.succeeded);
//! # Ok(())
//! # }
//! ```
//!
//! # What is retried
//!
//! A call is repeated, with growing and jittered pauses and within its one deadline, only while
//! [`Error::retryable`] says that nothing was changed. A write whose outcome is unknown comes back
//! as [`Error::UnknownOutcome`] and is never sent again behind the caller's back, unless it belongs
//! to a session:
//!
//! ```no_run
//! use dengine_client::{Batch, Client, Compare, Operation, SessionOptions};
//!
//! # async fn example(client: Client) -> dengine_client::Result<()> {
//! let client = client.with_session(SessionOptions::default()).await?;
//! // Sent as often as it takes, and applied once.
//! let batch = Batch::new()
//!     .when(Compare::absent("lock"))
//!     .then(Operation::put("lock", "mine"));
//! let taken = client.batch(batch).await?.succeeded;
//! # Ok(())
//! # }
//! ```
//!
//! The client trusts the status codes of DEngine's own members. What stands in between, such as a
//! proxy, may answer in a member's place after it has passed a write on: with [`Wire::Unary`], a
//! refusal without a member's word leaves a write unknown. That of an older member, from before
//! there was such a word, is one of these, unless it names the leader. And a proxy must not repeat
//! writes by itself.

#![warn(missing_docs)]
// Without the feature, what the text above links to is not there.
#![cfg_attr(not(feature = "transport"), allow(rustdoc::broken_intra_doc_links))]

#[cfg(feature = "transport")]
mod admin;
#[cfg(feature = "transport")]
mod batch;
#[cfg(feature = "transport")]
mod call;
#[cfg(feature = "transport")]
mod client;
#[cfg(feature = "transport")]
mod error;
#[cfg(feature = "transport")]
mod leader;
#[cfg(feature = "transport")]
mod options;
#[cfg(feature = "transport")]
mod pages;
#[cfg(feature = "transport")]
mod pipe;
pub mod policy;
#[cfg(feature = "transport")]
mod pool;
#[cfg(feature = "transport")]
mod session;
#[cfg(feature = "transport")]
mod silence;
#[cfg(feature = "transport")]
mod types;
#[cfg(feature = "transport")]
mod watch;

#[cfg(feature = "transport")]
pub use admin::{AdminClient, AdminOptions};
#[cfg(feature = "transport")]
pub use batch::{Batch, BatchResult, Compare, Operation, OperationResult};
#[cfg(feature = "transport")]
pub use client::Client;
#[cfg(feature = "transport")]
pub use error::{Error, Result};
#[cfg(feature = "transport")]
pub use options::{ClientOptions, Wire};
#[cfg(feature = "transport")]
pub use pages::Pages;
#[cfg(feature = "transport")]
pub use pipe::{Answered, Counted, OnLeader, Pipe, PipeError, QUEUED_BYTES};
#[cfg(feature = "transport")]
pub use policy::{Position, RetryPolicy};
#[cfg(feature = "transport")]
pub use session::SessionOptions;
#[cfg(feature = "transport")]
pub use types::{
    CompactResult, Consistency, DeleteResult, Expected, GetResult, Header, KeyRange, KeyValue,
    PutOptions, PutResult, RangeQuery, RangeResult, SwapResult,
};
#[cfg(feature = "transport")]
pub use watch::{Event, EventKind, Watch, WatchQuery, WatchUpdate};

/// Messages of the Admin service as they are on the wire; [`AdminClient`] returns them unchanged.
#[cfg(feature = "transport")]
pub mod proto {
    pub use dengine_protocol::v1::{
        AddLearnerRequest, AddLearnerResponse, BootstrapRequest, BootstrapResponse, HashResponse,
        JoinRequest, JoinResponse, Lifecycle, Member, MemberProgress, MembersResponse,
        PromoteResponse, RemoveResponse, Role, SnapshotResponse, StatusResponse,
        TransferLeaderResponse,
    };
}
