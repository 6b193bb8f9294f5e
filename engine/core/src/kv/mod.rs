//! Key-value semantics: multi-version storage and the deterministic application of commands.
