//! Histories that are right and wrong for known reasons, and many random ones of both kinds.

mod artefact;
mod known;
mod random;
mod store;
