//! Reports damage of the store to the member.
//!
//! The applier ends the member with the error that it finds. Readers only report it to their
//! callers; but a member that fails to return what it had acknowledged must not go on, so damage
//! that readers find is reported here as well.

use std::fmt;
use std::sync::OnceLock;

use super::store::StoreError;

/// The callback, once it is set.
#[derive(Default)]
pub(super) struct Damage(OnceLock<Box<Report>>);

type Report = dyn Fn(StoreError) + Send + Sync;

impl Damage {
    /// Sets the callback. Only the first one counts.
    pub(super) fn set(&self, report: impl Fn(StoreError) + Send + Sync + 'static) {
        // An earlier callback stays.
        let _ = self.0.set(Box::new(report));
    }

    /// Reports an error if it is damage: what the disk refuses now may be readable later.
    pub(super) fn check(&self, error: &StoreError) {
        if let (StoreError::Corrupt(_), Some(report)) = (error, self.0.get()) {
            report(error.clone());
        }
    }
}

impl fmt::Debug for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_set = self.0.get().is_some();
        f.debug_tuple("Damage").field(&is_set).finish()
    }
}
