//! Kubernetes operator of DEngine.
//!
//! Each controller goes observe (I/O) → validate (pure) → plan (pure) → act (I/O) → status (pure).
//! Invariants: at most one step that touches a quorum at a time, derived from the current state
//! each time; nothing is written when nothing changed; no data is deleted but that of a member that
//! the operator removed. Deliberately absent: finalizers, webhooks, and any memory between two
//! reconciliations other than the cluster's status and marks on claims and volumes. Counters and
//! timers of this process only ever make it wait.

mod apply;
pub mod benchmark;
pub mod check;
pub mod cluster;
mod conditions;
pub mod context;
mod deadlines;
mod guard;
mod hash;
mod http;
mod lease;
mod limits;
pub mod members;
pub mod options;
mod pace;
pub mod pod;
mod quantity;
pub mod readiness;
pub mod retries;
pub mod run;
pub mod scope;
mod status_writer;
pub mod telemetry;
