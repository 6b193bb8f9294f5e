//! Mutated input for everything that decodes bytes of disks, clients, peers and servers.
//!
//! A target takes bytes; it must not panic, run without end, or hold more memory than its input
//! justifies. [`bolero`] runs the targets: within `cargo test` on stable Rust, on mutations of
//! valid inputs, or with `cargo bolero test TARGET` under libFuzzer, guided by coverage.
//! `make test` gives each target a second, `make fuzz` minutes (`DURATION=`). What fails is made
//! smaller, printed, and saved to a file: put that into `regressions/<target>/`, where it is tried
//! first from then on.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod driver;
mod gathered;
mod inputs;
mod memory;
mod targets;

/// A test for each target, under its name.
macro_rules! targets {
    ($($name:ident: $target:expr;)*) => {
        $(#[test]
        fn $name() {
            // Here, because bolero calls a target as the function that this macro stands in.
            let test = bolero::check!();
            driver::run(stringify!($name), $target, test);
        })*
    };
}

targets! {
    log_segment: targets::log::SEGMENT;
    kv_request: targets::kv::REQUEST;
    kv_membership: targets::kv::MEMBERSHIP;
    kv_records: targets::kv::RECORDS;
    kv_kept: targets::kv::KEPT;
    kv_store: targets::kv::STORE;
    peer_messages: targets::consensus::MESSAGES;
    snapshot: targets::snapshot::SNAPSHOT;
    client_request: targets::requests::ONE;
    pipeline_frame: targets::requests::FRAME;
    watch_request: targets::watch::REQUESTS;
    etcd_request: targets::etcd::REQUEST;
    etcd_watch: targets::etcd::WATCH;
    peer_frame: targets::peers::FRAMES;
    peer_stream: targets::peers::STREAM;
    snapshot_frame: targets::peers::SNAPSHOT;
    server_answers: targets::answers::ANSWERS;
    folder_record: targets::folder::RECORD;
    folder_power: targets::folder::POWER;
}
