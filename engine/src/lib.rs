//! A strongly consistent key-value engine: embed it, or run the `dengine` server.

pub mod config;
