//! Real `dengine` processes on loopback: what only they can show.
//!
//! Each test has its own folder, its own ports and its own processes, and ends only those. What a
//! pure test or the simulator can show is shown there.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod admin;
mod batch;
mod cli;
mod connections;
mod damage;
mod durability;
mod etcd;
mod etcd_hash;
mod etcd_lease;
mod etcd_lock;
mod etcd_stream;
mod etcd_watch;
mod failover;
mod health;
mod identity;
mod keys;
mod kv;
mod large_values;
mod membership;
mod memory_first;
mod older;
mod overload;
mod pipeline;
mod reads;
mod rests;
mod scheduling;
mod sessions;
mod snapshot;
mod space;
mod tracing;
mod ttl;
mod watch;
mod watch_limits;

mod harness;
