//! The nouns of the load generator: which loads have names ([`profiles`]), and what a load and its
//! result are ([`results`]).
//!
//! What may live here: plain data that others than the tool read or name too, such as the operator.
//! What may not: how it is measured, and anything of Kubernetes but the schema of a result, behind
//! the feature `schemars`.

pub mod profiles;
pub mod results;
