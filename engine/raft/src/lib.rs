//! The part of DEngine that has to be right: consensus, and one member's ordering.
//!
//! What may live here: code whose outcome depends on its arguments alone. What may not, except in
//! [`channel`], which shells use: clocks, threads, sockets, async and RocksDB. I/O happens only
//! through the traits of [`dengine_log`], [`dengine_kv`] and [`dengine_snapshot`], so that a
//! simulator can run exactly the code that ships.
//!
//! # One vocabulary
//! A member takes what happened as an [`Input`], and returns what has to be done as an [`Output`]:
//!
//! ```text
//!  the shell                     │ this crate
//!  callers, as channels;         │ what happens in which order;
//!  threads and queues            │ no thread; no clock but `channel`'s
//!                                │
//!                   Input ───────┼─▶ Replica ──▶ Consensus ──▶ the `raft` crate
//!        ┌───────── Output ◀─────┼── Replica ◀── Output ◀────┘
//!        │                       │
//!        ├─ Log(LogJob) ─────────┼─▶ LogWriter ── Persisted ──▶ Input
//!        ├─ Apply(ApplyJob) ─────┼─▶ Applier ──── Applied ────▶ Input, and answers
//!        ├─ Send ─▶ peers ─▶ Message ─▶ Input
//!        └─ MayRead, Lease, Refused, Lost, Forgotten, Transferred ─▶ callers
//! ```
//! [`Replica`](replica::Replica) and consensus speak of the same [`Output`]s: what consensus wants
//! done passes through the replica, which takes note of some of it and holds reads back until what
//! they are to see is applied.
//!
//! A shell has a replica, a [`LogWriter`](replica::LogWriter) and an [`Applier`](replica::Applier),
//! and carries out outputs in their order. It may do a [`LogJob`] or an [`ApplyJob`] where it meets
//! it and give back the input that reports it, or hand it to a thread: nothing here can tell. There
//! are two: `engine/server/src/node` (threads) and `engine/verification/simulator` (one thread,
//! which chooses who goes on).
//!
//! Callers are the shell's too. It draws a [`Token`] for each request
//! ([`Replica::name`](replica::Replica::name)), keeps the waiting caller under it, and reports on
//! request whether the caller still waits.
//!
//! # The way of a write
//! ```text
//!  shell        name() ─▶ Token, kept with the caller
//!     │ Input::Write { token, Write::Command { command, from } }
//!  replica      turns.rs      until it is this client's turn, or its caller is gone
//!     │         versions.rs   in a version that every member reads
//!     │         proposals.rs  all whose turn it is become one batch, each with a context
//!     │ Proposal { context, data }
//!  consensus    driver/       the `raft` crate's log; refused: ─────▶ Output::Refused
//!     │         ready.rs      Output::Log(Append), and Output::Send at the same time
//!     │ ── proposals.rs: pending from here on, by its index
//!  log writer   one write and one sync for all that queued ─────────▶ Input::Persisted
//!  peers        the same, and they say so ──────────────────────────▶ Input::Message
//!  consensus    apply_window.rs  a quorum has it, and so has this disk
//!     │ Output::Apply(ApplyJob { entries, awaited })
//!  replica      pending.rs    is the entry that was committed there the one that was put there?
//!     │         its context says so: it is awaited
//!     │         another one: it is in no log that counts ───────────▶ Output::Lost
//!     │         displaced before that: unknown ─────────────────────▶ Output::Forgotten
//!  applier      the state machine applies it: Done { range, answers }
//!     │ (Token, Written) ─▶ the shell answers;  range ──────────────▶ Input::Applied
//! ```
//!
//! # The way of a read
//! ```text
//!  shell        LeaseView::covers: then it reads at once, and nothing of this happens
//!     │ Input::Read { token, Confirm::{Quorum, Lease} }
//!  replica      reads.rs      removed: ──────────────────────────────▶ Output::Refused
//!     │         a lease read waits until the clock was read once more
//!  consensus    lease.rs      the lease holds: confirmed at the commit index
//!     │         reads.rs      else one round for all that wait; too many, or no answer:
//!     │                       ──────────────────────────────────────▶ Output::Refused
//!     │ Output::MayRead { tokens, index }
//!  replica      reads.rs      held back until what is applied reaches the index
//!     │ Output::MayRead ─▶ the shell lets them read the state as it is now
//! ```

pub mod answers;
pub mod channel;
pub mod consensus;
mod input;
pub mod link_queue;
#[cfg(all(test, any(feature = "loom", feature = "shuttle")))]
mod models;
mod output;
pub mod peer_frames;
pub mod peer_queue;
pub mod replica;

pub use input::{
    AppendId, Confirm, EncodedCommand, Input, LeaseAsk, OwnCommands, SnapshotMeta, Successor,
    Token, Write,
};
pub use output::{ApplyJob, Divergence, HandOver, LeaseAnswer, LogJob, Outbound, Output, Written};
