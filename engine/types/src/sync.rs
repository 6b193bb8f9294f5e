//! Synchronization primitives for state that threads share: those of std, or of a model checker in
//! their place.
//!
//! With the feature `loom` the atomics are loom's, which tries every order in which loads may see
//! stores. With `shuttle` atomics and locks are shuttle's, which tries many interleavings of
//! threads. Both features are for `models` alone: outside a model such types panic. No build that
//! ships enables either.

#[cfg(feature = "loom")]
pub use loom::sync::atomic;
#[cfg(all(feature = "shuttle", not(feature = "loom")))]
pub use shuttle::sync::atomic;
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
pub use std::sync::atomic;

#[cfg(all(feature = "shuttle", not(feature = "loom")))]
pub use shuttle::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(all(feature = "shuttle", not(feature = "loom"))))]
pub use std::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
