//! Raft's rules as scripts: each file is named after the rule it shows, and says where the thesis
//! (Ongaro 2014, "Consensus: Bridging Theory and Practice") states it.
//!
//! `UPDATE_EXPECT=1 cargo test -p dengine-raft` rewrites the transcripts; read the difference before
//! believing it.

mod bootstrap_4_4;
mod bounds;
mod chaos;
mod check_quorum_6_2;
mod cluster;
mod commit_only_own_term_3_6_2;
mod determinism;
mod event;
mod given_up_history;
mod leader_election_3_4;
mod leader_sends_before_its_disk_10_2_1;
mod leadership_transfer_3_10;
mod lease_6_4_1;
mod linearizable_read_6_4;
mod log_matching_3_5;
mod log_view_model;
mod member;
mod membership_4_1;
mod peer_messages;
mod pre_vote_9_6;
mod restart_3_8;
mod script;
mod snapshot_5;
mod sole_voter_waits_for_its_disk_3_8;
mod vote_survives_restart_3_8;
mod wire;

pub(super) use event::Event;
