//! Who is told that the store is damaged, whoever finds it.
//!
//! Whoever applies entries ends with what it finds. Readers are many, and each tells its own caller; but a member that answers with
//! an error what it had acknowledged must not go on, so that what they find is told here as well.

use super::store::StoreError;
use std::fmt;
use std::sync::OnceLock;

/// Whom to tell, once there is somebody.
#[derive(Default)]
pub(super) struct Damage(OnceLock<Box<Tell>>);

type Tell = dyn Fn(StoreError) + Send + Sync;

impl Damage {
    /// From now on these are told. Only the first to ask is.
    pub(super) fn tell(&self, tell: impl Fn(StoreError) + Send + Sync + 'static) {
        // Whoever was there before stays.
        let _ = self.0.set(Box::new(tell));
    }

    /// Tells of it, if it is damage: what the disk refuses now may be read later.
    pub(super) fn note(&self, error: &StoreError) {
        if let (StoreError::Corrupt(_), Some(tell)) = (error, self.0.get()) {
            tell(error.clone());
        }
    }
}

impl fmt::Debug for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_told = self.0.get().is_some();
        f.debug_tuple("Damage").field(&is_told).finish()
    }
}
