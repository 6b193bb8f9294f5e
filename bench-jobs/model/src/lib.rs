//! The nouns of the load generator: which loads have names ([`profiles`]), what a load and its
//! result are ([`results`]), and which pods a load comes from ([`pods`]).
//!
//! What may live here: plain data that others than the tool read or name too, such as the operator.
//! What may not: how it is measured, and anything of Kubernetes but the schema of a result, behind
//! the feature `schemars`.

pub mod pods;
pub mod profiles;
pub mod results;
