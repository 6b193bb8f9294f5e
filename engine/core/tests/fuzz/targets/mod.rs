//! What decodes bytes, by module.

pub(crate) mod consensus;
pub(crate) mod kv;
pub(crate) mod log;
pub(crate) mod snapshot;

/// An error in a few words.
fn words(error: &impl std::fmt::Debug) -> String {
    let text = format!("{error:?}");
    text.chars().take(80).collect()
}
