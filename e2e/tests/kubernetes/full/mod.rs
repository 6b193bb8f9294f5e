//! What takes too long for `make test`: `make e2e-full` runs these, docs/testing.md says how long
//! each takes.

mod etcd;
mod idle;
mod kwok;
mod operator;
mod partitions;
mod recover;
mod repair;
mod roll;
mod scale;
mod schedule;
mod space;
mod store;
