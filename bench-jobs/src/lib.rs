//! Load generator for DEngine and etcd, run by hand or as a Kubernetes Job.
//!
//! A run is: parse ([`cli`]) → for each workload: connect and check health ([`target`]), fill the
//! key space, warm up and measure ([`load`], driven by [`session`]), with what it cost
//! ([`servers`]) → result ([`outcome`]) → summary, JSON and, inside Kubernetes, the status of a
//! `DEngineBenchmark` ([`post`]). Several pods can send one load together ([`pods`]). Results, once
//! there, are put side by side ([`compare`]) and shown ([`page`]).
//!
//! Only [`post`] knows Kubernetes; the feature `kubernetes` is for it and its flags, and the
//! program has it by default.
//!
//! # What a latency is
//!
//! Clients are closed loops unless a rate is set ([`load`] has the open loop too): each has one
//! request in flight and wants the next one in the moment the last one was answered. A latency runs
//! from the moment the request was wanted to the moment its answer was there; all first requests
//! are wanted at the run's common start. So whatever a request waits for on its way, inside this
//! tool too, counts. Failed requests are counted, never timed.

pub mod cli;
pub mod compare;
pub mod cut;
pub mod disk;
pub mod files;
pub mod folder;
pub mod keys;
pub mod load;
pub mod machine;
pub mod outcome;
pub mod page;
pub mod pods;
#[cfg(feature = "kubernetes")]
pub mod post;
pub mod profiles;
pub mod progress;
pub mod run;
pub mod servers;
pub mod session;
pub mod summary;
pub mod target;
