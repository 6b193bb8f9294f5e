//! End-to-end tests on a real Kubernetes. Where none can be had they fail: there is no way to skip
//! them.
//!
//! All of them share one Kubernetes with one operator; each has a namespace of its own under the
//! restricted Pod Security profile. What takes long is in `full`, which `make test` leaves out and
//! `make e2e-full` runs.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod benchmarks;
mod clusters;
mod data;
mod etcd;
mod forward;
mod full;
mod grow;
mod install;
mod keys;
mod load;
mod lost_node;
mod node;
mod permissions;
mod plugin;
mod quota;
mod refusals;
mod repair;
mod roll;
mod runbook;
mod scale;
mod support;
mod turns;
mod volumes;
