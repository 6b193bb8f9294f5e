//! Rust client of DEngine.
//!
//! [`Client`] reads and writes keys over any number of endpoints and connections; [`AdminClient`]
//! asks one member to change or describe its cluster. What may live here: connections, deadlines,
//! retries and typed results. What may not: anything a server decides.
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
//! [`Error::retryable`] says that nothing was changed. A write whose outcome is unknown comes back as
//! [`Error::UnknownOutcome`] and is never sent again behind the caller's back.
//!
//! The client trusts the status codes of DEngine's own members. A proxy that answers
//! `UNAVAILABLE` in a member's place after it has passed a write on would break that trust.

mod admin;
mod client;
mod error;
mod options;
mod pool;
mod types;

pub use admin::{AdminClient, AdminOptions};
pub use client::Client;
pub use error::{Error, Result};
pub use options::{ClientOptions, RetryPolicy};
pub use types::{
    Consistency, DeleteResult, Expected, GetResult, Header, KeyRange, KeyValue, PutResult,
    RangeQuery, RangeResult, SwapResult,
};

/// Messages of the Admin service as they are on the wire; [`AdminClient`] returns them unchanged.
pub mod proto {
    pub use dengine_api::v1::{
        AddLearnerRequest, AddLearnerResponse, BootstrapResponse, JoinRequest, JoinResponse,
        Lifecycle, Member, MemberProgress, MembersResponse, PromoteResponse, RemoveResponse, Role,
        StatusResponse, TransferLeaderResponse,
    };
}
