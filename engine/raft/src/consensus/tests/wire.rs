//! Messages as a person reads them.

pub(super) use crate::consensus::describe::{decode, describe};
