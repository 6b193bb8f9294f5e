//! Bytes from disks and networks, bent in every way, into everything that decodes them.
//!
//! A target takes bytes and says in a few words what became of them; it must not panic, and not hold more memory
//! than its input justifies. The driver mutates valid inputs and whatever led to something new. It runs on stable
//! Rust: `make test` gives each target a second, `make fuzz` minutes (`DURATION=`, `SEED=`). What breaks a target is
//! written to a file whose name is printed; put it into `corpus/<target>/`, where it is tried first from then on.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod driver;
mod gathered;
mod memory;
mod targets;

use driver::Target;

/// A test for each target, under its name.
macro_rules! targets {
    ($($name:ident: $target:expr;)*) => {
        $(#[test]
        fn $name() {
            driver::run(&Target { name: stringify!($name), ..$target });
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
    peer_frame: targets::peers::FRAMES;
    snapshot_frame: targets::peers::SNAPSHOT;
    server_answers: targets::answers::ANSWERS;
    folder_record: targets::folder::RECORD;
    folder_power: targets::folder::POWER;
}
