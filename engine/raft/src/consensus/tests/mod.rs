//! Raft's rules: each file is named after the rule it shows, and says where the thesis (Ongaro
//! 2014, "Consensus: Bridging Theory and Practice") states it. What is a script is in
//! `../testdata`, see [`script`]; what looks closer than a script can is here, under the same name.
//!
//! `UPDATE_EXPECT=1 cargo test -p dengine-raft` rewrites what the scripts print; read the
//! difference before believing it.

mod bounds;
mod chaos;
mod check_quorum_6_2;
mod cluster;
mod determinism;
mod given_up_history;
mod leadership_transfer_3_10;
mod lease_6_4_1;
mod linearizable_read_6_4;
mod log_view_model;
mod member;
mod peer_messages;
mod script;
mod scripts;
mod snapshot_5;
