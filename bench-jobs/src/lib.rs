//! Load generator for DEngine and etcd, run by hand or as a Kubernetes Job.
//!
//! A run is: parse ([`cli`]) → connect and check health ([`target`]) → fill the key space, warm up
//! and measure ([`load`], driven by [`run`]) → result ([`outcome`]) → summary, JSON and, inside
//! Kubernetes, the status of a `DEngineBenchmark` ([`report`]).
//!
//! # What a latency is
//!
//! Clients are closed loops: each has one request in flight and wants the next one in the moment the
//! last one was answered. A latency runs from the moment the request was wanted to the moment its
//! answer was there; all first requests are wanted at the run's common start. So whatever a request
//! waits for on its way, inside this tool too, counts. Failed requests are counted, never timed.

pub mod cli;
pub mod cut;
pub mod keys;
pub mod load;
pub mod outcome;
pub mod progress;
pub mod report;
pub mod run;
pub mod summary;
pub mod target;
