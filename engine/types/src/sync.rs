//! What threads share state through: std's types, or those of a model checker that take their place.
//!
//! With the feature `loom` the atomics are loom's, which tries every order in which loads may see stores. With `shuttle`
//! atomics and locks are shuttle's, which tries many orders in which threads take turns. Both features are for `models`
//! alone: outside of a model such types panic. Nothing that ships is built with either.

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
