//! Kubernetes operator of DEngine.
//!
//! Each controller goes observe (I/O) → validate (pure) → plan (pure) → carry out (I/O) → status (pure).
//! Invariants: at most one step that touches a quorum at a time, derived anew each time from what is
//! true; nothing is written when nothing changed; no data is deleted but that of a member that the
//! operator removed. Deliberately absent: finalizers, webhooks, and any memory between two looks at a
//! cluster other than its status, and marks on claims and volumes. What a process counts or times only ever makes it wait.

mod apply;
pub mod benchmark;
pub mod check;
pub mod cluster;
mod conditions;
pub mod context;
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
