//! End-to-end tests on a real Kubernetes. Where none can be had they fail: there is no way to skip them.
//!
//! All of them share one Kubernetes with one operator; each has a namespace of its own under the restricted Pod Security
//! profile.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod benchmarks;
mod data;
mod forward;
mod install;
mod load;
mod refusals;
mod support;
mod volumes;
