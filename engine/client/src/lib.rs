//! Rust client of DEngine.
