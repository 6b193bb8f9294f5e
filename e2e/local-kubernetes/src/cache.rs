//! Where things are kept outside the checkout: programs built once, and the local cluster's state.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

/// The folder of everything that can be made again: `${XDG_CACHE_HOME:-$HOME/.cache}/dengine`.
///
/// # Errors
/// When neither `XDG_CACHE_HOME` nor `HOME` is set.
pub(crate) fn root() -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set: there is no place for the cache")?;
    Ok(base.join("dengine"))
}
